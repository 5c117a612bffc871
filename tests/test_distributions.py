"""Distances between sets of points, where the answer is known."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from scipy.linalg import sqrtm
from scipy.spatial.distance import jensenshannon

from mi_lib.distributions import (
    bootstrap,
    cluster_jsd,
    embed,
    fit_clusters,
    fit_pca,
    frechet_distance,
    frechet_from,
    histogram,
    jensen_shannon,
    paired_bootstrap,
)
from mi_lib.masked import MaskedOutput
from mi_lib.proteins import AMINO_ACIDS, IDS, MASK_ID

COUNTS = arrays(np.int64, 5, elements=st.integers(0, 50)).filter(lambda counts: counts.sum() > 0)


class OneHot:
    """The hidden state of a residue is the residue; remembers its batches."""

    vocab, mask_id = IDS, MASK_ID

    def __init__(self):
        self.shapes = []

    def __call__(self, tokens):
        self.shapes.append(tuple(tokens.shape))
        x = (tokens[..., None] == IDS).float()
        return MaskedOutput(x, x)


def test_an_embedding_is_the_mean_over_residues():
    """Here: the protein's own composition, whatever the batch; equal lengths run together."""
    sequences, model, done = ["LLAG", "W", "CCCC", "LAGV", "M"], OneHot(), []
    points = embed(model, sequences, batch_size=2, progress=done.append)
    expected = [[s.count(letter) / len(s) for letter in AMINO_ACIDS] for s in sequences]
    assert points.dtype == np.float64
    np.testing.assert_allclose(points, expected)
    assert model.shapes == [(2, 1), (2, 4), (1, 4)]
    assert sum(done) == 5
    with pytest.raises(ValueError, match=r"sequences=\[\], expected at least one"):
        embed(model, [])


@given(COUNTS, COUNTS)
def test_divergence_is_the_mean_of_two_kl_and_bounded(p, q):
    a, b = p / p.sum(), q / q.sum()
    m = (a + b) / 2
    by_hand = sum(
        0.5 * x * math.log(x / z) for y in (a, b) for x, z in zip(y.tolist(), m.tolist(), strict=True) if x > 0
    )
    value = jensen_shannon(p, q)
    assert value == pytest.approx(by_hand, abs=1e-9)
    assert value == pytest.approx(jensen_shannon(q, p), abs=1e-12)
    assert 0 <= value <= math.log(2)
    assert jensen_shannon(3 * p, p) == pytest.approx(0, abs=1e-12)
    assert math.sqrt(value) == pytest.approx(jensenshannon(p, q), abs=1e-6)


def test_disjoint_histograms_are_ln_2_apart():
    assert jensen_shannon([3, 0, 1], [0, 9, 0]) == pytest.approx(math.log(2))
    with pytest.raises(ValueError, match="histograms that are not empty"):
        jensen_shannon([0, 0], [1, 0])


def blobs(n: int, centres: list[float], seed: int = 0) -> np.ndarray:
    """``n`` points around each of some places in the plane, a tenth wide."""
    rng = np.random.default_rng(seed)
    return np.concatenate([rng.normal(c, 0.1, (n, 2)) for c in centres])


def test_clusters_of_separate_groups():
    """Same groups: 0. Groups the reference lacks fall into the nearest one. Half of two groups: known by hand."""
    reference = blobs(40, [0, 5, 10])
    clusters = fit_clusters(reference, k=3)
    labels = clusters.predict(reference)
    assert sorted(histogram(labels, 3)) == [40, 40, 40]
    same = cluster_jsd(labels, clusters.predict(blobs(20, [0, 5, 10], seed=1)), 3)
    assert same(np.arange(60)) == pytest.approx(0, abs=1e-12)
    one = cluster_jsd(labels, clusters.predict(blobs(20, [10], seed=1)), 3)
    # reference (1/3, 1/3, 1/3), set (0, 0, 1), their mean (1/6, 1/6, 2/3)
    assert one(np.arange(20)) == pytest.approx(0.5 * (2 / 3 * math.log(2) + 1 / 3 * math.log(0.5) + math.log(1.5)))
    apart = cluster_jsd(labels[labels == labels[0]], clusters.predict(blobs(20, [10], seed=1)), 3)
    assert apart(np.arange(20)) == pytest.approx(math.log(2))
    assert fit_clusters(reference, k=3, seed=0).predict(reference).tolist() == labels.tolist()


def test_a_reference_smaller_than_k_is_refused():
    with pytest.raises(ValueError, match="k=15, expected at most as many clusters as reference points, 14"):
        fit_clusters(np.zeros((14, 2)))


def test_frechet_distance_of_gaussians():
    """Samples made to have exactly the moments asked for; the formula with SciPy's matrix square root."""
    rng = np.random.default_rng(0)

    def sample(mean, covariance, n=60):
        x = rng.normal(size=(n, len(mean)))
        x -= x.mean(0)
        x = x @ np.linalg.inv(np.linalg.cholesky(np.cov(x, rowvar=False)).T)  # covariance 1
        return x @ np.linalg.cholesky(covariance).T + mean

    s1, s2 = np.array([[2.0, 0.5], [0.5, 1.0]]), np.array([[1.0, -0.3], [-0.3, 3.0]])
    p, q = sample([0, 0], s1), sample([3, 4], s2, n=80)
    expected = 25 + np.trace(s1 + s2 - 2 * np.real(sqrtm(s1 @ s2)))
    assert frechet_distance(p, q) == pytest.approx(expected)
    assert frechet_distance(q, p) == pytest.approx(expected)
    assert frechet_distance(p, p) == pytest.approx(0, abs=1e-9)
    assert frechet_distance(p, p + np.array([1, 2])) == pytest.approx(5)
    # one dimension, or diagonal covariances: (m1 - m2)^2 + (s1 - s2)^2
    a, b = sample([1, 1], np.diag([4.0, 9.0])), sample([1, 3], np.diag([1.0, 25.0]))
    assert frechet_distance(a, b) == pytest.approx(4 + (2 - 1) ** 2 + (3 - 5) ** 2)
    assert frechet_from(p, np.concatenate([q, a]))(np.arange(80)) == pytest.approx(expected)


def test_frechet_distance_with_fewer_points_than_dimensions():
    points = np.random.default_rng(0).normal(size=(5, 12))
    assert frechet_distance(points, points) == pytest.approx(0, abs=1e-6)
    with pytest.raises(ValueError, match=r"points.shape=\(1, 12\)"):
        frechet_distance(points, points[:1])


def test_bootstrap_of_a_mean_is_its_standard_error():
    """Two seeds of 400 and 100 unit normals: the mean of two means, its standard error sqrt(1/400 + 1/100) / 2."""
    rng = np.random.default_rng(0)
    x, y = rng.normal(3, 1, 400), rng.normal(5, 1, 100)
    x, y = (x - x.mean()) / x.std() + 3, (y - y.mean()) / y.std() + 5
    value, low, high = bootstrap([lambda r: x[r].mean(), lambda r: y[r].mean()], [400, 100], samples=2000)
    half = 1.96 * math.sqrt(1 / 400 + 1 / 100) / 2
    assert value == pytest.approx(4)
    assert (high - value, value - low) == (pytest.approx(half, rel=0.1), pytest.approx(half, rel=0.1))
    twice = bootstrap([lambda r: x[r].mean()] * 2, [400, 400], samples=2000)  # seeds are resampled independently
    assert twice[2] - twice[1] == pytest.approx(2 * 1.96 / math.sqrt(800), rel=0.1)


def test_bootstrap_of_a_divergence_holds_the_value():
    """The resamples of a set like the reference all lie above it, so a plain percentile interval would not."""
    labels = np.random.default_rng(0).integers(15, size=500)
    statistic = cluster_jsd(labels, labels, 15)
    rng = np.random.default_rng(1)
    assert min(statistic(rng.integers(500, size=500)) for _ in range(100)) > 0.0005
    value, low, high = bootstrap([statistic], [500], samples=200)
    assert low < value == 0 < high < 0.01


def test_paired_differences_drop_what_both_share():
    """Noise that both have cancels: b is a + 1 to a hundredth."""
    rng = np.random.default_rng(0)
    a = rng.normal(0, 10, 300)
    b = a + 1 + rng.normal(0, 0.01, 300)
    value, low, high = paired_bootstrap([lambda r: b[r].mean()], [lambda r: a[r].mean()], [300], samples=200)
    assert value == pytest.approx((b - a).mean())
    assert 0.99 < low < high < 1.01


def test_bootstrap_needs_a_statistic():
    with pytest.raises(ValueError, match=r"statistics=\[\]"):
        bootstrap([], [])


def test_principal_components_are_the_references():
    """Variances 9 and 1 along known axes, exactly; other sets are only projected."""
    angle = np.linspace(0, 2 * np.pi, 100, endpoint=False)
    circle = np.stack([3 * np.cos(angle), np.sin(angle)], 1)
    points, explained = fit_pca(circle + np.array([5, 7]), {"far": np.array([[105.0, 7.0]])}, n=1)
    assert explained == pytest.approx([0.9])
    assert list(points) == ["set", "pc1"]
    assert points["set"].tolist() == ["reference"] * 100 + ["far"]
    assert abs(points["pc1"].iloc[-1]) == pytest.approx(100)
    assert np.abs(points["pc1"][:100]).to_numpy() == pytest.approx(np.abs(circle[:, 0]), abs=1e-9)
    with pytest.raises(ValueError, match="reference=2, expected more than 2 points"):
        fit_pca(circle[:2], {})


def test_embedding_runs_no_gradients():
    weight = torch.ones((), requires_grad=True)

    class Model(OneHot):
        def __call__(self, tokens):
            out = super().__call__(tokens)
            return MaskedOutput(out.logits, out.hidden * weight)

    assert embed(Model(), ["LA"]).shape == (1, 20)
