"""Training: resumed equals uninterrupted whatever stopped it, the recipe's arithmetic, and damaged folders."""

import csv
import errno
import json
import math
import os
import signal
import subprocess
import sys
from dataclasses import replace

import pytest
import torch
from torch import Tensor

import mi_lib.artifacts
from mi_lib.artifacts import read_tensors, write_tensors
from mi_lib.checkpoints import load_mdm
from mi_lib.mdm import MDM, MDMConfig
from mi_lib.sudoku import generate_grids
from mi_lib.train import MDMTraining, held_out_loss, make_optimizers, ship_snapshot, train_mdm, train_step

CONFIG = MDMConfig(width=12, n_layers=1, n_heads=2, feed_forward=16, head_width=16)
TRAINING = MDMTraining(steps=6, batch_size=4, warmup=2, n_grids=32)


class Stopped(Exception):
    pass


def stop_after(rows: int):
    """A report that interrupts the training once it has saved ``rows`` times."""
    seen = []

    def report(row):
        seen.append(row)
        if len(seen) == rows:
            raise Stopped

    return report


def weights(model: MDM) -> Tensor:
    return torch.cat([p.flatten() for p in model.parameters()])


def curve(folder) -> list[dict]:
    """The learning curve without its times."""
    with (folder / "curve.csv").open() as file:
        return [{k: v for k, v in row.items() if k != "seconds"} for row in csv.DictReader(file)]


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory):
    folder = tmp_path_factory.mktemp("uninterrupted")
    return train_mdm(folder, CONFIG, TRAINING, save_every=2), folder


@pytest.mark.parametrize("rows", [1, 2])
def test_resumed_equals_uninterrupted(tmp_path, uninterrupted, rows):
    with pytest.raises(Stopped):
        train_mdm(tmp_path, CONFIG, TRAINING, save_every=2, report=stop_after(rows))
    assert len(curve(tmp_path)) == rows
    torch.manual_seed(rows)  # the global generator must not matter
    model = train_mdm(tmp_path, CONFIG, TRAINING, save_every=2)
    assert torch.equal(weights(model), weights(uninterrupted[0]))
    assert [row["step"] for row in curve(tmp_path)] == ["2", "4", "6"]
    for row, expected in zip(curve(tmp_path), curve(uninterrupted[1]), strict=True):
        assert row == expected


@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
def test_the_optimizer_resumes_too(tmp_path, optimizer):
    training = replace(TRAINING, optimizer=optimizer, ema=0.0, steps=4)
    expected = train_mdm(tmp_path / "whole", CONFIG, training, save_every=4)
    with pytest.raises(Stopped):
        train_mdm(tmp_path / "parts", CONFIG, training, save_every=2, report=stop_after(1))
    assert torch.equal(weights(train_mdm(tmp_path / "parts", CONFIG, training, save_every=2)), weights(expected))
    whole, parts = (read_tensors(tmp_path / name / "state.safetensors") for name in ("whole", "parts"))
    assert whole.keys() == parts.keys()
    assert all(torch.equal(whole[name], parts[name]) for name in whole)


def test_a_killed_process_leaves_a_resumable_state(tmp_path, uninterrupted):
    """Killed at step 5, between two saves: what is redone is what was lost."""
    script = f"""
import os, signal, torch
import mi_lib.train as train
torch.set_num_threads({torch.get_num_threads()})
step_once = train.train_step
def killed(*arguments):
    if arguments[5] == 5:
        os.kill(os.getpid(), signal.SIGKILL)
    return step_once(*arguments)
train.train_step = killed
train.train_mdm({str(tmp_path)!r}, train.{CONFIG!r}, train.{TRAINING!r}, save_every=2)
"""
    run = subprocess.run([sys.executable, "-c", script], check=False)
    assert run.returncode == -signal.SIGKILL
    assert int(read_tensors(tmp_path / "state.safetensors")["step"]) == 4
    model = train_mdm(tmp_path, CONFIG, TRAINING, save_every=2)
    torch.testing.assert_close(weights(model), weights(uninterrupted[0]), atol=1e-6, rtol=1e-5)
    assert [row["step"] for row in curve(tmp_path)] == ["2", "4", "6"]


def test_a_full_disk_leaves_the_last_state(tmp_path, uninterrupted, monkeypatch):
    save_file, calls = mi_lib.artifacts.save_file, []

    def full(tensors, path, metadata=None):
        calls.append(path)
        if len(calls) == 4:  # the state of step 4, half written
            save_file(tensors, path, metadata)
            os.truncate(path, path.stat().st_size // 2)
            raise OSError(errno.ENOSPC, "No space left on device")
        save_file(tensors, path, metadata)

    with monkeypatch.context() as patch:
        patch.setattr(mi_lib.artifacts, "save_file", full)
        with pytest.raises(OSError, match="No space left"):
            train_mdm(tmp_path, CONFIG, TRAINING, save_every=2)
    assert int(read_tensors(tmp_path / "state.safetensors")["step"]) == 2
    assert not list(tmp_path.glob(".*"))
    assert torch.equal(weights(train_mdm(tmp_path, CONFIG, TRAINING, save_every=2)), weights(uninterrupted[0]))
    assert curve(tmp_path) == curve(uninterrupted[1])


def test_a_finished_training_is_not_redone(uninterrupted):
    model, folder = uninterrupted
    rows = []
    again = train_mdm(folder, CONFIG, TRAINING, save_every=2, report=rows.append)
    assert rows == []
    assert torch.equal(weights(again), weights(model))
    assert not again.training


def test_a_training_may_be_prolonged(tmp_path):
    train_mdm(tmp_path, CONFIG, replace(TRAINING, steps=2), save_every=2)
    train_mdm(tmp_path, CONFIG, TRAINING, save_every=2)
    assert [row["step"] for row in curve(tmp_path)] == ["2", "4", "6"]


def test_weights_depend_on_the_seed_alone(tmp_path, uninterrupted):
    torch.manual_seed(123)
    before = torch.get_rng_state()
    again = train_mdm(tmp_path / "again", CONFIG, TRAINING, save_every=6)
    assert torch.equal(torch.get_rng_state(), before)
    assert torch.equal(weights(again), weights(uninterrupted[0]))
    other = train_mdm(tmp_path / "other", CONFIG, replace(TRAINING, seed=1), save_every=6)
    assert not torch.equal(weights(other), weights(again))


@pytest.mark.parametrize("damage", ["truncated", "empty", "foreign"])
def test_a_damaged_state_is_named(tmp_path, damage):
    train_mdm(tmp_path, CONFIG, replace(TRAINING, steps=1))
    state = tmp_path / "state.safetensors"
    if damage == "foreign":
        write_tensors(state, {"a": torch.zeros(2)})
    else:
        os.truncate(state, 0 if damage == "empty" else state.stat().st_size // 2)
    message = "the training state does not fit the model" if damage == "foreign" else "state.safetensors is damaged"
    with pytest.raises(ValueError, match=message):
        train_mdm(tmp_path, CONFIG, TRAINING)


@pytest.mark.parametrize(
    ("config", "training", "message"),
    [
        ({"n_layers": 2}, {}, "n_layers=2, but the training in .* has 1"),
        ({"n_heads": 3}, {}, "n_heads=3, but the training in .* has 2"),
        ({}, {"seed": 7}, "seed=7, but the training in .* has 0"),
        ({}, {"optimizer": "muon"}, "optimizer='muon', but the training in .* has 'adamw'"),
    ],
)
def test_another_configuration_does_not_resume(uninterrupted, config, training, message):
    folder = uninterrupted[1]
    before = (folder / "config.json").read_text()
    with pytest.raises(ValueError, match=message):
        train_mdm(folder, replace(CONFIG, **config), replace(TRAINING, **training))
    assert (folder / "config.json").read_text() == before


def test_the_folder_holds_what_it_says(uninterrupted):
    model, folder = uninterrupted
    names = {path.name for path in folder.iterdir()}
    assert names == {"config.json", "curve.csv", "state.safetensors"} | {
        f"average_{step:07d}.safetensors" for step in (2, 4, 6)
    }
    last = read_tensors(folder / "average_0000006.safetensors")
    assert all(torch.equal(last[name], value) for name, value in model.state_dict().items())
    held = json.loads((folder / "config.json").read_text())
    assert MDMConfig(**held["config"]) == CONFIG
    assert MDMTraining(**held["training"]) == TRAINING
    assert [row["examples"] for row in curve(folder)] == ["8", "16", "24"]


def test_the_average_is_of_the_weights_and_out_of_the_graph():
    model = MDM(CONFIG)
    average = MDM(CONFIG).requires_grad_(False)
    average.load_state_dict(model.state_dict())
    expected = weights(average)
    training, optimizers = replace(TRAINING, ema=0.5), make_optimizers(model, TRAINING)
    grids = torch.from_numpy(generate_grids(8, 0))
    for step in range(8):
        train_step(model, average, optimizers, grids, training, step)
        keep = min(0.5, (step + 1) / (step + 10))
        expected = keep * expected + (1 - keep) * weights(model)
    torch.testing.assert_close(weights(average), expected)
    assert not any(p.requires_grad for p in average.parameters())
    assert not torch.equal(weights(average), weights(model))


def test_learning_rate_warms_up_stays_and_decays():
    training = MDMTraining(steps=100, warmup=10, decay=0.2)
    rates = [training.rate(step) for step in range(100)]
    assert rates[:3] == pytest.approx([0.1, 0.2, 0.3])
    assert rates[9:81] == [1.0] * 72
    assert rates[81:84] == pytest.approx([0.95, 0.9, 0.85])
    assert rates[99] == pytest.approx(0.05)
    assert MDMTraining(steps=10, warmup=0, decay=0).rate(9) == 1


@pytest.mark.parametrize("count", [1, 45, 53, 81])
def test_held_out_loss_masks_what_it_says(count):
    """With logits that do not depend on the tokens but for counting the masked ones, the loss is known."""

    class Counting(MDM):
        def forward(self, tokens):
            out = super().forward(tokens)
            assert ((tokens == 0).sum(-1) == count).all()
            return replace(out, logits=torch.zeros_like(out.logits))

    assert held_out_loss(Counting(CONFIG), (count,), n=8) == {f"nats_{count}": pytest.approx(math.log(9), abs=1e-5)}


def test_a_snapshot_ships_rounded_weights_with_their_story(uninterrupted, tmp_path):
    folder = uninterrupted[1]
    ship_snapshot(folder, 4, "tiny", tmp_path, validation=0.5)
    shipped, saved = load_mdm("tiny", tmp_path), read_tensors(folder / "average_0000004.safetensors")
    for name, value in shipped.state_dict().items():
        assert torch.equal(value, saved[name].half().float())
    meta = json.loads((tmp_path / "tiny.json").read_text())
    assert meta["step"] == 4
    assert meta["validation"] == 0.5
    assert meta["training"]["seed"] == 0
    assert meta["held_out"].keys() == {"nats_20", "nats_40", "nats_54"}
    with pytest.raises(ValueError, match=r"step=3, but .* has snapshots at \[2, 4, 6\]"):
        ship_snapshot(folder, 3, "tiny", tmp_path)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"steps": 0}, "steps=0, expected at least 1"),
        ({"batch_size": 0}, "batch_size=0"),
        ({"n_grids": -1}, "n_grids=-1"),
        ({"decay": 1.5}, r"decay=1.5 must lie in \[0, 1\]"),
        ({"ema": 1.0}, r"ema=1.0 in \[0, 1\)"),
        ({"optimizer": "sgd"}, "optimizer='sgd', expected 'adamw' or 'muon'"),
    ],
)
def test_bad_settings_are_named(options, message):
    with pytest.raises(ValueError, match=message):
        MDMTraining(**options)


def test_bad_calls_are_named(tmp_path):
    with pytest.raises(ValueError, match="save_every=0, expected at least 1"):
        train_mdm(tmp_path, CONFIG, TRAINING, save_every=0)
    with pytest.raises(ValueError, match="schedule='square', expected 'linear' or 'cosine'"):
        train_mdm(tmp_path, CONFIG, replace(TRAINING, schedule="square"))


def test_precision_changes_the_rounding_alone(tmp_path, uninterrupted):
    """Over six steps the weights in float32 stay near those in bfloat16, and move much further than they differ."""
    exact = weights(train_mdm(tmp_path, CONFIG, replace(TRAINING, precision="float32"), save_every=6))
    mixed = weights(uninterrupted[0])
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(TRAINING.seed)
        start = weights(MDM(CONFIG))
    assert 0 < (exact - mixed).norm() < 0.3 * (exact - start).norm()
    with pytest.raises(ValueError, match="precision='fp16', expected 'bf16' or 'float32'"):
        replace(TRAINING, precision="fp16")


def test_a_training_begun_before_a_setting_existed_goes_on(tmp_path, uninterrupted):
    with pytest.raises(Stopped):
        train_mdm(tmp_path, CONFIG, TRAINING, save_every=2, report=stop_after(1))
    held = json.loads((tmp_path / "config.json").read_text())
    del held["training"]["precision"]
    (tmp_path / "config.json").write_text(json.dumps(held))
    assert torch.equal(weights(train_mdm(tmp_path, CONFIG, TRAINING, save_every=2)), weights(uninterrupted[0]))
