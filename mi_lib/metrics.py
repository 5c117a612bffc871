"""Numbers with their intervals: solve rates, paired differences, and scores of predicted MI."""

import numpy as np
import pandas as pd
from scipy import stats
from sklearn.metrics import r2_score, roc_auc_score

from mi_lib.masked import require


def solve_rate(solved: np.ndarray, level: float = 0.95) -> tuple[float, float, float]:
    """Share of solved puzzles with its Wilson interval.

    Parameters
    ----------
    solved : ndarray of shape (n,), bool
    level : float

    Returns
    -------
    rate, low, high : float
    """
    solved = np.asarray(solved, bool)
    require(solved.ndim == 1 and len(solved) > 0, "solved.shape", solved.shape, "(n,) with n of at least 1")
    return float(solved.mean()), *rate_interval(int(solved.sum()), len(solved), level)


def rate_interval(count: int, n: int, level: float = 0.95) -> tuple[float, float]:
    """Wilson interval of the share ``count`` of ``n``."""
    interval = stats.binomtest(count, n).proportion_ci(level, method="wilson")
    return interval.low, interval.high


def paired_difference(a: np.ndarray, b: np.ndarray, level: float = 0.95) -> dict[str, float]:
    """Difference in solve rate, a minus b, on the same puzzles.

    Parameters
    ----------
    a, b : ndarray of shape (n,), bool
        Outcome of each method on each puzzle.
    level : float

    Returns
    -------
    dict
        ``difference`` with ``low`` and ``high`` (normal interval of the mean paired difference), the discordant counts
        ``a_only`` and ``b_only``, and ``p``, the exact McNemar p-value.
    """
    a, b = np.asarray(a, bool), np.asarray(b, bool)
    require(a.shape == b.shape and a.ndim == 1 and len(a) > 1, "shapes", (a.shape, b.shape), "equal, (n,) with n > 1")
    d = a.astype(float) - b
    half = stats.norm.ppf((1 + level) / 2) * d.std(ddof=1) / np.sqrt(len(d))
    a_only, b_only = int((a & ~b).sum()), int((b & ~a).sum())
    p = stats.binomtest(a_only, a_only + b_only).pvalue if a_only + b_only else 1.0
    return {
        "difference": d.mean(),
        "low": d.mean() - half,
        "high": d.mean() + half,
        "a_only": a_only,
        "b_only": b_only,
        "p": p,
    }


def mi_scores(predicted: np.ndarray, true: np.ndarray, same_unit: np.ndarray | None = None) -> dict[str, float]:
    """How well predicted MI follows probed MI, over pooled pairs.

    Parameters
    ----------
    predicted, true : ndarray of shape (n,)
        In nats.
    same_unit : ndarray of shape (n,), bool, optional
        Whether the two cells share a unit.

    Returns
    -------
    dict
        ``r2``, ``spearman`` (nan for a constant prediction), ``rmse`` in nats, and with ``same_unit`` also
        ``auroc_unit``: how well the prediction tells pairs that share a unit from those that do not.
    """
    constant = np.ptp(predicted) == 0
    scores = {
        "r2": r2_score(true, predicted),
        "spearman": np.nan if constant else stats.spearmanr(predicted, true).statistic,
        "rmse": float(np.sqrt(np.mean((predicted - true) ** 2))),
    }
    if same_unit is not None:
        scores["auroc_unit"] = roc_auc_score(same_unit, predicted)
    return {name: float(value) for name, value in scores.items()}


def r2_interval(
    predicted: np.ndarray, true: np.ndarray, group: np.ndarray, level: float = 0.95, n: int = 1_000, seed: int = 0
) -> tuple[float, float]:
    """Bootstrap interval of R2 over groups: the pairs of a board depend on each other, boards do not.

    Parameters
    ----------
    predicted, true : ndarray of shape (n,)
    group : ndarray of shape (n,)
        The board of each pair.
    level : float
    n, seed : int
        Bootstrap samples, and their seed.

    Returns
    -------
    low, high : float
    """
    _, index = np.unique(group, return_inverse=True)
    sums = np.stack([np.bincount(index, w) for w in (None, true, true**2, (predicted - true) ** 2)])  # (4, G)
    G = sums.shape[1]
    weights = np.random.default_rng(seed).multinomial(G, np.full(G, 1 / G), size=n)  # (n, G)
    count, total, squares, error = sums @ weights.T  # each (n,)
    r2 = 1 - error / (squares - total**2 / count)
    low, high = np.quantile(r2, [(1 - level) / 2, (1 + level) / 2])
    return float(low), float(high)


def bootstrap_means(frame: pd.DataFrame, by: list[str], value: str, seed: int = 0, n: int = 2_000) -> pd.DataFrame:
    """Mean of a column in each group with its 95 % percentile interval, boards resampled.

    Parameters
    ----------
    frame : DataFrame
        One row a board in each group.
    by : list of str
    value : str
    seed, n : int
        Of the bootstrap.

    Returns
    -------
    DataFrame
        ``by``, ``mean``, ``low``, ``high``.
    """
    rng, rows = np.random.default_rng(seed), []
    for key, group in frame.dropna(subset=[value]).groupby(by, sort=False):
        x = group[value].to_numpy()
        means = x[rng.integers(len(x), size=(n, len(x)))].mean(1)
        rows.append((*key, x.mean(), *np.quantile(means, [0.025, 0.975])))
    return pd.DataFrame(rows, columns=[*by, "mean", "low", "high"])
