"""The ``mi`` command: what a user gets wrong costs one clear message, a code that is not 0, and no traceback."""

import csv
import errno
import inspect
import io
import json
import shutil
import signal
import subprocess
import sys
from dataclasses import asdict, fields
from pathlib import Path

import pytest
import torch
from conftest import TINY
from typer.testing import CliRunner

from mi_lib import artifacts, cli_training, records, train
from mi_lib.artifacts import save_checkpoint
from mi_lib.cli import app
from mi_lib.esmc import ESMCConfig, ESMCModel
from mi_lib.head import HeadConfig, MIHead
from mi_lib.head_training import HeadTraining
from mi_lib.labels import Labelling, read_labels
from mi_lib.mdm import MDM, MDMConfig, describe
from mi_lib.proteins import encode, write_fasta
from mi_lib.puzzles import load_puzzles
from mi_lib.sudoku import format_board, parse_puzzle
from mi_lib.train import MDMTraining

NOTEBOOK = """# Tiny

```{code-cell} ipython3
:tags: [parameters]

preset: str = "paper"  # sizes
checkpoint: str = "tiny"  # the model
n_puzzles: int = 10  # how many
gamma: list = [0.1, 0.3]  # budgets
recompute: bool = False  # redo
```
"""


@pytest.fixture(scope="module")
def puzzles() -> list[str]:
    return [format_board(p) for p in load_puzzles(0, 3)[0]]


@pytest.fixture(autouse=True)
def workplace(tmp_path, monkeypatch, tiny_mdm):
    """A folder with a tiny MDM as a checkpoint, a head for it, and a notebook."""
    monkeypatch.setattr(artifacts, "CHECKPOINTS", tmp_path / "checkpoints")
    monkeypatch.setattr(artifacts, "CACHE", tmp_path / "cache")
    monkeypatch.setattr(artifacts, "commit", lambda: "0123456789ab")
    save_checkpoint("tiny", tiny_mdm, "mdm", describe(TINY))
    head = HeadConfig(width=TINY.width, h=8)
    save_checkpoint("tiny_head_entropy", MIHead(head), "head", {"width": TINY.width, "h": 8}, model="tiny")
    (tmp_path / "tiny.md").write_text(NOTEBOOK)
    monkeypatch.chdir(tmp_path)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # tiny models gain nothing from more, and lose much on a busy machine
    yield tmp_path
    torch.set_num_threads(threads)


def mi(*words: str, stdin: str | None = None):
    return CliRunner().invoke(app, list(words), input=stdin)


def refused(result, message: str, code: int = 1) -> None:
    """One message on stderr, no traceback, nothing on stdout."""
    assert isinstance(result.exception, SystemExit), repr(result.exception)
    assert result.exit_code == code
    assert message in result.stderr
    assert "Traceback" not in result.output
    assert result.stdout == ""
    if code == 1:
        assert len(result.stderr.strip().splitlines()) == 1


def test_verbs():
    result = mi("--help")
    assert result.exit_code == 0
    for verb in ("run", "book", "train", "label", "train-head", "record", "solve"):
        assert verb in result.stdout


def test_help_needs_no_torch():
    code = "import sys, mi_lib.cli; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["nope"], "unknown notebook 'nope', expected one of"),
        (["gone.md"], "unknown notebook 'gone.md'"),
        (["tiny.md", "-p", "gama", "[1]"], "tiny has no parameter 'gama' (value [1]), it has ('preset', 'checkpoint'"),
        (["tiny.md", "-p", "lam", "1"], "tiny has no parameter 'lam'"),
        (["tiny.md", "-p", "gamma", "0.3"], "gamma=0.3, expected a list of numbers >= 0"),
        (["tiny.md", "-p", "gamma", "[-0.3]"], "gamma=[-0.3], expected a list of numbers >= 0"),
        (["tiny.md", "-p", "gamma", "[0.1"], "value '[0.1', expected a number"),
        (["tiny.md", "-p", "n_puzzles", "many"], "n_puzzles='many', expected an integer"),
        (["tiny.md", "-p", "n_puzzles", "-5"], "n_puzzles=-5, expected an integer"),
        (["tiny.md", "-p", "n_puzzles", "1001"], "n_puzzles=1001, expected an integer (number of test puzzles) from 1"),
        (["tiny.md", "-p", "recompute", "maybe"], "recompute='maybe', expected True or False"),
        (
            ["tiny.md", "-p", "checkpoint", "large"],
            "checkpoint='large', expected the name of an MDM checkpoint: one of",
        ),
        (["tiny.md", "-p", "checkpoint", "tiny_head_entropy"], "checkpoint='tiny_head_entropy', expected"),
        (["tiny.md", "-p", "seed="], "tiny has no parameter 'seed'"),
        (["tiny.md", "-p", "seed"], "-p seed: expected a name and a value"),
        (["tiny.md", "--preset", "huge"], "preset='huge', expected one of ('smoke', 'paper')"),
        (["tiny.md", "--out", "x.html"], "out='x.html', expected a name that ends in .ipynb"),
    ],
)
def test_run_refuses_before_a_kernel_starts(words, message, monkeypatch):
    monkeypatch.setattr("papermill.execute_notebook", lambda *a, **k: pytest.fail("a kernel was started"))
    refused(mi("run", *words), message)


def test_run_passes_values_on(monkeypatch, tmp_path):
    seen = []
    monkeypatch.setattr("mi_lib.runner.run_notebook", lambda *args: seen.append(args))
    words = ["-p", "n_puzzles", "200", "-p", "gamma", "[0.1, 0.3]", "-p", "recompute=true", "--out", "x.ipynb"]
    result = mi("run", "tiny.md", *words)
    assert result.exit_code == 0 and "wrote x.ipynb" in result.stdout
    ((source, out, parameters),) = seen
    assert (source.name, out.name) == ("tiny.md", "x.ipynb")
    expected = {"preset": "paper", "checkpoint": "tiny", "n_puzzles": 200, "gamma": [0.1, 0.3], "recompute": True}
    assert parameters == expected


def test_help_parameters():
    result = mi("run", "tiny.md", "--help-parameters")
    assert result.exit_code == 0
    assert "gamma: list = [0.1, 0.3]" in result.stdout
    assert "budgets (a list of numbers >= 0 (nats))" in result.stdout


def test_book_refuses_an_unknown_preset(monkeypatch):
    monkeypatch.setattr("mi_lib.book.run_notebook", lambda *args: pytest.fail("a kernel was started"))
    monkeypatch.setattr("mi_lib.book.publish", lambda *args: pytest.fail("the book was touched"))
    refused(mi("book", "--preset", "huge"), "preset='huge', expected one of ('smoke', 'paper')")


def test_signal_handlers_are_given_back():
    before = signal.getsignal(signal.SIGTERM)
    mi("run", "nope")
    assert signal.getsignal(signal.SIGTERM) is before


@pytest.mark.parametrize(
    ("error", "code", "message"),
    [
        (OSError(errno.ENOSPC, "No space left on device"), 1, "No space left on device"),
        (FileNotFoundError(errno.ENOENT, "No such file", "x"), 1, "No such file"),
        (ValueError("the state is damaged"), 1, "the state is damaged"),
        (KeyboardInterrupt(), 130, "interrupted; what was finished is kept"),
    ],
)
def test_errors_of_a_training_are_one_message(error, code, message, monkeypatch):
    def stop(*args):
        raise error

    monkeypatch.setattr(train, "train_mdm", stop)
    result = mi("train", "sudoku", "--folder", "t")
    assert result.exit_code == code
    assert result.stderr.strip().splitlines()[-1].startswith("mi: ") and message in result.stderr
    assert "Traceback" not in result.output


def test_a_bug_is_no_user_error(monkeypatch):
    def stop(*args):
        raise TypeError("a bug")

    monkeypatch.setattr(train, "train_mdm", stop)
    assert isinstance(mi("train", "sudoku", "--folder", "t").exception, TypeError)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--steps", "0"], "steps=0, expected at least 1"),
        (["--ema", "1.5"], "ema=1.5"),
        (["--optimizer", "sgd"], "optimizer='sgd'"),
        (["--position", "sines"], "position='sines'"),
        (["--name", "a/b"], "name='a/b', expected letters"),
        (["--name", "tiny"], "checkpoint 'tiny' exists"),
    ],
)
def test_train_refuses(words, message, monkeypatch):
    monkeypatch.setattr(train, "train_mdm", lambda *a: pytest.fail("training started"))
    refused(mi("train", "sudoku", "--folder", "t", *words), message)


def test_train_wants_numbers():
    refused(mi("train", "sudoku", "--folder", "t", "--steps", "many"), "'--steps'", code=2)


SIZES = {field.name for field in fields(MDMConfig)}


@pytest.mark.parametrize(
    ("verb", "dataclass", "extra"),
    [
        (cli_training.sudoku, MDMTraining, SIZES | {"folder", "save_every", "name", "overwrite", "threads"}),
        (cli_training.label, Labelling, {"folder", "checkpoint", "rank", "n_ranks", "threads"}),
        (cli_training.train_head, HeadTraining, {"checkpoint", "labels", "n_boards", "name", "overwrite", "threads"}),
    ],
)
def test_every_field_is_an_option_and_every_option_goes_somewhere(verb, dataclass, extra):
    names = {field.name for field in fields(dataclass)} - {"model_sha256"}
    assert set(inspect.signature(verb).parameters) == names | extra


def test_train_passes_options_on_and_stores_a_checkpoint(monkeypatch, tiny_mdm, tmp_path):
    seen = {}

    def fake(folder, config, training, save_every, report, processes):
        seen.update(training=training, config=config)
        train.append_row(folder / "curve.csv", {"step": 3, "loss": 1.5})
        report({"step": 3, "loss": 1.5})
        return MDM(MDMConfig(position="learned"))

    monkeypatch.setattr(train, "train_mdm", fake)
    (tmp_path / "t").mkdir()
    words = ["--folder", "t", "--steps", "3", "--lr", "0.1", "--seed", "4", "--position", "learned", "--name", "mine"]
    assert mi("train", "sudoku", *words).exit_code == 0
    assert seen["training"] == MDMTraining(steps=3, lr=0.1, seed=4)
    assert seen["config"] == MDMConfig(position="learned")
    assert artifacts.read_sidecar("mine", "mdm")["metrics"]["loss"] == 1.5


def test_label_and_train_head(tmp_path, puzzles):
    labels = ["--checkpoint", "tiny", "--n-boards", "4", "--rows", "1", "--shard-size", "2"]
    assert mi("label", *labels, "--rank", "0", "--n-ranks", "2").exit_code == 0
    folder = tmp_path / "cache" / "labels" / "tiny"
    first = (folder / "shard_00000.safetensors").stat().st_mtime_ns
    assert [p.name for p in sorted(folder.glob("*.safetensors"))] == ["shard_00000.safetensors"]
    assert mi("label", *labels).exit_code == 0  # the rest; what was there is kept
    assert (folder / "shard_00000.safetensors").stat().st_mtime_ns == first
    refused(mi("label", *labels[:-4], "--rows", "2", "--shard-size", "2"), "holds labels with rows=1, not 2")
    refused(mi("label", *labels, "--rank", "2", "--n-ranks", "2"), "rank=2, expected less than n_ranks=2")

    head = ["train-head", "--checkpoint", "tiny", "--epochs", "1"]
    refused(mi(*head), "checkpoint 'tiny_head_entropy' exists")
    refused(mi(*head, "--estimator", "mixtur"), "mixtur")
    refused(mi(*head, "--name", "h", "--n-boards", "9"), "n_boards=9")
    assert mi(*head, "--estimator", "mixture").exit_code == 0
    assert artifacts.read_sidecar("tiny_head_mixture", "head")["model"] == "tiny"
    solved = mi("solve", "--checkpoint", "tiny", "--policy", "mi", "--head", "mixture", stdin=puzzles[0])
    assert solved.exit_code == 0

    shard = folder / "shard_00001.safetensors"
    shard.write_bytes(shard.read_bytes()[:-100])
    result = mi(*head, "--name", "h")
    refused(result, "shard_00001.safetensors is damaged")
    shutil.rmtree(folder)
    refused(mi(*head, "--name", "h"), "holds no label shards")


def test_label_proteins_of_a_file(tmp_path):
    """The uniformly masked half shows residues of the file alone; a Sudoku model takes no proteins."""
    torch.manual_seed(0)
    model = ESMCModel(ESMCConfig(width=16, n_heads=2, n_layers=1)).eval()
    artifacts.save_checkpoint("mini", model, "esmc", asdict(model.config))
    write_fasta(tmp_path / "p.fasta", ("A",), ("CW" * 26,), ("A",))
    labels = ["--n-boards", "2", "--rows", "1", "--shard-size", "2", "--folder", "l"]
    assert mi("label", "--checkpoint", "mini", "--source", "p.fasta", *labels).exit_code == 0
    uniform = read_labels(Path("l")).tokens[0].long()
    shown = uniform[uniform != model.mask_id]
    assert len(uniform) == 52
    assert torch.equal(shown, encode(["CW" * 26])[0][uniform != model.mask_id])
    refused(mi("label", "--checkpoint", "mini", *labels), "source='p.fasta', not 'training'")
    refused(mi("label", "--checkpoint", "mini", "--source", "q.fasta", *labels), "q.fasta")
    refused(mi("label", "--checkpoint", "tiny", "--source", "held_out"), "source='held_out', expected none")
    facts = ["train-head", "--checkpoint", "mini", "--labels", "l", "--epochs", "1"]
    assert mi(*facts).exit_code == 0
    assert artifacts.read_sidecar("mini_head_entropy", "head")["labels"]["source"] == "p.fasta"


def test_record_refuses(monkeypatch):
    refused(mi("record", "table9"), "name='table9', expected one of")
    monkeypatch.setattr(records, "commit", lambda: "0123456789ab-dirty")
    refused(mi("record", "table1"), "uncommitted changes")


def rows_of(text: str) -> list[list[str]]:
    return [line.split() for line in text.splitlines() if not line.startswith("#")]


def test_solve_writes_solutions_passes_and_verdicts(puzzles):
    lines = ["# three puzzles", "", puzzles[0], puzzles[1].replace(".", "0"), f"  {puzzles[2]}  "]
    result = mi("solve", "--checkpoint", "tiny", stdin="\r\n".join(lines))
    assert result.exit_code == 0
    rows = rows_of(result.stdout)
    assert [row[0] for row in rows] == ["3", "4", "5"]
    for puzzle, (_, solution, passes, solved) in zip(puzzles, rows, strict=True):
        assert int(passes) == puzzle.count(".")  # sequential: one cell a pass
        assert all(given in (".", digit) for given, digit in zip(puzzle, solution, strict=True))
        assert solved == "no"  # an untrained model


def test_solve_formats_agree(tmp_path, puzzles):
    (tmp_path / "p.txt").write_text("\ufeff" + "\n".join(puzzles))
    words = ["solve", "p.txt", "--checkpoint", "tiny", "--policy", "naive", "--k", "7"]
    text, table, lines = (mi(*words, "--format", name).stdout for name in ("text", "csv", "json"))
    objects = [json.loads(line) for line in lines.splitlines()]
    assert [o["line"] for o in objects] == [1, 2, 3]
    assert [o["solution"] for o in objects] == [row[1] for row in rows_of(text)]
    assert [o["passes"] for o in objects] == [-(-p.count(".") // 7) for p in puzzles]
    assert [{k: str(v) for k, v in o.items()} for o in objects] == list(csv.DictReader(io.StringIO(table)))


def test_solve_marks_a_solution_as_solved():
    answer = format_board(load_puzzles(0, 1)[1][0])
    ((_, solution, passes, solved),) = rows_of(mi("solve", "--checkpoint", "tiny", stdin=answer).stdout)
    assert (solution, passes, solved) == (answer, "0", "yes")


def test_solve_reports_every_bad_puzzle_by_line_and_goes_on(puzzles):
    unsolvable = "12345678." + "........9" + "." * 63  # row 1 lacks a 9, which its last cell cannot hold
    parse_puzzle(unsolvable)
    bad = [puzzles[0][:80], "11" + "." * 79, puzzles[0][:40] + "x" + puzzles[0][41:], unsolvable, "é" * 81]
    result = mi("solve", "--checkpoint", "tiny", stdin="\n".join([*bad, puzzles[1]]))
    assert result.exit_code == 1
    assert [row[0] for row in rows_of(result.stdout)] == ["6"]
    reported = [line for line in result.stderr.splitlines() if line.startswith(("line ", "mi: "))]
    assert [line.split(":")[0] for line in reported] == [*(f"line {n}" for n in range(1, 6)), "mi"]
    for line, message in zip(
        reported,
        [
            "81 characters, got 80",
            "digit 1 appears twice in row 1",
            "'x' at position 41",
            "no solution",
            "'é'",
            "5 of 6",
        ],
        strict=True,
    ):
        assert message in line
    assert "Traceback" not in result.output


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["gone.txt"], "No such file"),
        (["empty.txt"], "no puzzle in empty.txt"),
        (["--checkpoint", "large"], "unknown mdm checkpoint 'large', expected one of ['tiny']"),
        (["--policy", "best"], "policy='best', expected one of ('sequential'"),
        (["--gamma", "0.3"], "gamma=0.3, but policy 'sequential' has no such parameter"),
        (["--policy", "eb", "--gamma", "-1"], "gamma=-1.0, expected a budget of at least 0 nats"),
        (["--policy", "mi", "--lam", "-1"], "lam=-1.0, expected"),
        (["--policy", "naive", "--k", "0"], "k=0, expected"),
        (["--policy", "threshold", "--tau", "2"], "tau=2.0, expected a probability"),
        (["--policy", "mi", "--head", "mixture"], "unknown head checkpoint 'tiny_head_mixture'"),
        (["--format", "xml"], "format='xml', expected"),
    ],
)
def test_solve_refuses(words, message, tmp_path, puzzles):
    (tmp_path / "empty.txt").write_text("# nothing\n\n")
    words = words if "--checkpoint" in words else [*words, "--checkpoint", "tiny"]
    refused(mi("solve", *words, stdin=puzzles[0]), message)


def test_solve_refuses_damaged_and_foreign_checkpoints(tmp_path, puzzles, tiny_mdm):
    weights, sidecar = (tmp_path / "checkpoints" / f"tiny.{suffix}" for suffix in ("safetensors", "json"))
    original = weights.read_bytes()
    weights.write_bytes(original[:-1] + bytes([original[-1] ^ 1]))
    refused(mi("solve", "--checkpoint", "tiny", stdin=puzzles[0]), "is corrupted: its sha256 is not the one in")
    weights.unlink()
    refused(mi("solve", "--checkpoint", "tiny", stdin=puzzles[0]), "is missing")
    weights.write_bytes(original)
    facts = json.loads(sidecar.read_text())
    sidecar.write_text(json.dumps(facts | {"config": facts["config"] | {"feed_forward": 64}}))
    refused(mi("solve", "--checkpoint", "tiny", stdin=puzzles[0]), "does not fit the model")


def test_threads_are_set():
    answer = format_board(load_puzzles(0, 1)[1][0])  # nothing to decode
    assert mi("solve", "--checkpoint", "tiny", "--threads", "2", stdin=answer).exit_code == 0
    assert torch.get_num_threads() == 2
    refused(mi("solve", "--threads", "0", stdin="." * 81), "'--threads'", code=2)
