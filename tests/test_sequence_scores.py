"""Scores of sequences against plain counting, and planted repeats, copies and couplings that must be found."""

import math
from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from mi_lib.proteins import AMINO_ACIDS
from mi_lib.sequence_scores import (
    composition_kl,
    count_pairs,
    distinct_share,
    kmer_frequencies,
    kmer_matrix,
    longest_run,
    low_complexity,
    mean_log_odds,
    nearest_identity,
    sequence_pairs,
    strongest_pairs,
)

PROTEIN = st.text(AMINO_ACIDS, min_size=14, max_size=40)
COUNTS = arrays(np.int64, 6, elements=st.integers(0, 50))
INSULIN_A, INSULIN_B = "GIVEQCCTSICSLYQLENYCN", "FVNQHLCGSHLVEALYLVCGERGFFYTPKT"


def random_proteins(n: int, length: int, seed: int = 0) -> list[str]:
    rng = np.random.default_rng(seed)
    return ["".join(rng.choice(list(AMINO_ACIDS), length)) for _ in range(n)]


@given(st.lists(PROTEIN, min_size=1, max_size=3), st.integers(1, 2))
def test_kmers_are_counted(sequences, k):
    table = kmer_matrix(sequences, k).toarray()
    assert table.shape == (len(sequences), 20**k)
    for row, sequence in zip(table, sequences, strict=True):
        counts = Counter(sequence[i : i + k] for i in range(len(sequence) - k + 1))
        for word, count in counts.items():
            assert row[sum(AMINO_ACIDS.index(c) * 20 ** (k - 1 - i) for i, c in enumerate(word))] == count
        assert row.sum() == len(sequence) - k + 1


def test_kmer_frequencies_sum_to_one():
    assert kmer_frequencies(["LLLA", "LA", "L"]).sum(1).tolist() == [1, 1, 0]
    assert kmer_frequencies(["LLLA"])[0, :2].tolist() == pytest.approx([2 / 3, 1 / 3])


@given(COUNTS, COUNTS)
def test_kl_is_never_negative_and_zero_for_the_same(p, q):
    assert composition_kl(p, q) >= 0
    assert composition_kl(p, p) == 0


def test_kl_by_hand():
    """Counts 3, 0 and 0, 1 with a pseudocount of one: (4/5, 1/5) from (1/3, 2/3)."""
    expected = 0.8 * math.log(0.8 * 3) + 0.2 * math.log(0.2 * 1.5)
    assert composition_kl(np.array([3, 0]), np.array([0, 1])) == pytest.approx(expected)
    assert composition_kl(np.array([1e9, 3e9]), np.array([2e9, 2e9])) == pytest.approx(
        0.25 * math.log(0.5) + 0.75 * math.log(1.5)
    )
    with pytest.raises(ValueError, match="pseudocount=0, expected above 0"):
        composition_kl(np.ones(2), np.ones(2), 0)


def test_distinct_share():
    """LLLL has LLL twice, LAGV two 3-mers of its own: three of four."""
    assert distinct_share(kmer_matrix(["LLLL", "LAGV"], 3)) == 3 / 4
    assert distinct_share(kmer_matrix(["LAGV"] * 5, 3)) == 1 / 5
    with pytest.raises(ValueError, match="at least one k-mer"):
        distinct_share(kmer_matrix(["LA"], 3))


def test_repeats_are_of_low_complexity_and_insulin_is_not():
    assert low_complexity("Q" * 20) == 1
    assert low_complexity(INSULIN_B) == 0
    assert low_complexity(INSULIN_A) == 0
    # a run of twelve Q inside: what a window of twelve with at most 2.2 bits reaches, window by window
    sequence = INSULIN_B[:20] + "Q" * 12 + INSULIN_B[10:]
    covered = set()
    for start in range(len(sequence) - 11):
        counts = Counter(sequence[start : start + 12]).values()
        if -sum(c / 12 * math.log2(c / 12) for c in counts) <= 2.2:
            covered |= set(range(start, start + 12))
    assert {*range(20, 32)} < covered < set(range(len(sequence)))
    assert low_complexity(sequence) == pytest.approx(len(covered) / len(sequence))
    with pytest.raises(ValueError, match="expected at least 12"):
        low_complexity("LAG")


def test_window_exactly_at_the_threshold_counts():
    """Four letters three times each: two bits."""
    assert low_complexity("LAGV" * 3, bits=2.0) == 1
    assert low_complexity("LAGV" * 3, bits=1.99) == 0


@given(PROTEIN)
def test_shares_are_shares_and_runs_are_runs(sequence):
    assert 0 <= low_complexity(sequence) <= 1
    run = longest_run(sequence)
    assert any(letter * run in sequence for letter in AMINO_ACIDS)
    assert not any(letter * (run + 1) in sequence for letter in AMINO_ACIDS)


def test_a_copy_is_found_and_a_stranger_is_not():
    """One in ten residues replaced: identity 0.9, also for a fragment; unrelated proteins stay far below."""
    training = random_proteins(200, 70, seed=1)
    changed = list(training[123])
    for i in range(3, 70, 10):
        changed[i] = AMINO_ACIDS[(AMINO_ACIDS.index(changed[i]) + 7) % 20]
    stranger = random_proteins(1, 70, seed=2)[0]
    identity = nearest_identity(["".join(changed), training[5], training[7][10:60], stranger], training)
    assert identity[:3].tolist() == pytest.approx([0.9, 1.0, 1.0])
    assert 0.1 < identity[3] < 0.45
    with pytest.raises(ValueError, match="at least 1"):
        nearest_identity([stranger], [])


@given(PROTEIN)
def test_pairs_are_counted_and_expected_as_in_all_orders(sequence):
    observed, expected = sequence_pairs(sequence, separations=3, skip=1)
    rest = sequence[1:]
    for s in (1, 2, 3):
        counts = Counter(zip(rest, rest[s:], strict=False))
        assert observed[s - 1].sum() == len(rest) - s == pytest.approx(expected[s - 1].sum())
        for (a, b), count in counts.items():
            assert observed[s - 1, AMINO_ACIDS.index(a), AMINO_ACIDS.index(b)] == count
    a, b = AMINO_ACIDS.index(rest[0]), AMINO_ACIDS.index(rest[1])
    places = [(i, j) for i in range(len(rest)) for j in range(len(rest)) if i != j]
    share = np.mean([rest[i] == rest[0] and rest[j] == rest[1] for i, j in places])
    assert expected[1, a, b] == pytest.approx(share * (len(rest) - 2))


def planted(n: int, seed: int) -> list[str]:
    """Random proteins in which C is followed by H four residues later, wherever there is room."""
    proteins = []
    for sequence in random_proteins(n, 60, seed):
        letters = list(sequence)
        for i, letter in enumerate(sequence[:-4]):
            if letter == "C":
                letters[i + 4] = "H"
        proteins.append("".join(letters))
    return proteins


def test_a_planted_coupling_is_found_kept_and_lost_by_shuffling():
    pairs = strongest_pairs(planted(300, seed=0), n=3)
    assert pairs[0].tolist() == [4, AMINO_ACIDS.index("C"), AMINO_ACIDS.index("H")]
    other = planted(200, seed=1)
    counts = count_pairs(other, pairs[:1])
    observed = sum(a == "C" and b == "H" for p in other for a, b in zip(p[1:], p[5:], strict=False))
    assert counts[0].shape == counts[1].shape == (200, 1)
    assert counts[0].sum() == observed
    # C leads to H always or 1 in 20: more than log 10 with both letters at their frequencies
    assert mean_log_odds(*counts) > math.log(6)
    rng = np.random.default_rng(2)
    shuffled = [p[0] + "".join(rng.permutation(list(p[1:]))) for p in other]
    assert mean_log_odds(*count_pairs(shuffled, pairs[:1])) == pytest.approx(0, abs=0.25)
    assert mean_log_odds(*count_pairs(random_proteins(200, 60, seed=3), pairs[:1])) == pytest.approx(0, abs=0.4)


def test_composition_alone_makes_no_log_odds():
    """Proteins of two kinds, one rich in L and one in A, but in random order: pairs LL and AA are no coupling."""
    rng = np.random.default_rng(0)
    proteins = ["".join(rng.choice(list("LLLLG" if k % 2 else "AAAAG"), 60)) for k in range(300)]
    pairs = np.array([[1, 0, 0], [3, 1, 1], [5, 0, 0]])
    assert mean_log_odds(*count_pairs(proteins, pairs)) == pytest.approx(0, abs=0.01)


def test_first_residues_are_left_out():
    observed, _ = count_pairs(["M" + "LAGV" * 4] * 3, np.array([[1, AMINO_ACIDS.index("M"), 0], [1, 0, 1]]))
    assert observed.tolist() == [[0, 4]] * 3


def test_log_odds_by_hand():
    """Counts 5 and 0 where 2 and 1 are expected, with a pseudocount of one: log(6/3) and log(1/2)."""
    observed, expected = np.array([[3, 0], [2, 0]]), np.array([[1.0, 0.5], [1.0, 0.5]])
    assert mean_log_odds(observed, expected) == pytest.approx((math.log(2) + math.log(0.5)) / 2)


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: kmer_matrix([], 2), "at least one sequence"),
        (lambda: kmer_matrix(["LA"], 0), "k at least 1"),
        (lambda: longest_run("LAXA"), "sequence='LAXA', expected letters of"),
        (lambda: sequence_pairs("LAGV", 10), "expected more than 11 residues"),
        (lambda: strongest_pairs(random_proteins(2, 20)), "n=100, expected at most 0, the pairs frequent enough"),
    ],
)
def test_bad_arguments_are_named(build, message):
    with pytest.raises(ValueError, match=message):
        build()
