"""How far two sets of proteins are apart as points: histograms of clusters, Gaussians, with bootstrap intervals."""

from collections.abc import Callable, Iterable

import numpy as np
import pandas as pd
import torch
from scipy.spatial.distance import jensenshannon
from sklearn.cluster import KMeans
from sklearn.decomposition import PCA

from mi_lib.generation import length_groups
from mi_lib.masked import MaskedModel, require
from mi_lib.proteins import encode

Statistic = Callable[[np.ndarray], float]  # of the proteins with these numbers


@torch.inference_mode()
def embed(
    model: MaskedModel,
    sequences: list[str],
    batch_size: int = 64,
    progress: Callable[[int], None] = lambda embedded: None,
) -> np.ndarray:
    """Embedding of each protein: the mean over its residues of the model's hidden state.

    Parameters
    ----------
    model : MaskedModel
        Whose ``hidden`` has residues only; the final normed embedding for ESM-C.
    sequences : list of str
    batch_size : int
        Sequences of equal length run together.
    progress : callable
        Called with the number of proteins just embedded.

    Returns
    -------
    ndarray of shape (n, D), float64
    """
    require(len(sequences) > 0, "sequences", sequences, "at least one")
    points: list = [None] * len(sequences)
    for group in length_groups(map(len, sequences)):
        for start in range(0, len(group), batch_size):
            rows = group[start : start + batch_size]
            hidden = model(encode([sequences[k] for k in rows]).to(model.vocab.device)).hidden
            for k, point in zip(rows, hidden.double().mean(1).cpu().numpy(), strict=True):
                points[k] = point
            progress(len(rows))
    return np.stack(points)


def jensen_shannon(p: np.ndarray, q: np.ndarray) -> float:
    """Jensen-Shannon divergence of two histograms in nats, in [0, ln 2]; SciPy's distance is its square root.

    Parameters
    ----------
    p, q : ndarray of shape (k,)
        Counts or probabilities, each with a positive sum.
    """
    require(min(np.sum(p), np.sum(q)) > 0, "p and q", (p, q), "histograms that are not empty")
    return float(np.clip(np.nan_to_num(jensenshannon(p, q)) ** 2, 0, np.log(2)))


def fit_clusters(reference: np.ndarray, k: int = 15, seed: int = 0, n_init: int = 10) -> KMeans:
    """k-means of the reference points (§5.3, k = 15), the best of ``n_init`` starts.

    Raises
    ------
    ValueError
        If there are fewer reference points than clusters.
    """
    reference = np.asarray(reference, float)
    require(len(reference) >= k >= 1, "k", k, f"at most as many clusters as reference points, {len(reference)}")
    return KMeans(k, n_init=n_init, random_state=seed).fit(reference)


def histogram(labels: np.ndarray, k: int) -> np.ndarray:
    """Points in each of ``k`` clusters, shape (k,)."""
    return np.bincount(labels, minlength=k)


def cluster_jsd(reference: np.ndarray, labels: np.ndarray, k: int) -> Statistic:
    """Jensen-Shannon divergence, in nats, of a set's cluster histogram from the reference's.

    Parameters
    ----------
    reference, labels : ndarray of int
        The cluster of each reference point and of each point of the set.
    k : int
        Clusters.
    """
    target = histogram(reference, k)
    return lambda rows: jensen_shannon(target, histogram(labels[rows], k))


def moments(points: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Mean (D,) and covariance (D, D) of points (n, D)."""
    points = np.asarray(points, float)
    require(points.ndim == 2 and len(points) > 1, "points.shape", points.shape, "(n, D) with n of at least 2")
    return points.mean(0), np.atleast_2d(np.cov(points, rowvar=False))


def square_root(covariance: np.ndarray) -> np.ndarray:
    """The symmetric square root of a covariance matrix; rounding below zero counts as zero."""
    values, vectors = np.linalg.eigh(covariance)
    return (vectors * np.sqrt(values.clip(min=0))) @ vectors.T


def frechet_distance(p: np.ndarray, q: np.ndarray) -> float:
    """Squared Fréchet (2-Wasserstein) distance of the Gaussians fitted to two sets of points.

    ``|m_p - m_q|^2 + tr(S_p + S_q - 2 (S_p^1/2 S_q S_p^1/2)^1/2)``, the formula of the Fréchet Inception Distance
    (arXiv 1706.08500), in squared units of the embedding.

    Parameters
    ----------
    p, q : ndarray of shape (n, D) and (m, D)
    """
    return frechet_from(p, q)(np.arange(len(q)))


def frechet_from(reference: np.ndarray, points: np.ndarray) -> Statistic:
    """``frechet_distance`` of a set from the reference, as a function of the set's rows."""
    mean, covariance = moments(reference)
    root = square_root(covariance)

    def distance(rows: np.ndarray) -> float:
        m, c = moments(points[rows])
        cross = np.sqrt(np.linalg.eigvalsh(root @ c @ root).clip(min=0)).sum()
        return float(max(((mean - m) ** 2).sum() + np.trace(covariance) + np.trace(c) - 2 * cross, 0.0))

    return distance


def bootstrap(
    statistics: Iterable[Statistic], sizes: Iterable[int], samples: int = 500, seed: int = 0, level: float = 0.95
) -> tuple[float, float, float]:
    """The mean of a statistic over seeds, with its interval: proteins are resampled within each seed.

    Parameters
    ----------
    statistics : iterable of callable
        One a seed: from row numbers (with repeats) to the value.
    sizes : iterable of int
        Proteins of each seed.
    samples, seed : int
        Of the bootstrap.
    level : float

    Returns
    -------
    value, low, high : float

    Notes
    -----
    Divergences of samples are biased upwards, and those of resamples once more: the bootstrap's quantiles are moved by
    the difference of its mean from the value. The interval then is one for *this statistic at this sample size*, as
    comparable as the value itself with the floor, which has the same bias.
    """
    value, draws = 0.0, np.zeros(samples)
    pairs = list(zip(statistics, sizes, strict=True))
    require(len(pairs) > 0, "statistics", pairs, "at least one")
    for k, (statistic, n) in enumerate(pairs):
        rng = np.random.default_rng([seed, k])
        value += statistic(np.arange(n)) / len(pairs)
        draws += np.array([statistic(rng.integers(n, size=n)) for _ in range(samples)]) / len(pairs)
    low, high = np.quantile(draws - draws.mean(), [(1 - level) / 2, (1 + level) / 2])
    return float(value), float(value + low), float(value + high)


def paired_bootstrap(
    a: Iterable[Statistic], b: Iterable[Statistic], sizes: Iterable[int], samples: int = 500, seed: int = 0
) -> tuple[float, float, float]:
    """Difference a minus b of a statistic, with its interval: the same proteins of both are drawn.

    Proteins with one number share their length and noise, so their difference is less noisy than its parts.
    """
    pairs = [lambda rows, x=x, y=y: x(rows) - y(rows) for x, y in zip(a, b, strict=True)]
    return bootstrap(pairs, sizes, samples, seed)


def fit_pca(reference: np.ndarray, sets: dict[str, np.ndarray], n: int = 2) -> tuple[pd.DataFrame, np.ndarray]:
    """Principal components fitted on the reference, and every set in them (Fig. 3).

    Parameters
    ----------
    reference : ndarray of shape (N, D)
    sets : dict of ndarray of shape (m, D)
    n : int
        Components.

    Returns
    -------
    points : DataFrame
        ``set`` ("reference" first), ``pc1``, ``pc2``, ...
    explained : ndarray of shape (n,)
        Share of the reference's variance along each.
    """
    require(len(reference) > n, "reference", len(reference), f"more than {n} points")
    pca = PCA(n, random_state=0).fit(reference)
    columns = [f"pc{k + 1}" for k in range(n)]
    frames = [
        pd.DataFrame(pca.transform(points), columns=columns).assign(set=name)
        for name, points in {"reference": reference, **sets}.items()
    ]
    return pd.concat(frames, ignore_index=True)[["set", *columns]], pca.explained_variance_ratio_
