"""Conflicts of parallel unmasking: cells of one unit that were given the same digit in the same pass."""

import numpy as np
import pandas as pd

from mi_lib.sudoku import same_unit


def find_conflicts(boards: np.ndarray, step: np.ndarray, solutions: np.ndarray) -> pd.DataFrame:
    """Whether the cells that a decode wrote together contradict each other.

    Such a contradiction is a dependence that the method overlooked: a pass later, the second cell would have seen the
    first.

    Parameters
    ----------
    boards : ndarray of shape (n, 81)
        As decoded.
    step : ndarray of shape (n, 81)
        The pass each cell was written in, -1 where it was given (``mi_lib.samplers.Decoded.step``).
    solutions : ndarray of shape (n, 81)

    Returns
    -------
    DataFrame
        A row a board, 0 or 1: ``conflict``, whether any pass wrote a contradiction, and ``conflict_first``, whether the
        first pass that wrote a wrong digit did. The latter is not the consequence of an earlier error.
    """
    boards, step, solutions = np.asarray(boards), np.asarray(step), np.asarray(solutions)
    written, unit = step >= 0, same_unit()["any"]
    conflict, first = np.zeros(len(boards), int), np.zeros(len(boards), int)
    for n in np.flatnonzero(((boards != solutions) & written).any(1)):
        together = (step[n][:, None] == step[n]) & written[n][:, None]
        clashes = (together & (boards[n][:, None] == boards[n]) & unit).any(1)
        first_error = step[n][(boards[n] != solutions[n]) & written[n]].min()
        conflict[n] = clashes.any()
        first[n] = (clashes & (step[n] == first_error)).any()
    return pd.DataFrame({"conflict": conflict, "conflict_first": first})
