"""Sudoku data: against a SAT solver, the rules spelled out cell by cell, and every kind of bad puzzle."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from references import sat_solutions

from mi_lib.sudoku import (
    UNITS,
    candidates,
    find_conflict,
    format_board,
    generate_grids,
    generate_puzzles,
    is_solved,
    parse_puzzle,
    same_unit,
    solutions,
    solve_singles,
)

EASY = "53..7....6..195....98....6.8...6...34..8.3..17...2...6.6....28....419..5....8..79"
EASY_SOLUTION = "534678912672195348198342567859761423426853791713924856961537284287419635345286179"
# From Norvig's list of hard puzzles: singles alone do not solve it
HARD = "85...24..72......9..4.........1.7..23.5...9...4...........8..7..17..........36.4."


@pytest.fixture(scope="module")
def puzzles() -> tuple[np.ndarray, np.ndarray]:
    return generate_puzzles(12, seed=3)


def peers(i: int) -> set[int]:
    row, col = divmod(i, 9)
    box = {(r, c) for r in range(9) for c in range(9) if (r // 3, c // 3) == (row // 3, col // 3)}
    return {9 * r + c for r in range(9) for c in range(9) if r == row or c == col or (r, c) in box} - {i}


def test_units_are_rows_columns_and_boxes():
    assert UNITS.shape == (27, 9)
    assert (np.bincount(UNITS.ravel()) == 3).all()
    for i in range(81):
        together = {int(j) for unit in UNITS if i in unit for j in unit} - {i}
        assert together == peers(i)
        assert len(together) == 20


def test_same_unit_counts_peers():
    relations = same_unit()
    for name, count in (("row", 8), ("col", 8), ("box", 8), ("any", 20)):
        assert (relations[name].sum(1) == count).all()
        assert not relations[name].diagonal().any()
        assert (relations[name] == relations[name].T).all()
    assert relations["any"].tolist() == [[j in peers(i) for j in range(81)] for i in range(81)]
    assert relations["row"][0, 8]
    assert not relations["row"][0, 9]
    assert relations["col"][0, 72]
    assert relations["box"][0, 20]
    assert not relations["box"][0, 27]


def test_grids_are_legal_different_and_defined_by_their_seed():
    grids = generate_grids(50, seed=1)
    assert grids.dtype == np.uint8
    assert is_solved(np.zeros_like(grids), grids).all()
    assert len(np.unique(grids, axis=0)) == 50
    assert (generate_grids(50, seed=1) == grids).all()
    assert (generate_grids(20, seed=1) == grids[:20]).all()
    assert not (generate_grids(50, seed=2) == grids).all()


def test_every_cell_holds_every_digit():
    counts = np.stack([(generate_grids(900, seed=0) == d).mean(0) for d in range(1, 10)])
    np.testing.assert_allclose(counts, 1 / 9, atol=0.05)


def test_puzzles_have_one_solution_by_another_solver(puzzles):
    boards, answers = puzzles
    for board, answer in zip(boards, answers, strict=True):
        assert sat_solutions(board) == [answer.tolist()]
        assert solutions(board).tolist() == [answer.tolist()]
    clues = (boards > 0).sum(1)
    assert ((clues >= 24) & (clues <= 30)).all()
    assert is_solved(boards, answers).all()


def test_puzzles_are_defined_by_their_seed(puzzles):
    again = generate_puzzles(12, seed=3)
    assert (again[0] == puzzles[0]).all()
    assert (again[1] == puzzles[1]).all()
    assert not (generate_puzzles(12, seed=4)[0] == puzzles[0]).all()


def test_clue_range_is_kept():
    clues = (generate_puzzles(6, seed=0, clues=(32, 33))[0] > 0).sum(1)
    assert set(clues.tolist()) <= {32, 33}
    full = generate_puzzles(2, seed=0, clues=(81, 81))
    assert (full[0] == full[1]).all()


@pytest.mark.parametrize("removed", range(3))
def test_solver_finds_all_solutions_that_another_solver_finds(puzzles, removed):
    board = puzzles[0][removed].copy()
    board[np.nonzero(board)[0][: 2 + removed]] = 0
    expected = sorted(sat_solutions(board, limit=500))
    assert 1 < len(expected) < 500
    assert sorted(solutions(board, limit=500).tolist()) == expected
    assert len(solutions(board)) == 2
    assert is_solved(np.stack([board] * len(expected)), np.array(expected)).all()


def test_contradictions_have_no_solution():
    twice = parse_puzzle("." * 81)
    twice[[0, 8]] = 5
    assert solutions(twice).shape == (0, 81)
    stuck = parse_puzzle("12345678." + "........9" + "." * 63)
    assert find_conflict(stuck) is None
    assert sat_solutions(stuck) == []
    assert solutions(stuck).shape == (0, 81)


def test_a_full_board_is_its_own_solution():
    full = parse_puzzle(EASY_SOLUTION)
    assert solutions(full).tolist() == [full.tolist()]


@pytest.mark.parametrize("board", [np.zeros(80), np.zeros((9, 9)), np.full(81, 10), np.full(81, -1)])
def test_solver_refuses_what_is_no_board(board):
    with pytest.raises(ValueError, match=r"puzzle has shape \(.* and values \[.*, expected \(81,\) and 0-9"):
        solutions(board)


def test_candidates_are_what_the_rules_leave(puzzles):
    board = puzzles[0][0]
    free = candidates(board)
    for i in range(81):
        seen = {int(board[j]) for j in peers(i)}
        expected = [d not in seen for d in range(1, 10)] if board[i] == 0 else [False] * 9
        assert free[i].tolist() == expected


def test_singles_solve_the_easy_and_stop_at_the_hard():
    assert format_board(solve_singles(parse_puzzle(EASY))) == EASY_SOLUTION
    hard = parse_puzzle(HARD)
    stuck = solve_singles(hard)
    answer = solutions(hard)
    assert len(answer) == 1
    assert (stuck == 0).any()
    assert ((stuck == 0) | (stuck == answer[0])).all()
    free = candidates(stuck)
    assert (free.sum(1) != 1).all()
    assert all((free[unit].sum(0) != 1).all() for unit in UNITS)


def test_a_hidden_single_is_filled():
    """A 1 in rows 2 and 3 and columns 2 and 3: in the first box only its first cell can hold 1."""
    board = parse_puzzle("." * 81)
    board[[9 + 3, 18 + 6, 27 + 1, 54 + 2]] = 1
    assert candidates(board)[0].sum() == 9
    filled = solve_singles(board)
    assert filled[0] == 1
    assert ((filled > 0).sum()) == 5


def test_solving_leaves_its_argument_alone():
    board = parse_puzzle(EASY)
    solve_singles(board)
    solutions(board)
    assert format_board(board) == EASY


def test_is_solved_wants_complete_legal_boards_that_keep_the_clues():
    puzzle, answer = parse_puzzle(EASY), parse_puzzle(EASY_SOLUTION)
    empty, swapped, relabelled = answer.copy(), answer.copy(), answer % 9 + 1
    empty[2] = 0
    swapped[[2, 3]] = swapped[[3, 2]]
    boards = np.stack([answer, empty, swapped, relabelled])
    assert is_solved(np.stack([puzzle] * 4), boards).tolist() == [True, False, False, False]
    assert is_solved(np.zeros((1, 81)), relabelled[None]).all()


@pytest.mark.parametrize(
    ("cells", "message"),
    [
        ((0, 8), "digit 7 appears twice in row 1"),
        ((4, 76), "digit 7 appears twice in column 5"),
        ((60, 80), "digit 7 appears twice in box 9"),
        ((30, 50), "digit 7 appears twice in box 5"),
    ],
)
def test_conflicts_are_named(cells, message):
    board = np.zeros(81, np.uint8)
    board[list(cells)] = 7
    assert find_conflict(board) == message
    with pytest.raises(ValueError, match=message):
        parse_puzzle(format_board(board))
    assert find_conflict(parse_puzzle(EASY_SOLUTION)) is None


@given(st.lists(st.sampled_from("123456789"), min_size=1, max_size=1), st.integers(0, 80), st.sampled_from(".0"))
def test_parse_reads_what_format_writes(digit, cell, empty):
    text = empty * cell + digit[0] + empty * (80 - cell)
    board = parse_puzzle(f" {text}\n")
    assert board.nonzero()[0].tolist() == [cell]
    assert board[cell] == int(digit[0])
    assert format_board(board) == text.replace("0", ".")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (EASY[:80], "81 characters, got 80"),
        (EASY + ".", "81 characters, got 82"),
        ("", "81 characters, got 0"),
        ("x" + EASY[1:], r"character 'x' at position 1, expected 1-9, '\.' or '0'"),
        (EASY[:80] + "²", "character '²' at position 81"),
        (EASY[:40] + " " + EASY[41:], "character ' ' at position 41"),
    ],
)
def test_malformed_text_is_located(text, message):
    with pytest.raises(ValueError, match=message):
        parse_puzzle(text)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: generate_grids(0, 0), "n=0, expected at least 1"),
        (lambda: generate_puzzles(0, 0), "n=0, expected at least 1"),
        (lambda: generate_puzzles(1, 0, clues=(16, 30)), r"clues=\(16, 30\), expected 17 <= low <= high <= 81"),
        (lambda: generate_puzzles(1, 0, clues=(30, 24)), r"clues=\(30, 24\), expected 17"),
        (lambda: solutions(np.zeros(81), limit=0), "limit=0, expected at least 1"),
    ],
)
def test_bad_sizes_are_named(call, message):
    with pytest.raises(ValueError, match=message):
        call()
