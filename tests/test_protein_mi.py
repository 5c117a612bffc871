"""MI maps of proteins: each number against one made by hand, by a plain loop, or known from the model."""

import math

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from toy_proteins import Chain, random_proteins

import mi_lib.protein_mi_records
from mi_lib import checkpoints, results
from mi_lib.ground_truth import DirectionalMI
from mi_lib.protein_mi import (
    BIN_EDGES,
    MIMap,
    colour_top,
    cysteine_rich,
    describe,
    describe_cysteines,
    disulfides,
    head_row,
    mask_residues,
    matched_auroc,
    matched_difference,
    measure_maps,
    pairs_of,
    participation,
    probe_protein,
    quantity_differences,
    share_differences,
)
from mi_lib.protein_mi_plots import draw_kinds, draw_mi_lines, draw_protein_map
from mi_lib.proteins import MASK_ID, ProteinSet, encode

TOXIN = "IKCHNTPLPFIYKTCPEGKNLCFKGTLKFPKKITYKRGCADACPKTSALVKYVCCNTDKCN"  # P01473, of the three-finger fold


def protein_set(*sequences: str) -> ProteinSet:
    return ProteinSet(tuple(f"P{k}" for k in range(len(sequences))), sequences, ("",) * len(sequences))


def hand_made(sequence: str, A: np.ndarray, unknown: list[int]) -> MIMap:
    """A map with this directional matrix for every estimator; the others shifted where they are to differ."""
    tokens = encode([sequence])[0]
    tokens[unknown] = MASK_ID
    A = torch.from_numpy(A).float()
    directional = DirectionalMI(entropy=A, mixture=2 * A, kl=3 * A, passes=1)
    return MIMap("P0", sequence, tokens, directional, np.arange(len(sequence), dtype=float), tokens[:, None].float())


@given(st.floats(0.02, 1), st.integers(0, 5))
def test_masks_hold_the_share_and_nest(share, seed):
    tokens = mask_residues(TOXIN, share, MASK_ID, seed)
    masked = tokens == MASK_ID
    assert int(masked.sum()) == math.ceil(share * len(TOXIN) - 1e-9)
    assert torch.equal(tokens[~masked], encode([TOXIN])[0][~masked])
    more = mask_residues(TOXIN, min(1.0, share + 0.2), MASK_ID, seed) == MASK_ID
    assert (more | ~masked).all()
    first = mask_residues(TOXIN, share, MASK_ID, seed, "C") == MASK_ID
    cysteine = torch.tensor([letter == "C" for letter in TOXIN])
    assert int(first.sum()) == int(masked.sum())
    assert int((first & cysteine).sum()) == min(int(cysteine.sum()), int(first.sum()))


def test_masks_differ_between_seeds_and_refuse_no_share():
    assert not torch.equal(mask_residues(TOXIN, 0.5, MASK_ID, 0), mask_residues(TOXIN, 0.5, MASK_ID, 1))
    with pytest.raises(ValueError, match=r"share=0, expected a share above 0"):
        mask_residues(TOXIN, 0, MASK_ID)


def test_pairs_by_hand():
    mi = np.arange(16.0).reshape(4, 4)
    pairs = pairs_of(mi, np.array([True, False, True, True]), "CACL")
    assert pairs[["i", "j", "separation", "cysteines"]].to_numpy().tolist() == [
        [0, 2, 2, 2],
        [0, 3, 3, 1],
        [2, 3, 1, 1],
    ]
    assert pairs["mi"].tolist() == [2, 3, 11]


@given(st.lists(st.floats(0.01, 5), min_size=1, max_size=30))
def test_participation_is_a_share(values):
    share = participation(np.array(values))
    assert 1 / len(values) - 1e-9 <= share <= 1 + 1e-9
    assert participation(7 * np.array(values)) == pytest.approx(share)


def test_participation_counts_the_pairs_that_hold_the_mi():
    assert participation(np.full(45, 0.3)) == pytest.approx(1)
    assert participation(np.array([2.0] * 5 + [0] * 15)) == pytest.approx(5 / 20)
    assert math.isnan(participation(np.zeros(3)))


def some_pairs(seed: int) -> tuple[pd.DataFrame, np.ndarray]:
    rng = np.random.default_rng(seed)
    values = rng.integers(0, 5, 60) / 4  # with ties
    return pd.DataFrame({"separation": rng.integers(1, 60, 60), "mi": values}), rng.random(60) < 0.3


def bin_of(separation: int) -> int:
    return sum(separation >= edge for edge in BIN_EDGES)


@pytest.mark.parametrize("seed", range(4))
def test_matched_scores_equal_a_plain_loop(seed):
    pairs, positive = some_pairs(seed)
    won, differences = [], []
    for a in np.flatnonzero(positive):
        same = [
            b for b in np.flatnonzero(~positive) if bin_of(pairs["separation"][a]) == bin_of(pairs["separation"][b])
        ]
        won += [(pairs["mi"][a] > pairs["mi"][b]) + (pairs["mi"][a] == pairs["mi"][b]) / 2 for b in same]
        if same:
            differences.append(pairs["mi"][a] - np.mean([pairs["mi"][b] for b in same]))
    assert matched_auroc(pairs, positive) == pytest.approx(np.mean(won))
    assert matched_difference(pairs, positive) == pytest.approx(np.mean(differences))


def test_matching_takes_out_what_separation_explains():
    """MI falls with separation alone, and the positive pairs are the close ones: unmatched they would win."""
    separation = np.repeat([1, 1, 20, 20], [9, 1, 1, 9])
    pairs = pd.DataFrame({"separation": separation, "mi": 1.0 / separation})
    positive = np.repeat([True, False, True, False], [9, 1, 1, 9])
    assert matched_auroc(pairs, positive) == 0.5
    assert matched_difference(pairs, positive) == 0
    assert pairs["mi"][positive].mean() > 5 * pairs["mi"][~positive].mean()


def test_nothing_to_compare_is_nan():
    pairs, _ = some_pairs(0)
    for positive in (np.zeros(60, bool), np.ones(60, bool)):
        assert math.isnan(matched_auroc(pairs, positive)) and math.isnan(matched_difference(pairs, positive))


def test_disulfides_of_a_cytotoxin():
    """Swiss-Prot's bonds of P01473: 3-22, 15-39, 43-54, 55-60."""
    assert {(i + 1, j + 1) for i, j in disulfides(TOXIN)} == {(3, 22), (15, 39), (43, 54), (55, 60)}
    assert disulfides(TOXIN + "C") == set()


def test_cysteine_rich_by_its_rule():
    few, rich, richest, metal = "C" * 5 + "A" * 50, "C" * 6 + "A" * 50, "C" * 9 + "A" * 50, "C" * 13 + "A" * 50
    long = "C" * 8 + "A" * 73
    found = cysteine_rich(protein_set(few, rich, metal, long, richest), 5)
    assert found.sequences == (richest, rich)
    assert found.accessions == ("P4", "P1")
    assert cysteine_rich(protein_set(rich, richest), 1).sequences == (richest,)
    with pytest.raises(ValueError, match="1 without any"):
        cysteine_rich(protein_set(few), 3)


def test_describe_a_hand_made_map():
    """Ten masked residues; MI 0.4 at separation 1, 0.1 at 13 or more, none between; one direction negative once."""
    L = 20
    sequence, at = "A" * L, np.arange(L)
    distance = np.abs(at[:, None] - at)
    A = np.where(distance == 1, 0.4, np.where(distance >= 13, 0.1, 0.0))
    A[0, 5], A[5, 0] = -0.2, 0.3
    found = describe(hand_made(sequence, A, list(at)), "entropy")
    assert found["mean"] == pytest.approx((19 * 0.4 + 28 * 0.1 + 0.05) / 190)
    assert found["separation 1"] == pytest.approx(0.4) and found["separation 2"] == 0
    assert found["near"] == pytest.approx(19 * 0.4 / (19 + 18 + 17 + 16))
    assert found["middle"] == pytest.approx(0.05 / sum(L - s for s in range(5, 13)))
    assert found["far"] == pytest.approx(0.1)
    assert found["negative"] == pytest.approx(1 / 380)
    assert found["entropy"] == pytest.approx(9.5)
    assert found["inconsistency"] == pytest.approx(A.sum() / 380)  # kl is 3 A, mixture 2 A
    assert describe(hand_made(sequence, A, list(at)), "mixture")["far"] == pytest.approx(0.2)
    known = describe(hand_made(sequence, A, [0, 1, 15]), "entropy")
    assert known["mean"] == pytest.approx((0.4 + 0.1 + 0.1) / 3)


def test_cysteines_of_a_hand_made_map():
    """Bonded cysteines share 0.9 nats, other cysteine pairs 0.5, everything else 0.1."""
    L = len(TOXIN)
    A = np.full((L, L), 0.1)
    cysteines = [i for i, letter in enumerate(TOXIN) if letter == "C"]
    A[np.ix_(cysteines, cysteines)] = 0.5
    for i, j in disulfides(TOXIN):
        A[i, j] = A[j, i] = 0.9
    found = describe_cysteines(hand_made(TOXIN, A, list(range(L))), "entropy")
    assert found["bonded"] == pytest.approx(0.9) and found["not bonded"] == pytest.approx(0.5)
    assert found["two cysteines"] == pytest.approx((4 * 0.9 + 24 * 0.5) / 28)
    assert found["one cysteine"] == pytest.approx(0.1) and found["none"] == pytest.approx(0.1)
    assert found["auroc"] == found["auroc against one"] == 1
    assert found["difference"] == pytest.approx(found["two cysteines"] - 0.1)
    none = describe_cysteines(hand_made("A" * 20, np.zeros((20, 20)), [1, 2, 3]), "entropy")
    assert math.isnan(none["auroc"]) and math.isnan(none["two cysteines"]) and "bonded" not in none


def test_a_chain_has_mi_between_neighbours_only():
    """A residue of ``Chain`` says what its right neighbour is; from its probes nothing else follows."""
    proteins = random_proteins(2)
    table = measure_maps(Chain(), proteins, (0.5, 1.0), progress=lambda maps: None)
    assert table.groupby(["accession", "mask_share"]).ngroups == 4
    whole = table[table["mask_share"] == 1].pivot_table(index="quantity", columns="estimator", values="value")
    assert (whole.loc["separation 1"] > 0.1).all()
    for quantity in ("separation 2", "separation 17", "middle", "far"):
        assert whole.loc[quantity].abs().max() < 1e-6
    first = probe_protein(Chain(), "P0", proteins.sequences[0], mask_residues(proteins.sequences[0], 1.0, MASK_ID))
    assert first.masked.all() and first.hidden.shape == (len(proteins.sequences[0]), 20)
    assert whole.loc["entropy", "mixture"] == pytest.approx(first.entropy.mean(), abs=1e-6)


def test_a_prediction_beside_its_map():
    L = 20
    A = np.triu(np.arange(L * L).reshape(L, L) / 400, 1)
    mi_map = hand_made("A" * L, A + A.T, [0, 4, 9, 11])
    pairs = [A[i, j] for i, j in ((0, 4), (0, 9), (0, 11), (4, 9), (4, 11), (9, 11))]
    row = head_row(mi_map, 2 * (A + A.T), "entropy")
    assert (row["masked"], row["accession"]) == ("20%", "P0")
    assert row["probed"] == pytest.approx(np.mean(pairs)) and row["predicted"] == pytest.approx(2 * np.mean(pairs))
    assert row["SD ratio"] == pytest.approx(2)
    assert row["R²"] == pytest.approx(1 - np.sum(np.square(pairs)) / (6 * np.var(pairs)))
    assert row["rank correlation"] == pytest.approx(1)
    assert colour_top(A) == pytest.approx(np.quantile(A[A > 0], 0.995)) and colour_top(np.zeros((2, 2))) == 1


def test_differences_are_paired_by_protein():
    rows = [("s", p, q, share, value + noise) for p, noise in (("P0", 0.0), ("P1", 50.0)) for q, share, value in
            (("far", 1.0, 3.0), ("far", 0.6, 1.0), ("near", 1.0, 7.0))]  # fmt: skip
    frame = pd.DataFrame(rows, columns=["set", "accession", "quantity", "mask_share", "value"])
    assert share_differences(frame, "far", 1.0, 0.6).to_numpy().tolist() == [["s", 2.0, 2.0, 2.0]]


def test_quantities_are_paired_within_a_share():
    rows = [("s", p, q, 0.6, value + noise) for p, noise in (("P0", 0.0), ("P1", 50.0)) for q, value in
            (("bonded", 3.0), ("not bonded", 1.0))]  # fmt: skip
    rows.append(("s", "P2", "bonded", 0.6, 900.0))
    frame = pd.DataFrame(rows, columns=["set", "accession", "quantity", "mask_share", "value"])
    assert quantity_differences(frame, "bonded", "not bonded").to_numpy().tolist() == [["s", 0.6, 2.0, 2.0, 2.0]]


def test_record(tmp_path, monkeypatch):
    monkeypatch.setattr(results, "RESULTS", tmp_path)
    monkeypatch.setattr(checkpoints, "load_model", lambda name: Chain())
    monkeypatch.setattr(mi_lib.protein_mi_records, "model_hashes", lambda models: {})
    sets = {"held_out": protein_set(TOXIN, "A" * 50), "reference": protein_set("A" * 50, "C" * 6 + "L" * 50)}
    monkeypatch.setattr(mi_lib.protein_mi_records, "load_proteins", sets.__getitem__)
    monkeypatch.setattr(mi_lib.protein_mi_records, "SHARES", (0.1,))
    monkeypatch.setattr(mi_lib.protein_mi_records, "CYSTEINE_SHARES", (0.2,))
    mi_lib.protein_mi_records.record_protein_mi(["toy"], lambda *_: None, n=2)
    table = results.read_result("protein_mi")
    groups = table.groupby(["set", "sample"])["accession"].unique().map(list).to_dict()
    assert groups == {
        ("held_out", "cysteine-rich"): ["P0"],
        ("held_out", "random"): ["P0", "P1"],
        ("reference", "cysteine-rich"): ["P1"],
        ("reference", "random"): ["P0", "P1"],
    }
    assert set(table["estimator"]) == {"entropy", "mixture"}
    assert set(table.loc[table["sample"] == "random", "mask_share"]) == {0.1}


def test_figures():
    _, axes = plt.subplots(1, 3)
    masked = np.array([True, False, True, True])
    draw_protein_map(axes[0], np.full((4, 4), 0.2), masked, "CACL", vmax=0.5)
    shown = axes[0].images[0].get_array()
    assert shown.mask.tolist() == (~(masked[:, None] & masked) | np.eye(4, dtype=bool)).tolist()
    assert axes[0].lines[0].get_xdata().tolist() == [1, 3]  # the masked cysteines, numbered from one
    frame = pd.DataFrame({"group": ["a", "a", "b"], "x": [2, 1, 1], "mean": [0.5, 0.1, 0.2], "low": 0.0, "high": 1.0})
    draw_mi_lines(axes[1], frame, "x", "separation (residues)")
    assert axes[1].lines[0].get_ydata().tolist() == [0.1, 0.5]
    assert [t.get_text() for t in axes[1].get_legend().get_texts()] == ["a", "b"]
    draw_kinds(axes[2], frame.assign(kind=["u", "v", "u"]))
    assert [t.get_text() for t in axes[2].get_yticklabels()] == ["u", "v"]
    plt.close("all")
