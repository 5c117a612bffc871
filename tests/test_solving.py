"""The methods of Table 1: their names, the policies behind them, and outcomes that are known beforehand."""

import math

import numpy as np
import pytest
import torch
from tabular import SupportModel

import mi_lib.artifacts
import mi_lib.solving
from mi_lib.artifacts import save_checkpoint
from mi_lib.head import HeadConfig, MIHead
from mi_lib.mdm import describe
from mi_lib.policies import EntropyBounded, HeadMI, MIGuided, Sequential, Threshold, TopK, no_mi
from mi_lib.samplers import decode
from mi_lib.solving import PAPER_TABLE1, Method, run_method, run_methods, table1_methods
from mi_lib.sudoku import generate_puzzles, is_solved


@pytest.fixture
def checkpoints(tmp_path, monkeypatch, tiny_mdm):
    """A folder with the MDM "tiny" and a head for it."""
    monkeypatch.setattr(mi_lib.artifacts, "CHECKPOINTS", tmp_path)
    save_checkpoint("tiny", tiny_mdm, "mdm", describe(tiny_mdm.config))
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        head = MIHead(HeadConfig(24, 8))
    save_checkpoint("tiny_head_mixture", head, "head", {"width": 24, "h": 8}, model="tiny")
    return tmp_path


@pytest.fixture(scope="module")
def puzzles() -> tuple[np.ndarray, np.ndarray]:
    return generate_puzzles(6, seed=11)


@pytest.fixture(scope="module")
def oracle(puzzles) -> SupportModel:
    """Knows the six solutions: after the clues of one it is certain of every cell."""
    grids = torch.from_numpy(puzzles[1]).long()
    return SupportModel(grids - 1, torch.ones(6), vocab=torch.arange(1, 10), mask_id=0)


@pytest.mark.parametrize(
    ("method", "parameters"),
    [
        (Method("Sequential"), ""),
        (Method("Naive", k=4), "k=4"),
        (Method("EB", gamma=0.25), "gamma=0.25"),
        (Method("EB", gamma=0.0), "gamma=0.0"),
        (Method("Threshold", tau=0.9), "tau=0.9"),
        (Method("MI", gamma=0.3, lam=1.0, head="entropy"), "gamma=0.3 lam=1.0 head=entropy"),
        (Method("MI", gamma=1.5, lam=0.0, head="zero"), "gamma=1.5 lam=0.0 head=zero"),
    ],
)
def test_parameters_are_one_string(method, parameters):
    assert method.parameters == parameters


@pytest.mark.parametrize(
    ("method", "policy"),
    [
        (Method("Sequential"), Sequential()),
        (Method("Naive", k=7), TopK(7)),
        (Method("EB", gamma=0.5), EntropyBounded(0.5)),
        (Method("Threshold", tau=0.8), Threshold(0.8)),
        (Method("MI", gamma=0.6, lam=2.0, head="zero"), MIGuided(no_mi, 0.6, 2.0)),
    ],
)
def test_methods_are_their_policies(method, policy):
    assert method.policy("no checkpoint is read") == policy


def test_guided_method_reads_the_head_of_its_checkpoint(checkpoints):
    policy = Method("MI", gamma=0.6, lam=2.0, head="mixture").policy("tiny")
    assert (policy.gamma, policy.lam) == (0.6, 2.0)
    assert isinstance(policy.mi, HeadMI)
    assert policy.mi.head.config == HeadConfig(24, 8)
    with pytest.raises(ValueError, match="unknown head checkpoint 'tiny_head_entropy', expected one of"):
        Method("MI", gamma=0.6, lam=1.0, head="entropy").policy("tiny")


@pytest.mark.parametrize(
    ("method", "message"),
    [
        (Method("naive", k=4), r"'naive', expected 'MI' or .*\('Sequential', 'Naive', 'EB', 'Threshold', 'Random'\)"),
        (Method(""), "method '', expected 'MI' or one of"),
        (Method("Naive", k=0), "k=0, expected an integer of at least 1"),
        (Method("EB", gamma=-0.1), r"gamma=-0\.1, expected a budget of at least 0 nats"),
        (Method("MI", gamma=-1.0, lam=1.0, head="zero"), r"gamma=-1\.0, expected a budget"),
        (Method("MI", gamma=1.0, lam=-1.0, head="zero"), r"lam=-1\.0, expected a weight"),
        (Method("Threshold", tau=2.0), r"tau=2\.0, expected a probability"),
    ],
)
def test_bad_methods_are_named(method, message):
    with pytest.raises(ValueError, match=message):
        method.policy("tiny")


def test_default_rows_are_the_papers():
    rows = [(method.name, method.parameters) for method in table1_methods()]
    assert rows == list(PAPER_TABLE1[["method", "parameters"]].itertuples(index=False, name=None))


def test_rows_follow_the_parameters():
    methods = table1_methods(k=(2,), gamma_eb=(), gamma=(1.0, 2.0), lam=3, head="mixture")
    assert [f"{m.name} {m.parameters}".strip() for m in methods] == [
        "Sequential",
        "Naive k=2",
        "MI gamma=1.0 lam=3.0 head=mixture",
        "MI gamma=2.0 lam=3.0 head=mixture",
    ]


@pytest.mark.parametrize(
    ("method", "passes"),
    [
        (Method("Sequential"), lambda m: m),
        (Method("Naive", k=4), lambda m: math.ceil(m / 4)),
        (Method("Naive", k=81), lambda m: 1),
        (Method("EB", gamma=0.0), lambda m: 1),
        (Method("MI", gamma=0.0, lam=1.0, head="zero"), lambda m: 1),
        (Method("Threshold", tau=0.9), lambda m: 1),
    ],
)
def test_outcomes_of_a_model_that_knows_the_answers(puzzles, oracle, method, passes):
    """Every puzzle is solved, in one pass if certainty is enough and in as many as the rule asks for else."""
    outcomes, seconds = run_method("none", method, puzzles[0], model=oracle)
    assert outcomes["puzzle"].tolist() == list(range(6))
    assert outcomes["solved"].tolist() == [1] * 6
    assert outcomes["passes"].tolist() == [passes(int((puzzle == 0).sum())) for puzzle in puzzles[0]]
    assert seconds >= 0


def test_solved_means_legal_and_true_to_the_clues(puzzles, oracle):
    """The same model on other clues: digits turned by one, which no grid of its own agrees with."""
    mixed = puzzles[0].copy()
    mixed[::2] = np.where(mixed[::2] > 0, mixed[::2] % 9 + 1, 0)
    outcomes, _ = run_method("none", Method("Sequential"), mixed, model=oracle)
    assert outcomes["solved"].tolist() == [0, 1] * 3


def test_outcomes_are_those_of_decode(checkpoints, puzzles, tiny_mdm):
    """With a head, from the checkpoint, in another batch size; and whoever finished is counted once."""
    method, done = Method("MI", gamma=3.0, lam=1.0, head="mixture"), []
    outcomes, _ = run_method("tiny", method, puzzles[0], batch_size=4, progress=done.append)
    model = tiny_mdm.__class__(tiny_mdm.config)
    model.load_state_dict({k: v.half().float() for k, v in tiny_mdm.state_dict().items()})
    decoded = decode(model.eval(), torch.from_numpy(puzzles[0]).long(), method.policy("tiny"))
    assert outcomes["passes"].tolist() == decoded.nfe.tolist()
    assert outcomes["solved"].tolist() == is_solved(puzzles[0], decoded.tokens.numpy()).astype(int).tolist()
    assert 1 < outcomes["passes"].mean() < 50
    assert sum(done) == 6


def test_several_methods_make_one_tidy_table(checkpoints, puzzles, oracle, monkeypatch):
    monkeypatch.setattr(mi_lib.solving, "load_mdm", lambda name: oracle)
    methods = (Method("Naive", k=9), Method("Sequential"))
    table = run_methods("tiny", methods, puzzles[0], seed=3)
    assert list(table) == ["checkpoint", "method", "parameters", "seed", "puzzle", "solved", "passes", "seconds"]
    assert table["method"].tolist() == ["Naive"] * 6 + ["Sequential"] * 6
    assert table["parameters"].tolist() == ["k=9"] * 6 + [""] * 6
    assert table["puzzle"].tolist() == list(range(6)) * 2
    assert set(table["checkpoint"]) == {"tiny"}
    assert set(table["seed"]) == {3}
    assert (table["solved"] == 1).all()
    masked = (puzzles[0] == 0).sum(1)
    assert table["passes"].tolist() == [*np.ceil(masked / 9).astype(int), *masked]
    assert (table["seconds"] >= 0).all()
    assert (table.groupby("method")["seconds"].nunique() == 1).all()


def test_an_unknown_checkpoint_is_named(checkpoints, puzzles):
    with pytest.raises(ValueError, match=r"unknown mdm checkpoint 'none', expected one of \['tiny'\]"):
        run_methods("none", (Method("Sequential"),), puzzles[0])
    with pytest.raises(ValueError, match="unknown mdm checkpoint 'none'"):
        run_method("none", Method("Sequential"), puzzles[0])


def test_puzzles_are_left_alone(puzzles, oracle):
    before = puzzles[0].copy()
    run_method("none", Method("Naive", k=9), puzzles[0], model=oracle)
    assert (puzzles[0] == before).all()


def test_the_papers_rows_are_printed_right():
    """Passes and shares of Table 1 (§5.1)."""
    rows = {f"{r.method} {r.parameters}".strip(): (r.passes, r.solved) for r in PAPER_TABLE1.itertuples()}
    assert rows == {
        "Sequential": (53.9, 0.616),
        "Naive k=4": (14.9, 0.524),
        "Naive k=7": (9.0, 0.368),
        "EB gamma=0.2": (15.3, 0.610),
        "EB gamma=0.5": (9.9, 0.512),
        "MI gamma=0.3 lam=1.0 head=entropy": (15.2, 0.636),
        "MI gamma=0.6 lam=1.0 head=entropy": (9.7, 0.562),
    }
