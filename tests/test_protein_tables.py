"""Tables of the protein pages, each against numbers made by hand."""

import inspect
import itertools
import math
import shlex

import numpy as np
import pandas as pd
import pytest
import toy_proteins
from test_protein_runs import grid, silent
from toy_proteins import Chain

from mi_lib import cli_training
from mi_lib.artifacts import write_json
from mi_lib.distributions import embed, fit_clusters
from mi_lib.generation import PAPER_TABLE2, draw_lengths, generate
from mi_lib.policies import TopK
from mi_lib.protein_panel import MEASURES
from mi_lib.protein_records import KEYS, REFERENCE
from mi_lib.protein_runs import OTHERS, reference_split
from mi_lib.protein_tables import (
    beside_table2,
    cost_table,
    equal_pass_pairs,
    jsd_differences,
    jsd_table,
    missing_heads,
    page_methods,
    panel_table,
    paper_model_parameters,
    paper_orderings,
    pass_seconds,
    pca_summary,
    readable,
    recorded_rows,
    sets_of,
    stand_in,
    table2_proteins,
)
from mi_lib.results import write_result
from mi_lib.solving import Method

toy = toy_proteins.toy  # a fixture


def clustered(**methods: list[int]) -> pd.DataFrame:
    """Proteins whose clusters are given, by method, in two seeds that are alike; the first is the reference."""
    rows = []
    for name, clusters in methods.items():
        for seed in (0, 1) if name not in (REFERENCE, "floor") else (0,):
            key = OTHERS if name == "floor" else name
            rows += [("m", key, "", seed, p, c, 10.0, 0.5) for p, c in enumerate(clusters)]
    return pd.DataFrame(rows, columns=[*KEYS, "protein", "cluster", "passes", "seconds"])


ALIKE, HALF, OTHER = [0, 1] * 20, [0] * 40, [2] * 40
FRAME = clustered(reference=ALIKE, good=ALIKE, half=HALF, bad=OTHER, floor=ALIKE)


def test_stand_in_names_the_model(toy):
    assert stand_in("esmc_300m") == ""
    assert "esmc_600m, not with ESM-C 300M" in stand_in("esmc_600m")
    assert "Made with own.pth, not" in stand_in("some/where/own.pth")
    write_json(toy / "checkpoints" / "mini.json", {"kind": "esmc", "sha256": "0" * 64})
    assert "mini, a small ESM-C trained here" in stand_in("mini")


def test_missing_heads_names_commands_that_exist():
    assert missing_heads("esmc_300m", ()) == "Every row has its head."
    text = missing_heads("esmc_300m", ("esmc_300m_head_entropy", "esmc_300m_head_mixture"))
    label, *heads = text.split("make it: ")[1].rstrip(".").split("; ")
    assert len(heads) == 2 and "entropy" in heads[0] and "mixture" in heads[1]
    for command, verb in ((label, cli_training.label), *((head, cli_training.train_head) for head in heads)):
        words = shlex.split(command)
        options = {word[2:].replace("-", "_") for word in words if word.startswith("--")}
        assert options <= set(inspect.signature(verb).parameters)
        assert words[1].replace("-", "_") == verb.__name__


def test_methods_of_a_page(toy):
    methods, text = page_methods("toy", [4], [2.0], 1.0, "entropy")
    assert [m.label for m in methods] == [
        "Sequential",
        "Naive k=4",
        "MI gamma=2.0 lam=1.0 head=entropy",
        "Random",
        "MI gamma=2.0 lam=1.0 head=zero",
    ]
    assert text == "Every row has its head."
    methods, text = page_methods("esmc_300m", [4], [2.0], 1.0, "mixture")
    assert [m.head for m in methods] == [None, None, None, "zero"]
    assert "--checkpoint esmc_300m" in text and "--estimator mixture" in text
    write_result("protein_gammas", grid())
    assert "Threshold" in {m.name for m in page_methods("toy", [4], [2.0], 1.0, "entropy")[0]}
    assert equal_pass_pairs("esmc_300m") == []
    assert all("head=entropy" in a[1] for a, _ in equal_pass_pairs("toy"))


def test_recorded_rows(toy):
    assert recorded_rows("table2", "toy").empty
    write_result("table2", pd.DataFrame({"model": ["toy", "other"], "passes": [1, 2]}))
    assert recorded_rows("table2", "toy")["passes"].tolist() == [1]


def test_table2_proteins_are_loaded_or_made(toy, monkeypatch):
    methods = [Method("Sequential"), Method("Naive", k=30)]
    made = table2_proteins("toy", methods, "reference", 6, (0, 4), False, silent, k=3)
    naive = made[(made["method"] == "Naive") & (made["seed"] == 4)]
    assert naive["sequence"].tolist() == generate(Chain(), TopK(30), draw_lengths(6, 4), 4)["sequence"].tolist()
    known = reference_split("reference", 6, 3)[0]
    clusters = fit_clusters(embed(Chain(), known), k=3)
    assert clusters.predict(embed(Chain(), naive["sequence"].tolist())).tolist() == naive["cluster"].tolist()
    stored = made.assign(cluster=2)
    write_result("table2_sequences", stored, compressed=True)
    loaded = table2_proteins("toy", methods[:1], "reference", 6, (0, 4), False, silent, k=3)
    assert loaded["sequence"].tolist() == made["sequence"].tolist() and (loaded["cluster"] == 2).all()
    again = table2_proteins("toy", methods[:1], "reference", 6, (0,), True, silent, k=3)
    assert set(again["method"]) & {"Sequential", "Naive"} == {"Sequential"}
    other = table2_proteins("toy", methods, "training", 6, (0, 4), False, silent, k=3)
    assert other.loc[other["method"] == REFERENCE, "sequence"].tolist() == reference_split("training", 6, 3)[0]
    same = other["method"] == "Naive"
    assert other.loc[same, "sequence"].tolist() == made.loc[made["method"] == "Naive", "sequence"].tolist()


def test_jsd_by_hand():
    table = jsd_table(FRAME, k=3).set_index("method")
    half = 0.5 * (0.5 * math.log(0.5 / 0.75) + 0.5 * math.log(0.5 / 0.25)) + 0.5 * math.log(1 / 0.75)
    assert table["jsd"].to_dict() == pytest.approx({"good": 0, "half": half, "bad": math.log(2), OTHERS: 0}, abs=1e-12)
    assert table["distance"].tolist() == pytest.approx(np.sqrt(table["jsd"]).tolist(), abs=1e-6)
    assert table["seeds"].tolist() == [2, 2, 2, 1] and (table["n"] == 40).all()
    assert (table["low"] >= 0).all()
    assert (table["low"] <= table["jsd"] + 1e-9).all() and (table["jsd"] <= table["high"] + 1e-9).all()


def test_differences_by_hand():
    pairs = [(("good", ""), ("bad", "")), (("bad", ""), ("good", "")), (("good", ""), ("good", ""))]
    table = jsd_differences(FRAME, [*pairs, (("good", ""), ("missing", ""))], k=3)
    assert len(table) == 3
    assert table["difference"].tolist() == pytest.approx([-math.log(2), math.log(2), 0], abs=1e-12)
    assert table["a better?"].tolist() == ["yes", "no", "not resolved"]


def test_the_papers_order():
    jsd = PAPER_TABLE2.set_index(["method", "parameters"])["jsd"]
    pairs = paper_orderings()
    assert len(pairs) == 5 and pairs[0][0] == ("Sequential", "")
    assert all(jsd[a] < jsd[b] for a, b in pairs)
    assert all(first[1] == second[0] for first, second in itertools.pairwise(pairs))


def test_beside_the_paper():
    frame = clustered(reference=ALIKE, Sequential=ALIKE, floor=HALF)
    shown = beside_table2(jsd_table(frame, k=3))
    names = ["Sequential", "Naive k=4", "Naive k=8", "Naive k=12", "MI γ=2.0, entropy head", "MI γ=4.0, entropy head"]
    assert shown["method"].tolist() == [*names, OTHERS]
    assert shown["paper JSD"].tolist()[:6] == PAPER_TABLE2["jsd"].tolist()
    assert shown["JSD, nats (95 %)"][0].startswith("0.000 (") and shown["JSD, nats (95 %)"][1] == ""
    assert shown["JSD, nats (95 %)"][6].startswith("0.216 (")
    assert shown["here passes"][0] == 10


@pytest.mark.parametrize(
    ("method", "parameters", "name"),
    [
        ("Sequential", "", "Sequential"),
        ("MI", "gamma=16.7732 lam=1.0 head=mixture", "MI γ=16.8, mixture head"),
        ("MI", "gamma=4.0 lam=0.5 head=zero", "budget rule γ=4.0, λ=0.5, MI = 0"),
        ("Threshold", "tau=0.0814", "Threshold τ=0.0814"),
    ],
)
def test_readable_names(method, parameters, name):
    assert readable(method, parameters) == name


def test_panel_cells():
    rows = [("A", "k=1", "jsd_nats", 0.5, 0.4, 0.6), ("A", "k=1", "frechet", 2, 1, 2), ("B", "", "jsd_nats", 1, 1, 1)]
    panel = pd.DataFrame(rows, columns=["method", "parameters", "measure", "value", "low", "high"])
    table = panel_table(panel, ["jsd_nats"])
    assert table.to_numpy().tolist() == [["A k=1", "0.500 ± 0.100"], ["B", "1.000 ± 0.000"]]
    assert list(table) == ["method", MEASURES["jsd_nats"]]


def test_costs_are_passes_times_seconds():
    table = cost_table({"a": 75.0, "b": 10.0}, n=1500, seconds=0.036, ratio=100.0).set_index("what")
    assert table["passes"].tolist() == [112_500, 15_000, 127_500, 10_000 * 121]
    assert table.loc["a", "hours here"] == pytest.approx(1.125)
    assert table.loc["labels for a head", "hours, ESM-C 300M"] == pytest.approx(1210)
    assert 0 < pass_seconds(Chain(), 10, 2, 1) < 1


def test_esmc_300m_has_about_300_million_parameters():
    assert 3.2e8 < paper_model_parameters() < 3.5e8


def test_pca_summary_in_units_of_the_reference():
    base = np.random.default_rng(0).normal(size=(50, 2)) * [3, 1]
    points = pd.concat(
        [
            pd.DataFrame(base, columns=["pc1", "pc2"]).assign(set="reference"),
            pd.DataFrame(base * [2, 1] + [0, 5 * base[:, 1].std()], columns=["pc1", "pc2"]).assign(set="moved"),
        ]
    )
    table = pca_summary(points).set_index("set")
    assert table.loc["reference", "PC 1 shift"].startswith(("0.00 (", "-0.00 ("))
    assert table.loc["moved", "PC 1 spread"].startswith("2.00 (")
    assert table.loc["moved", "PC 2 shift"].startswith("5.00 (")
    assert table["n"].tolist() == [50, 50]


def test_sets_of_a_seed():
    frame = FRAME.assign(sequence=FRAME["method"] + FRAME["seed"].astype(str))
    names = {(REFERENCE, ""): "real", ("good", ""): "Good", ("missing", ""): "None"}
    assert tables_by_name(sets_of(frame, names, 1)) == {"real": {"reference0"}, "Good": {"good1"}}


def tables_by_name(sets):
    return {name: set(sequences) for name, sequences in sets.items()}
