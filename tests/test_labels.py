"""Labels: what they hold by a plain double loop, and that nothing breaks a folder of shards: stops, kills, damage."""

import json
import subprocess
import sys
from itertools import combinations
from pathlib import Path

import numpy as np
import pytest
import safetensors.torch
import torch
from conftest import random_tokens
from references import directional_mi
from tabular import Recorder, sudoku4_related

import mi_lib.artifacts
import mi_lib.labels
from mi_lib.artifacts import read_tensors, write_tensors
from mi_lib.ground_truth import ESTIMATORS
from mi_lib.labels import (
    PAD,
    Labelling,
    choose_rows,
    labelling_cost,
    make_labels,
    read_labels,
    split_lengths,
    sudoku_states,
)
from mi_lib.masked import MaskedOutput
from mi_lib.mdm import MDM, MDMConfig
from mi_lib.samplers import decode
from mi_lib.sudoku import find_conflict, solutions

PLAN = Labelling("abc", n_boards=10, rows=2, tail=0.0, seed=3, shard_size=4)
SIZES = {"width": 24, "n_layers": 1, "n_heads": 2, "feed_forward": 32, "head_width": 16}


def tiny() -> MDM:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = MDM(MDMConfig(**SIZES))
    with torch.no_grad():
        for parameter in (*model.blocks.parameters(), *model.out.parameters()):
            parameter *= 3  # cells depend on each other
    return model.eval().requires_grad_(False)


@pytest.fixture(scope="module")
def model() -> MDM:
    return tiny()


@pytest.fixture(scope="module")
def folder(model, tmp_path_factory) -> Path:
    """Three shards of four boards; tests read it and leave it alone."""
    path = tmp_path_factory.mktemp("labels")
    make_labels(path, model, PLAN)
    return path


@pytest.fixture
def copy(folder, tmp_path) -> Path:
    """A copy to damage."""
    for path in folder.iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    return tmp_path


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def shard(number: int) -> str:
    return f"shard_{number:05d}.safetensors"


def test_folder_holds_whole_shards_and_how_they_were_made(folder):
    assert sorted(contents(folder)) == ["labels.json", shard(0), shard(1), shard(2)]
    plan = json.loads((folder / "labels.json").read_text())
    sizes = {"n_boards": None, "rows": 2, "tail": 0.0, "seed": 3, "shard_size": 4}
    assert plan == {"model_sha256": "abc", "source": "training", **sizes}
    tokens = [read_tensors(folder / shard(k))["tokens"] for k in range(3)]
    assert [t.shape for t in tokens] == [(4, 81)] * 3
    for a, b in combinations(tokens, 2):
        assert not (a[:, None] == b).all(-1).any()


def test_labels_are_the_probed_rows(folder, model):
    labels = read_labels(folder)
    count = (labels.tokens == 0).sum(-1)
    board = int(count.where(count >= 5, 81).argmin())  # the double loop costs a pass a value and masked cell
    expected = directional_mi(model, labels.tokens[board].long())
    rows = (labels.owner == board).nonzero().flatten()
    assert len(rows) == 2
    for estimator in ESTIMATORS:
        got, want = getattr(labels, estimator)[rows], torch.from_numpy(expected[estimator]).float()
        torch.testing.assert_close(got, want[labels.source[rows]], atol=1e-5, rtol=1e-4)
        assert got.abs().max() > 1e-3


def test_labels_of_4x4_sudoku_are_its_known_mi(sudoku4_model, tmp_path):
    """With no cell given, cells that share a unit have MI log(4/3); the road to a shard is the same for any model."""
    plan = Labelling("4x4", 3, rows=0, shard_size=3)
    make_labels(tmp_path, sudoku4_model, plan, states=lambda model, n, seed: model.masked(n))
    labels = read_labels(tmp_path)
    assert labels.owner.tolist() == [b for b in range(3) for _ in range(16)]
    assert labels.source.tolist() == list(range(16)) * 3
    related = sudoku4_related()[labels.source]
    for estimator in ESTIMATORS:
        found = getattr(labels, estimator)
        torch.testing.assert_close(found[related], torch.full((3 * 16 * 7,), np.log(4 / 3)).float(), atol=1e-5, rtol=0)
        assert (found[~related] < 0.5 * np.log(4 / 3) + 1e-5).all()


def test_states_are_drawn_shard_by_shard_from_the_seed(sudoku4_model, tmp_path):
    asked = []

    def states(model, n, seed):
        asked.append((n, seed))
        return model.masked(n)

    for seed in (0, 1):
        make_labels(tmp_path / str(seed), sudoku4_model, Labelling("4x4", 5, rows=1, seed=seed, shard_size=2), states)
    assert [n for n, _ in asked] == [2] * 6
    assert len({seed for _, seed in asked}) == 6


def test_a_second_run_probes_nothing(copy, model):
    before, recorder = contents(copy), Recorder(model)
    make_labels(copy, recorder, PLAN)
    assert recorder.passes == 0
    assert contents(copy) == before


def test_a_deleted_shard_comes_back_byte_for_byte(copy, folder, model):
    kept = (copy / shard(0)).stat().st_mtime_ns
    (copy / shard(1)).unlink()
    recorder = Recorder(model)
    make_labels(copy, recorder, PLAN)
    assert recorder.passes > 0
    assert contents(copy) == contents(folder)
    assert (copy / shard(0)).stat().st_mtime_ns == kept


@pytest.mark.parametrize("n_ranks", [2, 4])
def test_shards_do_not_depend_on_the_number_of_processes(folder, model, tmp_path, n_ranks):
    done = []
    for rank in reversed(range(n_ranks)):
        before = set(contents(tmp_path))
        make_labels(tmp_path, model, PLAN, progress=done.append, rank=rank, n_ranks=n_ranks)
        made = set(contents(tmp_path)) - before - {"labels.json"}
        assert made == {shard(k) for k in range(rank, 3, n_ranks)}
    assert sum(done) == 10
    assert contents(tmp_path) == contents(folder)


def test_a_folder_grows_and_keeps_its_shards(copy, folder, model):
    make_labels(copy, model, Labelling("abc", n_boards=16, rows=2, tail=0.0, seed=3, shard_size=4))
    grown = contents(copy)
    assert sorted(set(grown) - set(contents(folder))) == [shard(3)]
    assert {name: grown[name] for name in contents(folder)} == contents(folder)


@pytest.mark.parametrize(
    ("other", "message"),
    [
        ({"model_sha256": "abd"}, "model_sha256='abc', not 'abd'"),
        ({"rows": 3}, "rows=2, not 3"),
        ({"tail": 1e-3}, r"tail=0.0, not 0.001"),
        ({"seed": 4}, "seed=3, not 4"),
        ({"shard_size": 5}, "shard_size=4, not 5"),
        ({"source": "held_out"}, "source='training', not 'held_out'"),
    ],
)
def test_labels_made_otherwise_are_refused_and_kept(copy, folder, model, other, message):
    plan = {"model_sha256": "abc", "rows": 2, "tail": 0.0, "seed": 3, "shard_size": 4} | other
    with pytest.raises(ValueError, match=message):
        make_labels(copy, model, Labelling(n_boards=10, **plan))
    assert contents(copy) == contents(folder)


@pytest.mark.parametrize("size", [0, 5, 40, 0.5, 0.999])
def test_a_truncated_shard_is_named_and_made_again(copy, folder, model, size):
    path = copy / shard(1)
    whole = path.read_bytes()
    path.write_bytes(whole[: size if isinstance(size, int) else int(size * len(whole))])
    with pytest.raises(ValueError, match=f"{shard(1)} is damaged.*delete it and make it again"):
        read_labels(copy)
    assert len(read_labels(copy, 4).tokens) == 4  # the damage is further on
    path.unlink()
    make_labels(copy, model, PLAN)
    assert contents(copy) == contents(folder)


def test_a_damaged_plan_is_named(copy, model):
    (copy / "labels.json").write_text('{"rows": 2')
    with pytest.raises(ValueError, match=r"labels\.json is damaged"):
        make_labels(copy, model, PLAN)


def test_a_full_disk_leaves_finished_shards_and_no_half_one(tmp_path, folder, model, monkeypatch):
    saved = []

    def full(tensors, path, metadata):
        saved.append(path)
        if len(saved) == 2:
            Path(path).write_bytes(b"half")
            raise OSError(28, "No space left on device")
        safetensors.torch.save_file(tensors, path, metadata)

    with monkeypatch.context() as patch:
        patch.setattr(mi_lib.artifacts, "save_file", full)
        with pytest.raises(OSError, match="No space left"):
            make_labels(tmp_path, model, PLAN)
    assert sorted(contents(tmp_path)) == ["labels.json", shard(0)]
    make_labels(tmp_path, model, PLAN)
    assert contents(tmp_path) == contents(folder)


KILLED = """
import os, signal, sys
from pathlib import Path
sys.path.insert(0, sys.argv[2])
import mi_lib.artifacts
from test_labels import PLAN, boards, tiny
from mi_lib.labels import make_labels
save, count = mi_lib.artifacts.save_file, [0]
def killed(tensors, path, metadata):
    save(tensors, path, metadata)
    count[0] += 1
    if count[0] == 2:
        Path(path).write_bytes(Path(path).read_bytes()[:100])
        os.kill(os.getpid(), signal.SIGKILL)
mi_lib.artifacts.save_file = killed
make_labels(Path(sys.argv[1]), tiny(), PLAN, boards)
"""


def boards(model, n: int, seed: int) -> torch.Tensor:
    """Cheap states for the killed process."""
    return random_tokens(model, 81, 5, n, seed)


def test_a_kill_leaves_no_half_shard_under_its_name(tmp_path, model):
    """Killed while it writes the second shard: the first is whole, the rest is made by the next run."""
    killed, whole = tmp_path / "killed", tmp_path / "whole"
    command = [sys.executable, "-c", KILLED, str(killed), str(Path(__file__).parent)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == -9, done.stderr
    assert sorted(name for name in contents(killed) if not name.endswith(".part")) == ["labels.json", shard(0)]
    assert len(contents(killed)) == 3
    assert len(read_labels(killed).tokens) == 4
    make_labels(killed, model, PLAN, boards)
    make_labels(whole, model, PLAN, boards)
    assert len(read_labels(killed).tokens) == 12
    for k in range(3):
        assert contents(killed)[shard(k)] == contents(whole)[shard(k)]


def test_read_labels_counts_boards_over_shards(folder):
    labels = read_labels(folder)
    assert labels.tokens.shape == (12, 81)
    assert (labels.tokens.dtype, labels.owner.dtype, labels.source.dtype) == (torch.uint8, torch.int64, torch.int64)
    at = 0
    for k in range(3):
        part = read_tensors(folder / shard(k))
        n = len(part["owner"])
        assert torch.equal(labels.tokens[4 * k : 4 * k + 4], part["tokens"])
        assert torch.equal(labels.owner[at : at + n], part["owner"].long() + 4 * k)
        for name in ("source", *ESTIMATORS):
            assert torch.equal(getattr(labels, name)[at : at + n], part[name].to(getattr(labels, name).dtype))
        at += n
    assert at == len(labels.owner) == 24
    assert (labels.tokens[labels.owner, labels.source] == 0).all()


@pytest.mark.parametrize("n", [1, 4, 7, 12])
def test_the_first_boards_alone_are_a_prefix(folder, n):
    every, some = read_labels(folder), read_labels(folder, n)
    assert torch.equal(some.tokens, every.tokens[:n])
    rows = int((every.owner < n).sum())
    assert some.owner.unique().tolist() == list(range(n))
    for name in ("owner", "source", *ESTIMATORS):
        assert torch.equal(getattr(some, name), getattr(every, name)[:rows])


def test_too_few_boards_are_counted(folder, tmp_path):
    with pytest.raises(ValueError, match=r"n_boards=13, but .* holds 12"):
        read_labels(folder, 13)
    with pytest.raises(ValueError, match="n_boards=0, expected at least 1"):
        read_labels(folder, 0)
    with pytest.raises(ValueError, match="holds no label shards; `mi label` makes them"):
        read_labels(tmp_path)


@pytest.fixture(scope="module")
def visited(model):
    """States of the tiny model, with the puzzles that half of them come from and their decodes."""
    seen = {}

    def puzzles_seen(*arguments):
        seen["puzzles"], answers = generate(*arguments)
        return seen["puzzles"], answers

    def decode_seen(*arguments):
        seen["decoded"] = decode(*arguments)
        return seen["decoded"]

    generate = mi_lib.labels.generate_puzzles
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(mi_lib.labels, "generate_puzzles", puzzles_seen)
        patch.setattr(mi_lib.labels, "decode", decode_seen)
        states = sudoku_states(model, 60, seed=0)
    return states, torch.from_numpy(seen["puzzles"]).long(), seen["decoded"]


def test_states_are_boards_with_a_pair_to_probe(visited):
    states = visited[0]
    assert states.shape == (60, 81)
    assert states.dtype == torch.int64
    assert ((states >= 0) & (states <= 9)).all()
    assert ((states == 0).sum(-1) >= 2).all()


class Certain:
    """Writes ones, free of doubt and of cost: its decodes end after a pass."""

    mask_id, vocab = 0, torch.arange(1, 10)

    def __call__(self, tokens):
        logits = torch.tensor([100.0] + [0.0] * 8).expand(*tokens.shape, 9)
        return MaskedOutput(logits, logits)


def test_half_of_the_states_are_uniformly_masked_grids():
    """Counts of 2 to 81 masked cells are equally likely, and so are the cells; what is left is legal."""
    masked = []
    for seed in range(12):
        boards = sudoku_states(Certain(), 101, seed)[:51]
        assert all(find_conflict(board.numpy()) is None for board in boards)
        masked.append(boards == 0)
    masked = torch.cat(masked)
    counts, n = masked.sum(-1).numpy(), len(masked)
    assert (counts.min(), counts.max()) == (2, 81)
    assert abs(counts.mean() - 41.5) < 4 * np.sqrt((80**2 - 1) / 12 / n)
    quarters = np.histogram(counts, bins=4, range=(2, 82))[0]
    assert abs(quarters - n / 4).max() < 4 * np.sqrt(n * 3 / 16)
    assert abs(masked.float().mean(0) - 41.5 / 81).max() < 4 * np.sqrt(0.25 / n)


def test_the_other_half_are_steps_of_decodes(visited):
    """Each keeps a puzzle's clues and what the decode had written before some step, and hides all the rest."""
    states, puzzles, decoded = visited
    assert len(puzzles) == 10
    found = []
    for board in states[30:]:
        for puzzle, step, written in zip(puzzles, decoded.step, decoded.tokens, strict=True):
            now = step[board == 0].min()
            if torch.equal(torch.where(step >= now, 0, written), board):
                assert torch.equal(board[puzzle > 0], puzzle[puzzle > 0])
                found.append((int(now), int(step.max())))
    uniform = sum(any(torch.equal(board, other) for other in states[:30]) for board in states[30:])
    assert len(found) + uniform == 30
    assert uniform <= 3  # stand in for decodes caught with a single cell left
    share = [now / last for now, last in found]
    assert min(share) < 0.25
    assert max(share) > 0.75


def test_the_first_step_of_a_decode_is_the_puzzle_itself():
    """The only step there is, if one pass writes everything: 51 to 57 cells masked, the clues left."""
    states = sudoku_states(Certain(), 40, seed=0)[20:]
    masked = (states == 0).sum(-1)
    assert ((masked >= 51) & (masked <= 57)).all()
    assert all(len(solutions(board.numpy())) == 1 for board in states)


def test_states_depend_on_the_seed_alone(model):
    before = torch.get_rng_state()
    assert torch.equal(sudoku_states(model, 7, 5), sudoku_states(model, 7, 5))
    assert not torch.equal(sudoku_states(model, 7, 5), sudoku_states(model, 7, 6))
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize("n", [1, 2, 3])
def test_a_few_states_are_drawn_too(model, n):
    states = sudoku_states(model, n, 0)
    assert states.shape == (n, 81)
    assert ((states == 0).sum(-1) >= 2).all()


@pytest.mark.parametrize("rows", [1, 3, 0])
def test_chosen_rows_are_masked_and_different(rows):
    masked = torch.rand(200, 12, generator=torch.Generator().manual_seed(0)) < torch.linspace(0, 1, 200)[:, None]
    owner, source = choose_rows(masked, rows, seed=0)
    assert masked[owner, source].all()
    assert len(set(zip(owner.tolist(), source.tolist(), strict=True))) == len(owner)
    assert (owner.diff() >= 0).all()
    counts = masked.sum(-1)
    assert torch.equal(torch.bincount(owner, minlength=200), counts.clamp(max=rows) if rows else counts)


def test_every_masked_position_is_as_likely_to_be_chosen():
    masked = torch.zeros(2000, 9, dtype=torch.bool)
    masked[:, 2:8] = True
    _, source = choose_rows(masked, 2, seed=0)
    share = torch.bincount(source, minlength=9) / 2000
    assert (share[2:8] - 1 / 3).abs().max() < 4 * np.sqrt(2 / 9 / 2000)
    assert not torch.equal(source, choose_rows(masked, 2, seed=1)[1])


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"n_boards": 0}, "n_boards=0, expected at least 1"),
        ({"rows": -1}, "rows=-1, expected at least 1, or 0"),
        ({"tail": 1.0}, "tail=1.0, expected a probability below 1"),
        ({"tail": -0.1}, "tail=-0.1, expected a probability"),
        ({"shard_size": 0}, "shard_size=0, expected at least 1"),
    ],
)
def test_bad_settings_are_named(values, message):
    with pytest.raises(ValueError, match=message):
        Labelling("abc", **values)


@pytest.mark.parametrize(("rank", "n_ranks"), [(2, 2), (-1, 2), (0, 0)])
def test_a_rank_that_is_none_is_refused(model, tmp_path, rank, n_ranks):
    with pytest.raises(ValueError, match=f"rank={rank}, expected 0 to n_ranks - 1, with n_ranks={n_ranks}"):
        make_labels(tmp_path, model, PLAN, rank=rank, n_ranks=n_ranks)
    assert not list(tmp_path.iterdir())


@pytest.fixture
def lengths(tmp_path):
    """Shards of two lengths, five and three."""
    for shard, (L, n) in enumerate(((5, 2), (3, 3), (5, 1))):
        tokens = torch.full((n, L), 7)
        tokens[:, :2] = 0
        rows = torch.arange(n)
        mi = torch.arange(n * L).view(n, L) + 100.0 * shard
        part = {"tokens": tokens.to(torch.uint8), "owner": rows.int(), "source": (rows * 0).to(torch.int16)}
        write_tensors(tmp_path / f"shard_{shard:05d}.safetensors", part | {e: mi.clone() for e in ESTIMATORS})
    return read_labels(tmp_path)


def test_shorter_sequences_are_padded(lengths):
    assert lengths.tokens.shape == (6, 5)
    assert lengths.tokens[2].tolist() == [0, 0, 7, PAD, PAD]
    assert lengths.owner.tolist() == [0, 1, 2, 3, 4, 5]
    assert lengths.kl[2].tolist() == [100, 101, 102, 0, 0]


def test_lengths_are_split_as_they_were(lengths):
    """Boards 0, 1 and 5 are five long; 2, 3, 4 three long; every row keeps its values."""
    (three, short), (five, long) = split_lengths(lengths)
    assert (three.tolist(), five.tolist()) == ([2, 3, 4], [0, 1, 5])
    assert short.tokens.tolist() == [[0, 0, 7]] * 3
    assert short.owner.tolist() == long.owner.tolist() == [0, 1, 2]
    assert short.mixture.tolist() == [[100, 101, 102], [103, 104, 105], [106, 107, 108]]
    assert long.entropy[2].tolist() == [200, 201, 202, 203, 204]


class Wide:
    """A model over the ids of a large vocabulary, 255 among them: what shorter sequences of small ids end with."""

    mask_id, vocab = 103, torch.tensor([255, 300, 30_521])

    def __call__(self, tokens):
        return MaskedOutput(torch.zeros(*tokens.shape, 3), torch.zeros(*tokens.shape, 1))


def test_wide_ids_survive_and_lengths_do_not_mix(tmp_path):
    drawn = [torch.tensor([[255, 103, 103, 30_521], [103, 103, 255, 255]]), torch.tensor([[103, 255, 103]] * 2)]
    make_labels(tmp_path, Wide(), Labelling("wide", 4, rows=1, shard_size=2), lambda model, n, seed: drawn[seed % 2])
    labels = read_labels(tmp_path)
    assert torch.equal(labels.tokens[:2].long(), drawn[0])
    for n, (boards, part) in enumerate(reversed(split_lengths(labels))):
        assert boards.tolist() == [2 * n, 2 * n + 1]
        assert torch.equal(part.tokens.long(), drawn[n])


def test_cost_of_labels_by_hand():
    """Ten sequences of 7 tokens, 3 rows of 5 values: 160 passes of 2 * 100 * 7 operations."""
    cost = labelling_cost(10, tokens=7, parameters=100, values=5, rows=3, seconds_per_pass=0.5)
    assert (cost.passes, cost.flops, cost.seconds) == (160, 224_000, 80)
    cost = labelling_cost(10, tokens=7, parameters=100, values=5, rows=3, probed=0.4, devices=4, flops_per_second=1000)
    assert (cost.passes, cost.flops, cost.seconds) == (70, 98_000, 24.5)


def test_cost_of_labels_is_what_labelling_does(folder, model):
    """With no tail and at least two masked cells, two rows of nine values a board."""
    recorder = Recorder(model)
    tokens = read_labels(folder, 4).tokens.long()
    owner, source = choose_rows(tokens == 0, 2, seed=0)
    mi = mi_lib.labels.probe_rows(recorder, tokens, owner, source)
    assert recorder.passes == mi.passes == labelling_cost(4, 81, 1, values=9, rows=2, seconds_per_pass=1).passes


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, r"flops_per_second, seconds_per_pass=\(None, None\), expected one of the two"),
        ({"seconds_per_pass": 1, "flops_per_second": 1}, "expected one of the two"),
        ({"seconds_per_pass": 1, "probed": 2}, "probed=2, expected a share"),
        ({"seconds_per_pass": 1, "devices": 0}, "devices=0, expected at least 1"),
    ],
)
def test_bad_costs_are_named(options, message):
    with pytest.raises(ValueError, match=message):
        labelling_cost(10, 7, 100, 5, **options)
