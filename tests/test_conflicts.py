"""Conflicts of parallel unmasking, on boards whose contradictions are put there by hand."""

import numpy as np
import pytest
import torch
from tabular import SupportModel

from mi_lib.conflicts import find_conflicts
from mi_lib.solving import Method, run_method
from mi_lib.sudoku import UNITS, generate_puzzles


@pytest.fixture(scope="module")
def decoded() -> tuple[np.ndarray, np.ndarray]:
    """Five solved grids, ten cells written in each: one pass a cell."""
    _, grids = generate_puzzles(5, seed=3)
    step = np.full((5, 81), -1)
    step[:, :10] = np.arange(10)  # row 1 and the first cell of row 2
    return grids, step


def find(boards, step, solutions):
    found = find_conflicts(boards, step, solutions)
    assert list(found) == ["conflict", "conflict_first"]
    return found.to_numpy().tolist()


def test_solved_boards_have_none(decoded):
    grids, step = decoded
    assert find(grids, np.zeros_like(step), grids) == [[0, 0]] * 5


def test_a_digit_twice_in_a_unit_counts_if_written_in_one_pass(decoded):
    grids, step = decoded
    boards, together = grids.copy(), step.copy()
    boards[:, 1] = boards[:, 0]  # cells 0 and 1 share a row and a box
    together[0, 1] = 0  # the same pass
    together[1, 1] = -1  # given: the clue was there to be seen
    assert find(boards, together, grids) == [[1, 1]] + [[0, 0]] * 4


@pytest.mark.parametrize("other", [8, 72, 10])
def test_rows_columns_and_boxes_are_units(decoded, other):
    grids, _ = decoded
    boards, step = grids[:1].copy(), np.full((1, 81), -1)
    boards[0, other] = boards[0, 0]
    step[0, [0, other]] = 4
    assert find(boards, step, grids[:1]) == [[1, 1]]


def test_cells_without_a_common_unit_may_agree(decoded):
    """Every 5 written at once, and one wrong cell apart from them."""
    grids, _ = decoded
    boards, step = grids[:1].copy(), np.full((1, 81), -1)
    step[0, boards[0] == 5] = 0
    wrong = int(np.flatnonzero(boards[0] != 5)[0])
    boards[0, wrong] = 5
    step[0, wrong] = 1
    assert find(boards, step, grids[:1]) == [[0, 0]]


def test_a_contradiction_after_an_error_is_not_the_first(decoded):
    """Cell 9 wrong in pass 2; cells 0 and 1 alike in pass 5."""
    grids, _ = decoded
    boards, step = grids[:1].copy(), np.full((1, 81), -1)
    boards[0, 9] = boards[0, 9] % 9 + 1
    boards[0, 1] = boards[0, 0]
    step[0, 9], step[0, [0, 1]] = 2, 5
    assert find(boards, step, grids[:1]) == [[1, 0]]
    step[0, 9] = 5  # now in the same pass, contradicting nothing there unless by chance
    assert find(boards, step, grids[:1]) == [[1, 1]]


def test_against_a_plain_loop():
    rng = np.random.default_rng(0)
    _, grids = generate_puzzles(12, seed=4)
    boards, step = grids.copy(), rng.integers(-1, 12, grids.shape)
    flip = (rng.random(grids.shape) < 0.03) & (step >= 0)
    boards[flip] = rng.integers(1, 10, flip.sum())
    expected = []
    for board, when, grid in zip(boards, step, grids, strict=True):
        passes = {
            when[a]
            for unit in UNITS
            for a in unit
            for b in unit
            if a != b and board[a] == board[b] and when[a] == when[b] >= 0
        }
        wrong = [when[c] for c in range(81) if when[c] >= 0 and board[c] != grid[c]]
        expected.append([int(bool(passes)), int(bool(passes) and min(wrong) in passes)])
    assert find(boards, step, grids) == expected
    assert {(1, 1), (1, 0), (0, 0)} <= set(map(tuple, expected))


def test_a_model_that_cannot_choose_contradicts_itself_in_one_pass_and_not_one_by_one():
    """Two cells hold 1 and 2 in either order: alone each is a coin, the likeliest digit of both is the same."""
    _, grids = generate_puzzles(1, seed=5)
    row = grids[0, :9].copy()
    a, b = np.flatnonzero(row == 1)[0], np.flatnonzero(row == 2)[0]
    other = grids[0].copy()
    other[[a, b]] = other[[b, a]]
    both = torch.from_numpy(np.stack([grids[0], other])).long()
    model = SupportModel(both - 1, torch.tensor([0.5, 0.5]), vocab=torch.arange(1, 10), mask_id=0)
    puzzle = grids.copy()
    puzzle[0, [a, b]] = 0
    together, _ = run_method("none", Method("Naive", k=2), puzzle, model=model, solutions=grids)
    apart, _ = run_method("none", Method("Sequential"), puzzle, model=model, solutions=grids)
    assert together[["conflict", "conflict_first"]].to_numpy().tolist() == [[1, 1]]
    assert apart["conflict"].tolist() == [0]
    assert "conflict" not in run_method("none", Method("Sequential"), puzzle, model=model)[0]
