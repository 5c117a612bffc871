"""Intervals and scores by their textbook formulas, by hand, and by simulation."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from mi_lib.metrics import mi_scores, paired_difference, solve_rate

Z = 1.959963984540054  # of 95 %


def outcomes(solved: int, n: int) -> np.ndarray:
    return np.arange(n) < solved


def table(both: int, a_only: int, b_only: int, neither: int) -> tuple[np.ndarray, np.ndarray]:
    a = [1] * both + [1] * a_only + [0] * b_only + [0] * neither
    b = [1] * both + [0] * a_only + [1] * b_only + [0] * neither
    return np.array(a, bool), np.array(b, bool)


@pytest.mark.parametrize(("solved", "n"), [(616, 1000), (0, 50), (50, 50), (1, 2), (3, 7)])
def test_interval_is_wilsons(solved, n):
    p, z2 = solved / n, Z * Z
    centre = (p + z2 / (2 * n)) / (1 + z2 / n)
    half = Z / (1 + z2 / n) * math.sqrt(p * (1 - p) / n + z2 / (4 * n * n))
    assert solve_rate(outcomes(solved, n)) == pytest.approx((p, centre - half, centre + half), abs=1e-12)


def test_interval_of_the_papers_row():
    """616 of 1000: about three points on either side."""
    rate, low, high = solve_rate(outcomes(616, 1000))
    assert (rate, round(low, 4), round(high, 4)) == (0.616, 0.5855, 0.6456)


def test_a_wider_level_is_wider():
    _, low, high = solve_rate(outcomes(6, 10), level=0.5)
    _, lower, higher = solve_rate(outcomes(6, 10), level=0.99)
    assert lower < low < 0.6 < high < higher


def test_intervals_cover_the_truth_as_often_as_they_say():
    """Exactly: over all counts of 100 puzzles, the chance that the interval holds the true rate is close to 95 %."""
    intervals = np.array([solve_rate(outcomes(k, 100))[1:] for k in range(101)])
    rates = np.linspace(0.05, 0.95, 181)
    covered = (intervals[:, :1] <= rates) & (rates <= intervals[:, 1:])
    coverage = (stats.binom.pmf(np.arange(101)[:, None], 100, rates) * covered).sum(0)
    assert abs(coverage - 0.95).max() < 0.04
    assert coverage.mean() == pytest.approx(0.95, abs=0.003)


def test_paired_intervals_cover_the_truth_as_often_as_they_say():
    """Correlated outcomes: b solves 70 % of what a solves and 10 % of the rest, so a - b is 0.6 - 0.46."""
    rng, inside = np.random.default_rng(1), []
    for _ in range(500):
        a = rng.random(200) < 0.6
        b = rng.random(200) < np.where(a, 0.7, 0.1)
        d = paired_difference(a, b)
        inside.append(d["low"] <= 0.14 <= d["high"])
    assert abs(np.mean(inside) - 0.95) < 4 * math.sqrt(0.95 * 0.05 / 500)


def test_mcnemar_errs_at_most_as_often_as_it_says():
    rng, p = np.random.default_rng(2), []
    for _ in range(400):
        hard = rng.random(60) < 0.5
        p.append(paired_difference(*(rng.random(60) < np.where(hard, 0.3, 0.9) for _ in range(2)))["p"])
    assert 0.005 < np.mean(np.array(p) <= 0.05) < 0.05 + 4 * math.sqrt(0.05 * 0.95 / 400)


def test_paired_difference_by_hand():
    """8 discordant puzzles of 20, 7 to 1: two-sided p = 2 (C(8,0) + C(8,1)) / 2^8."""
    d = paired_difference(*table(both=5, a_only=7, b_only=1, neither=7))
    assert (d["a_only"], d["b_only"]) == (7, 1)
    assert d["p"] == pytest.approx(2 * (1 + 8) / 256)
    assert d["difference"] == pytest.approx(0.3)
    variance = (7 * 0.7**2 + 1 * 1.3**2 + 12 * 0.3**2) / 19
    half = Z * math.sqrt(variance / 20)
    assert (d["low"], d["high"]) == pytest.approx((0.3 - half, 0.3 + half))


@pytest.mark.parametrize(
    ("a_only", "b_only", "p"), [(0, 0, 1.0), (1, 0, 1.0), (3, 3, 1.0), (0, 6, 2 / 64), (10, 2, 2 * 79 / 4096)]
)
def test_exact_p_values(a_only, b_only, p):
    d = paired_difference(*table(4, a_only, b_only, 5))
    assert d["p"] == pytest.approx(p)
    assert d["difference"] == pytest.approx((a_only - b_only) / (9 + a_only + b_only))


@given(st.lists(st.tuples(st.booleans(), st.booleans()), min_size=2, max_size=40))
def test_swapping_the_methods_flips_the_difference(pairs):
    a, b = np.array(pairs).T
    forth, back = paired_difference(a, b), paired_difference(b, a)
    assert forth["difference"] == -back["difference"]
    assert (forth["low"], forth["high"]) == pytest.approx((-back["high"], -back["low"]))
    assert (forth["p"], forth["a_only"]) == (back["p"], back["b_only"])
    assert forth["difference"] == pytest.approx(solve_rate(a)[0] - solve_rate(b)[0])


def test_numbers_count_as_outcomes():
    a, b = table(3, 2, 1, 4)
    assert solve_rate(a.astype(int)) == solve_rate(a)
    assert paired_difference(a.astype(int), b.astype(int)) == paired_difference(a, b)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: solve_rate(np.zeros(0, bool)), r"solved\.shape=\(0,\), expected \(n,\) with n of at least 1"),
        (lambda: solve_rate(np.zeros((2, 3), bool)), r"solved\.shape=\(2, 3\), expected"),
        (lambda: paired_difference(np.ones(3), np.ones(4)), r"shapes=\(\(3,\), \(4,\)\), expected equal"),
        (lambda: paired_difference(np.ones(1), np.ones(1)), r"shapes=.*with n > 1"),
    ],
)
def test_other_shapes_are_named(call, message):
    with pytest.raises(ValueError, match=message):
        call()


def test_scores_of_a_perfect_prediction():
    true = np.array([0.0, 0.1, 0.3, 0.2])
    scores = mi_scores(true.copy(), true, np.array([False, False, True, True]))
    assert scores == {"r2": 1.0, "spearman": pytest.approx(1.0), "rmse": 0.0, "auroc_unit": 1.0}


def test_scores_by_hand():
    """Errors 0.1, 0, -0.2, 0.1 about a spread of 0.05; ranks of the prediction 2, 1, 3, 4."""
    true, predicted = np.array([0.0, 0.1, 0.3, 0.2]), np.array([0.1, 0.1 - 1e-12, 0.1 + 1e-12, 0.3])
    scores = mi_scores(predicted, true, np.array([True, False, True, False]))
    assert scores["r2"] == pytest.approx(1 - 0.06 / 0.05)
    assert scores["rmse"] == pytest.approx(math.sqrt(0.06 / 4))
    d = np.array([1, 2, 4, 3]) - np.array([2, 1, 3, 4])
    assert scores["spearman"] == pytest.approx(1 - 6 * (d**2).sum() / (4 * 15))
    assert scores["auroc_unit"] == pytest.approx(2 / 4)  # of 4 (unit, other) pairs, 2 in the right order
    assert all(type(value) is float for value in scores.values())


def test_a_constant_prediction_ranks_nothing():
    true, unit = np.array([0.0, 0.2, 0.4]), np.array([False, True, True])
    scores = mi_scores(np.full(3, 0.2), true, unit)
    assert scores["r2"] == pytest.approx(0.0)  # the mean explains nothing
    assert np.isnan(scores["spearman"])
    assert scores["auroc_unit"] == 0.5
    assert mi_scores(np.zeros(3), true)["r2"] == pytest.approx(1 - (0.04 + 0.16) / 0.08)


def test_r2_and_spearman_measure_other_things():
    """A monotone distortion keeps the ranks and loses the scale."""
    true = np.random.default_rng(0).exponential(0.1, 500)
    scores = mi_scores(true**2, true)
    assert scores["spearman"] == pytest.approx(1)
    assert scores["r2"] < 0.5
    assert "auroc_unit" not in scores


def test_auroc_is_the_share_of_pairs_in_the_right_order():
    rng = np.random.default_rng(3)
    predicted, unit = rng.integers(0, 6, 60).astype(float), rng.random(60) < 0.4
    score = [(x > y) + (x == y) / 2 for x in predicted[unit] for y in predicted[~unit]]
    assert mi_scores(predicted, rng.random(60), unit)["auroc_unit"] == pytest.approx(np.mean(score))
    assert stats.mannwhitneyu(predicted[unit], predicted[~unit]).statistic == pytest.approx(np.sum(score))
