"""The methods of Table 1 by name, and their outcome on a set of puzzles."""

import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pandas as pd
import torch
from tqdm import tqdm

from mi_lib.checkpoints import load_head, load_mdm
from mi_lib.conflicts import find_conflicts
from mi_lib.masked import require
from mi_lib.mdm import MDM
from mi_lib.policies import EntropyBounded, HeadMI, MIGuided, RandomOrder, Sequential, Threshold, TopK, no_mi
from mi_lib.samplers import Policy, decode
from mi_lib.sudoku import is_solved


@dataclass(frozen=True)
class Method:
    """One row of a results table.

    Attributes
    ----------
    name : {"Sequential", "Random", "Naive", "EB", "MI", "Threshold"}
    k, gamma, lam, tau
        Parameters of the policy; those it does not take stay None.
    head : {"entropy", "mixture", "zero"}, optional
        The estimator the MI head was trained on, or MI of zero.
    """

    name: str
    k: int | None = None
    gamma: float | None = None
    lam: float | None = None
    tau: float | None = None
    head: str | None = None

    @property
    def parameters(self) -> str:
        """Parameters as one string, ``gamma=0.3 lam=1.0 head=entropy``; empty for Sequential."""
        values = ((key, getattr(self, key)) for key in ("k", "gamma", "lam", "tau", "head"))
        return " ".join(f"{key}={value}" for key, value in values if value is not None)

    @property
    def label(self) -> str:
        """Name and parameters in one string."""
        return f"{self.name} {self.parameters}".strip()

    def policy(self, checkpoint: str) -> Policy:
        """The policy, with the head that belongs to ``checkpoint`` if it needs one."""
        for key in {"EB": ["gamma"], "Threshold": ["tau"], "MI": ["gamma", "lam", "head"]}.get(self.name, []):
            require(getattr(self, key) is not None, key, None, f"a value: {self.name} needs it")
        if self.name == "MI":
            mi = no_mi if self.head == "zero" else HeadMI(load_head(f"{checkpoint}_head_{self.head}", checkpoint))
            return MIGuided(mi, self.gamma, self.lam)
        made = {
            "Sequential": Sequential,
            "Naive": lambda: TopK(self.k),
            "EB": lambda: EntropyBounded(self.gamma),
            "Threshold": lambda: Threshold(self.tau),
            "Random": RandomOrder,
        }
        if self.name not in made:
            raise ValueError(f"method {self.name!r}, expected 'MI' or one of {tuple(made)}")
        return made[self.name]()


def table1_methods(
    k: tuple[int, ...] = (4, 7),
    gamma_eb: tuple[float, ...] = (0.2, 0.5),
    gamma: tuple[float, ...] = (0.3, 0.6),
    lam: float = 1.0,
    head: str = "entropy",
) -> tuple[Method, ...]:
    """The rows of Table 1; the defaults are the paper's seven."""
    return (
        Method("Sequential"),
        *(Method("Naive", k=value) for value in k),
        *(Method("EB", gamma=value) for value in gamma_eb),
        *(Method("MI", gamma=value, lam=float(lam), head=head) for value in gamma),
    )


PAPER_TABLE1 = pd.DataFrame(
    [
        ("Sequential", "", 53.9, 0.616),
        ("Naive", "k=4", 14.9, 0.524),
        ("Naive", "k=7", 9.0, 0.368),
        ("EB", "gamma=0.2", 15.3, 0.610),
        ("EB", "gamma=0.5", 9.9, 0.512),
        ("MI", "gamma=0.3 lam=1.0 head=entropy", 15.2, 0.636),
        ("MI", "gamma=0.6 lam=1.0 head=entropy", 9.7, 0.562),
    ],
    columns=["method", "parameters", "passes", "solved"],
)  # as printed in the paper


def run_method(
    checkpoint: str,
    method: Method,
    puzzles: np.ndarray,
    batch_size: int = 64,
    progress: Callable[[int], None] = lambda finished: None,
    model: MDM | None = None,
    solutions: np.ndarray | None = None,
) -> tuple[pd.DataFrame, float]:
    """Decode puzzles with one method at temperature 0.

    Parameters
    ----------
    checkpoint : str
    method : Method
    puzzles : ndarray of shape (n, 81)
    batch_size : int
    progress : callable
        Called with the number of puzzles just finished.
    model : MDM, optional
        The checkpoint, if it is loaded already.
    solutions : ndarray of shape (n, 81), optional

    Returns
    -------
    outcomes : DataFrame
        A row a puzzle: ``puzzle`` (its number), ``solved`` (0 or 1), ``passes``; with solutions also ``conflict`` and
        ``conflict_first`` (``mi_lib.conflicts.find_conflicts``).
    seconds : float
        Wall time, heads and policies included.
    """
    model, policy = model or load_mdm(checkpoint), method.policy(checkpoint)
    tokens = torch.from_numpy(puzzles).long()
    started = time.perf_counter()
    decoded = decode(model, tokens, policy, batch_size=batch_size, progress=progress)
    seconds = time.perf_counter() - started
    boards = decoded.tokens.numpy()
    columns = {"puzzle": np.arange(len(puzzles)), "solved": is_solved(puzzles, boards).astype(int)}
    outcomes = pd.DataFrame(columns | {"passes": decoded.nfe.numpy()})
    if solutions is not None:
        outcomes = outcomes.join(find_conflicts(boards, decoded.step.numpy(), solutions))
    return outcomes, seconds


def run_methods(
    checkpoint: str, methods: tuple[Method, ...], puzzles: np.ndarray, seed: int | str = 0, batch_size: int = 64
) -> pd.DataFrame:
    """Decode the same puzzles with several methods, with a progress bar.

    Returns
    -------
    DataFrame
        A row a method and puzzle: ``checkpoint``, ``method``, ``parameters``, ``seed``, ``puzzle``, ``solved``,
        ``passes``, ``seconds`` (the method's wall time a puzzle).
    """
    model, frames = load_mdm(checkpoint), []
    for method in methods:
        with tqdm(total=len(puzzles), desc=method.label, unit="puzzle") as bar:
            outcomes, seconds = run_method(checkpoint, method, puzzles, batch_size, bar.update, model)
        row = {"checkpoint": checkpoint, "method": method.name, "parameters": method.parameters, "seed": seed}
        frames.append(outcomes.assign(**row, seconds=seconds / len(puzzles)))
    first = ["checkpoint", "method", "parameters", "seed"]
    frame = pd.concat(frames, ignore_index=True)
    return frame[first + [column for column in frame if column not in first]]
