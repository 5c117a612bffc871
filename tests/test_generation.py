"""Generation: that methods are compared on the same lengths, masks and noise, and scores that are known beforehand."""

import math

import numpy as np
import pytest
import torch
from tabular import SupportModel

from mi_lib.generation import (
    PAPER_TABLE2,
    Unigram,
    draw_lengths,
    fill,
    generate,
    length_groups,
    masked_nll,
    masks,
    protein_seeds,
    table2_methods,
    trajectory,
)
from mi_lib.masked import MaskedOutput
from mi_lib.policies import EntropyBounded, RandomOrder, Sequential, TopK
from mi_lib.proteins import AMINO_ACIDS, IDS, MASK_ID
from mi_lib.samplers import decode
from mi_lib.solving import Method

FREQUENCY = np.arange(1, 21) / 210


class Chain:
    """Prefers, right of each residue, the next amino acid of the alphabet; knows nothing else."""

    vocab, mask_id = IDS, MASK_ID

    def __call__(self, tokens):
        left = torch.cat([tokens.new_full((len(tokens), 1), MASK_ID), tokens[:, :-1]], 1)
        wanted = torch.where(left == MASK_ID, -1, (left - 3) % 20)
        logits = 3.0 * (wanted[..., None] == torch.arange(20)).float() + torch.arange(20) / 20
        return MaskedOutput(logits, logits)


def equal_letters(length: int) -> SupportModel:
    """Twenty proteins, each of one letter only."""
    return SupportModel(torch.arange(20)[:, None].expand(-1, length), torch.ones(20), vocab=IDS, mask_id=MASK_ID)


def test_lengths_are_uniform_and_the_first_ones_stay():
    """Each of 51 lengths about 1000 times in 51,000 (chi-squared, 50 degrees of freedom, p about 1e-4)."""
    lengths = draw_lengths(51_000, seed=1)
    assert (lengths.min(), lengths.max()) == (50, 100)
    assert ((np.bincount(lengths)[50:] - 1000) ** 2 / 1000).sum() < 97
    assert draw_lengths(7, seed=1).tolist() == lengths[:7].tolist()
    assert draw_lengths(7, seed=2).tolist() != lengths[:7].tolist()


def test_groups_are_every_sequence_once_by_length():
    groups = length_groups([5, 3, 5, 4, 3])
    assert [g.tolist() for g in groups] == [[1, 4], [3], [0, 2]]


def test_seeds_of_proteins_differ():
    seeds = [s for seed in range(3) for s in protein_seeds(seed, range(500))]
    assert len(set(seeds)) == 1500
    assert protein_seeds(1, [7, 3]) == [protein_seeds(1, [7])[0], protein_seeds(1, [3])[0]]


def test_a_protein_depends_on_seed_number_and_length_alone():
    """Not on the batch, nor on the other proteins; and it is what ``decode`` makes of that noise."""
    model, lengths = Chain(), [6, 5, 6, 6, 5, 7]
    frame = generate(model, TopK(2), lengths, seed=3)
    assert frame["protein"].tolist() == list(range(6))
    assert frame["sequence"].str.len().tolist() == frame["length"].tolist() == lengths
    assert frame["passes"].tolist() == [3, 3, 3, 3, 3, 4]
    assert (frame["seconds"] > 0).all()
    small = generate(model, TopK(2), lengths, seed=3, batch_size=1)
    fewer = generate(model, TopK(2), lengths[:3], seed=3)
    assert small["sequence"].tolist() == frame["sequence"].tolist()
    assert fewer["sequence"].tolist() == frame["sequence"].tolist()[:3]
    alone = decode(model, torch.full((1, 7), MASK_ID), TopK(2), 1.0, protein_seeds(3, [5])).tokens[0]
    assert "".join(AMINO_ACIDS[t - 4] for t in alone.tolist()) == frame["sequence"][5]
    assert generate(model, TopK(2), lengths, seed=4)["sequence"].tolist() != frame["sequence"].tolist()


def test_methods_share_their_noise():
    """Where nothing depends on anything, every method makes the same proteins."""
    model, lengths = Unigram(FREQUENCY), [8, 9, 8]
    frames = [generate(model, p, lengths, seed=1) for p in (Sequential(), TopK(9), EntropyBounded(8.0), RandomOrder())]
    assert {tuple(frame["sequence"]) for frame in frames} == {tuple(frames[0]["sequence"])}
    assert [frame["passes"].tolist() for frame in frames[:2]] == [[8, 9, 8], [1, 1, 1]]


def test_temperature_is_handed_on():
    frame = generate(Unigram(FREQUENCY), TopK(5), [5], temperature=0.0)
    assert frame["sequence"].tolist() == [AMINO_ACIDS[-1] * 5]


def test_random_order_takes_its_order_from_the_seed():
    model, lengths = equal_letters(9), [9] * 4
    orders = []

    class Watched(RandomOrder):
        def __call__(self, state):
            chosen = super().__call__(state)
            orders.append(chosen.nonzero()[:, 1].tolist())
            return chosen

    for seed in (0, 1, 0):
        generate(model, Watched(), lengths, seed)
    assert orders[:9] == orders[18:] != orders[9:18]
    assert all(sorted(column) == list(range(9)) for column in zip(*orders[:9], strict=True))


def test_unigram_samples_its_frequencies():
    """20,000 residues, chi-squared with 19 degrees of freedom, p about 1e-4."""
    text = "".join(generate(Unigram(FREQUENCY), TopK(100), [100] * 200)["sequence"])
    counts = np.array([text.count(letter) for letter in AMINO_ACIDS])
    assert ((counts - 20_000 * FREQUENCY) ** 2 / (20_000 * FREQUENCY)).sum() < 51


def test_masks_have_their_share_and_are_nested():
    lengths = [10, 51, 100, 3]
    few, many = masks(lengths, 0.3, seed=2), masks(lengths, 0.7, seed=2)
    assert [int(m.sum()) for m in few] == [3, 15, 30, 1]
    assert [int(m.sum()) for m in many] == [7, 36, 70, 2]
    assert all((b | ~a).all() for a, b in zip(few, many, strict=True))
    assert not np.array_equal(few[2], masks(lengths, 0.3, seed=3)[2])
    assert np.array_equal(masks(lengths[:3], 0.3, seed=2)[2], few[2])
    assert [int(m.sum()) for m in masks([4], 0.01)] == [1]


def test_filling_leaves_the_rest_and_counts_what_came_back():
    """A model that knows the protein of one letter restores it; a unigram is right where it happens to be."""
    sequences = ["A" * 9, "LAGVSERTI", "C" * 9]
    hidden = masks([9] * 3, 0.5, seed=1)
    frame = fill(equal_letters(9), TopK(3), sequences[::2], 0.5, seed=1)
    assert frame["sequence"].tolist() == sequences[::2]
    assert frame["recovery"].tolist() == [1.0, 1.0]
    assert frame["passes"].tolist() == [2, 2]
    frame = fill(Unigram(FREQUENCY), Sequential(), sequences, 0.5, seed=1)
    assert frame["masked"].tolist() == [4] * 3 == frame["passes"].tolist()
    for old, new, mask, recovery in zip(sequences, frame["sequence"], hidden, frame["recovery"], strict=True):
        assert all(a == b for a, b, m in zip(old, new, mask, strict=True) if not m)
        assert recovery == sum(a == b for a, b, m in zip(old, new, mask, strict=True) if m) / 4
    assert fill(Unigram(FREQUENCY), TopK(9), sequences, 0.5, seed=1)["sequence"].tolist() == frame["sequence"].tolist()


def test_nll_of_a_joint_is_its_logarithm():
    """One letter throughout has probability 1/20 in any order; with as many draws as residues every size comes once."""
    whole = [np.ones(6, bool)] * 2
    nll = masked_nll(equal_letters(6), ["L" * 6, "W" * 6], whole, draws=6)
    assert nll == pytest.approx([math.log(20) / 6] * 2, rel=1e-5)


def test_nll_sees_that_letters_contradict_each_other():
    """Sampled together from the right marginals, letters differ, which the joint excludes."""
    frame = generate(equal_letters(6), TopK(6), [6])
    assert len(set(frame["sequence"][0])) > 1
    together = masked_nll(equal_letters(6), frame["sequence"].tolist(), [np.ones(6, bool)], draws=6)
    assert together[0] > 2 * math.log(20) / 6


def test_nll_of_given_positions_alone():
    """Under a unigram: the mean of -log f over the masked residues, on average over the draws."""
    sequence, where = "LAGVSERT", np.array([1, 0, 0, 1, 0, 0, 0, 1], bool)
    expected = -np.log(FREQUENCY[[0, 3, 7]]).mean()
    nll = masked_nll(Unigram(FREQUENCY), [sequence, "AAA", sequence], [where, np.ones(3, bool), where], draws=600)
    assert nll[[0, 2]] == pytest.approx(expected, abs=0.06)
    assert nll[1] == pytest.approx(-math.log(FREQUENCY[1]), rel=1e-5)


def test_trajectory_of_a_unigram_is_flat():
    lengths = [4, 6, 4]
    frame = trajectory(Unigram(FREQUENCY), TopK(3), lengths)
    h = -(FREQUENCY * np.log(FREQUENCY)).sum()
    assert len(frame) == 3 * 2
    for column in ("entropy_left", "entropy_lowest", "entropy_chosen"):
        assert frame[column].tolist() == pytest.approx([h] * 6, rel=1e-5)
    six = frame[frame["length"] == 6]
    assert six["unmasked"].tolist() == pytest.approx([0, 0.5])
    assert frame[frame["length"] == 4].sort_values(["index", "step"])["chosen"].tolist() == [3, 1, 3, 1]


def test_trajectory_falls_to_zero_once_a_model_is_certain():
    frame = trajectory(equal_letters(5), Sequential(), [5])
    assert frame["entropy_left"].tolist() == pytest.approx([math.log(20), 0, 0, 0, 0], abs=1e-5)
    assert frame["entropy_chosen"].tolist() == frame["entropy_lowest"].tolist()
    assert frame["unmasked"].tolist() == pytest.approx([0, 0.2, 0.4, 0.6, 0.8])


def test_default_rows_are_the_papers():
    rows = [(method.name, method.parameters) for method in table2_methods()]
    assert rows == list(PAPER_TABLE2[["method", "parameters"]].itertuples(index=False, name=None))
    assert [m.label for m in table2_methods(k=(2,), gamma=(1,), lam=0, head="zero")] == [
        "Sequential",
        "Naive k=2",
        "MI gamma=1.0 lam=0.0 head=zero",
    ]


def test_the_papers_rows_are_printed_right():
    """Passes and JSD of Table 2 (§5.3)."""
    rows = {f"{r.method} {r.parameters}".strip(): (r.passes, r.jsd) for r in PAPER_TABLE2.itertuples()}
    assert rows == {
        "Sequential": (74.8, 0.093),
        "Naive k=4": (19.1, 0.185),
        "Naive k=8": (9.8, 0.196),
        "Naive k=12": (6.2, 0.218),
        "MI gamma=2.0 lam=1.0 head=entropy": (15.3, 0.136),
        "MI gamma=4.0 lam=1.0 head=entropy": (10.0, 0.174),
    }


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: Method("EB").policy("x"), "gamma=None, expected a value: EB needs it"),
        (lambda: Method("Threshold").policy("x"), "tau=None, expected a value"),
        (lambda: Method("MI", gamma=1.0, head="zero").policy("x"), "lam=None, expected a value"),
        (lambda: draw_lengths(0), "n=0, expected at least one"),
        (lambda: draw_lengths(3, shortest=9, longest=8), "shortest=9, expected 1 to longest=8"),
        (lambda: generate(Chain(), Sequential(), []), r"lengths=\[\], expected at least one"),
        (lambda: generate(Chain(), Sequential(), [3, 0]), r"lengths=\[3, 0\], expected"),
        (lambda: generate(SupportModel(torch.zeros(1, 3).long(), torch.ones(1)), Sequential(), [3]), "vocab=tensor"),
        (lambda: fill(Chain(), Sequential(), ["LAX"], 0.5), "letters='X'"),
        (lambda: fill(Chain(), Sequential(), ["LAG"], 0.0), "share=0.0, expected a share above 0"),
        (lambda: masked_nll(Chain(), ["LA"], [np.zeros(2, bool)]), "positions='an empty one'"),
        (lambda: masked_nll(Chain(), ["LA"], [np.ones(2, bool)], draws=0), "draws=0"),
        (lambda: Unigram(np.ones(19)), "frequency="),
        (lambda: Unigram(np.zeros(20)), "frequency="),
    ],
)
def test_bad_arguments_are_named(build, message):
    with pytest.raises(ValueError, match=message):
        build()


def test_random_method_is_the_random_order():
    assert Method("Random").policy("no checkpoint is read") == RandomOrder()
    assert Method("Random").label == "Random"
