"""How well masked residues are predicted: perplexity and accuracy of models, and of baselines that know less."""

from collections.abc import Callable, Sequence

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from mi_lib.masked import MaskedModel, marginals, require
from mi_lib.mdm import forward_process
from mi_lib.proteins import AMINO_ACIDS, FIRST_ID, MASK_ID, ProteinSet, decode_tokens, encode

RATES = (0.15, 0.5, 1.0)

Predictor = Callable[[Tensor, Sequence[str]], Tensor]
"""Log-probabilities (B, L, 20) from masked tokens (B, L) of one length and the clusters (B,) they belong to."""


def sample(proteins: ProteinSet, n: int, seed: int = 0) -> ProteinSet:
    """``n`` random proteins of a set in its order, or all if it has no more."""
    require(n >= 1, "n", n, "at least 1")
    rng = np.random.default_rng(seed)
    chosen = np.sort(rng.permutation(len(proteins))[:n])
    columns = (proteins.accessions, proteins.sequences, proteins.clusters)
    return ProteinSet(*(tuple(column[i] for i in chosen) for column in columns))


def of_model(model: MaskedModel) -> Predictor:
    """A model as a predictor: it sees the tokens alone."""
    return lambda noisy, clusters: marginals(model, noisy)[0]


def masked_scores(
    predict: Predictor,
    proteins: ProteinSet,
    rates: Sequence[float] = RATES,
    seed: int = 0,
    batch_size: int = 64,
    progress: Callable[[int], None] = lambda proteins: None,
) -> pd.DataFrame:
    """Mask each protein once at each rate and predict what was masked; the masks depend on the seed alone.

    Parameters
    ----------
    predict : callable
        Such as ``of_model(model)``, ``Unigram(training)``, ``ClusterProfile(training)``.
    proteins : ProteinSet
    rates : sequence of float
        Shares of masked positions in (0, 1]; ``ceil(rate * L)`` are masked.
    seed : int
    batch_size : int
        Proteins of one length predicted together.
    progress : callable
        Called with the number of proteins just scored at one rate.

    Returns
    -------
    DataFrame
        A row a rate and protein: ``rate``, ``accession``, ``masked`` (positions), ``nats`` (summed over them),
        ``correct`` (positions whose likeliest amino acid is the true one).
    """
    for rate in rates:
        require(0 < rate <= 1, "rate", rate, "a share in (0, 1]")
    require(batch_size >= 1, "batch_size", batch_size, "at least 1")
    lengths, rows = np.array([len(sequence) for sequence in proteins.sequences]), []
    for rate in rates:
        generator = torch.Generator().manual_seed(seed)
        for length in np.unique(lengths):
            index = np.flatnonzero(lengths == length)
            for part in np.split(index, range(batch_size, len(index), batch_size)):
                tokens = encode([proteins.sequences[i] for i in part])
                noisy = forward_process(tokens, torch.full((len(part),), rate), MASK_ID, generator)
                with torch.inference_mode():
                    log_p = predict(noisy, [proteins.clusters[i] for i in part])
                masked, true = noisy == MASK_ID, tokens - FIRST_ID
                nats = -log_p.gather(-1, true[..., None]).squeeze(-1)
                columns = masked.sum(-1), (nats * masked).sum(-1), ((log_p.argmax(-1) == true) & masked).sum(-1)
                names = [proteins.accessions[i] for i in part]
                rows += zip([rate] * len(part), names, *(c.tolist() for c in columns), strict=True)
                progress(len(part))
    return pd.DataFrame(rows, columns=["rate", "accession", "masked", "nats", "correct"])


def summarise(scores: pd.DataFrame, level: float = 0.95, n: int = 2_000, seed: int = 0) -> pd.DataFrame:
    """Perplexity and accuracy at each rate, over all masked residues, with bootstrap intervals over proteins.

    Parameters
    ----------
    scores : DataFrame
        Of ``masked_scores``.
    level : float
        Of the intervals.
    n, seed : int
        Bootstrap samples, and their seed.

    Returns
    -------
    DataFrame
        A row a rate: ``rate``, ``n`` (proteins), ``perplexity`` (the exponential of the mean nats a masked residue),
        ``accuracy``, each with ``_low`` and ``_high``.
    """
    rows = []
    for rate, group in scores.groupby("rate", sort=False):
        sums = group[["nats", "correct", "masked"]].to_numpy(float)  # (N, 3)
        N = len(sums)
        weights = np.random.default_rng(seed).multinomial(N, np.full(N, 1 / N), size=n)
        resampled = weights @ sums
        row = {"rate": rate, "n": N}
        for name, part, transform in (("perplexity", 0, np.exp), ("accuracy", 1, np.asarray)):
            row[name] = float(transform(sums[:, part].sum() / sums[:, 2].sum()))
            bounds = np.quantile(transform(resampled[:, part] / resampled[:, 2]), [(1 - level) / 2, (1 + level) / 2])
            row[f"{name}_low"], row[f"{name}_high"] = map(float, bounds)
        rows.append(row)
    return pd.DataFrame(rows)


class Unigram:
    """Predicts the amino-acid frequencies of a set everywhere.

    Parameters
    ----------
    training : ProteinSet
    """

    def __init__(self, training: ProteinSet):
        counts = sum(_counts(sequence) for sequence in training.sequences) + 1  # none has probability zero
        self.log_p = (counts / counts.sum()).log()

    def __call__(self, noisy: Tensor, clusters: Sequence[str]) -> Tensor:
        return self.log_p.expand(*noisy.shape, -1).float()


class ClusterProfile:
    """Predicts the column frequencies of a protein's cluster, aligned to what is visible of the protein.

    It is told the cluster, which no model is. Each training member is aligned globally to the masked protein (BLOSUM62,
    gaps -11 and -1, gaps at the ends -1, a masked position scores 0 against anything), so that masked residues do not
    leak into the alignment. With c the counts of the members' residues at a position, N their number, q the
    composition of the cluster, itself smoothed towards the unigram u:
    ``p = (c + column_weight * q) / (N + column_weight)`` and ``q = (c' + cluster_weight * u) / (N' + cluster_weight)``.

    Parameters
    ----------
    training : ProteinSet
        With clusters.
    column_weight, cluster_weight : float
        Residues that the prior of a column and of a cluster's composition are worth.
    """

    def __init__(self, training: ProteinSet, column_weight: float = 6.0, cluster_weight: float = 20.0):
        require(column_weight > 0, "column_weight", column_weight, "above 0")
        require(cluster_weight > 0, "cluster_weight", cluster_weight, "above 0")
        self.column_weight, self.cluster_weight = column_weight, cluster_weight
        self.unigram = Unigram(training).log_p.exp()
        self.members: dict[str, list[str]] = {}
        for sequence, cluster in zip(training.sequences, training.clusters, strict=True):
            if cluster:
                self.members.setdefault(cluster, []).append(sequence)
        self.aligner = _aligner()

    def __call__(self, noisy: Tensor, clusters: Sequence[str]) -> Tensor:
        visible = [sequence.replace("_", "X") for sequence in decode_tokens(noisy)]
        return torch.stack([self._profile(*pair) for pair in zip(visible, clusters, strict=True)]).log().float()

    def _profile(self, visible: str, cluster: str) -> Tensor:
        members = self.members.get(cluster, [])
        total = sum((_counts(member) for member in members), torch.zeros_like(self.unigram))
        composition = (total + self.cluster_weight * self.unigram) / (total.sum() + self.cluster_weight)
        columns = torch.zeros(len(visible), len(AMINO_ACIDS), dtype=torch.float64)
        for member in members:
            letters = _letters(member)
            for (start, end), (first, last) in zip(*self.aligner.align(visible, member)[0].aligned, strict=True):
                columns[torch.arange(start, end), letters[first:last]] += 1
        return (columns + self.column_weight * composition) / (columns.sum(-1, keepdim=True) + self.column_weight)


def _letters(sequence: str) -> Tensor:
    return encode([sequence])[0] - FIRST_ID


def _counts(sequence: str) -> Tensor:
    return torch.bincount(_letters(sequence), minlength=len(AMINO_ACIDS)).double()


def _aligner():
    from Bio.Align import PairwiseAligner, substitution_matrices

    matrix = substitution_matrices.load("BLOSUM62")
    matrix["X", :], matrix[:, "X"] = 0, 0
    aligner = PairwiseAligner(substitution_matrix=matrix, open_gap_score=-11, extend_gap_score=-1)
    aligner.end_gap_score = -1
    return aligner
