"""A state like the paper's Fig. 1: the search for it, and the board a reader's own parameters choose."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from mi_lib.belief import confined_digits
from mi_lib.ground_truth import ESTIMATORS, check_estimator, probe, symmetrize
from mi_lib.head import MIHead
from mi_lib.masked import MaskedModel, entropy, marginals, require
from mi_lib.policies import Sequential
from mi_lib.puzzles import load_puzzles
from mi_lib.samplers import Decoded, decode
from mi_lib.sudoku import format_board, parse_puzzle

PAPER_MI = 0.44  # nats, Fig. 1
PAPER_UNIT, PAPER_DIGIT, PAPER_NEXT = 8, 1, 8  # Fig. 1: a 1 in the bottom row, before an 8 is unmasked

Progress = Callable[[int], None]


@dataclass(frozen=True)
class Screen:
    """Which states the search for Fig. 1 looks at; -1 means any.

    Attributes
    ----------
    unit : int
        Row of the confined digit (0-8); -1: any row.
    digit : int
        The digit confined to two cells of that row.
    next_digit : int
        The digit that the model unmasks next, elsewhere.
    """

    unit: int = PAPER_UNIT
    digit: int = PAPER_DIGIT
    next_digit: int = PAPER_NEXT

    def keeps(self, pairs: pd.DataFrame) -> pd.Series:
        """Which rows of ``confined_digits`` fit."""
        unit = pairs["unit"] < 9 if self.unit < 0 else pairs["unit"] == self.unit
        return unit & (True if self.digit < 0 else pairs["digit"] == self.digit)


def board_before(decoded: Decoded, puzzle: int, step: int) -> Tensor:
    """The board that ``decode`` saw at ``step`` of one of its puzzles: what was written from then on is masked."""
    last = int(decoded.step[puzzle].max())
    require(0 <= step <= last, "step", step, f"0 to {last}: this decode has {last + 1} steps")
    return torch.where(decoded.step[puzzle] >= step, 0, decoded.tokens[puzzle])


def screen_states(decoded: Decoded, solutions: np.ndarray, screen: Screen) -> pd.DataFrame:
    """States of sequential decodes in which the rules confine a digit to two cells of a row.

    Parameters
    ----------
    decoded : Decoded
        One position a step.
    solutions : ndarray of shape (B, 81)
        Only states without an error so far, the next digit included, are kept.
    screen : Screen

    Returns
    -------
    DataFrame
        Columns ``puzzle``, ``step``, ``next_cell``, ``next_digit``, ``unit``, ``digit``, ``cell_a``, ``cell_b``.
    """
    correct = decoded.tokens.numpy() == solutions
    found = []
    for puzzle, when in enumerate(decoded.step.numpy()):
        for step in range(when.max() + 1):
            cell = int(np.flatnonzero(when == step)[0])
            digit = int(decoded.tokens[puzzle, cell])
            if not correct[puzzle, when <= step].all():
                break
            if screen.next_digit not in (-1, digit):
                continue
            pairs = confined_digits(board_before(decoded, puzzle, step).numpy())
            pairs = pairs[screen.keeps(pairs) & (pairs[["cell_a", "cell_b"]] != cell).all(axis=1)]
            found.append(pairs.assign(puzzle=puzzle, step=step, next_cell=cell, next_digit=digit))
    columns = ["puzzle", "step", "next_cell", "next_digit", "unit", "digit", "cell_a", "cell_b"]
    return pd.concat(found, ignore_index=True)[columns] if found else pd.DataFrame(columns=columns, dtype=int)


@torch.inference_mode()
def find_fig1_state(
    model: MaskedModel,
    head: MIHead,
    n_puzzles: int = 1_000,
    n_probe: int = 50,
    target: float = PAPER_MI,
    estimator: str = "entropy",
    screen: Screen = Screen(),
    progress: Progress = lambda puzzles: None,
) -> pd.DataFrame:
    """Search sequential decodes of the test set for states like the paper's Fig. 1.

    Screens by logic, ranks the pairs found by how close the head's MI is to ``target``, probes the best ``n_probe``.
    The MI of a joint distribution is at most the smaller entropy; the model's may exceed it, as its conditionals need
    not fit one joint: such states come last.

    Parameters
    ----------
    model : MaskedModel
    head : MIHead
    n_puzzles, n_probe : int
    target : float
        In nats.
    estimator : {"entropy", "mixture", "kl"}
        The one compared with ``target``.
    screen : Screen
    progress : callable
        Called with the number of puzzles just decoded.

    Returns
    -------
    DataFrame
        The probed states, closest to ``target`` first: the columns of ``screen_states``, ``predicted`` (by the head),
        ``entropy``, ``mixture``, ``kl`` (MI between the two cells by each estimator, symmetrised), ``entropy_a``,
        ``entropy_b`` (of the cells), all in nats, ``possible`` (MI at most either entropy), ``n_screened``, and
        ``board`` (81 characters: rounding may change a decode, so the board itself is kept).

    Raises
    ------
    ValueError
        If the screen finds no state.
    """
    check_estimator(estimator)
    puzzles, answers = load_puzzles(0, n_puzzles)
    decoded = decode(model, torch.from_numpy(puzzles).long(), Sequential(), progress=progress)
    states = screen_states(decoded, answers, screen)
    require(len(states) > 0, "screen", screen, f"one that some state of {n_puzzles} decodes passes")
    boards = torch.stack([board_before(decoded, p, s) for p, s in zip(states["puzzle"], states["step"], strict=True)])
    a, b = (torch.from_numpy(states[c].to_numpy(np.int64, copy=True)) for c in ("cell_a", "cell_b"))
    predicted = []
    for chunk, i, j in zip(boards.split(64), a.split(64), b.split(64), strict=True):
        hidden, first = marginals(model, chunk)[1], torch.arange(len(chunk)) * chunk.shape[1]
        predicted.append(head.pairs(hidden.flatten(0, 1).float(), first + i, first + j))
    states = states.assign(predicted=torch.cat(predicted).numpy(), n_screened=len(states))
    states["board"] = [format_board(board) for board in boards.numpy()]
    best = states.iloc[(states["predicted"] - target).abs().argsort(kind="stable")[:n_probe]]
    best = pd.DataFrame([{**row, **_probe_pair(model, boards[k], row)} for k, row in best.to_dict("index").items()])
    best["possible"] = best[estimator] <= best[["entropy_a", "entropy_b"]].min(axis=1)
    distance = (best[estimator] - target).abs() + 10 * ~best["possible"]  # impossible ones last
    return best.iloc[distance.argsort(kind="stable")].reset_index(drop=True)


def _probe_pair(model: MaskedModel, board: Tensor, row: dict) -> dict:
    """MI between two cells by each estimator, and their entropies, from the two rows that it takes."""
    a, b = int(row["cell_a"]), int(row["cell_b"])
    rows = probe(model, board, rows=torch.tensor([a, b]))
    h = entropy(marginals(model, board[None])[0][0])
    values = {name: float(symmetrize(rows.of(name))[a, b]) for name in ESTIMATORS}
    return {**values, "entropy_a": float(h[a]), "entropy_b": float(h[b])}


@dataclass(frozen=True)
class State:
    """A board just before the model unmasks a cell.

    Attributes
    ----------
    puzzle, step : int
        Index of the test puzzle, and of the step of its sequential decode.
    board, given : Tensor of shape (81,)
        What the model sees, and the puzzle's clues; ``0`` is an empty cell.
    next_cell, next_digit : int
        What it unmasks now.
    pair : tuple of int
        The two cells of a recorded state; empty for any other.
    digit : int
        The digit confined to them; ``0`` for any other state.
    """

    puzzle: int
    step: int
    board: Tensor
    given: Tensor
    next_cell: int
    next_digit: int
    pair: tuple[int, ...] = ()
    digit: int = 0

    def cells(self, mi: np.ndarray, cell: int = -1) -> tuple[int, int]:
        """The cell whose MI map is drawn, and its partner.

        Parameters
        ----------
        mi : ndarray of shape (81, 81)
        cell : int
            ``-1``: the first of the pair, or without one the cell with the largest MI in sum. The partner is the
            other of the pair if ``cell`` is one of them, else the cell with the largest MI.

        Raises
        ------
        ValueError
            If the cell is not empty.
        """
        if cell < 0:
            cell = self.pair[0] if self.pair else int(mi.sum(1).argmax())
        require(int(self.board[cell]) == 0, "cell", cell, f"an empty cell, one of {np.flatnonzero(self.board == 0)}")
        others = [c for c in self.pair if c != cell]
        return cell, others[0] if len(others) == 1 else int(mi[cell].argmax())


def choose_state(model: MaskedModel, recorded: pd.DataFrame, checkpoint: str, puzzle: int, step: int) -> State:
    """The recorded state of a checkpoint, or any step of the sequential decode of any test puzzle.

    Parameters
    ----------
    model : MaskedModel
    recorded : DataFrame
        ``find_fig1_state`` of one or more checkpoints, best first, with a column ``checkpoint``.
    checkpoint : str
    puzzle, step : int
        ``puzzle=-1`` takes the recorded state, and ``step`` must be -1 too; else ``step=-1`` is half of the decode.

    Raises
    ------
    ValueError
        If there is no such state.
    """
    puzzles = torch.from_numpy(load_puzzles(0)[0]).long()
    if puzzle < 0:
        require(step < 0, "step", step, "-1 with puzzle=-1, the recorded state")
        known = tuple(recorded["checkpoint"].unique())
        require(checkpoint in known, "checkpoint", checkpoint, f"one with a recorded state {known}, or a puzzle >= 0")
        row = recorded[recorded["checkpoint"] == checkpoint].iloc[0]
        board = torch.from_numpy(parse_puzzle(row["board"])).long()
        facts = {k: int(row[k]) for k in ("puzzle", "step", "next_cell", "next_digit", "digit")}
        pair = (int(row["cell_a"]), int(row["cell_b"]))
        return State(board=board, given=puzzles[facts["puzzle"]], pair=pair, **facts)
    require(puzzle < len(puzzles), "puzzle", puzzle, f"the index of a test puzzle, below {len(puzzles)}")
    decoded = decode(model, puzzles[puzzle][None], Sequential())
    step = int(decoded.step.max()) // 2 if step < 0 else step
    board = board_before(decoded, 0, step)
    cell = int((decoded.step[0] == step).nonzero()[0])
    return State(puzzle, step, board, puzzles[puzzle], cell, int(decoded.tokens[0, cell]))
