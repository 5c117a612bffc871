"""Scores of sets of proteins as strings: composition, repeats, novelty, and the coupling of residues."""

import numpy as np
from scipy import sparse
from scipy.special import rel_entr
from sklearn.feature_extraction.text import CountVectorizer

from mi_lib.masked import require
from mi_lib.proteins import AMINO_ACIDS

SEG_WINDOW, SEG_BITS = 12, 2.2  # window and trigger entropy of SEG (Wootton and Federhen 1993)


def residue_ids(sequence: str) -> np.ndarray:
    """Index of each residue in ``AMINO_ACIDS``, shape (L,); a ValueError names another letter."""
    ids = np.array([AMINO_ACIDS.find(letter) for letter in sequence], dtype=int)
    require(bool((ids >= 0).all()), "sequence", sequence, f"letters of {AMINO_ACIDS}")
    return ids


def kmer_matrix(sequences: list[str], k: int) -> sparse.csr_matrix:
    """Counts of each k-mer in each sequence, shape (n, 20 ** k), in the order of ``AMINO_ACIDS``."""
    require(len(sequences) > 0 and k >= 1, "sequences, k", (len(sequences), k), "at least one sequence, k at least 1")
    words = [""]
    for _ in range(k):
        words = [word + letter for word in words for letter in AMINO_ACIDS]
    counter = CountVectorizer(analyzer="char", ngram_range=(k, k), lowercase=False, vocabulary=words)
    return counter.transform(sequences)


def kmer_frequencies(sequences: list[str], k: int = 2) -> np.ndarray:
    """Share of each k-mer in each sequence, shape (n, 20 ** k): a space that no protein model owns."""
    counts = kmer_matrix(sequences, k).toarray().astype(float)
    return counts / counts.sum(1, keepdims=True).clip(min=1)


def composition_kl(p: np.ndarray, q: np.ndarray, pseudocount: float = 1.0) -> float:
    """Kullback-Leibler divergence KL(p || q) of two tables of counts, in nats.

    Parameters
    ----------
    p, q : ndarray of shape (k,)
        Counts: of amino acids, of 2-mers.
    pseudocount : float
        Added to every cell of both; above zero, else an unseen k-mer makes the divergence infinite.
    """
    require(pseudocount > 0, "pseudocount", pseudocount, "above 0")
    p, q = np.asarray(p, float) + pseudocount, np.asarray(q, float) + pseudocount
    return float(max(rel_entr(p / p.sum(), q / q.sum()).sum(), 0.0))


def distinct_share(counts: sparse.csr_matrix) -> float:
    """Distinct k-mers as a share of all k-mers of a set (``kmer_matrix``); falls with the size of the set."""
    total = np.asarray(counts.sum(0)).ravel()
    require(bool(total.sum() > 0), "counts", total, "at least one k-mer")
    return float((total > 0).sum() / total.sum())


def low_complexity(sequence: str, window: int = SEG_WINDOW, bits: float = SEG_BITS) -> float:
    """Share of residues inside a window of low entropy, as SEG's trigger finds them.

    Parameters
    ----------
    sequence : str
        At least as long as the window.
    window : int
    bits : float
        A window whose residues have at most this entropy (bits, as SEG counts) is of low complexity; the largest
        possible is log2(12) = 3.58.
    """
    require(len(sequence) >= window, "len(sequence)", len(sequence), f"at least {window}")
    one_hot = np.eye(len(AMINO_ACIDS), dtype=int)[residue_ids(sequence)]
    counts = np.lib.stride_tricks.sliding_window_view(one_hot, window, axis=0).sum(-1)  # (L - window + 1, 20)
    p = counts / window
    entropy = -(p * np.log2(p, out=np.zeros_like(p), where=p > 0)).sum(-1)
    covered = np.convolve(entropy <= bits + 1e-9, np.ones(window)) > 0.5
    return float(covered.mean())


def longest_run(sequence: str) -> int:
    """Length of the longest run of one residue."""
    change = np.flatnonzero(np.diff(residue_ids(sequence))) + 1
    return int(np.diff([0, *change, len(sequence)]).max())


def nearest_identity(sequences: list[str], training: list[str], candidates: int = 5) -> np.ndarray:
    """Identity of each sequence with the most similar training sequence, in [0, 1].

    Parameters
    ----------
    sequences, training : list of str
    candidates : int
        Training sequences that are aligned with each: those with the largest Jaccard index of 3-mers.

    Returns
    -------
    ndarray of shape (n,)
        Identical residues of the global alignment (BLOSUM62, gaps 11 and 1, free at the ends) as a share of the
        shorter sequence. Unrelated proteins of this length reach about 0.25.
    """
    from Bio.Align import PairwiseAligner, substitution_matrices

    require(len(training) > 0 and candidates >= 1, "training, candidates", (len(training), candidates), "at least 1")
    aligner = PairwiseAligner(mode="global", substitution_matrix=substitution_matrices.load("BLOSUM62"))
    aligner.open_gap_score, aligner.extend_gap_score, aligner.end_gap_score = -11, -1, 0
    a, b = ((kmer_matrix(s, 3) > 0).astype(np.float32) for s in (sequences, training))
    shared = (a @ b.T).toarray()  # (n, N) distinct 3-mers
    union = np.asarray(a.sum(1)) + np.asarray(b.sum(1)).T - shared
    nearest = np.argsort(-shared / union.clip(min=1), axis=1, kind="stable")[:, :candidates]
    return np.array(
        [max(_identity(aligner, s, training[k]) for k in row) for s, row in zip(sequences, nearest, strict=True)]
    )


def _identity(aligner, a: str, b: str) -> float:
    return aligner.align(a, b)[0].counts().identities / min(len(a), len(b))


def sequence_pairs(sequence: str, separations: int = 10, skip: int = 1) -> tuple[np.ndarray, np.ndarray]:
    """How often residue b follows residue a at separation s, and what shuffling the sequence would give.

    Parameters
    ----------
    sequence : str
    separations : int
        s = 1 .. ``separations``.
    skip : int
        Residues left out at the start: the first is nearly always M, wherever the rest comes from.

    Returns
    -------
    observed, expected : ndarray of shape (separations, 20, 20)
        Counts, and their mean over all orders of the residues.
    """
    x, size = residue_ids(sequence[skip:]), len(AMINO_ACIDS)
    require(len(x) > separations >= 1, "len(sequence)", len(sequence), f"more than {separations + skip} residues")
    s = np.arange(1, separations + 1)
    observed = np.stack([np.bincount(size * x[:-k] + x[k:], minlength=size**2).reshape(size, size) for k in s])
    count = np.bincount(x, minlength=size)
    both = np.outer(count, count) - np.diag(count)  # ordered pairs of two residues
    share = (len(x) - s) / (len(x) * (len(x) - 1))  # of those pairs at each separation
    return observed, share[:, None, None] * both


def strongest_pairs(
    training: list[str], n: int = 100, separations: int = 10, skip: int = 1, smallest: float = 20.0
) -> np.ndarray:
    """The most enriched residue pairs of a training set: where couplings are looked for in other sets.

    Parameters
    ----------
    training : list of str
    n : int
    separations, skip : int
        Of ``sequence_pairs``.
    smallest : float
        Pairs that shuffled sequences would have less often than this are too rare to judge.

    Returns
    -------
    ndarray of shape (n, 3), int
        Separation and the two residues, the largest (observed - expected) / sqrt(expected) first.
    """
    observed, expected = 0, 0
    for sequence in training:
        table = sequence_pairs(sequence, separations, skip)
        observed, expected = observed + table[0], expected + table[1]
    z = np.where(expected >= smallest, (observed - expected) / np.sqrt(expected.clip(min=smallest)), -np.inf)
    require(int(np.isfinite(z).sum()) >= n, "n", n, f"at most {np.isfinite(z).sum()}, the pairs frequent enough")
    best = np.argsort(-z, axis=None, kind="stable")[:n]
    s, a, b = np.unravel_index(best, z.shape)
    return np.stack([s + 1, a, b], 1)


def count_pairs(sequences: list[str], pairs: np.ndarray, skip: int = 1) -> tuple[np.ndarray, np.ndarray]:
    """Observed and expected counts of chosen pairs (P, 3) in each sequence, two arrays of shape (n, P)."""
    s, a, b = np.asarray(pairs).T
    tables = [sequence_pairs(sequence, int(s.max()), skip) for sequence in sequences]
    return np.array([t[0][s - 1, a, b] for t in tables], float), np.array([t[1][s - 1, a, b] for t in tables])


def mean_log_odds(observed: np.ndarray, expected: np.ndarray, pseudocount: float = 1.0) -> float:
    """Mean over pairs of log (observed + c) / (expected + c) of a set's counts, in nats; shuffled sequences have 0.

    Parameters
    ----------
    observed, expected : ndarray of shape (n, P)
        Of ``count_pairs``.
    pseudocount : float
        c.
    """
    return float(np.log((observed.sum(0) + pseudocount) / (expected.sum(0) + pseudocount)).mean())
