"""The exact belief about a board: every solution enumerated, hence true marginals and true pairwise MI."""

from dataclasses import dataclass

import numpy as np
import pandas as pd

from mi_lib.sudoku import UNITS, candidates, same_unit, solutions

RELATIONS = ("row", "column", "box", "line and box", "none")
UNIT_NAMES = tuple(f"{kind} {k + 1}" for kind in ("row", "column", "box") for k in range(9))


@dataclass(frozen=True)
class ExactBelief:
    """What a perfect observer believes about a board: the uniform distribution over its solutions.

    Positions are masked independently of the digits, so with uniform grids this is the exact posterior that a masked
    model is trained towards (ours come from randomised backtracking: nearly uniform).

    Attributes
    ----------
    solutions : ndarray of shape (S, 81), uint8
    marginals : ndarray of shape (81, 9)
        ``marginals[i, d - 1]``: share of the solutions with digit d in cell i.
    entropy : ndarray of shape (81,)
        Of the marginals, in nats; zero at filled cells.
    mi : ndarray of shape (81, 81)
        Pairwise MI in nats; zero on the diagonal.
    """

    solutions: np.ndarray
    marginals: np.ndarray
    entropy: np.ndarray
    mi: np.ndarray


def plogp(p: np.ndarray) -> np.ndarray:
    """``p ln p``, with ``0 ln 0 = 0``."""
    return p * np.log(np.where(p > 0, p, 1.0))


def pairwise_mi(samples: np.ndarray, n_values: int = 9) -> np.ndarray:
    """Pairwise MI of the empirical distribution of equally likely sequences, in nats.

    Parameters
    ----------
    samples : ndarray of shape (S, L)
        Values 1 to ``n_values``.
    n_values : int

    Returns
    -------
    ndarray of shape (L, L)
        ``H_i + H_j - H_ij``, zero on the diagonal, and where only rounding is left.
    """
    one_hot = (samples[:, :, None] == np.arange(1, n_values + 1)).reshape(len(samples), -1).astype(np.float64)
    L = samples.shape[1]
    joint = (one_hot.T @ one_hot / len(samples)).reshape(L, n_values, L, n_values)
    h_joint = -plogp(joint).sum((1, 3))  # (L, L); its diagonal is the marginals' entropy
    h = np.diag(h_joint)
    mi = h[:, None] + h - h_joint
    np.fill_diagonal(mi, 0)
    return np.where(mi > 1e-12, mi, 0.0)


def exact_belief(board: np.ndarray, limit: int = 20_000) -> ExactBelief:
    """Enumerate a board's solutions and compute the true marginals and the true pairwise MI.

    Parameters
    ----------
    board : ndarray of shape (81,)
        ``0`` is an empty cell.
    limit : int
        Most solutions to enumerate.

    Raises
    ------
    ValueError
        If the board has no solution, or more than ``limit``.
    """
    found = solutions(board, limit + 1)
    if not 1 <= len(found) <= limit:
        many = f"more than {limit}" if len(found) else "no"
        raise ValueError(f"the board has {many} solutions, expected 1 to {limit}")
    marginals = (found[:, :, None] == np.arange(1, 10)).mean(0)
    return ExactBelief(found, marginals, -plogp(marginals).sum(-1), pairwise_mi(found))


def empty_clues(puzzle: np.ndarray, low: int, high: int, seed: int, tries: int = 200) -> np.ndarray:
    """Empty clues in random order until the board has between ``low`` and ``high`` solutions.

    Parameters
    ----------
    puzzle : ndarray of shape (81,)
    low, high : int
        Wanted number of solutions, inclusive.
    seed : int
    tries : int
        Random orders to try.

    Returns
    -------
    ndarray of shape (81,)
        The puzzle with fewer clues.

    Raises
    ------
    ValueError
        If the range is empty or no order tried leads into it.
    """
    if not 1 <= low <= high:
        raise ValueError(f"low={low} and high={high}, expected 1 <= low <= high")
    rng = np.random.default_rng(seed)
    for _ in range(tries):
        board = np.array(puzzle, np.uint8)
        for cell in rng.permutation(np.flatnonzero(board)):
            board[cell] = 0
            found = len(solutions(board, high + 1))
            if found >= low:
                break
        if low <= found <= high:
            return board
    raise ValueError(f"no board with {low} to {high} solutions found in {tries} tries")


def confined_digits(board: np.ndarray) -> pd.DataFrame:
    """Digits that the rules confine to exactly two cells of a unit.

    Parameters
    ----------
    board : ndarray of shape (81,)

    Returns
    -------
    DataFrame
        Columns ``unit`` (index into ``UNITS``: rows 0-8, columns 9-17, boxes 18-26), ``digit``, and the cells
        ``cell_a`` < ``cell_b``.
    """
    free = candidates(board)[UNITS]  # (27, 9 cells, 9 digits)
    unit, digit = np.nonzero(free.sum(1) == 2)
    if not len(unit):
        return pd.DataFrame(columns=["unit", "digit", "cell_a", "cell_b"], dtype=int)
    where = np.nonzero(free[unit, :, digit])[1].reshape(-1, 2)
    pair = np.sort(np.take_along_axis(UNITS[unit], where, 1), 1)
    return pd.DataFrame({"unit": unit, "digit": digit + 1, "cell_a": pair[:, 0], "cell_b": pair[:, 1]})


def relation_index() -> np.ndarray:
    """How each two cells are related: an index into ``RELATIONS``, shape (81, 81), ``-1`` on the diagonal.

    The classes exclude each other: "row", "column" and "box" pairs share that unit alone; a pair in the same row (or
    column) *and* box is "line and box"; "none" shares no unit.
    """
    share = same_unit()
    line = share["row"] | share["col"]
    index = np.select([line & share["box"], share["row"], share["col"], share["box"]], [3, 0, 1, 2], default=4)
    np.fill_diagonal(index, -1)
    return index


def mean_by_relation(mi: np.ndarray, masked: np.ndarray) -> pd.DataFrame:
    """Mean MI over the masked pairs of each relation, board by board.

    Parameters
    ----------
    mi : ndarray of shape (B, 81, 81)
        Symmetric, in nats.
    masked : ndarray of shape (B, 81), bool

    Returns
    -------
    DataFrame
        Columns ``board``, ``relation``, ``mi`` (mean, nats; NaN without pairs) and ``pairs``.
    """
    index, upper = relation_index(), np.triu(np.ones((81, 81), bool), 1)
    rows = []
    for b, (matrix, empty) in enumerate(zip(mi, masked, strict=True)):
        valid = upper & empty[:, None] & empty
        for r, name in enumerate(RELATIONS):
            values = matrix[valid & (index == r)]
            rows.append((b, name, values.mean() if len(values) else np.nan, len(values)))
    return pd.DataFrame(rows, columns=["board", "relation", "mi", "pairs"])


def cell_name(cell: int) -> str:
    """A cell in words, counted from one: ``row 9, column 3``."""
    return f"row {cell // 9 + 1}, column {cell % 9 + 1}"
