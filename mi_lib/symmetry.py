"""The symmetries of Sudoku: a canonical form and a fast invariant, so that equal grids in disguise are found."""

import numpy as np
from numba import njit

_PERM3 = np.array([[0, 1, 2], [0, 2, 1], [1, 0, 2], [1, 2, 0], [2, 0, 1], [2, 1, 0]])
_COLUMNS = np.array(
    [
        [3 * s + w for s, within in zip(stacks, (_PERM3[a], _PERM3[b], _PERM3[c]), strict=True) for w in within]
        for stacks in _PERM3
        for a in range(6)
        for b in range(6)
        for c in range(6)
    ]
)  # (1296, 9) column orders that keep the stacks together


@njit(cache=True)
def _canonical(grid):
    best = np.full(81, 10, np.uint8)
    trial, label = np.zeros(81, np.uint8), np.zeros(10, np.uint8)
    rows = np.zeros(9, np.int64)
    for transpose in range(2):
        g = grid.reshape(9, 9)
        g = g.T.copy() if transpose else g.copy()
        for first in range(9):
            for columns in _COLUMNS:
                for k in range(9):
                    label[g[first, columns[k]]] = k + 1
                # The first column, relabelled, decides the order of rows in a band and of the bands.
                key = np.zeros(9, np.int64)
                for r in range(9):
                    key[r] = label[g[r, columns[0]]]
                for band in range(3):
                    a, b, c = 3 * band, 3 * band + 1, 3 * band + 2
                    if key[a] > key[b]:
                        a, b = b, a
                    if key[b] > key[c]:
                        b, c = c, b
                    if key[a] > key[b]:
                        a, b = b, a
                    rows[3 * band], rows[3 * band + 1], rows[3 * band + 2] = a, b, c
                b0, b1, b2 = 0, 1, 2
                if key[rows[3 * b0]] > key[rows[3 * b1]]:
                    b0, b1 = b1, b0
                if key[rows[3 * b1]] > key[rows[3 * b2]]:
                    b1, b2 = b2, b1
                if key[rows[3 * b0]] > key[rows[3 * b1]]:
                    b0, b1 = b1, b0
                smaller, n = False, 0
                for band in (b0, b1, b2):
                    for k in range(3):
                        r = rows[3 * band + k]
                        for j in range(9):
                            value = label[g[r, columns[j]]]
                            if not smaller:
                                if value > best[n]:
                                    break
                                smaller = value < best[n]
                            trial[n] = value
                            n += 1
                        else:
                            continue
                        break
                    else:
                        continue
                    break
                if smaller and n == 81:
                    best[:] = trial
    return best


@njit(cache=True)
def _canonical_all(grids):
    out = np.zeros_like(grids)
    for k in range(len(grids)):
        out[k] = _canonical(grids[k])
    return out


@njit(cache=True)
def _mix(x):
    """Spread 64 bits (the finaliser of SplitMix64), so that sums of mixed values stand for multisets."""
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


@njit(cache=True)
def _cycle_type(a, b):
    """The cycle lengths of the permutation that takes each digit of row ``a`` to the digit of row ``b`` below it.

    As the sum of their cubes, which differs for all eight types that two rows of a grid can have.
    """
    follow, seen, total = np.zeros(10, np.int64), np.zeros(10, np.bool_), 0
    for column in range(9):
        follow[a[column]] = b[column]
    for digit in range(1, 10):
        length = 0
        while not seen[digit]:
            seen[digit] = True
            digit = follow[digit]
            length += 1
        total += length**3
    return np.uint64(total)


@njit(cache=True)
def _invariant_all(grids):
    out = np.zeros(len(grids), np.uint64)
    for n in range(len(grids)):
        for transpose in range(2):
            g = grids[n].reshape(9, 9)
            g = g.T.copy() if transpose else g
            side = np.uint64(0)
            for first in range(3):
                for second in range(first, 3):
                    block = np.uint64(first == second)  # rows of one band stay together
                    for a in range(3 * first, 3 * first + 3):
                        for b in range(max(a + 1, 3 * second), 3 * second + 3):
                            block += _mix(_cycle_type(g[a], g[b]))
                    side += _mix(block)
            out[n] += _mix(side)
    return out


def _checked(grids: np.ndarray) -> np.ndarray:
    grids = np.asarray(grids)
    if grids.ndim != 2 or grids.shape[1] != 81 or not np.isin(grids, range(1, 10)).all():  # compiled: no bounds checked
        raise ValueError(f"grids of shape {grids.shape}, expected (n, 81) with digits 1-9")
    return np.ascontiguousarray(grids, np.uint8)


def invariant(grids: np.ndarray) -> np.ndarray:
    """A number that the symmetries of Sudoku leave as it is: grids with different numbers are different.

    It stands for the cycle types of the permutations between all pairs of rows, and of columns. A few microseconds a
    grid, against about a millisecond of ``canonical_form``, which decides where two numbers are equal.

    Parameters
    ----------
    grids : ndarray of shape (n, 81)

    Returns
    -------
    ndarray of shape (n,), uint64

    Raises
    ------
    ValueError
        As ``canonical_form``.
    """
    return _invariant_all(_checked(grids))


def canonical_form(grids: np.ndarray) -> np.ndarray:
    """The lexicographically smallest grid each solved grid can be turned into by the symmetries of Sudoku.

    Symmetries: relabelling digits, permuting rows within a band and the bands, columns within a stack and the stacks,
    and transposing (9! * 6^8 * 2 in all).

    Parameters
    ----------
    grids : ndarray of shape (n, 81)

    Returns
    -------
    ndarray of shape (n, 81), uint8

    Raises
    ------
    ValueError
        If the grids are not of that shape or hold anything but the digits 1-9.
    """
    return _canonical_all(_checked(grids))
