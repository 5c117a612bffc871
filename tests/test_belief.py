"""The exact belief against independent enumeration, hand cases, and a model that holds exactly that belief."""

import math

import numpy as np
import pytest
import torch
from tabular import SupportModel

from mi_lib.belief import (
    RELATIONS,
    cell_name,
    confined_digits,
    empty_clues,
    exact_belief,
    mean_by_relation,
    pairwise_mi,
    relation_index,
)
from mi_lib.ground_truth import ESTIMATORS, mutual_information
from mi_lib.metrics import bootstrap_means
from mi_lib.puzzles import load_puzzles
from mi_lib.sudoku import UNITS, is_solved

SOLVED = np.array([int(c) for c in "481537269596128437237964518768345921124896753953271846872653194619482375345719682"])


@pytest.fixture(scope="module")
def loose():
    """A test puzzle with clues emptied until it has 5 to 40 solutions."""
    return empty_clues(load_puzzles(0, 1)[0][0], 5, 40, seed=1)


def sat_solutions(board: np.ndarray) -> set[tuple[int, ...]]:
    """All solutions by a SAT solver: one digit a cell, each digit once a unit, found models blocked."""
    from pysat.solvers import Cadical153

    def var(cell: int, digit: int) -> int:
        return 9 * int(cell) + digit  # digits from 1

    with Cadical153() as solver:
        for cell in range(81):
            solver.add_clause([var(cell, d) for d in range(1, 10)])
        for unit in (*UNITS, *([c] for c in range(81))):
            for n, a in enumerate(unit):
                for b in unit[n + 1 :]:
                    for d in range(1, 10):
                        solver.add_clause([-var(a, d), -var(b, d)])
        for cell in range(81):
            for d in range(1, 10):
                for e in range(d + 1, 10):
                    solver.add_clause([-var(cell, d), -var(cell, e)])
        for cell in np.flatnonzero(board):
            solver.add_clause([var(cell, int(board[cell]))])
        found = set()
        while solver.solve():
            model = [v for v in solver.get_model() if v > 0]
            found.add(tuple((v - 1) % 9 + 1 for v in sorted(model)))
            solver.add_clause([-v for v in model])
    return found


def test_solutions_are_those_of_a_sat_solver(loose):
    belief = exact_belief(loose)
    assert {tuple(map(int, s)) for s in belief.solutions} == sat_solutions(loose)
    assert 5 <= len(belief.solutions) <= 40
    assert is_solved(np.repeat(loose[None], len(belief.solutions), 0), belief.solutions).all()


def test_belief_by_plain_counting(loose):
    belief = exact_belief(loose)
    S = belief.solutions.astype(int)
    rng = np.random.default_rng(0)
    cells = rng.permutation(np.flatnonzero(belief.entropy))[:8]
    for i in cells:
        p = np.bincount(S[:, i], minlength=10)[1:] / len(S)
        assert belief.marginals[i] == pytest.approx(p)
        assert belief.entropy[i] == pytest.approx(-sum(x * math.log(x) for x in p if x))
        for j in cells[cells != i]:
            q = np.bincount(S[:, j], minlength=10)[1:] / len(S)
            joint = {}
            for a, b in zip(S[:, i], S[:, j], strict=True):
                joint[a, b] = joint.get((a, b), 0) + 1 / len(S)
            mi = sum(w * math.log(w / (p[a - 1] * q[b - 1])) for (a, b), w in joint.items())
            assert belief.mi[i, j] == pytest.approx(mi, abs=1e-12)


def test_probing_a_model_with_the_exact_belief_gives_the_exact_mi(loose):
    belief = exact_belief(loose)
    sequences = torch.from_numpy(belief.solutions).long() - 1
    model = SupportModel(sequences, torch.ones(len(sequences)), vocab=torch.arange(1, 10), mask_id=0)
    empty = torch.from_numpy(loose).long()
    for estimator in ESTIMATORS:
        assert mutual_information(model, empty, estimator).numpy() == pytest.approx(belief.mi, abs=1e-5)


def test_exact_belief_properties(loose):
    belief = exact_belief(loose)
    assert belief.mi == pytest.approx(belief.mi.T, abs=1e-12)
    assert (belief.mi >= 0).all()
    assert (belief.mi <= np.minimum(belief.entropy[:, None], belief.entropy) + 1e-12).all()
    assert not belief.entropy[loose > 0].any()
    assert not belief.mi[loose > 0].any()
    assert belief.marginals.sum(1) == pytest.approx(1)


def test_unique_puzzle_has_nothing_left_to_know():
    belief = exact_belief(load_puzzles(0, 1)[0][0])
    assert len(belief.solutions) == 1
    assert not belief.entropy.any()
    assert not belief.mi.any()


def test_two_solutions_by_hand():
    """A deadly rectangle: four cells whose two digits can be swapped."""
    cells = _rectangle(SOLVED)
    assert cells is not None
    board = SOLVED.copy()
    board[list(cells)] = 0
    belief = exact_belief(board)
    assert len(belief.solutions) == 2
    assert belief.entropy[list(cells)] == pytest.approx(math.log(2))
    block = belief.mi[np.ix_(cells, cells)]
    assert block == pytest.approx(math.log(2) * (1 - np.eye(4)))


@pytest.mark.parametrize("board, many", [(np.zeros(81, int), "more than 100"), (np.array([1, 1] + [0] * 79), "no")])
def test_boards_without_a_belief(board, many):
    with pytest.raises(ValueError, match=f"the board has {many} solutions, expected 1 to 100"):
        exact_belief(board, limit=100)


def test_pairwise_mi_on_4x4(sudoku4_model):
    mi = pairwise_mi(sudoku4_model.sequences.numpy() + 1, n_values=4)
    i = np.arange(16)
    same = (i[:, None] // 4 == i // 4) | (i[:, None] % 4 == i % 4)
    same |= (i[:, None] // 8 == i // 8) & (i[:, None] % 4 // 2 == i % 4 // 2)
    np.fill_diagonal(same, False)
    assert len(sudoku4_model.sequences) == 288
    assert mi[same] == pytest.approx(math.log(4 / 3))
    others = mi[~same & ~np.eye(16, dtype=bool)]
    assert (np.isclose(others, 0) | (others < math.log(4 / 3) - 0.1)).all()


def test_empty_clues_only_empties_and_says_when_it_cannot():
    puzzle = load_puzzles(0, 2)[0][1]
    before = puzzle.copy()
    board = empty_clues(puzzle, 2, 10, seed=3)
    assert (puzzle == before).all()
    assert ((board == 0) | (board == puzzle)).all()
    assert (board != puzzle).any()
    assert 2 <= len(exact_belief(board).solutions) <= 10
    assert (empty_clues(puzzle, 2, 10, seed=3) == board).all()
    with pytest.raises(ValueError, match="expected 1 <= low <= high"):
        empty_clues(puzzle, 5, 4, seed=0)
    with pytest.raises(ValueError, match="no board with 1000000 to 1000000 solutions"):
        empty_clues(SOLVED, 10**6, 10**6, seed=0, tries=0)


def test_confined_digits_by_hand():
    """Row 1 lacks 1 and 2, in its last two cells, until a 1 further down column 8 decides where they go."""
    board = np.zeros(81, int)
    board[:7] = [3, 4, 5, 6, 7, 8, 9]
    pairs = {tuple(map(int, row)) for row in confined_digits(board).query("unit == 0").to_numpy()}
    assert pairs == {(0, 1, 7, 8), (0, 2, 7, 8)}  # unit, digit, cells
    board[36 + 7] = 1  # row 5, column 8: now the 1 of row 1 must stand in column 9, a hidden single
    found = confined_digits(board)
    assert found[(found["unit"] == 0) & (found["digit"] == 1)].empty
    assert confined_digits(SOLVED).empty
    assert list(confined_digits(SOLVED).columns) == ["unit", "digit", "cell_a", "cell_b"]


def test_confined_digits_by_the_rules(loose):
    """Every unit and digit, by trying each cell."""
    expected = set()
    for u, unit in enumerate(UNITS):
        for d in range(1, 10):
            fits = [c for c in unit if loose[c] == 0 and all(d not in loose[v] for v in UNITS if c in v)]
            if len(fits) == 2:
                expected.add((u, d, int(min(fits)), int(max(fits))))
    assert {tuple(map(int, row)) for row in confined_digits(loose).to_numpy()} == expected


def test_relations_partition_the_pairs():
    index = relation_index()
    counts = {name: int((index == r).sum()) // 2 for r, name in enumerate(RELATIONS)}
    # 81 cells: 6 others in the row outside the box, 6 in the column, 4 in the box alone, 4 in box and line, 60 free
    assert counts == {k: 81 * n // 2 for k, n in zip(RELATIONS, (6, 6, 4, 4, 60), strict=True)}
    assert (np.diag(index) == -1).all()
    assert RELATIONS[index[0, 1]] == "line and box"
    assert RELATIONS[index[0, 3]] == "row"
    assert RELATIONS[index[0, 27]] == "column"
    assert RELATIONS[index[0, 10]] == "box"
    assert RELATIONS[index[0, 80]] == "none"


def test_mean_by_relation_and_its_interval():
    mi = np.tile(np.where(relation_index() == 0, 0.5, 0.1), (3, 1, 1)) * np.array([1, 2, 3])[:, None, None]
    masked = np.zeros((3, 81), bool)
    masked[:, [0, 3, 4, 80]] = True  # three cells of row 1, two of them in one box, and a stranger
    table = mean_by_relation(mi, masked).set_index(["board", "relation"])
    assert table.loc[(1, "row"), "mi"] == pytest.approx(1.0)
    assert table.loc[(1, "row"), "pairs"] == 2
    assert table.loc[(2, "line and box"), "mi"] == pytest.approx(0.3)
    assert table.loc[(0, "none"), "pairs"] == 3
    assert np.isnan(table.loc[(0, "column"), "mi"])
    means = bootstrap_means(table.reset_index(), ["relation"], "mi").set_index("relation")
    assert list(means.index) == ["row", "line and box", "none"]
    assert means.loc["row", "mean"] == pytest.approx(1.0)
    assert 0.5 <= means.loc["row", "low"] < 1.0 < means.loc["row", "high"] <= 1.5


def test_cell_name():
    assert cell_name(0) == "row 1, column 1"
    assert cell_name(77) == "row 9, column 6"


def _rectangle(grid: np.ndarray) -> tuple[int, ...] | None:
    """Four cells in two rows, two columns and two boxes that hold two digits crosswise; None if the grid has none."""
    g = grid.reshape(9, 9)
    for r1 in range(9):
        for r2 in range(r1 + 1, 9):
            for c1 in range(9):
                for c2 in range(c1 + 1, 9):
                    crosswise = g[r1, c1] == g[r2, c2] and g[r1, c2] == g[r2, c1]
                    if crosswise and (r1 // 3 == r2 // 3) != (c1 // 3 == c2 // 3):
                        return (9 * r1 + c1, 9 * r1 + c2, 9 * r2 + c1, 9 * r2 + c2)
    return None
