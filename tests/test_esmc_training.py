"""Training of a small ESM-C: fair batches, the loss of the MDM, resumed equals uninterrupted, and it learns."""

import csv
import json
from collections import Counter
from dataclasses import asdict, replace

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from mi_lib.artifacts import read_tensors, write_tensors
from mi_lib.cli import app
from mi_lib.esmc import ESMCConfig, ESMCModel, load_esmc
from mi_lib.esmc_training import (
    Buckets,
    ESMCTraining,
    held_out_perplexity,
    load_snapshot,
    protein_loss,
    ship_esmc,
    train_esmc,
    train_step,
)
from mi_lib.masked import MaskedOutput
from mi_lib.mdm import diffusion_loss
from mi_lib.proteins import AMINO_ACIDS, ProteinSet, decode_tokens, write_fasta
from mi_lib.train import make_optimizers

CONFIG = ESMCConfig(16, 2, 1)
TRAINING = ESMCTraining(steps=6, residues=200, warmup=2)


def random_proteins(n: int, seed: int = 0, lengths: tuple[int, ...] = (50, 53, 61)) -> ProteinSet:
    rng = np.random.default_rng(seed)
    sequences = ("".join(rng.choice(list(AMINO_ACIDS), rng.choice(lengths))) for _ in range(n))
    return ProteinSet(tuple(f"P{k}" for k in range(n)), tuple(sequences), ("",) * n)


PROTEINS, HELD_OUT = random_proteins(30), random_proteins(4, seed=1)


class Stopped(Exception):
    pass


def weights(model) -> torch.Tensor:
    return torch.cat([p.flatten() for p in model.parameters()]).detach().clone()


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory):
    folder = tmp_path_factory.mktemp("training")
    return train_esmc(folder, PROTEINS, HELD_OUT, CONFIG, TRAINING, save_every=2), folder


def test_every_protein_is_drawn_equally_often():
    """Short proteins come more to a batch, so their lengths come less often."""
    data = random_proteins(12, lengths=(50, 100))
    buckets, rng, seen = Buckets.of(data, residues=200), np.random.default_rng(0), Counter()
    n = 4_000
    for _ in range(n):
        tokens = buckets.draw(rng)
        assert tokens.shape in {(4, 50), (2, 100)}
        seen.update(decode_tokens(tokens))
    assert seen.keys() == set(data.sequences)
    expected = seen.total() / 12
    assert all(abs(count - expected) < 5 * np.sqrt(2 * expected) for count in seen.values())


def test_a_protein_longer_than_a_batch_comes_alone():
    assert Buckets.of(PROTEINS, residues=10).size == (1, 1, 1)


def test_the_loss_is_that_of_the_mdm():
    """``mdm.diffusion_loss`` with amino acids renumbered as if they were digits."""

    class Renumbered:
        mask_id = 29

        def __init__(self, model):
            self.model = model

        def __call__(self, tokens) -> MaskedOutput:
            return self.model(tokens + 3)

    model = ESMCModel(CONFIG)
    tokens = Buckets.of(PROTEINS, 400).draw(np.random.default_rng(0))
    a = protein_loss(model, tokens, torch.Generator().manual_seed(5))
    b = diffusion_loss(Renumbered(model), tokens - 3, torch.Generator().manual_seed(5))
    torch.testing.assert_close(a, b)


def test_the_loss_visits_every_mask_rate():
    """Over batches of five, each fifth of the rates comes once a batch, up to all positions masked."""
    seen = []

    class Spy(ESMCModel):
        def forward(self, tokens):
            seen.append((tokens == 32).sum(-1))
            return super().forward(tokens)

    model, tokens = Spy(CONFIG), torch.full((5, 50), 4)
    for seed in range(40):
        protein_loss(model, tokens, torch.Generator().manual_seed(seed))
    counts = torch.stack(seen)  # (40, 5)
    assert (counts > torch.arange(5) * 10).all()
    assert (counts <= torch.arange(1, 6) * 10).all()
    assert counts.max() == 50
    assert counts.min() == 1


@pytest.mark.parametrize("stopped_at", [2, 4])
def test_resumed_equals_uninterrupted(uninterrupted, tmp_path, stopped_at):
    def stop(row):
        if row["step"] == stopped_at:
            raise Stopped

    with pytest.raises(Stopped):
        train_esmc(tmp_path, PROTEINS, HELD_OUT, CONFIG, TRAINING, 2, stop)
    model = train_esmc(tmp_path, PROTEINS, HELD_OUT, CONFIG, TRAINING, 2)
    assert torch.equal(weights(model), weights(uninterrupted[0]))
    rows = [list(csv.DictReader((f / "curve.csv").open())) for f in (tmp_path, uninterrupted[1])]
    for row in (*rows[0], *rows[1]):
        del row["seconds"], row["cpu_seconds"]
    assert rows[0] == rows[1]
    assert [row["step"] for row in rows[0]] == ["2", "4", "6"]


def test_weights_move_and_nothing_global_is_touched(tmp_path):
    torch.manual_seed(7)
    before = torch.random.get_rng_state()
    model = train_esmc(tmp_path, PROTEINS, HELD_OUT, CONFIG, replace(TRAINING, steps=2))
    assert torch.equal(torch.random.get_rng_state(), before)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(TRAINING.seed)
        initial = ESMCModel(CONFIG)
    assert not torch.equal(weights(model), weights(initial))


def test_it_learns_four_proteins_by_heart():
    data, config = random_proteins(4, lengths=(16,)), ESMCConfig(32, 2, 2)
    training = ESMCTraining(steps=150, residues=128, lr=1e-2, warmup=10, ema=0.9)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = ESMCModel(config)
    average, buckets = ESMCModel(config).requires_grad_(False), Buckets.of(data, training.residues)
    optimizers = make_optimizers(model, training)
    for step in range(training.steps):
        train_step(model, average, optimizers, buckets, training, step)
    scores = held_out_perplexity(average, data)
    assert scores.keys() == {"perplexity_15", "perplexity_50", "perplexity_100"}
    assert scores["perplexity_15"] < 2  # of random sequences: 20 unless learned by heart
    assert scores["perplexity_100"] > 2  # with nothing visible, one of four at best


def test_both_optimizers_take_every_weight():
    model = ESMCModel(CONFIG)
    for optimizer, n in (("adamw", 1), ("muon", 2)):
        made = make_optimizers(model, replace(TRAINING, optimizer=optimizer))
        taken = [p for part in made for group in part.param_groups for p in group["params"]]
        assert len(made) == n
        assert {id(p) for p in taken} == {id(p) for p in model.parameters()}
        assert len(taken) == len(list(model.parameters()))


def test_a_snapshot_ships_rounded_weights_with_their_story(uninterrupted, tmp_path):
    folder = uninterrupted[1]
    ship_esmc(folder, 4, "tiny", tmp_path, note="a test")
    saved = read_tensors(folder / "average_0000004.safetensors")
    shipped = load_esmc("tiny", folder=tmp_path)
    assert shipped.config == CONFIG
    for model in (shipped, load_snapshot(folder, 4)):
        assert all(torch.equal(v, saved[k].half().float()) for k, v in model.state_dict().items())
        assert not model.training
    meta = json.loads((tmp_path / "tiny.json").read_text())
    assert (meta["kind"], meta["step"], meta["residues"], meta["note"]) == ("esmc", 4, 800, "a test")
    assert meta["training"] == asdict(TRAINING)
    row = list(csv.DictReader((folder / "curve.csv").open()))[1]
    assert meta["held_out"] == {k: float(v) for k, v in row.items() if k.startswith("perplexity")}
    with pytest.raises(ValueError, match=r"step=3, expected one of the snapshots \[2, 4, 6\]"):
        ship_esmc(folder, 3, "tiny", tmp_path)


def test_another_training_is_not_resumed(uninterrupted, tmp_path):
    _, folder = uninterrupted
    for call, message in (
        (lambda: train_esmc(folder, HELD_OUT, HELD_OUT, CONFIG, TRAINING), "is of other proteins"),
        (lambda: train_esmc(folder, PROTEINS, HELD_OUT, CONFIG, replace(TRAINING, seed=1)), "seed=1, but the training"),
        (lambda: train_esmc(folder, PROTEINS, HELD_OUT, ESMCConfig(32, 2, 1), TRAINING), "width=32, but"),
    ):
        with pytest.raises(ValueError, match=message):
            call()


def test_a_damaged_state_is_named(uninterrupted, tmp_path):
    state = read_tensors(uninterrupted[1] / "state.safetensors")
    del state["model.esmc.embed.weight"]
    write_tensors(tmp_path / "state.safetensors", state)
    (tmp_path / "config.json").write_text((uninterrupted[1] / "config.json").read_text())
    with pytest.raises(ValueError, match=r"the training state does not fit the model: 'esmc\.embed\.weight' is None"):
        train_esmc(tmp_path, PROTEINS, HELD_OUT, CONFIG, TRAINING)


def test_the_command_trains_and_ships(tmp_path, monkeypatch):
    monkeypatch.setattr("mi_lib.artifacts.CHECKPOINTS", tmp_path / "checkpoints")
    fasta = tmp_path / "proteins.fasta.gz"
    write_fasta(fasta, PROTEINS.accessions, PROTEINS.sequences)
    sizes = ["--width", "16", "--n-heads", "2", "--n-layers", "1", "--steps", "2", "--residues", "100"]
    command = ["train", "esmc", "--folder", str(tmp_path / "run"), *sizes, "--held-out", str(fasta), "--name", "small"]
    result = CliRunner().invoke(app, [*command, "--n-held-out", "3", "--proteins", str(fasta)])
    assert result.exit_code == 0, result.output
    assert load_esmc("small").config == CONFIG
    again = CliRunner().invoke(app, [*command, "--proteins", str(fasta)])
    assert again.exit_code == 1
    assert "checkpoint 'small' exists" in again.output
    missing = CliRunner().invoke(app, [*command, "--overwrite", "--proteins", "none.fasta"])
    assert missing.exit_code == 1
    assert "proteins='none.fasta', expected one of" in missing.output


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"steps": 0}, "steps=0, expected at least 1"),
        ({"residues": 0}, "residues=0, expected at least 1"),
        ({"lr": 0.0}, "lr=0.0, expected above 0"),
        ({"decay": 1.5}, "decay=1.5, expected a share"),
        ({"ema": 1.0}, r"ema=1.0, expected in \[0, 1\)"),
        ({"optimizer": "sgd"}, "optimizer='sgd', expected 'adamw' or 'muon'"),
    ],
)
def test_bad_settings_are_named(options, message):
    with pytest.raises(ValueError, match=message):
        ESMCTraining(**options)


def test_a_bad_call_is_named(tmp_path):
    with pytest.raises(ValueError, match="save_every=0, expected at least 1"):
        train_esmc(tmp_path, PROTEINS, HELD_OUT, CONFIG, TRAINING, save_every=0)
