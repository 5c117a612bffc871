"""Recorded results: who may write them, that they resume, and that what is recorded can be done again."""

import gzip
import json
import math
import shutil
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch

import mi_lib.artifacts
import mi_lib.records
import mi_lib.results
import mi_lib.runs
from mi_lib.artifacts import RESULTS, checkpoint_names, read_sidecar, save_checkpoint
from mi_lib.checkpoints import load_mdm
from mi_lib.head import HeadConfig, MIHead
from mi_lib.labels import Labelling, make_labels
from mi_lib.mdm import describe
from mi_lib.metrics import solve_rate
from mi_lib.puzzles import load_puzzles
from mi_lib.records import GAMMA_GRID, RECORDS, record
from mi_lib.results import checkpoint_hashes, read_provenance, read_result, write_result, write_rows
from mi_lib.runs import (
    TARGET_PASSES,
    added_methods,
    cached_run,
    matched_methods,
    recorded_frontier,
    recorded_outcomes,
    run_table,
    summarize,
)
from mi_lib.solving import Method, run_method, table1_methods
from mi_lib.tables import with_intervals

KEYS = ["checkpoint", "method", "parameters", "seed"]
PUZZLES = RESULTS / "table1_puzzles.csv.gz"


def silent(*_) -> None:
    pass


def store(model, name: str, seed: int = 0) -> None:
    """A checkpoint with its two heads."""
    save_checkpoint(name, model, "mdm", describe(model.config), training={"seed": 0, "n_grids": 50}, step=2)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        for estimator in ("entropy", "mixture"):
            head = MIHead(HeadConfig(24, 8))
            save_checkpoint(f"{name}_head_{estimator}", head, "head", {"width": 24, "h": 8}, model=name)


@pytest.fixture
def place(tmp_path, monkeypatch, tiny_mdm):
    """Results, cache and checkpoints of its own: the MDM "tiny" with both heads, and an MDM "bare" without."""
    monkeypatch.setattr(mi_lib.artifacts, "CHECKPOINTS", tmp_path / "checkpoints")
    monkeypatch.setattr(mi_lib.results, "RESULTS", tmp_path / "results")
    monkeypatch.setattr(mi_lib.records, "CACHE", tmp_path / "cache")
    monkeypatch.setattr(mi_lib.runs, "CACHE", tmp_path / "cache")
    monkeypatch.setattr(mi_lib.records, "commit", lambda: "0123456789ab")
    store(tiny_mdm, "tiny")
    save_checkpoint("bare", tiny_mdm, "mdm", describe(tiny_mdm.config))
    return tmp_path


@pytest.fixture
def runs(monkeypatch) -> list[str]:
    """The labels of the methods that were run, not read from the cache."""
    labels = []

    def spy(checkpoint, method, *arguments, **options):
        labels.append(f"{method.name} {method.parameters}".strip())
        return run_method(checkpoint, method, *arguments, **options)

    monkeypatch.setattr(mi_lib.runs, "run_method", spy)
    return labels


FRAME = pd.DataFrame(
    {
        "method": ["Sequential", "EB", "EB"],
        "parameters": ["", "gamma=0.2", ""],
        "predictor": ["zero", "nan-free", "NA"],
        "solved": [0.1 + 0.2, np.nan, 1 / 3],
    }
)


@pytest.mark.parametrize("compressed", [False, True])
def test_a_table_comes_back_as_it_was(place, compressed):
    """To the last bit; without parameters is the empty string, unknown is nan, and names that look like it stay."""
    path = write_result("x", FRAME, compressed)
    assert path == place / "results" / ("x.csv.gz" if compressed else "x.csv")
    pd.testing.assert_frame_equal(read_result("x"), FRAME, check_exact=True)
    assert not path.with_name("x.json").exists()
    assert [p.name for p in path.parent.iterdir()] == [path.name]


def test_parameters_are_text_even_if_all_are_empty(place):
    write_result("x", FRAME[:1])
    assert read_result("x")["parameters"].tolist() == [""]


def test_a_table_without_parameters_gets_none(place):
    write_result("x", FRAME[["method", "solved"]])
    assert list(read_result("x")) == ["method", "solved"]


def test_the_same_table_makes_the_same_bytes(place):
    first = write_result("x", FRAME, compressed=True).read_bytes()
    assert write_result("x", FRAME, compressed=True).read_bytes() == first
    assert gzip.decompress(first).decode().startswith("method,parameters")


def test_provenance_lies_beside(place):
    write_result("x", FRAME, n_puzzles=7, checkpoints=checkpoint_hashes(["tiny"]))
    meta = json.loads((place / "results" / "x.json").read_text())
    assert meta["command"] == "mi record x"
    assert meta["n_puzzles"] == 7
    assert meta["checkpoints"] == {
        "tiny": read_sidecar("tiny", "mdm")["sha256"],
        "tiny_head_entropy": read_sidecar("tiny_head_entropy", "head")["sha256"],
        "tiny_head_mixture": read_sidecar("tiny_head_mixture", "head")["sha256"],
    }
    assert {"commit", "versions", "device", "date"} <= meta.keys()


def test_rows_of_other_shipped_checkpoints_stay(place, tiny_mdm):
    """Those of a replaced checkpoint, of one that is gone, or made with other options do not."""

    def rows(name, value):
        return pd.DataFrame({"checkpoint": [name], "value": [value]})

    store(tiny_mdm, "other", seed=3)
    write_rows("x", pd.concat([rows("tiny", 1), rows("other", 2), rows("untrained", 3)]), n=7)
    write_rows("x", pd.concat([rows("tiny", 4), rows("untrained", 5)]), n=7)
    assert read_result("x").to_numpy().tolist() == [["other", 2], ["tiny", 4], ["untrained", 5]]
    meta = json.loads((place / "results" / "x.json").read_text())
    assert meta["checkpoints"] == checkpoint_hashes(["other", "tiny"])
    assert (meta["n"], meta["extends"]) == (7, meta["commit"])
    store(tiny_mdm, "other", seed=4)
    write_rows("x", rows("tiny", 6), n=7)
    assert read_result("x").to_numpy().tolist() == [["tiny", 6]]
    assert "extends" not in read_provenance("x")
    write_rows("x", rows("other", 7), n=8)
    assert read_result("x").to_numpy().tolist() == [["other", 7]]


def test_a_missing_result_says_how_to_make_it(place):
    with pytest.raises(ValueError, match=r"no recorded result 'table1' in .*; `mi record table1` makes it"):
        read_result("table1")


def test_a_failed_write_leaves_the_old_table(place, monkeypatch):
    path = write_result("x", FRAME)
    before = path.read_bytes()

    def full(self, content):
        with self.open("wb") as file:
            file.write(content[:10])
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_bytes", full)
    with pytest.raises(OSError, match="No space left"):
        write_result("x", FRAME[:1])
    assert path.read_bytes() == before
    assert [p.name for p in path.parent.iterdir()] == ["x.csv"]


def test_a_dirty_tree_records_nothing(place, monkeypatch):
    called = []
    monkeypatch.setitem(RECORDS, "gammas", lambda *arguments: called.append(arguments))
    monkeypatch.setattr(mi_lib.records, "commit", lambda: "0123456789ab-dirty")
    with pytest.raises(ValueError, match="the working tree has uncommitted changes: commit them"):
        record("gammas")
    assert not called
    assert not (place / "results").exists()


def test_unknown_names_are_answered_with_the_known(place):
    with pytest.raises(ValueError, match=r"name='table9', expected one of \(.*'gammas', .*'table1'"):
        record("table9")


def test_record_hands_its_options_on(place, monkeypatch):
    """By default every checkpoint that has heads."""
    called = []
    monkeypatch.setitem(RECORDS, "gammas", lambda *arguments, **options: called.append((*arguments, options)))
    record("gammas")
    record("gammas", ["bare"], silent, n=3)
    assert called[0][0] == ["tiny"]
    assert called[0][2] == {}
    assert called[1] == (["bare"], silent, {"n": 3})


def test_a_cached_run_is_not_run_again(place, runs):
    method, told = Method("Naive", k=9), []
    first = cached_run("tiny", method, 0, 3, lambda *step: told.append(step))
    assert runs == ["Naive k=9"]
    assert told[-1] == ("tiny Naive k=9 on set 0", 3, 3)
    assert list(first) == ["puzzle", "solved", "passes", "conflict", "conflict_first", "seconds"]
    assert first["puzzle"].tolist() == [0, 1, 2]
    masked = (load_puzzles(0, 3)[0] == 0).sum(1)
    assert first["passes"].tolist() == np.ceil(masked / 9).tolist()
    pd.testing.assert_frame_equal(cached_run("tiny", method, 0, 3, silent), first)
    assert runs == ["Naive k=9"]


def test_whatever_decides_a_run_is_in_the_cache_key(place, runs, tiny_mdm):
    guided = Method("MI", gamma=0.5, lam=1.0, head="entropy")
    variants = [
        ("tiny", guided, 0, 2),
        ("tiny", guided, 1, 2),
        ("tiny", guided, 0, 3),
        ("tiny", Method("MI", gamma=0.6, lam=1.0, head="entropy"), 0, 2),
        ("tiny", Method("MI", gamma=0.5, lam=1.0, head="mixture"), 0, 2),
        ("tiny", Method("Naive", k=9), 0, 2),
    ]
    for variant in variants:
        cached_run(*variant, silent)
    assert len(runs) == 6
    store(tiny_mdm, "tiny", seed=1)  # other heads, the same MDM
    for variant in variants:
        cached_run(*variant, silent)
    assert runs[6:] == [f"MI {method.parameters}" for _, method, _, _ in variants[:5]]


def test_a_method_without_its_head_is_named(place):
    with pytest.raises(ValueError, match="unknown head checkpoint 'bare_head_entropy', expected one of"):
        cached_run("bare", Method("MI", gamma=0.5, lam=1.0, head="entropy"), 0, 2, silent)
    with pytest.raises(ValueError, match="unknown mdm checkpoint 'none'"):
        cached_run("none", Method("Sequential"), 0, 2, silent)


def test_an_interrupted_recording_goes_on(place, runs, monkeypatch):
    methods = tuple(Method("Naive", k=k) for k in (9, 18, 27))
    run = mi_lib.runs.run_method

    def stopped(checkpoint, method, *arguments, **options):
        if method.k == 27:
            raise KeyboardInterrupt
        return run(checkpoint, method, *arguments, **options)

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(mi_lib.runs, "run_method", stopped)
        run_table("tiny", methods, [0], 2, silent)
    assert runs == ["Naive k=9", "Naive k=18"]
    table = run_table("tiny", methods, [0], 2, silent)
    assert runs == ["Naive k=9", "Naive k=18", "Naive k=27"]
    assert table["parameters"].tolist() == ["k=9"] * 2 + ["k=18"] * 2 + ["k=27"] * 2


def test_summaries_by_hand():
    frame = pd.DataFrame(
        [
            ("c", "EB", "gamma=0.2", 1, 0, 1, 10, 0.5),
            ("c", "EB", "gamma=0.2", 1, 1, 0, 13, 0.5),
            ("c", "EB", "gamma=0.2", 0, 0, 1, 11, 0.1),
            ("b", "EB", "gamma=0.2", 0, 0, 0, 12, 0.2),
        ],
        columns=[*KEYS, "puzzle", "solved", "passes", "seconds"],
    )
    table = summarize(frame)
    assert list(table) == [*KEYS, "n", "passes", "solved", "seconds_per_puzzle"]
    assert table.to_numpy().tolist() == [
        ["c", "EB", "gamma=0.2", 1, 2, 11.5, 0.5, 0.5],
        ["c", "EB", "gamma=0.2", 0, 1, 11.0, 1.0, 0.1],
        ["b", "EB", "gamma=0.2", 0, 1, 12.0, 0.0, 0.2],
    ]


SLOPE = 5.0
START = {"entropy": 12.0, "mixture": 11.5, "zero": 10.0, "EB": 10.5}  # passes at gamma = 1


def gammas(start: dict[str, float] = START, checkpoint: str = "tiny") -> pd.DataFrame:
    """A grid on which passes fall along a line in log gamma, in no order."""
    rows = [
        {
            "checkpoint": checkpoint,
            "method": "EB" if head == "EB" else "MI",
            "parameters": f"gamma={g}" if head == "EB" else f"gamma={g} lam=1.0 head={head}",
            "passes": at_one - SLOPE * math.log(g),
        }
        for head, at_one in start.items()
        for g in GAMMA_GRID
    ]
    return pd.DataFrame(rows).sample(frac=1, random_state=0)


def test_matched_gammas_lie_on_the_line(place):
    """passes = start - 5 ln(gamma), so gamma = exp((start - passes) / 5)."""
    other = gammas({head: start + 2 for head, start in START.items()}, "other")
    write_result("gammas", pd.concat([other, gammas()]))
    matched = matched_methods("tiny")
    assert tuple(matched) == TARGET_PASSES == (15.2, 9.7)
    for target, methods in matched.items():
        expected = {head: round(math.exp((start - target) / SLOPE), 3) for head, start in START.items()}
        assert methods == (
            *(Method("MI", gamma=expected[head], lam=1.0, head=head) for head in ("entropy", "mixture", "zero")),
            Method("EB", gamma=expected["EB"]),
        )
    assert matched[15.2][0].gamma == 0.527
    assert matched[15.2][3].gamma == 0.391


def test_between_grid_points_log_gamma_is_interpolated(place):
    """16 passes at 0.2 and 14 at 0.4: 15.2 lies two fifths of the way, at 0.2 * 2^0.4."""
    grid = pd.DataFrame({"checkpoint": "tiny", "method": "EB", "parameters": ["gamma=0.4", "gamma=0.2", "gamma=1.6"]})
    write_result("gammas", grid.assign(passes=[14.0, 16.0, 9.0]))
    assert matched_methods("tiny")[15.2] == (Method("EB", gamma=round(0.2 * 2**0.4, 3)),)


def test_a_grid_that_does_not_reach_the_target_is_refused(place):
    grid = pd.DataFrame({"checkpoint": "tiny", "method": "EB", "parameters": ["gamma=0.4", "gamma=0.2"]})
    write_result("gammas", grid.assign(passes=[14.0, 16.0]))
    with pytest.raises(ValueError, match=r"target=9.7, expected 14.0 to 16.0 passes, the grid of EB"):
        matched_methods("tiny")


def test_a_checkpoint_without_gammas_is_named(place):
    write_result("gammas", gammas())
    with pytest.raises(ValueError, match=r"checkpoint='bare', expected one with recorded gammas"):
        matched_methods("bare")


def test_added_rows_are_the_matched_ones_and_the_threshold(place):
    write_result("gammas", gammas())
    added = added_methods("tiny")
    assert len(added) == len(set(added)) == 9
    assert {m for methods in matched_methods("tiny").values() for m in methods} == set(added[:-1])
    assert added[-1] == Method("Threshold", tau=0.9)


def test_recording_gammas(place, monkeypatch):
    monkeypatch.setattr(mi_lib.records, "N_MATCH", 2)
    monkeypatch.setattr(mi_lib.records, "GAMMA_GRID", (0.5, 8.0))
    record("gammas")
    table = read_result("gammas")
    values = table["parameters"].str.extract(r"gamma=(?P<gamma>\S+)(?P<rest>.*)")
    assert values["rest"].unique().tolist() == ["", *(f" lam=1.0 head={h}" for h in ("entropy", "mixture", "zero"))]
    for _, rows in table.assign(gamma=values["gamma"].astype(float)).groupby(values["rest"]):
        *more, half, eight = rows["gamma"]
        assert (half, eight) == (0.5, 8.0)
        assert more == [0.1, 0.02, 0.004][: len(more)][::-1]  # fifths, as far as needed
        passes = rows["passes"].tolist()
        assert passes[0] >= 15.2
        assert all(p < 15.2 for p in passes[1:]) or not more
    assert (table["n"] == 2).all()
    assert (table["seed"] == "validation").all()
    by_gamma = table.groupby(table["parameters"].str.contains("gamma=8"))["passes"].mean()
    assert by_gamma[True] < by_gamma[False]


def test_recording_table1(place, runs):
    """Two puzzles of two sets; a matched gamma that is the paper's own makes no second row."""
    start = START | {"EB": 15.2 + SLOPE * math.log(0.2)}
    write_result("gammas", gammas(start))
    assert Method("EB", gamma=0.2) in added_methods("tiny")
    record("table1", sets=(0, 1), n=2)
    table, puzzles = read_result("table1"), recorded_outcomes("tiny")
    methods = [f"{m.name} {m.parameters}".strip() for m in table1_methods()]
    assert (table["method"] + " " + table["parameters"]).str.strip().tolist()[:7] == methods
    assert len(table) == 2 * (7 + 9 - 1)
    assert not table.duplicated(KEYS).any()
    assert (table["n"] == 2).all()
    assert set(table["seed"]) == {0, 1}
    assert len(puzzles) == 2 * len(table)
    assert not puzzles.duplicated([*KEYS, "puzzle"]).any()
    means = puzzles.groupby(KEYS, sort=False)[["passes", "solved"]].mean().reset_index()
    pd.testing.assert_frame_equal(means, table[[*KEYS, "passes", "solved"]])
    meta = json.loads((place / "results" / "table1.json").read_text())
    assert (meta["n_puzzles"], meta["puzzle_sets"]) == (2, {"tiny": [0, 1]})
    assert meta["checkpoints"] == checkpoint_hashes(["tiny"])
    assert len(runs) == len(table)
    (place / "results" / "table1.csv").unlink()
    record("table1", sets=(0, 1), n=2)
    assert len(runs) == len(table)
    pd.testing.assert_frame_equal(read_result("table1"), table)


def test_table1_keeps_what_is_recorded(place, runs, tiny_mdm):
    """Of other checkpoints everything; of the same one what is wanted again; of a replaced one nothing."""
    store(tiny_mdm, "other", seed=3)
    write_result("gammas", pd.concat([gammas(), gammas(checkpoint="other")]))
    record("table1", ["tiny"], sets=(0,), n=2)
    first, done = read_result("table1_puzzles"), len(runs)
    shutil.rmtree(place / "cache")
    record("table1", ["other"], sets=(1,), n=2)
    assert len(runs) == 2 * done
    both = read_result("table1_puzzles")
    pd.testing.assert_frame_equal(both[both["checkpoint"] == "tiny"], first)
    meta = json.loads((place / "results" / "table1.json").read_text())
    assert meta["puzzle_sets"] == {"other": [1], "tiny": [0]}
    assert meta["checkpoints"] == checkpoint_hashes(["tiny", "other"])
    assert meta["extends"] == meta["commit"]
    shutil.rmtree(place / "cache")
    record("table1", ["tiny"], sets=(0, 1), n=2)
    assert len(runs) == 3 * done  # set 1 alone
    again = read_result("table1_puzzles")
    pd.testing.assert_frame_equal(
        again[(again["checkpoint"] == "tiny") & (again["seed"] == 0)].reset_index(drop=True), first
    )
    store(tiny_mdm, "other", seed=4)
    record("table1", ["tiny"], sets=(0,), n=2)
    assert set(read_result("table1_puzzles")["checkpoint"]) == {"tiny"}


def test_recording_the_frontier(place, runs):
    """Every row of Table 1 and more of each curve, with the share of puzzles in which a pass contradicted itself."""
    write_result("gammas", gammas())
    record("frontier", n=3)
    table = read_result("frontier")
    assert list(table) == [
        *KEYS, "n", "passes", "solved", "seconds_per_puzzle", "conflict_rate", "conflict_first_rate",
    ]  # fmt: skip
    keys = list(zip(table["method"], table["parameters"], strict=True))
    assert len(set(keys)) == len(keys) == len(runs)
    for method in (*table1_methods(), *added_methods("tiny"), Method("Naive", k=2), Method("EB", gamma=1.0)):
        assert (method.name, method.parameters) in keys
    rates = table.set_index(["method", "parameters"])[["conflict_rate", "conflict_first_rate"]]
    assert rates.loc[("Sequential", "")].tolist() == [0, 0]
    assert rates.loc[("Naive", "k=10"), "conflict_rate"] == 1  # an untrained model writes the same digit everywhere
    assert (rates["conflict_first_rate"] <= rates["conflict_rate"]).all()
    assert read_provenance("frontier")["n_puzzles"] == 3


def test_outcomes_of_an_earlier_version_do_not_make_a_frontier(place, runs):
    write_result("gammas", gammas())
    record("frontier", n=1)
    for path in (place / "cache" / "runs").iterdir():
        pd.read_csv(path).drop(columns=["conflict", "conflict_first"]).to_csv(path, index=False)
    with pytest.raises(ValueError, match=r"outcomes='without conflicts', expected those of .*: delete .*runs"):
        record("frontier", n=1)


def test_the_recorded_frontier_has_wilson_intervals(place):
    frame = pd.DataFrame({"checkpoint": ["tiny", "tiny", "other"], "n": [1000, 100, 7], "conflict_rate": [0.29, 0, 1]})
    write_result("frontier", frame)
    table = recorded_frontier("tiny")
    assert table["n"].tolist() == [1000, 100]
    bounds = [solve_rate(np.arange(n) < count)[1:] for count, n in ((290, 1000), (0, 100))]
    assert table[["low", "high"]].to_numpy().tolist() == list(map(list, bounds))
    with pytest.raises(ValueError, match=r"checkpoint='bare', expected one with a recorded frontier"):
        recorded_frontier("bare")


def test_recorded_outcomes_of_a_set_and_of_its_first_puzzles(place):
    frame = pd.DataFrame({"checkpoint": "tiny", "method": "EB", "parameters": "gamma=1", "seed": [0, 0, 0, 1, 1]})
    write_result("table1_puzzles", frame.assign(puzzle=[0, 1, 2, 0, 1], solved=[1, 0, 1, 0, 0]), compressed=True)
    assert len(recorded_outcomes("tiny")) == 5
    assert recorded_outcomes("tiny", seed=1)["puzzle"].tolist() == [0, 1]
    assert recorded_outcomes("tiny", seed=0, n=2)["solved"].tolist() == [1, 0]
    for checkpoint, seed in (("bare", None), ("tiny", 2)):
        with pytest.raises(
            ValueError, match=rf"checkpoint and seed=\('{checkpoint}', {seed}\), expected recorded ones"
        ):
            recorded_outcomes(checkpoint, seed)


def test_recording_head_metrics(place):
    folder = place / "cache" / "labels" / "tiny_held_out"

    def few_masked(model, n, seed):
        grids = torch.from_numpy(load_puzzles(0, n)[1]).long()
        rank = torch.rand(grids.shape, generator=torch.Generator().manual_seed(seed)).argsort(-1)
        return torch.where(rank < 9, model.mask_id, grids)

    make_labels(folder, load_mdm("tiny"), Labelling("tiny", 24, rows=0, shard_size=24), few_masked)
    record("head_metrics")
    table, deciles = read_result("head_metrics"), read_result("head_deciles")
    assert list(table)[:7] == [
        *["checkpoint", "estimator", "predictor", "r2", "spearman", "auroc_unit", "cost_ratio"],
    ]
    assert table["estimator"].tolist() == ["entropy"] * 4 + ["mixture"] * 4
    assert table["predictor"].tolist() == ["head", "zero", "relation", "overlap"] * 2
    for name in ("head_metrics", "head_deciles"):
        meta = json.loads((place / "results" / f"{name}.json").read_text())
        assert meta["command"] == "mi record head_metrics"
        assert meta["checkpoints"] == checkpoint_hashes(["tiny"])
    head = table["predictor"] == "head"
    assert (table.loc[head, ["cost_ratio", "pass_seconds", "head_seconds"]] > 0).all().all()
    assert table.loc[~head, "cost_ratio"].isna().all()
    assert (table["n_boards"] == 16).all()
    assert (table["n_pairs"] == 16 * 36).all()
    assert (table["ceiling_r2"] < 1).all()
    assert deciles["decile"].tolist() == [*range(1, 11)] * 2
    assert deciles.groupby("estimator")["true"].is_monotonic_increasing.all()


def test_recording_without_labels_says_what_is_missing(place):
    with pytest.raises(ValueError, match="tiny_held_out holds no label shards; `mi label` makes them"):
        record("head_metrics")


def test_recording_the_learning_curve_drops_what_was_done_twice(place):
    """A training that left the cache stays as it was recorded."""
    with pytest.raises(ValueError, match=r"training='mine', expected one with a curve in .*train"):
        record("learning_curve", trainings=("mine",))
    for name, text in (("mine", "step,loss\n1,3\n3,2\n2,5\n3,1\n"), ("other", "step,loss\n1,7\n")):
        folder = place / "cache" / "train" / name
        folder.mkdir(parents=True)
        (folder / "curve.csv").write_text(text)
        record("learning_curve", trainings=("mine",) if name == "mine" else ("mine", "other"))
        shutil.rmtree(folder)
    rows = [[1, 3, "mine"], [2, 5, "mine"], [3, 1, "mine"], [1, 7, "other"]]
    assert read_result("learning_curve").to_numpy().tolist() == rows


def test_recording_unseen_grids(place, monkeypatch):
    """Two steps of a training; which grids they drew is the training's own business."""
    seen = []

    def count(grids):
        seen.append(len(grids))
        return {"0": 0, "validation": 2}

    monkeypatch.setattr(mi_lib.records, "count_repeats", count)
    record("unseen")
    table = read_result("unseen")
    assert table["set"].tolist() == ["0", "validation"]
    assert table["repeats"].tolist() == [0, 2]
    assert table["grids"].tolist() == seen * 2
    assert 1 < seen[0] <= 50


recorded = pytest.mark.skipif(not PUZZLES.exists(), reason="no table1_puzzles is recorded: `mi record table1` makes it")


def method_of(name: str, parameters: str) -> Method:
    """The method of a recorded row."""
    kinds = {"k": int, "head": str}
    values = dict(pair.split("=") for pair in parameters.split())
    method = Method(name, **{key: kinds.get(key, float)(value) for key, value in values.items()})
    assert method.parameters == parameters
    return method


@recorded
def test_table1_is_the_summary_of_its_outcomes():
    table, outcomes = read_result("table1"), read_result("table1_puzzles")
    again = summarize(outcomes)
    pd.testing.assert_frame_equal(again[[*KEYS, "n", "passes", "solved"]], table[[*KEYS, "n", "passes", "solved"]])
    assert (table["n"] == 1000).all()
    assert not outcomes.duplicated([*KEYS, "puzzle"]).any()
    masked = {seed: (load_puzzles(int(seed))[0] == 0).sum(1) for seed in outcomes["seed"].unique()}
    for (seed, name, parameters), rows in outcomes.groupby(["seed", "method", "parameters"]):
        cells = masked[seed][rows["puzzle"]]
        if name in ("Sequential", "Naive"):
            assert (rows["passes"] == np.ceil(cells / (method_of(name, parameters).k or 1))).all()
        assert ((rows["passes"] >= 1) & (rows["passes"] <= cells)).all()
    assert len(with_intervals(outcomes[outcomes["checkpoint"] == table["checkpoint"][0]])) >= 7


@pytest.mark.parametrize("path", sorted(RESULTS.glob("*.json")), ids=lambda path: path.stem)
def test_recorded_results_are_those_of_the_shipped_checkpoints(path):
    """A result whose checkpoint was replaced since is stale: record it again."""
    meta = json.loads(path.read_text())
    assert meta["command"].removeprefix("mi record ") in RECORDS
    assert not meta["commit"].endswith("-dirty")
    for name, sha256 in meta["checkpoints"].items():
        kind = next(k for k in ("head", "mdm", "esmc") if name in checkpoint_names(k))
        assert read_sidecar(name, kind)["sha256"] == sha256


@recorded
@pytest.mark.parametrize(
    "checkpoint", sorted(read_result("table1_puzzles")["checkpoint"].unique()) if PUZZLES.exists() else []
)
def test_recorded_outcomes_happen_again(checkpoint):
    """Fifty stored puzzles a method, the same number of each recorded set; all decoded together.

    On another processor rounding may turn a tie: one puzzle a method may differ.
    """
    outcomes, model = recorded_outcomes(checkpoint), load_mdm(checkpoint)
    seeds = sorted(int(seed) for seed in outcomes["seed"].unique())
    each = 50 // len(seeds)
    puzzles = np.concatenate([load_puzzles(seed, each)[0] for seed in seeds])
    stored = outcomes[outcomes["puzzle"] < each].sort_values(["seed", "puzzle"])
    different = {}
    for (name, parameters), rows in stored.groupby(["method", "parameters"]):
        again, _ = run_method(checkpoint, method_of(name, parameters), puzzles, model=model)
        assert len(rows) == len(again) == each * len(seeds)
        for column in ("solved", "passes"):
            differ = int((again[column].to_numpy() != rows[column].to_numpy()).sum())
            if differ > 1:
                different[name, parameters, column] = differ
    assert not different
