"""The puzzle sets: the committed one is what its seed and its facts say, and no set shares a grid with another."""

import json

import numpy as np
import pytest
from references import sat_solutions
from test_symmetry import disguise

import mi_lib.puzzles
from mi_lib.artifacts import sha256
from mi_lib.puzzles import N_SETS, N_TEST, TEST, TEST_SEED, VALIDATION_SEED, count_repeats, load_puzzles, write_test
from mi_lib.sudoku import format_board, generate_grids, generate_puzzles, is_solved, same_unit, solutions, solve_singles
from mi_lib.symmetry import canonical_form
from mi_lib.train import HELD_OUT_SEED, MDMTraining

OTHERS = (1, 2, 3, 4, "validation")
SAMPLE = 150  # of each other set


@pytest.fixture(scope="module")
def hard() -> tuple[np.ndarray, np.ndarray]:
    return load_puzzles(0)


@pytest.fixture(scope="module")
def facts() -> dict:
    return json.loads(TEST.with_suffix(".json").read_text())


@pytest.fixture(scope="module")
def forms(hard) -> dict:
    """Canonical forms of the solutions of all sets."""
    answers = {0: hard[1]} | {name: load_puzzles(name, SAMPLE)[1] for name in OTHERS}
    return {name: {form.tobytes() for form in canonical_form(grids)} for name, grids in answers.items()}


def test_there_are_a_thousand_puzzles_with_their_solutions(hard):
    puzzles, answers = hard
    assert puzzles.shape == answers.shape == (1000, 81)
    assert puzzles.dtype == answers.dtype == np.uint8
    assert is_solved(puzzles, answers).all()
    assert len(np.unique(puzzles, axis=0)) == 1000
    assert len(np.unique(answers, axis=0)) == 1000


def test_every_puzzle_has_one_solution(hard):
    for puzzle, answer in zip(*hard, strict=True):
        assert solutions(puzzle).tolist() == [answer.tolist()]


def test_a_sat_solver_agrees(hard):
    for k in np.random.default_rng(0).choice(1000, 12, replace=False):
        assert sat_solutions(hard[0][k]) == [hard[1][k].tolist()]


def test_the_committed_set_is_what_its_seed_makes(hard):
    """If this fails after an update of numba or numpy, the random stream changed: the file stays, the claim goes."""
    puzzles, answers = generate_puzzles(N_TEST, TEST_SEED)
    assert (puzzles == hard[0]).all()
    assert (answers == hard[1]).all()


def test_facts_match_the_file(hard, facts):
    clues = (hard[0] > 0).sum(1)
    assert facts["sha256"] == sha256(TEST)
    assert (facts["n"], facts["seed"], facts["conflicts"]) == (1000, TEST_SEED, 0)
    assert facts["clue_histogram"] == {str(c): int((clues == c).sum()) for c in np.unique(clues)}
    assert facts["mean_clues"] == pytest.approx(clues.mean())
    assert sum(facts["clue_histogram"].values()) == 1000
    assert 24 <= clues.min() <= clues.max() <= 30
    assert 81 - clues.mean() == pytest.approx(53.9, abs=0.1)  # the paper's sequential passes


def singles_solve(boards: np.ndarray) -> np.ndarray:
    """Whether naked and hidden singles solve each board: all boards and all singles at once, shape (n,)."""
    relations = {name: relation.astype(np.float32) for name, relation in same_unit().items()}
    solved, left, board = np.zeros(len(boards), bool), np.arange(len(boards)), boards.copy()
    while len(left):
        held = (board[..., None] == np.arange(1, 10)).astype(np.float32)  # (n, 81, 9)
        free = ((relations["any"] @ held) == 0) & (board == 0)[..., None]
        single = free & (free.sum(-1, keepdims=True) == 1)
        for name in ("row", "col", "box"):
            single |= free & ((relations[name] @ free.astype(np.float32)) == 0)  # nowhere else in this unit
        going = single.any((1, 2))
        solved[left[~going]] = (board[~going] > 0).all(1)
        board = np.where(single.any(-1), single.argmax(-1) + 1, board)[going]
        left = left[going]
    return solved


def test_facts_say_what_hard_means(hard, facts):
    assert facts["solved_by_singles"] == pytest.approx(singles_solve(hard[0]).mean())
    assert 0.5 < facts["solved_by_singles"] < 0.8


def test_batched_singles_are_the_librarys(hard):
    some = hard[0][:40]
    solved = singles_solve(some)
    assert solved.tolist() == [bool((solve_singles(puzzle) > 0).all()) for puzzle in some]
    assert 0 < solved.sum() < 40


def test_no_set_shares_a_grid_with_another(forms):
    """Up to the symmetries of the game, which no rule of the generator prevents."""
    assert len(forms[0]) == 1000
    names = list(forms)
    for n, a in enumerate(names):
        for b in names[:n]:
            assert not forms[a] & forms[b]


@pytest.mark.parametrize("seed", [MDMTraining().seed, 1])
def test_training_grids_are_no_solutions_in_disguise(forms, seed):
    """A sample of 1000 of them: the generator is the same, only the seed keeps them apart."""
    grids = {form.tobytes() for form in canonical_form(generate_grids(1000, seed))}
    assert len(grids) == 1000
    for name in forms:
        assert not grids & forms[name]


def test_seeds_are_all_different():
    assert len({TEST_SEED + k for k in range(N_SETS)} | {VALIDATION_SEED, HELD_OUT_SEED, MDMTraining().seed}) == 8


@pytest.mark.parametrize("name", [0, 3, "validation"])
def test_fewer_puzzles_are_the_first_of_more(name):
    few, many = load_puzzles(name, 7), load_puzzles(name, 20)
    for a, b in zip(few, many, strict=True):
        assert a.shape == (7, 81)
        assert (a == b[:7]).all()
    assert is_solved(*many).all()


def test_sets_have_their_size():
    assert len(load_puzzles(1)[0]) == 1000
    assert (load_puzzles(1, 3)[0] == generate_puzzles(3, TEST_SEED + 1)[0]).all()
    assert (load_puzzles("validation", 3)[0] == generate_puzzles(3, VALIDATION_SEED)[0]).all()


def test_repeats_are_found_in_any_disguise(monkeypatch):
    """Two solutions of set 1 and one of the validation puzzles are among the grids, none as it is."""
    monkeypatch.setattr(mi_lib.puzzles, "load_puzzles", lambda name: load_puzzles(name, 4))
    rng = np.random.default_rng(0)
    known = [load_puzzles(1, 4)[1][0], load_puzzles(1, 4)[1][3], load_puzzles("validation", 4)[1][2]]
    grids = np.stack([*generate_grids(5, seed=7), *(disguise(grid, rng) for grid in known)])
    assert count_repeats(grids) == {"0": 0, "1": 2, "2": 0, "3": 0, "4": 0, "validation": 1}
    assert set(count_repeats(grids[:5]).values()) == {0}


@pytest.mark.parametrize(
    ("name", "n", "message"),
    [
        (0, 1_001, "n_puzzles=1001, expected 1 to 1000: the set holds 1000"),
        (2, 1_001, "n_puzzles=1001, expected 1 to 1000"),
        ("validation", 4001, "n_puzzles=4001, expected 1 to 4000"),
        (0, 0, "n_puzzles=0, expected 1 to 1000"),
        (0, -1, "n_puzzles=-1, expected 1 to 1000"),
        (5, None, "puzzle set 5, expected 0 to 4 or 'validation'"),
        (-1, None, "puzzle set -1, expected 0 to 4"),
        ("test", None, "puzzle set 'test', expected 0 to 4 or 'validation'"),
    ],
)
def test_what_is_no_set_is_named(name, n, message):
    with pytest.raises(ValueError, match=message):
        load_puzzles(name, n)


@pytest.fixture
def copy(tmp_path, monkeypatch):
    """A copy of the committed set that the library reads instead."""
    path = tmp_path / TEST.name
    path.write_bytes(TEST.read_bytes())
    path.with_suffix(".json").write_bytes(TEST.with_suffix(".json").read_bytes())
    monkeypatch.setattr(mi_lib.puzzles, "TEST", path)
    return path


@pytest.mark.parametrize(
    "damage",
    [
        lambda text: "",
        lambda text: text[: len(text) // 2],
        lambda text: text.split("\n", 1)[1],
        lambda text: text.replace(".", "5", 1),
        lambda text: text.rsplit("\n", 2)[0] + "\n",
        lambda text: text.replace("solution", "answer"),
    ],
    ids=["empty", "half", "no header", "another clue", "a row less", "another header"],
)
def test_a_damaged_file_is_named(copy, damage):
    load_puzzles(0, 5)
    copy.write_text(damage(copy.read_text()))
    with pytest.raises(ValueError, match=r"hard_1000\.csv is damaged: its sha256 is not the one in hard_1000\.json"):
        load_puzzles(0, 5)


def test_the_set_can_be_written_again(copy, monkeypatch):
    """On the first 20, for speed: columns, facts and a file that its own check accepts."""
    monkeypatch.setattr(mi_lib.puzzles, "N_TEST", 20)
    write_test()
    puzzles, answers = load_puzzles(0)
    assert puzzles.shape == (20, 81)
    lines = copy.read_text().splitlines()
    assert lines[0] == "puzzle,solution"
    assert lines[1:] == [f"{format_board(p)},{format_board(a)}" for p, a in zip(puzzles, answers, strict=True)]
    assert lines == TEST.read_text().splitlines()[:21]
    facts = json.loads(copy.with_suffix(".json").read_text())
    assert facts["n"] == sum(facts["clue_histogram"].values()) == 20
    assert facts["solved_by_singles"] == pytest.approx(singles_solve(puzzles).mean())
    assert {"commit", "versions", "date", "seed", "sha256"} <= facts.keys()
