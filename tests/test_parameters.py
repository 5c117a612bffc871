"""The one validator of notebook parameters."""

import subprocess
import sys

import pytest

from mi_lib import parameters
from mi_lib.esmc import HUB_MODELS
from mi_lib.ground_truth import ESTIMATORS
from mi_lib.parameters import PARAMETERS, validate
from mi_lib.puzzles import N_SETS, N_TEST


@pytest.fixture(autouse=True)
def two_checkpoints(monkeypatch):
    monkeypatch.setattr(parameters, "shipped", lambda kind=None: ("sudoku_best", "sudoku_paper"))


@pytest.mark.parametrize(
    "values",
    [
        {"preset": "smoke", "seed": 0, "recompute": False},
        {"gamma": [0, 0.3], "lam": 1, "k": [4, 7], "tau": 0.9},  # ints pass as floats
        {"gamma": [float("inf")]},
        {"checkpoint": "sudoku_paper", "checkpoints": ["sudoku_best", "sudoku_paper"]},
        {"n_puzzles": N_TEST, "cell": 80, "puzzle": 999, "mi": "head", "estimator": "kl"},
        {"model": "esmc_300m", "reference": "reference", "n_proteins": 500, "mask_shares": [0.3, 1]},
        {},
    ],
)
def test_accepts(values):
    assert validate(**values) is None


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("preset", "huge"),
        ("checkpoint", "sudoku_papr"),
        ("checkpoints", ["sudoku_paper", "nope"]),
        ("checkpoints", []),
        ("n_puzzles", 0),
        ("n_puzzles", N_TEST + 1),
        ("n_puzzles", 10.0),
        ("n_puzzles", True),  # a bool is no int
        ("gamma", 0.3),
        ("gamma", []),
        ("gamma", [0.3, -0.1]),
        ("gamma", ["0.3"]),
        ("gamma", "[0.1, 0.3]"),  # what papermill -p injects
        ("gamma", [float("nan")]),
        ("gamma", [True]),
        ("k", [0]),
        ("k", [1.5]),
        ("lam", -1),
        ("lam", True),
        ("tau", 1.5),
        ("tail", 1),
        ("recompute", "false"),
        ("recompute", 0),
        ("recompute", None),
        ("cell", 81),
        ("mi", "oracle"),
        ("estimator", "entropi"),
        ("seed", -1),
        ("model", "esmc_3b"),
        ("model", "missing.pth"),
        ("reference", "missing.fasta"),
        ("n_proteins", 14),  # fewer than clusters
        ("n_seeds", 4),
        ("mask_shares", [0]),
        ("mask_shares", [1.1]),
    ],
)
def test_refuses_naming_parameter_value_and_expectation(name, value):
    with pytest.raises(ValueError) as error:
        validate(**{name: value})
    assert str(error.value).startswith(f"{name}={value!r}, expected {PARAMETERS[name].expected}")


def test_unknown_name():
    with pytest.raises(ValueError, match=r"unknown parameter 'gama'.*'gamma'"):
        validate(gama=[0.1])


def test_a_models_own_weights_and_reference(tmp_path):
    for name in ("own.pth", "own.safetensors", "own.txt"):
        (tmp_path / name).write_text("x")
    assert validate(model=str(tmp_path / "own.pth"), reference=str(tmp_path / "own.txt")) is None
    assert validate(model=str(tmp_path / "own.safetensors")) is None
    with pytest.raises(ValueError, match="esmc_600m"):
        validate(model=str(tmp_path / "own.txt"))
    assert parameters.ESMC == HUB_MODELS


def test_unknown_checkpoint_lists_what_there_is():
    with pytest.raises(ValueError, match=r"\('sudoku_best', 'sudoku_paper'\)"):
        validate(checkpoint="nope")


def test_limits_agree_with_the_library():
    assert parameters.N_PUZZLES == N_TEST
    assert tuple(ESTIMATORS) == parameters.ESTIMATORS
    assert PARAMETERS["n_sets"].accepts(N_SETS) and not PARAMETERS["n_sets"].accepts(N_SETS + 1)


def test_needs_no_torch():
    code = "import sys; from mi_lib.parameters import validate; validate(seed=1); sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0
