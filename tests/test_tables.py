"""The book's tables on made-up outcomes, every number by hand."""

import math

import numpy as np
import pandas as pd
import pytest

from mi_lib.metrics import solve_rate
from mi_lib.solving import PAPER_TABLE1, Method
from mi_lib.tables import (
    beside_paper,
    decoding_claims,
    equal_passes,
    families,
    named,
    outcome,
    paired_table,
    readable,
    show,
    verdict,
    with_intervals,
)

GUIDED = "gamma=0.3 lam=1.0 head=entropy"


def rows(method: str, parameters: str, solved: list[int], passes: float, seed: int = 0, **more) -> pd.DataFrame:
    puzzle = np.arange(len(solved))
    frame = pd.DataFrame({"method": method, "parameters": parameters, "seed": seed, "puzzle": puzzle})
    return frame.assign(solved=solved, passes=passes + puzzle % 2, **more)


@pytest.fixture
def outcomes() -> pd.DataFrame:
    """Three methods of four puzzles, not in the paper's order, and one row that the paper lacks."""
    return pd.concat(
        [
            rows("MI", GUIDED, [1, 1, 1, 0], 14.0, seconds=0.5),
            rows("MI", "gamma=0.3 lam=1.0 head=zero", [0, 0, 0, 0], 13.0, seconds=0.25),
            rows("Sequential", "", [1, 0, 0, 0], 53.0, seconds=2.0),
        ],
        ignore_index=True,
    )


def test_intervals_a_method(outcomes):
    table = with_intervals(outcomes)
    assert list(table) == [
        *["method", "parameters", "n", "passes", "solved", "low", "high", "seconds_per_puzzle"],
    ]
    assert table["method"].tolist() == ["MI", "MI", "Sequential"]
    assert table["n"].tolist() == [4, 4, 4]
    assert table["passes"].tolist() == [14.5, 13.5, 53.5]
    assert table["solved"].tolist() == [0.75, 0.0, 0.25]
    assert table["seconds_per_puzzle"].tolist() == [0.5, 0.25, 2.0]
    for row, solved in zip(table.itertuples(), ([1, 1, 1, 0], [0] * 4, [1, 0, 0, 0]), strict=True):
        assert (row.solved, row.low, row.high) == solve_rate(np.array(solved))
    assert "seconds_per_puzzle" not in with_intervals(outcomes.drop(columns="seconds"))


def test_sets_are_pooled_a_method():
    """Two sets of other sizes: the rate is that of all puzzles, not the mean of rates."""
    frame = pd.concat([rows("Naive", "k=4", [1, 1], 2.0), rows("Naive", "k=4", [0] * 8, 4.0, seed=1)])
    table = with_intervals(frame)
    assert table["n"].tolist() == [10]
    assert table["solved"].tolist() == [0.2]
    assert table["passes"].tolist() == [(2 * 2.5 + 8 * 4.5) / 10]


def test_the_paper_beside_here_by_hand(outcomes):
    table = beside_paper(outcomes)
    assert table["method"].tolist() == ["Sequential", "MI"]  # the paper's order
    assert table["parameters"].tolist() == ["", GUIDED]
    assert table["paper passes"].tolist() == [53.9, 15.2]
    assert table["here passes"].tolist() == [53.5, 14.5]
    assert table["paper solved"].tolist() == pytest.approx([61.6, 63.6])
    assert table["here solved"].tolist() == pytest.approx([25, 75])
    assert table["seconds a puzzle"].tolist() == [2.0, 0.5]
    z2 = 1.959963984540054**2
    for row, p in zip(table.to_dict("records"), (0.25, 0.75), strict=True):
        centre, half = p + z2 / 8, math.sqrt(z2) * math.sqrt(p * (1 - p) / 4 + z2 / 64)
        assert row["low"] == pytest.approx(100 * (centre - half) / (1 + z2 / 4))
        assert row["high"] == pytest.approx(100 * (centre + half) / (1 + z2 / 4))
    assert table["paper inside"].tolist() == [True, True]


def test_a_paper_figure_outside_the_interval_is_called_so():
    frame = pd.concat([rows("Naive", "k=4", [1] * 900 + [0] * 100, 14), rows("Naive", "k=7", [1] * 368 + [0] * 632, 9)])
    table = beside_paper(frame)
    assert table["parameters"].tolist() == ["k=4", "k=7"]
    assert table["paper inside"].tolist() == [False, True]
    assert "seconds a puzzle" not in table


def test_all_rows_of_the_paper_find_their_place():
    frame = pd.concat([rows(r.method, r.parameters, [1, 0], r.passes) for r in PAPER_TABLE1[::-1].itertuples()])
    table = beside_paper(frame)
    pd.testing.assert_frame_equal(table[["method", "parameters"]], PAPER_TABLE1[["method", "parameters"]])
    assert (table["here passes"] == PAPER_TABLE1["passes"] + 0.5).all()


def test_outcome_is_indexed_by_set_and_puzzle(outcomes):
    one = outcome(outcomes, "Sequential", "")
    assert one["solved"].dtype == bool
    assert one["passes"].tolist() == [53.0, 54.0, 53.0, 54.0]
    assert one["solved"].to_dict() == {(0, 0): True, (0, 1): False, (0, 2): False, (0, 3): False}
    unseeded = outcome(outcomes.drop(columns="seed"), "MI", GUIDED)
    assert unseeded["solved"].to_dict() == {0: True, 1: True, 2: True, 3: False}


def test_unknown_methods_are_answered_with_the_known(outcomes):
    known = rf"one of \['MI {GUIDED}', 'MI gamma=0.3 lam=1.0 head=zero', 'Sequential'\]"
    with pytest.raises(ValueError, match=f"method='Naive k=4', expected {known}"):
        outcome(outcomes, "Naive", "k=4")
    with pytest.raises(ValueError, match="method='MI', expected"):
        paired_table(outcomes, [(("MI", GUIDED), ("MI", ""))])


@pytest.mark.parametrize(
    ("key", "name"),
    [
        (("Sequential", ""), "Sequential"),
        (("Naive", "k=4"), "Naive k=4"),
        (("EB", "gamma=13.2673"), "EB γ=13.3"),
        (("Threshold", "tau=0.9"), "Threshold τ=0.9"),
        (("MI", "gamma=0.3 lam=1.0 head=mixture"), "MI γ=0.3, mixture head"),
        (("MI", "gamma=0.3 lam=0.5 head=entropy"), "MI γ=0.3, λ=0.5, entropy head"),
        (("MI", "gamma=0.002 lam=1.0 head=zero"), "budget rule γ=0.002, MI = 0"),
    ],
)
def test_names_for_the_page(key, name):
    assert readable(*key) == name
    frame = pd.DataFrame({"n": [1], "method": key[0], "parameters": key[1], "solved": [0.5]})
    assert named(frame).to_dict("list") == {"n": [1], "method": [name], "solved": [0.5]}


def test_paired_differences_by_hand(outcomes):
    """On four puzzles 3 solved against 1, both on the first: two discordant, p = 1/2."""
    table = paired_table(outcomes, [(("MI", GUIDED), ("Sequential", "")), (("Sequential", ""), ("MI", GUIDED))])
    first, second = table.to_dict("records")
    assert (first["a"], first["b"]) == ("MI γ=0.3, entropy head", "Sequential")
    assert (first["passes a"], first["passes b"], first["n"]) == (14.5, 53.5, 4)
    assert first["p"] == pytest.approx(0.5)
    half = 1.959963984540054 * math.sqrt((2 * 0.5**2 + 2 * 0.5**2) / 3 / 4)
    assert first["difference"] == pytest.approx(50)
    assert (first["low"], first["high"]) == pytest.approx((50 - 100 * half, 50 + 100 * half))
    assert (second["a"], second["difference"]) == ("Sequential", pytest.approx(-50))
    assert second["high"] == pytest.approx(-first["low"])


def test_pairs_are_puzzles_not_rows():
    """Puzzles in another order, and one method run on a set more: only shared puzzles count, each with itself."""
    a = rows("Naive", "k=4", [1, 1, 0, 0], 9.0)
    b = rows("Naive", "k=7", [1, 1, 0, 0], 5.0).iloc[::-1]
    frame = pd.concat([a, b, rows("Naive", "k=7", [1, 1, 1], 5.0, seed=1)])
    table = paired_table(frame, [(("Naive", "k=4"), ("Naive", "k=7"))])
    assert table["n"].tolist() == [4]
    assert table["difference"].tolist() == [0]
    assert table["p"].tolist() == [1]


def test_families_are_curves():
    table = pd.DataFrame(
        [
            ("MI", "gamma=0.6 lam=1.0 head=entropy", 9.7),
            ("MI", "gamma=0.3 lam=1.0 head=entropy", 15.2),
            ("MI", "gamma=0.3 lam=1.0 head=mixture", 15.0),
            ("MI", "gamma=0.3 lam=1.0 head=zero", 13.0),
            ("Sequential", "", 53.9),
            ("EB", "gamma=0.2", 15.3),
            ("EB", "gamma=0.5", 9.9),
        ],
        columns=["method", "parameters", "passes"],
    )
    before = table.copy()
    curves = families(table)
    assert curves.groupby("method", sort=False)["passes"].apply(list).to_dict() == {
        "EB": [9.9, 15.3],
        "MI, entropy head": [9.7, 15.2],
        "MI, mixture head": [15.0],
        "Sequential": [53.9],
        "budget rule, MI = 0": [13.0],
    }
    pd.testing.assert_frame_equal(table, before)


@pytest.mark.parametrize(
    ("low", "high", "word"),
    [
        (0.1, 2.0, "yes"),
        (-2.0, -0.1, "no"),
        (-1.0, 1.0, "not resolved"),
        (0.0, 1.0, "not resolved"),
        (-1.0, 0.0, "not resolved"),
    ],
)
def test_verdicts(low, high, word):
    assert verdict(low, high) == word


def test_tables_are_shown_with_their_digits():
    table = pd.DataFrame({"method": ["EB", "MI"], "solved": [61.5499, np.nan], "p": [0.01234, 0.5], "n": [1000, 7]})
    page = show(table, p=3).to_html()
    for text in ("61.5", "0.012", "0.500", "1000", "EB"):
        assert f">{text}</td>" in page
    assert "nan" not in page
    assert "level0" not in page.split("<tbody>")[1]  # no index
    assert ">0.5</td>" in show(table).to_html()


def test_a_small_p_is_not_shown_as_zero():
    page = show(pd.DataFrame({"p": [0.00001, 0.0123, 1.0]}), p=4).to_html()
    assert all(text in page for text in (">&lt; 0.0001<", ">0.0123<", ">1.0000<"))
    assert "0.0000" not in page


MATCHED = {
    10.0: (
        Method("MI", gamma=0.3, lam=1.0, head="entropy"),
        Method("MI", gamma=0.3, lam=1.0, head="zero"),
        Method("EB", gamma=0.2),
    )
}


@pytest.fixture
def hundred() -> pd.DataFrame:
    """Of 100 puzzles MI solves 60, Sequential 61 (the same and one more), EB 20 of the same, MI of zero 30 others."""

    def solved(start: int, stop: int) -> list[int]:
        return [int(start <= k < stop) for k in range(100)]

    return pd.concat(
        [
            rows("MI", GUIDED, solved(0, 60), 10.0),
            rows("Sequential", "", solved(0, 61), 50.0),
            rows("EB", "gamma=0.2", solved(0, 20), 10.5),
            rows("MI", "gamma=0.3 lam=1.0 head=zero", solved(60, 90), 9.0),
        ],
        ignore_index=True,
    )


def test_claims_are_answered_by_the_paired_differences(hundred):
    """-1 puzzle to Sequential, +40 to EB, +30 to the rule without MI; a wide margin calls the first preserved."""
    claims, pairs = decoding_claims(hundred, MATCHED, margin=0.2)
    assert pairs["difference"].tolist() == pytest.approx([-1, 40, 30])
    assert pairs["fewer passes"].tolist() == pytest.approx([50.5 / 10.5, 11 / 10.5, 9.5 / 10.5])
    assert claims["answer"].tolist() == ["yes", "not resolved", "yes", "yes"]
    assert claims["claim"][0] == "4.8 times fewer passes at preserved accuracy"
    assert claims["difference in points, 95 %"][2].startswith("+40.0 [")
    strict, _ = decoding_claims(hundred, MATCHED, margin=0.0)
    assert strict["answer"].tolist() == ["not resolved", "not resolved", "yes", "yes"]


def test_guidance_is_compared_with_all_others_and_sequential(hundred):
    table = equal_passes(hundred, MATCHED, "entropy")
    assert table["b"].tolist() == ["budget rule γ=0.3, MI = 0", "EB γ=0.2", "Sequential"]
    assert table["difference"].tolist() == pytest.approx([30, 40, -1])
    assert table["a better?"].tolist() == ["yes", "yes", "not resolved"]
    assert equal_passes(hundred, MATCHED, "zero")["difference"].tolist() == pytest.approx([-30, 10, -31])


def test_passes_are_those_of_the_shared_puzzles():
    """The second set has one method only: its passes count for nothing."""
    a = pd.concat([rows("MI", GUIDED, [1, 0], 10.0), rows("MI", GUIDED, [1, 0], 90.0, seed=1)])
    table = paired_table(pd.concat([a, rows("EB", "", [0, 0], 5.0)]), [(("MI", GUIDED), ("EB", ""))])
    assert (table["passes a"][0], table["passes b"][0], table["n"][0]) == (10.5, 5.5, 2)


def test_an_interval_and_a_p_value_must_agree():
    assert verdict(0.1, 2.0) == verdict(0.1, 2.0, 0.049) == "yes"
    assert verdict(-2.0, -0.1, 0.01) == "no"
    assert verdict(0.1, 2.0, 0.058) == verdict(-2.0, -0.1, 0.078) == "not resolved"
