"""Records of the proteins: small ones of a toy model, each number made again by hand from what is stored."""

import json
import math

import numpy as np
import pandas as pd
import pytest
import toy_proteins
from test_protein_runs import grid, silent
from toy_proteins import Chain, random_proteins

import mi_lib.protein_records
import mi_lib.protein_runs
from mi_lib.distributions import embed, fit_clusters, jensen_shannon
from mi_lib.generation import draw_lengths, generate, masked_nll, masks, table2_methods
from mi_lib.policies import TopK
from mi_lib.protein_panel import MEASURES, Yardstick
from mi_lib.protein_records import (
    KEYS,
    REFERENCE,
    compared,
    conditional_row,
    record_conditional,
    record_entropy_trajectory,
    record_protein_gammas,
    record_protein_panel,
    record_table2,
    summarize,
)
from mi_lib.protein_runs import OTHERS, SHUFFLED, UNIFORM, UNIGRAM, added_methods, model_hashes, reference_split
from mi_lib.results import read_result, write_result
from mi_lib.solving import Method

toy = toy_proteins.toy  # a fixture
FEW = (Method("Random"), Method("MI", gamma=9.0, lam=1.0, head="zero"))


@pytest.fixture
def table2(toy, monkeypatch):
    """Table 2 of three rows (one added), two seeds of six proteins, three clusters."""
    rows = (Method("Sequential"), Method("Naive", k=30))
    monkeypatch.setattr(mi_lib.protein_records, "table2_methods", lambda: rows)
    monkeypatch.setattr(mi_lib.protein_records, "added_methods", lambda model: FEW[1:])
    record_table2(["toy"], silent, n=6, seeds=(0, 4), k=3)
    return toy


def test_gammas(toy, monkeypatch):
    monkeypatch.setattr(mi_lib.protein_records, "GAMMA_GRID", (4.0, 64.0))
    monkeypatch.setattr(mi_lib.protein_records, "TAU_GRID", (0.2,))
    record_protein_gammas(["toy"], silent, n=2, seed=7)
    table = read_result("protein_gammas")
    heads = [f"gamma={g} lam=1.0 head={head}" for head in ("entropy", "mixture", "zero") for g in (4.0, 64.0)]
    assert table["parameters"].tolist() == ["gamma=4.0", "gamma=64.0", "tau=0.2", *heads]
    assert table["method"].tolist() == ["EB"] * 2 + ["Threshold"] + ["MI"] * 6
    assert (table[["seed", "n"]] == [7, 2]).all(axis=None)
    passes = table["passes"].to_numpy().reshape
    assert (table["passes"][[0, 3, 5, 7]].to_numpy() > table["passes"][[1, 4, 6, 8]].to_numpy()).all()
    lengths = draw_lengths(2, 7)
    expected = generate(Chain(), Method("EB", gamma=4.0).policy("toy"), lengths, 7)["passes"].mean()
    assert passes(-1)[0] == expected
    meta = json.loads((toy / "results" / "protein_gammas.json").read_text())
    assert (meta["command"], meta["n_proteins"], meta["seed"]) == ("mi record protein_gammas", 2, 7)
    assert meta["checkpoints"] == model_hashes(["toy"])


def test_table2_and_its_proteins(table2):
    table, proteins = read_result("table2"), read_result("table2_sequences")
    assert list(table) == [*KEYS, "n", "passes", "jsd_nats", "jsd_distance", "seconds_per_protein"]
    made = ["Sequential", "Naive", "MI"] * 2
    assert table["method"].tolist() == [*made, OTHERS, UNIFORM, UNIFORM, SHUFFLED, SHUFFLED, UNIGRAM, UNIGRAM]
    assert table["seed"].tolist() == [0] * 3 + [4] * 3 + [0, 0, 1, 0, 1, 0, 1]
    assert (table["n"] == 6).all()
    assert table["passes"].isna().tolist() == [False] * 6 + [True] * 7
    lengths = draw_lengths(6, 4)
    naive = proteins[(proteins["method"] == "Naive") & (proteins["seed"] == 4)]
    assert naive["sequence"].tolist() == generate(Chain(), TopK(30), lengths, 4)["sequence"].tolist()
    assert naive["passes"].tolist() == np.ceil(lengths / 30).tolist()
    assert table.loc[4, "passes"] == naive["passes"].mean()
    # the divergence once more, from the sequences alone
    known = proteins.loc[proteins["method"] == REFERENCE, "sequence"].tolist()
    assert known == reference_split("reference", 6, 3)[0]
    clusters = fit_clusters(embed(Chain(), known), k=3)
    assert clusters.predict(embed(Chain(), naive["sequence"].tolist())).tolist() == naive["cluster"].tolist()
    counts = [np.bincount(c, minlength=3) for c in (clusters.labels_, naive["cluster"])]
    assert table.loc[4, "jsd_nats"] == pytest.approx(jensen_shannon(*counts))
    assert table.loc[4, "jsd_distance"] ** 2 == pytest.approx(table.loc[4, "jsd_nats"])
    meta = json.loads((table2 / "results" / "table2.json").read_text())
    assert (meta["n_proteins"], meta["seeds"], meta["k"]) == (6, [0, 4], 3)


def test_an_interrupted_table_goes_on(table2, monkeypatch):
    before = read_result("table2")
    (table2 / "results" / "table2.csv").unlink()
    monkeypatch.setattr(mi_lib.protein_runs, "embed", lambda *_, **__: pytest.fail("embedded again"))
    monkeypatch.setattr(mi_lib.checkpoints, "load_model", lambda name: pytest.fail("loaded again"))
    record_table2(["toy"], silent, n=6, seeds=(0, 4), k=3)
    pd.testing.assert_frame_equal(read_result("table2"), before)


def test_summaries_by_hand():
    """Reference halves in clusters 0 and 1; one method like it, one all in cluster 2."""
    rows = [("m", REFERENCE, "", 0, c, np.nan, np.nan) for c in (0, 1)]
    rows += [("m", "Naive", "k=4", 1, c, p, 0.5) for c, p in ((1, 10), (0, 13))]
    rows += [("m", "Naive", "k=8", 1, 2, 7, 0.1)]
    table = summarize(pd.DataFrame(rows, columns=[*KEYS, "cluster", "passes", "seconds"]), k=3)
    assert table["jsd_nats"].tolist() == pytest.approx([0, math.log(2)], abs=1e-12)
    assert table["jsd_distance"].tolist() == pytest.approx([0, math.sqrt(math.log(2))], abs=1e-6)
    assert table[["n", "passes", "seconds_per_protein"]].to_numpy().tolist() == [[2, 11.5, 0.5], [1, 7, 0.1]]


def test_panel_and_differences(table2, monkeypatch):
    pair = (("Naive", "k=30"), ("Sequential", ""))
    monkeypatch.setattr(mi_lib.protein_records, "compared", lambda model: [pair])
    record_protein_panel(["toy"], silent, samples=10, k=3)
    panel, differences = read_result("protein_panel"), read_result("protein_differences")
    assert list(panel) == ["model", "method", "parameters", "measure", "value", "low", "high", "n", "seeds"]
    assert panel.groupby("method", sort=False)["seeds"].first().to_dict() == {
        "Sequential": 2,
        "Naive": 2,
        "MI": 2,
        OTHERS: 1,
        UNIFORM: 2,
        SHUFFLED: 2,
        UNIGRAM: 2,
    }
    assert panel["measure"].tolist() == list(MEASURES) * 7
    proteins, table = read_result("table2_sequences"), read_result("table2")
    values = panel.pivot(index="method", columns="measure", values="value")
    for method in ("Naive", OTHERS, SHUFFLED):
        expected = table.loc[table["method"] == method, "jsd_nats"].mean()
        assert values.loc[method, "jsd_nats"] == pytest.approx(expected, abs=1e-12)
    known = proteins.loc[proteins["method"] == REFERENCE, "sequence"].tolist()
    yardstick = Yardstick(known, embed(Chain(), known), random_proteins(200, seed=1).sequences, k=3)
    naive = proteins[proteins["method"] == "Naive"].groupby("seed")["sequence"].agg(list)
    by_seed = [yardstick.measures(s, embed(Chain(), s)) for s in naive]
    for name in MEASURES:
        assert values.loc["Naive", name] == pytest.approx(np.mean([m[name](np.arange(6)) for m in by_seed]), abs=1e-9)
    assert list(differences) == ["model", "a", "b", "measure", "difference", "low", "high"]
    assert differences[["a", "b"]].drop_duplicates().to_numpy().tolist() == [["Naive k=30", "Sequential"]]
    expected = values.loc["Naive"] - values.loc["Sequential"]
    assert differences["difference"].tolist() == pytest.approx(expected[list(MEASURES)].tolist())
    meta = json.loads((table2 / "results" / "protein_differences.json").read_text())
    assert meta["command"] == "mi record protein_panel"


def test_what_is_compared(toy):
    """MI with all others at equal passes, every row with Sequential, and each of them is in Table 2."""
    write_result("protein_gammas", grid())
    pairs = compared("toy")
    rows = {(m.name, m.parameters) for m in (*table2_methods(), *added_methods("toy"))}
    assert {method for pair in pairs for method in pair} == rows
    with_sequential = [a for a, b in pairs if b == ("Sequential", "")]
    assert len(with_sequential) == len(set(with_sequential)) == len(rows) - 1
    guided = [(a, b) for a, b in pairs if b != ("Sequential", "")]
    assert len(guided) == 2 * 5
    assert all("head=entropy" in a[1] for a, _ in guided)
    assert [b for _, b in guided if b[0] == "Naive"] == [("Naive", "k=5"), ("Naive", "k=8")]


def test_entropy_trajectory(toy):
    record_entropy_trajectory(["toy"], silent, n=2, bins=4)
    table = read_result("entropy_trajectory")
    assert list(table) == ["model", "method", "parameters", "unmasked", "mean", "low", "high", "quantity"]
    assert table["method"].unique().tolist() == ["Sequential", "MI"]
    one = table[(table["method"] == "Sequential") & (table["quantity"] == "entropy_left")]
    assert one["unmasked"].tolist() == [0.125, 0.375, 0.625, 0.875]
    assert one["mean"].is_monotonic_decreasing
    assert (one["mean"] < math.log(20)).all()
    assert (table.loc[(table["method"] == "Sequential") & (table["quantity"] == "chosen"), "mean"] == 1).all()
    lowest, chosen = (
        table.loc[(table["method"] == "Sequential") & (table["quantity"] == q), "mean"]
        for q in ("entropy_lowest", "entropy_chosen")
    )
    assert lowest.tolist() == chosen.tolist()


def test_conditional(toy, monkeypatch):
    monkeypatch.setattr(mi_lib.protein_records, "table2_methods", lambda: (Method("Sequential"), Method("Naive", k=9)))
    monkeypatch.setattr(mi_lib.protein_records, "added_methods", lambda model: FEW)
    record_conditional(["toy"], silent, n=20, shares=(0.3, 0.7), draws=2)
    table = read_result("conditional")
    assert table["method"].tolist() == ["Sequential", "Naive", "Random", "MI", UNIGRAM, REFERENCE] * 2
    assert table["mask_share"].tolist() == [0.3] * 6 + [0.7] * 6
    assert (table["n"] == 20).all()
    assert (table["low"] <= table["recovery"]).all() and (table["recovery"] <= table["high"]).all()
    given = table[table["method"] == REFERENCE]
    known, _ = reference_split("reference", 20)
    for share, perplexity in zip(given["mask_share"], given["perplexity"], strict=True):
        nll = masked_nll(Chain(), known, masks(map(len, known), share, 0), 0, 2)
        assert perplexity == pytest.approx(math.exp(nll.mean()))
    assert (given["recovery"] == 1).all()
    assert given["passes"].isna().all()
    sequential = table[table["method"] == "Sequential"]
    assert sequential["passes"].tolist() == [np.mean([round(s * len(p)) for p in known]) for s in (0.3, 0.7)]
    assert (sequential["minus_sequential"] == 0).all()
    difference = table["recovery"] - np.repeat(sequential["recovery"].to_numpy(), 6)
    assert table["minus_sequential"].tolist() == pytest.approx(difference.tolist(), abs=1e-12)
    # the chain makes what it expects, residues drawn blindly do not fit it
    assert (sequential["perplexity"].to_numpy() < table.loc[table["method"] == UNIGRAM, "perplexity"].to_numpy()).all()
    assert json.loads((toy / "results" / "conditional.json").read_text())["draws"] == 2


def test_conditional_row_by_hand():
    frame = pd.DataFrame({"recovery": [0.2, 0.6], "nll": [1.0, 3.0], "passes": [3, 4], "seconds": [0.1, 0.3]})
    row = conditional_row(frame, np.array([0.1, 0.1]))
    assert row["n"] == 2
    assert row["recovery"] == pytest.approx(0.4)
    assert row["perplexity"] == pytest.approx(math.exp(2))
    assert row["minus_sequential"] == pytest.approx(0.3)
    assert (row["passes"], row["seconds_per_protein"]) == (3.5, pytest.approx(0.2))
