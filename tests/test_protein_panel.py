"""The panel: sets whose measures are known, and intervals over proteins and seeds."""

import math

import numpy as np
import pandas as pd
import pytest
from toy_proteins import random_proteins

from mi_lib.distributions import frechet_distance
from mi_lib.protein_panel import MEASURES, NON_NEGATIVE, Yardstick, difference_rows, panel_rows, protein_claims
from mi_lib.sequence_scores import count_pairs, mean_log_odds, strongest_pairs
from mi_lib.solving import Method


def proteins(n: int, seed: int) -> list[str]:
    return list(random_proteins(n, seed).sequences)


def plane(n: int, seed: int) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(n, 2))


@pytest.fixture(scope="module")
def yardstick() -> Yardstick:
    """Forty proteins with embeddings in the plane, four clusters."""
    return Yardstick(proteins(40, 0), plane(40, 0), proteins(200, 1), k=4)


def everything(statistics: dict, n: int) -> dict[str, float]:
    return {name: statistic(np.arange(n)) for name, statistic in statistics.items()}


def test_the_reference_is_no_distance_from_itself(yardstick):
    values = everything(yardstick.measures(yardstick.reference, yardstick.points), 40)
    assert list(values) == list(MEASURES)
    for name in NON_NEGATIVE:
        assert values[name] == pytest.approx(0, abs=1e-6)
    assert values["low_complexity"] < 0.02
    assert 0.15 < values["nearest_identity"] < 0.45


def test_repeats_far_away_are_bad_in_every_measure(yardstick):
    """All in one cluster, of one letter: the JSD of the histograms from one cell, KL of a point."""
    repeats = ["Q" * 60] * 10
    values = everything(yardstick.measures(repeats, np.full((10, 2), 50.0)), 10)
    shares = np.bincount(yardstick.clusters.labels_) / 40
    hit = shares[yardstick.clusters.predict([[50.0, 50.0]])[0]]
    by_hand = 0.5 * (1 - hit) * math.log(2) + 0.5 * hit * math.log(2 * hit / (hit + 1)) + 0.5 * math.log(2 / (hit + 1))
    assert values["jsd_nats"] == pytest.approx(by_hand)
    assert values["jsd_distance"] == pytest.approx(math.sqrt(by_hand))
    assert values["frechet"] > 4000
    assert values["kl_residues"] > 2
    assert values["kl_2mers"] > values["kl_residues"]
    assert values["jsd_2mer_nats"] > 0.05
    assert values["distinct_3mers"] == 1 / (10 * 58)
    assert values["low_complexity"] == 1
    assert values["longest_run"] == 60


def test_copies_of_training_are_not_new(yardstick):
    copies = list(yardstick.training[:5])
    assert yardstick.measures(copies, plane(5, 2))["nearest_identity"](np.arange(5)) == 1
    assert yardstick.measures(copies, plane(5, 2))["nearest_identity"](np.array([3, 3])) == 1


def test_measures_are_those_of_the_rows(yardstick):
    """Rows of a set measure as a set of those rows."""
    sequences, points, rows = proteins(20, 5), plane(20, 5), np.array([3, 3, 7, 0])
    whole = yardstick.measures(sequences, points)
    part = everything(yardstick.measures([sequences[k] for k in rows], points[rows]), 4)
    assert {name: statistic(rows) for name, statistic in whole.items()} == pytest.approx(part)
    assert part["frechet"] == pytest.approx(frechet_distance(yardstick.points, points[rows]))
    pairs = strongest_pairs(list(yardstick.training))
    assert part["pair_log_odds"] == pytest.approx(mean_log_odds(*count_pairs([sequences[k] for k in rows], pairs)))


def test_rows_pool_seeds(yardstick):
    sets = [(proteins(12, seed), plane(12, seed)) for seed in (7, 8)]
    measured = [yardstick.measures(*s) for s in sets]
    table = panel_rows(measured, [12, 12], samples=40).set_index("measure")
    assert list(table.index) == list(MEASURES)
    for name, row in table.iterrows():
        assert row["value"] == pytest.approx(np.mean([m[name](np.arange(12)) for m in measured]))
        assert row["low"] - 1e-12 <= row["value"] <= row["high"] + 1e-12
    assert (table.loc[list(NON_NEGATIVE), "low"] >= 0).all()
    assert (table["n"] == 12).all()
    assert (table["seeds"] == 2).all()


def test_differences_are_of_the_same_proteins(yardstick):
    """A set and the same set with its first ten residues overwritten: exactly ten longer runs in each, no interval."""
    sequences = proteins(12, 7)
    worse = ["Q" * 20 + s[20:] for s in sequences]
    a, b = ([yardstick.measures(s, plane(12, 7))] for s in (worse, sequences))
    table = difference_rows(a, b, [12], samples=40).set_index("measure")
    assert table.loc["jsd_nats", ["difference", "low", "high"]].tolist() == [0, 0, 0]
    assert table.loc["longest_run", "low"] > 10
    assert table.loc["low_complexity", "low"] > 0.1
    assert list(difference_rows(a, b, [12], 5, ["frechet"])["measure"]) == ["frechet"]


def test_embeddings_must_fit():
    with pytest.raises(ValueError, match=r"len\(points\)=3, expected one a reference protein, 2"):
        Yardstick(["LA", "LA"], np.zeros((3, 2)), ["LA"])
    with pytest.raises(ValueError, match="k=15, expected at most as many clusters as reference points, 2"):
        Yardstick(["LA", "LA"], np.zeros((2, 2)), ["LA"])


def test_claims_are_answered_by_the_jsd():
    """MI is 0.02 [0.01, 0.03] nats below Naive, above Sequential by as much, and not resolved from EB."""
    guided = Method("MI", gamma=8.0, lam=1.0, head="entropy")
    eb, naive = Method("EB", gamma=5.0), Method("Naive", k=8)
    spans = {naive.label: (-0.02, -0.03, -0.01), "Sequential": (0.02, 0.01, 0.03), eb.label: (0.0, -0.01, 0.01)}
    rows = [
        {"a": guided.label, "b": b, "measure": m, "difference": d if m == "jsd_nats" else 9, "low": low, "high": high}
        for b, (d, low, high) in spans.items()
        for m in ("jsd_nats", "frechet")
    ]
    passes = [("Sequential", "", 75.0), ("MI", guided.parameters, 9.0), ("MI", guided.parameters, 11.0)]
    table2 = pd.DataFrame(passes, columns=["method", "parameters", "passes"])
    claims = protein_claims(pd.DataFrame(rows), table2, {10.0: (guided, eb, naive)})
    assert claims["answer"].tolist() == ["no", "not resolved", "yes"]
    assert claims["claim"][0] == "7.5 times fewer passes with no loss against Sequential"
    assert claims["claim"][1].startswith("Not claimed by the paper: MI-guided comes closer to real proteins than EB")
    assert claims["claim"][2].startswith("MI-guided comes closer to real proteins than Naive")
    assert claims["difference in JSD (nats), 95 %"][2] == "-0.0200 [-0.0300, -0.0100]"
