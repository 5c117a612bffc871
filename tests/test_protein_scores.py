"""Scores of masked residues against arithmetic by hand; baselines against counts by hand."""

import math

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from mi_lib.protein_scores import ClusterProfile, Unigram, masked_scores, of_model, sample, summarise
from mi_lib.proteins import AMINO_ACIDS, ProteinSet, encode


def proteins(*sequences: str, clusters: tuple[str, ...] | None = None) -> ProteinSet:
    names = tuple(f"P{n}" for n in range(len(sequences)))
    return ProteinSet(names, sequences, clusters or ("",) * len(sequences))


def always(letter: str, p: float):
    """A predictor of one letter with probability ``p``, the others sharing the rest."""
    row = torch.full((20,), (1 - p) / 19).log()
    row[AMINO_ACIDS.index(letter)] = math.log(p)
    return lambda noisy, clusters: row.expand(*noisy.shape, 20)


def test_known_predictions_have_known_scores():
    """Of AAAA... every masked residue is right at ln 2 nats, of CCCC... none at ln 38."""
    scores = masked_scores(always("A", 0.5), proteins("A" * 60, "C" * 60, "A" * 75), (0.15, 0.5, 1.0))
    expected = {"P0": (60, 1, 2), "P1": (60, 0, 38), "P2": (75, 1, 2)}
    assert len(scores) == 9
    for row in scores.itertuples():
        length, right, odds = expected[row.accession]
        assert row.masked == math.ceil(row.rate * length)
        assert row.correct == right * row.masked
        assert row.nats == pytest.approx(row.masked * math.log(odds), rel=1e-5)


def test_only_masked_residues_count_and_the_rest_is_seen():
    """A predictor that copies what it sees and is uniform elsewhere: ln 20 nats a masked residue, whatever is seen."""

    def copy(noisy, clusters):
        seen = torch.nn.functional.one_hot((noisy - 4).clamp(0, 19), 20).float() * 50
        return seen.where((noisy != 32)[..., None], 0.0).log_softmax(-1)

    scores = masked_scores(copy, proteins("ACDEFGHIKLMNPQRSTVWY" * 3), (0.5,))
    assert scores["nats"].item() == pytest.approx(30 * math.log(20), rel=1e-5)


def test_a_model_is_scored_by_its_own_marginals(tiny_esmc):
    """One protein, all masked: minus the log-probabilities of its residues, summed."""
    sequence = "MKVLAWDERT" * 5
    tokens = encode([sequence])
    log_p = tiny_esmc(torch.full_like(tokens, 32)).logits.log_softmax(-1)[0]
    expected = -sum(log_p[i, AMINO_ACIDS.index(letter)].item() for i, letter in enumerate(sequence))
    scores = masked_scores(of_model(tiny_esmc), proteins(sequence), (1.0,))
    assert scores["nats"].item() == pytest.approx(expected, rel=1e-4)


def test_masks_depend_on_the_seed_alone():
    seen = []

    def spy(noisy, clusters):
        seen.append(noisy.clone())
        return torch.zeros(*noisy.shape, 20)

    data = proteins("MKVLAWDERT" * 5, "GGVLAWDERT" * 5)
    for seed in (0, 0, 1):
        masked_scores(spy, data, (0.5,), seed)
    assert torch.equal(seen[0], seen[1])
    assert not torch.equal(seen[0], seen[2])


def test_a_summary_by_hand():
    """Pooled over residues: (10 ln 2 + 30 ln 4) / 40 nats, not the mean of the two proteins."""
    scores = pd.DataFrame({"rate": 0.5, "accession": ["a", "b"], "masked": [10, 30], "correct": [5, 0]})
    scores["nats"] = [10 * math.log(2), 30 * math.log(4)]
    row = summarise(scores).iloc[0]
    assert row["perplexity"] == pytest.approx(2 ** (7 / 4))
    assert row["accuracy"] == 5 / 40
    assert row["n"] == 2
    bounds = [row[f"{name}_{end}"] for name in ("perplexity", "accuracy") for end in ("low", "high")]
    assert bounds == pytest.approx([2, 4, 0, 0.5])  # a resample may hold one of the two alone


def test_intervals_cover_the_truth():
    """Nats a residue normal around 2.5: about 95 of 100 intervals hold exp(2.5), as wide as sqrt(N) says."""
    rng, inside, widths = np.random.default_rng(0), 0, []
    for _ in range(100):
        nats = 10 * (2.5 + 0.3 * rng.standard_normal(100))
        row = summarise(pd.DataFrame({"rate": 1.0, "masked": 10, "correct": 1, "nats": nats}), n=400).iloc[0]
        inside += row["perplexity_low"] <= math.exp(2.5) <= row["perplexity_high"]
        widths.append(math.log(row["perplexity_high"] / row["perplexity_low"]))
    assert 88 <= inside <= 99
    assert np.mean(widths) == pytest.approx(2 * 1.96 * 0.3 / 10, rel=0.1)


def test_unigram_counts_with_one_added():
    p = Unigram(proteins("AAAC", "AG"))(torch.full((1, 3), 32), [""]).exp()[0]
    expected = [{"A": 5, "C": 2, "G": 2}.get(letter, 1) / 26 for letter in AMINO_ACIDS]
    torch.testing.assert_close(p, torch.tensor([expected] * 3))


def test_a_profile_of_equal_lengths_by_hand():
    """Three members, no gaps: counts of a column, with the cluster's composition as its prior."""
    members = ("MKVLAWDERTMKVLAWDERT", "MKVLAWDERTMKVLAWDERS", "MKVLAWDERTMKVLAWDERS")
    training = proteins(*members, "GGGGGGGGGGGGGGGGGGGG", clusters=("c", "c", "c", "g"))
    profile = ClusterProfile(training, column_weight=2.0, cluster_weight=5.0)
    text = "".join(members)
    unigram = {a: ((text + "G" * 20).count(a) + 1) / 100 for a in AMINO_ACIDS}
    composition = {a: (text.count(a) + 5 * unigram[a]) / 65 for a in AMINO_ACIDS}
    noisy = encode(members[:1])
    noisy[0, [4, 19]] = 32
    p = profile(noisy, ["c"]).exp()[0]
    last = [({"S": 2, "T": 1}.get(a, 0) + 2 * composition[a]) / 5 for a in AMINO_ACIDS]
    fifth = [({"A": 3}.get(a, 0) + 2 * composition[a]) / 5 for a in AMINO_ACIDS]
    torch.testing.assert_close(p[[4, 19]], torch.tensor([fifth, last]))


def test_a_profile_aligns_to_what_is_visible():
    """A protein with one residue more at the start: every masked residue still finds its column."""
    member = "MKVLAWDERTCCHIPQNFYGSTKL"
    profile = ClusterProfile(proteins(member, clusters=("c",)))
    noisy = encode(["G" + member])
    noisy[0, 5::4] = 32
    best = profile(noisy, ["c"]).argmax(-1)[0]
    assert [AMINO_ACIDS[best[i]] for i in range(5, 25, 4)] == [member[i - 1] for i in range(5, 25, 4)]


def test_a_protein_of_an_unknown_cluster_gets_the_unigram():
    training = proteins("MKVLAWDERT", "GGGGGGGGGG", clusters=("c", ""))
    noisy = torch.full((2, 10), 32)
    p = ClusterProfile(training)(noisy, ["d", ""])
    torch.testing.assert_close(p, Unigram(training)(noisy, ["d", ""]))


@given(st.text(AMINO_ACIDS + "_", min_size=1, max_size=30), st.lists(st.text(AMINO_ACIDS, min_size=1), max_size=4))
def test_a_profile_is_a_distribution_everywhere(visible, members):
    training = proteins("ACD", *members, clusters=("",) + ("c",) * len(members))
    noisy = torch.tensor([[32 if letter == "_" else 4 + AMINO_ACIDS.index(letter) for letter in visible]])
    p = ClusterProfile(training)(noisy, ["c"]).exp()
    assert p.shape == (1, len(visible), 20)
    assert p.min() > 0
    torch.testing.assert_close(p.sum(-1), torch.ones(1, len(visible)))


def test_a_sample_keeps_order_and_company():
    data = proteins(*("A" * n for n in range(50, 90)), clusters=tuple(f"c{n}" for n in range(40)))
    part = sample(data, 10, seed=3)
    assert len(part) == 10
    numbers = [int(name[1:]) for name in part.accessions]
    assert numbers == sorted(numbers)
    assert numbers != list(range(10))
    assert [len(s) - 50 for s in part.sequences] == numbers == [int(c[1:]) for c in part.clusters]
    assert len(sample(data, 100)) == 40


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda data: masked_scores(always("A", 0.5), data, (0.0,)), r"rate=0.0, expected a share in \(0, 1\]"),
        (lambda data: masked_scores(always("A", 0.5), data, (1.5,)), "rate=1.5"),
        (lambda data: masked_scores(always("A", 0.5), data, batch_size=0), "batch_size=0, expected at least 1"),
        (lambda data: ClusterProfile(data, column_weight=0), "column_weight=0, expected above 0"),
        (lambda data: ClusterProfile(data, cluster_weight=-1), "cluster_weight=-1, expected above 0"),
        (lambda data: sample(data, 0), "n=0, expected at least 1"),
    ],
)
def test_bad_arguments_are_named(call, message):
    with pytest.raises(ValueError, match=message):
        call(proteins("ACD"))


@pytest.fixture(scope="module")
def tiny_esmc():
    from mi_lib.esmc import ESMCConfig, ESMCModel

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return ESMCModel(ESMCConfig(16, 2, 1)).eval().requires_grad_(False)
