"""The canonical form and the invariant: the same for every disguise; a smallest member by another route."""

from itertools import permutations, product

import numpy as np
import pytest

from mi_lib.sudoku import generate_grids, is_solved
from mi_lib.symmetry import canonical_form, invariant

THREE = list(permutations(range(3)))


def disguise(grid: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """The grid after a random symmetry: relabel, permute rows and columns within and between bands, transpose."""
    board = np.append(0, rng.permutation(9) + 1)[grid].reshape(9, 9)
    for axis in (0, 1):
        order = [3 * band + k for band in rng.permutation(3) for k in rng.permutation(3)]
        board = np.take(board, order, axis=axis)
    return (board.T if rng.random() < 0.5 else board).ravel().astype(np.uint8)


def smallest(grid: np.ndarray) -> list[int]:
    """The smallest of a grid's disguises, with every row order and relabelling found by sorting, in numpy alone."""
    columns = np.array(
        [
            [3 * stack + k for stack, order in zip(stacks, orders, strict=True) for k in order]
            for stacks in THREE
            for orders in product(THREE, repeat=3)
        ]
    )
    best = None
    for board in (grid.reshape(9, 9), grid.reshape(9, 9).T):
        moved = board[:, columns].transpose(1, 0, 2)  # (1296, 9, 9): every column order
        for first in range(9):
            label = np.zeros((len(columns), 10), int)
            np.put_along_axis(label, moved[:, first].astype(int), np.arange(1, 10)[None], axis=1)
            named = np.take_along_axis(label, moved.reshape(len(columns), 81).astype(int), axis=1).reshape(-1, 3, 3, 9)
            within = named[..., 0].argsort(-1)  # rows of a band by their first cell
            named = np.take_along_axis(named, within[..., None], axis=2)
            bands = named[:, :, 0, 0].argsort(-1)
            named = np.take_along_axis(named, bands[..., None, None], axis=1).reshape(-1, 81)
            least = min(map(tuple, named))
            best = least if best is None else min(best, least)
    return list(best)


@pytest.fixture(scope="module")
def grids() -> np.ndarray:
    return generate_grids(6, seed=5)


def test_disguises_share_their_canonical_form(grids):
    rng = np.random.default_rng(0)
    expected = canonical_form(grids)
    for _ in range(5):
        hidden = np.stack([disguise(grid, rng) for grid in grids])
        assert is_solved(np.zeros_like(hidden), hidden).all()
        assert (hidden != grids).any(1).all()
        assert (canonical_form(hidden) == expected).all()


def test_canonical_form_is_idempotent_legal_and_never_larger(grids):
    forms = canonical_form(grids)
    assert (canonical_form(forms) == forms).all()
    assert is_solved(np.zeros_like(forms), forms).all()
    assert (forms[:, :9] == np.arange(1, 10)).all()
    assert all(tuple(form) <= tuple(grid) for form, grid in zip(forms, grids, strict=True))


def test_canonical_form_is_the_smallest_disguise(grids):
    assert canonical_form(grids[:2]).tolist() == [smallest(grid) for grid in grids[:2]]


def test_different_grids_stay_different(grids):
    assert len(np.unique(canonical_form(grids), axis=0)) == len(grids)


def test_a_very_symmetric_grid_has_its_form_too():
    """The cyclic grid maps to itself in many ways, so many orders tie."""
    row, col = np.divmod(np.arange(81), 9)
    grid = ((3 * row + row // 3 + col) % 9 + 1).astype(np.uint8)
    rng = np.random.default_rng(1)
    forms = canonical_form(np.stack([grid, *(disguise(grid, rng) for _ in range(4))]))
    assert len(np.unique(forms, axis=0)) == 1
    assert forms[0].tolist() == smallest(grid)


def test_the_invariant_is_that_of_every_disguise_and_tells_grids_apart():
    rng = np.random.default_rng(2)
    grids = generate_grids(2000, seed=6)
    numbers = invariant(grids)
    assert (invariant(np.stack([disguise(grid, rng) for grid in grids])) == numbers).all()
    assert len(np.unique(numbers)) == len(grids)


def test_the_invariant_rejects_what_is_no_grid(grids):
    with pytest.raises(ValueError, match=r"shape \(6, 80\), expected \(n, 81\)"):
        invariant(grids[:, :80])


def test_the_argument_is_left_alone(grids):
    before = grids.copy()
    canonical_form(grids)
    assert (grids == before).all()


@pytest.mark.parametrize(("shape", "digit"), [((81,), 1), ((2, 80), 1), ((1, 81), 0), ((1, 81), 12)])
def test_what_is_no_solved_grid_is_refused(shape, digit):
    with pytest.raises(ValueError, match=r"grids of shape .*expected \(n, 81\) with digits 1-9"):
        canonical_form(np.full(shape, digit))
