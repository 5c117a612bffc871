"""Several processes: every row is some process's, and a verb under `accelerate launch` does what one process does."""

import csv
import json
import os
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path

import pytest
import torch
from conftest import TINY
from hypothesis import given
from hypothesis import strategies as st

from mi_lib.artifacts import read_sidecar, read_tensors, save_checkpoint
from mi_lib.checkpoints import load_mdm
from mi_lib.ground_truth import probe
from mi_lib.head import HeadConfig
from mi_lib.head_training import HeadTraining, gather_pairs, train_head
from mi_lib.labels import Labelling, make_labels, read_labels
from mi_lib.mdm import MDM, MDMConfig
from mi_lib.processes import ALONE, Placed, Processes, launched
from mi_lib.samplers import decode
from mi_lib.train import MDMTraining, train_mdm

# The three verbs one after the other, in one launch: starting Python and PyTorch is what takes the time. `train sudoku`
# has no options for the sizes of the MDM, which are the paper's.
SCRIPT = """
import functools, json, sys
import mi_lib.mdm
mi_lib.mdm.MDMConfig = functools.partial(mi_lib.mdm.MDMConfig, **{sizes})
from mi_lib.cli import app
from mi_lib.processes import Processes
leave, Processes.leave = Processes.leave, Processes.wait
*first, last = json.loads(sys.argv[1])
for words in first:
    app(words, standalone_mode=False)
Processes.leave = leave
app(last)
"""
OPTIONS = "--multi_gpu --num_processes 2 --num_machines 1 --mixed_precision no --dynamo_backend no"
LAUNCH = ["-m", "accelerate.commands.launch", *OPTIONS.split(), "--main_process_port", "0"]
SIZES = {"width": 24, "n_layers": 1, "n_heads": 2, "feed_forward": 32, "head_width": 16}
TRAINING = MDMTraining(steps=6, batch_size=5, warmup=2, n_grids=40, precision="float32")
PLAN = {"n_boards": 7, "rows": 2, "shard_size": 2}
LABELS = Path("cache", "labels", "tiny")
HEAD = HeadTraining(epochs=3, boards_per_batch=3)
VERBS = [
    "train sudoku --folder t --batch-size 5 --n-grids 40 --warmup 2 --save-every 2 --steps 6 --precision float32 "
    "--name m",
    "label --checkpoint tiny --n-boards 7 --rows 2 --shard-size 2",
    "train-head --checkpoint tiny --epochs 3 --boards-per-batch 3",
]


@given(n=st.integers(0, 50), count=st.integers(1, 9))
def test_shares_cover_all_rows_once_and_evenly(n, count):
    shares = [list(range(n))[Processes(rank, count).share(n)] for rank in range(count)]
    assert [row for share in shares for row in share] == list(range(n))
    assert max(map(len, shares)) - min(map(len, shares)) <= 1


def test_without_a_launcher_a_process_is_alone(monkeypatch, tiny_mdm):
    for name in ("ACCELERATE_MIXED_PRECISION", "LOCAL_RANK"):
        monkeypatch.delenv(name, raising=False)
    assert launched() is ALONE
    assert ALONE.is_main and ALONE.share(5) == slice(0, 5) and ALONE.sum(0.1) == 0.1
    assert ALONE.place(tiny_mdm) is tiny_mdm and ALONE.divide(tiny_mdm) is tiny_mdm


def test_a_placed_model_is_the_model(tiny_case):
    model, tokens = tiny_case
    placed = Placed(model, ALONE)
    torch.testing.assert_close(probe(placed, tokens[0]).kl, probe(model, tokens[0]).kl)
    decoded = [decode(m, tokens, lambda state: state.masked).tokens for m in (placed, model)]
    assert torch.equal(*decoded)
    assert placed.config is model.config


class Recorded:
    """Stands for an accelerator: what the processes of a run put in, one after the other, and their sum."""

    def __init__(self):
        self.put = []

    def reduce(self, tensor, reduction):
        assert reduction == "sum"
        self.put.append(tensor.clone())
        return tensor


@pytest.mark.parametrize("count", [2, 3, 5])
def test_gradients_of_the_shares_add_up(count):
    """Four rows over two, three and five processes, by autograd on all rows at once."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = MDM(TINY)
    tokens = torch.randint(0, 10, (4, 81), generator=torch.Generator().manual_seed(0))
    weight = torch.arange(4.0)[:, None, None]
    (weight * model(tokens).logits).square().mean().backward()
    expected = torch.cat([p.grad.flatten() for p in model.parameters()])
    whole, total = model(tokens).logits.detach(), torch.zeros_like(expected)
    for rank in range(count):
        model.zero_grad()
        team = Processes(rank, count, accelerator=Recorded())
        team.accelerator.reduce = lambda tensor, reduction, whole=whole: whole  # what the others' rows would add
        logits = team.divide(model)(tokens).logits
        torch.testing.assert_close(logits, whole)
        (weight * logits).square().mean().backward()
        team = Processes(rank, count, accelerator=Recorded())
        team.sum_gradients(model)
        total += team.accelerator.put[0]
    torch.testing.assert_close(total, expected)


class Stopped(Exception):
    pass


def stop(row):
    raise Stopped


@pytest.fixture(scope="module")
def both(tmp_path_factory):
    """Folders in which one process, and two under ``accelerate launch``, did the same work, and what the two said.

    The two go on from what one process began: a training after two steps, and one shard of labels.
    """
    one, two = tmp_path_factory.mktemp("one"), tmp_path_factory.mktemp("two")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = MDM(TINY)
    save_checkpoint("tiny", model, "mdm", asdict(TINY), two / "data" / "checkpoints")
    model = load_mdm("tiny", two / "data" / "checkpoints")
    plan = Labelling(read_sidecar("tiny", "mdm", two / "data" / "checkpoints")["sha256"], **PLAN)
    with pytest.raises(Stopped):
        train_mdm(two / "t", MDMConfig(**SIZES), TRAINING, save_every=2, report=stop)
    make_labels(two / LABELS, model, plan, rank=3, n_ranks=5)
    (two / "mi.py").write_text(SCRIPT.format(sizes=SIZES))
    inherited = {k: v for k, v in os.environ.items() if not k.startswith("ACCELERATE")}
    own = {"MI_LIB_DATA": str(two / "data"), "MI_LIB_CACHE": str(two / "cache"), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, *LAUNCH, "mi.py", json.dumps([words.split() for words in VERBS])]
    launched = subprocess.Popen(
        command, cwd=two, env=inherited | own, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    train_mdm(one / "t", MDMConfig(**SIZES), TRAINING, save_every=2)  # meanwhile
    make_labels(one / LABELS, model, plan)
    curve = []
    head = train_head(gather_pairs(model, read_labels(one / LABELS), "entropy"), HeadConfig(24), HEAD, curve.append)
    save_checkpoint("tiny_head_entropy", head, "head", {}, one / "data" / "checkpoints", curve=curve)
    said, complaints = launched.communicate(timeout=200)
    assert launched.returncode == 0, (said, complaints)
    return one, two, said


def test_training_on_two_processes_is_that_of_one(both):
    """A batch of five rows, and a state that one process left: the same weights, and each row and file written once."""
    one, two, said = both
    began = read_tensors(one / "t" / "average_0000002.safetensors")
    for name in ("average_0000006", "state"):
        expected, got = (read_tensors(folder / "t" / f"{name}.safetensors") for folder in (one, two))
        assert expected.keys() == got.keys()
        for key in expected:
            torch.testing.assert_close(got[key], expected[key], atol=2e-5, rtol=1e-4)
    average = read_tensors(two / "t" / "average_0000006.safetensors")
    assert max((began[key] - value).abs().max() for key, value in average.items()) > 1e-3  # it did train
    rows = [list(csv.DictReader((folder / "t" / "curve.csv").open())) for folder in (one, two)]
    assert [row["step"] for row in rows[1]] == ["2", "4", "6"]
    for a, b in zip(*rows, strict=True):
        assert float(b["loss"]) == pytest.approx(float(a["loss"]), rel=1e-5)
    assert sorted(p.name for p in (two / "t").iterdir()) == sorted(p.name for p in (one / "t").iterdir())
    assert read_sidecar("m", "mdm", two / "data" / "checkpoints")["metrics"]["step"] == 6
    assert said.count("wrote checkpoint m\n") == 1


def test_labels_of_two_processes_are_those_of_one(both):
    """Byte for byte, although the fourth of five processes began them."""
    one, two, said = both
    names = [path.name for path in sorted((one / LABELS).iterdir())]
    assert names == ["labels.json", *(f"shard_{k:05d}.safetensors" for k in range(4))]
    assert [path.name for path in sorted((two / LABELS).iterdir())] == names
    assert all((two / LABELS / name).read_bytes() == (one / LABELS / name).read_bytes() for name in names)
    made = [(two / LABELS / name).stat().st_mtime_ns for name in names[1:]]
    assert made[3] < min(made[:3])
    assert said.count("labels (share 1 of 2) are in") == said.count("labels (share 2 of 2) are in") == 1


def test_head_of_two_processes_is_that_of_one(both):
    one, two, said = both
    folders = [folder / "data" / "checkpoints" for folder in (one, two)]
    a, b = (read_sidecar("tiny_head_entropy", "head", folder)["curve"] for folder in folders)
    assert [row["loss"] for row in b] == pytest.approx([row["loss"] for row in a], rel=1e-4)
    assert a[-1]["loss"] < a[0]["loss"]
    expected, got = (read_tensors(folder / "tiny_head_entropy.safetensors") for folder in folders)
    for name in expected:
        torch.testing.assert_close(got[name], expected[name], atol=1e-3, rtol=2e-3)  # stored in float16
    assert said.count("wrote checkpoint tiny_head_entropy") == 1
