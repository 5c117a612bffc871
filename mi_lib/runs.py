"""Decoded puzzle sets: a method's outcomes, kept in the cache, and the budgets at which methods are compared."""

import numpy as np
import pandas as pd

from mi_lib.artifacts import CACHE, atomic_path, read_sidecar
from mi_lib.masked import require
from mi_lib.metrics import rate_interval
from mi_lib.puzzles import load_puzzles
from mi_lib.results import Progress, counting, read_result
from mi_lib.solving import Method, run_method, table1_methods

TARGET_PASSES = (15.2, 9.7)  # the paper's MI-guided rows: methods are compared at equal passes
HEADS = ("entropy", "mixture", "zero")
KEYS = ["checkpoint", "method", "parameters", "seed"]


def cached_run(checkpoint: str, method: Method, puzzle_set: int | str, n: int, progress: Progress) -> pd.DataFrame:
    """Outcomes of one method on one puzzle set, from the cache if the same checkpoints made them."""
    used = {checkpoint: "mdm"}
    if method.head in ("entropy", "mixture"):
        used[f"{checkpoint}_head_{method.head}"] = "head"
    key = "-".join(read_sidecar(name, kind)["sha256"][:12] for name, kind in used.items())
    path = CACHE / "runs" / f"{key}-{method.label.replace(' ', '_')}-{puzzle_set}-{n}.csv"
    if not path.exists():
        puzzles, solutions = load_puzzles(puzzle_set, n)
        step = counting(progress, f"{checkpoint} {method.label} on set {puzzle_set}", n)
        outcomes, seconds = run_method(checkpoint, method, puzzles, progress=step, solutions=solutions)
        with atomic_path(path) as temporary:
            outcomes.assign(seconds=seconds / n).to_csv(temporary, index=False)
    return pd.read_csv(path)


def run_table(checkpoint: str, methods: tuple[Method, ...], sets: list, n: int, progress: Progress) -> pd.DataFrame:
    """Per-puzzle outcomes of several methods on several sets: checkpoint, method, parameters, seed, puzzle, ..."""
    frames = []
    for puzzle_set in sets:
        for method in methods:
            labels = {"checkpoint": checkpoint, "method": method.name, "parameters": method.parameters}
            runs = cached_run(checkpoint, method, puzzle_set, n, progress)
            frames.append(runs.assign(**labels, seed=puzzle_set))
    return pd.concat(frames, ignore_index=True)


def summarize(outcomes: pd.DataFrame) -> pd.DataFrame:
    """Means a method and set: checkpoint, method, parameters, seed, n, passes, solved, seconds_per_puzzle."""
    return (
        outcomes.groupby(KEYS, sort=False)
        .agg(
            n=("solved", "size"),
            passes=("passes", "mean"),
            solved=("solved", "mean"),
            seconds_per_puzzle=("seconds", "mean"),
        )
        .reset_index()
    )


def matched_methods(checkpoint: str) -> dict[float, tuple[Method, ...]]:
    """Each budgeted method at the gamma that gives each of ``TARGET_PASSES`` on the recorded validation grid.

    Returns
    -------
    dict
        From passes to methods: MI with the entropy head first, then the mixture head, MI of zero, EB.
    """
    frame = read_result("gammas")
    frame = frame[frame["checkpoint"] == checkpoint]
    require(len(frame) > 0, "checkpoint", checkpoint, "one with recorded gammas (`mi record gammas`)")
    matched = {}
    for target in TARGET_PASSES:
        gammas = match_passes(frame, target, digits=3)
        guided = tuple(Method("MI", gamma=gammas[head], lam=1.0, head=head) for head in HEADS if head in gammas)
        matched[target] = (*guided, Method("EB", gamma=gammas["EB"]))
    return matched


def match_passes(frame: pd.DataFrame, target: float, digits: int) -> dict[str, float]:
    """The gamma or tau at which each method of a recorded grid takes ``target`` passes, by log-linear interpolation.

    Parameters
    ----------
    frame : DataFrame
        ``method``, ``parameters`` and ``passes``.
    target : float
    digits : int
        To which the values are rounded.

    Returns
    -------
    dict
        By head for MI guidance, else by method.

    Raises
    ------
    ValueError
        If a method's grid does not reach the target.
    """
    values = frame["parameters"].str.extract(r"(?:gamma|tau)=(?P<value>\S+)(?:.*head=(?P<head>\S+))?")
    grid = frame.assign(value=values["value"].astype(float), curve=values["head"].fillna(frame["method"]))
    matched = {}
    for curve, points in grid.sort_values("passes").groupby("curve"):
        low, high = points["passes"].min(), points["passes"].max()
        require(low <= target <= high, "target", target, f"{low:.1f} to {high:.1f} passes, the grid of {curve}")
        value = np.exp(np.interp(target, points["passes"], np.log(points["value"])))
        matched[curve] = round(float(value), digits)
    return matched


def added_methods(checkpoint: str) -> tuple[Method, ...]:
    """The rows that Table 1 gets beside the paper's: every budgeted method at equal passes, and a modern baseline."""
    matched = (method for methods in matched_methods(checkpoint).values() for method in methods)
    return tuple(dict.fromkeys((*matched, Method("Threshold", tau=0.9))))


def frontier_methods(checkpoint: str) -> tuple[Method, ...]:
    """The rows of Table 1, those added to it, and more points of each curve of accuracy against passes."""
    more = (
        *(Method("Naive", k=k) for k in (2, 3, 10)),
        *(Method("EB", gamma=gamma) for gamma in (0.05, 1.0)),
        *(Method("MI", gamma=gamma, lam=1.0, head="entropy") for gamma in (0.15, 1.2)),
    )
    return tuple(dict.fromkeys((*table1_methods(), *added_methods(checkpoint), *more)))


def recorded_outcomes(checkpoint: str, seed: int | None = None, n: int | None = None) -> pd.DataFrame:
    """Recorded outcomes of a checkpoint, a row a method and puzzle; of one puzzle set, of its first ``n`` puzzles."""
    frame = read_result("table1_puzzles")
    frame = frame[frame["checkpoint"] == checkpoint]
    frame = frame if seed is None else frame[frame["seed"] == seed]
    require(len(frame) > 0, "checkpoint and seed", (checkpoint, seed), "recorded ones (`mi record table1`)")
    return frame if n is None else frame[frame["puzzle"] < n]


def recorded_frontier(checkpoint: str) -> pd.DataFrame:
    """Recorded passes, accuracy and conflicts of a checkpoint; ``low``, ``high``: 95 % of ``conflict_rate``."""
    frame = read_result("frontier")
    frame = frame[frame["checkpoint"] == checkpoint]
    require(len(frame) > 0, "checkpoint", checkpoint, "one with a recorded frontier (`mi record frontier`)")
    counts = (frame["conflict_rate"] * frame["n"]).round().astype(int)
    bounds = [rate_interval(count, n) for count, n in zip(counts, frame["n"], strict=True)]
    return frame.assign(low=[low for low, _ in bounds], high=[high for _, high in bounds])
