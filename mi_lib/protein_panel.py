"""The panel: every measure of a set of proteins, each with its interval, all against one yardstick."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np
import pandas as pd
from sklearn.cluster import KMeans

from mi_lib.distributions import Statistic, bootstrap, cluster_jsd, fit_clusters, frechet_from, paired_bootstrap
from mi_lib.masked import require
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
    strongest_pairs,
)
from mi_lib.tables import verdict

MEASURES = {
    "jsd_nats": "JSD of embedding clusters (nats)",
    "jsd_distance": "JSD of embedding clusters (distance)",
    "jsd_2mer_nats": "JSD of 2-mer clusters (nats)",
    "frechet": "Fréchet distance of embeddings",
    "kl_residues": "KL of amino acids (nats)",
    "kl_2mers": "KL of 2-mers (nats)",
    "distinct_3mers": "distinct 3-mers",
    "low_complexity": "residues of low complexity",
    "longest_run": "longest run of one residue",
    "nearest_identity": "identity with the nearest training protein",
    "pair_log_odds": "log-odds of coupled residue pairs (nats)",
}
NON_NEGATIVE = ("jsd_nats", "jsd_distance", "jsd_2mer_nats", "frechet", "kl_residues", "kl_2mers")


@dataclass(frozen=True)
class Yardstick:
    """What sets of proteins are measured against.

    Attributes
    ----------
    reference : list of str
    points : ndarray of shape (n, D)
        The reference's embeddings.
    training : list of str
        For novelty and for the pairs of residues whose coupling is looked for.
    k : int
        Clusters (§5.3).
    seed : int
        Of k-means.
    """

    reference: Sequence[str]
    points: np.ndarray
    training: Sequence[str]
    k: int = 15
    seed: int = 0
    clusters: KMeans = field(init=False, repr=False)
    kmer_clusters: KMeans = field(init=False, repr=False)
    pairs: np.ndarray = field(init=False, repr=False)

    def __post_init__(self):
        n = len(self.reference)
        require(len(self.points) == n, "len(points)", len(self.points), f"one a reference protein, {n}")
        kmers = kmer_frequencies(list(self.reference))
        object.__setattr__(self, "clusters", fit_clusters(self.points, self.k, self.seed))
        object.__setattr__(self, "kmer_clusters", fit_clusters(kmers, self.k, self.seed))
        object.__setattr__(self, "pairs", strongest_pairs(list(self.training)))

    def measures(self, sequences: Sequence[str], points: np.ndarray) -> dict[str, Statistic]:
        """Every measure of ``MEASURES`` of a set, as a function of the set's rows; KL is KL(set || reference)."""
        reference, sequences = list(self.reference), list(sequences)
        jsd = cluster_jsd(self.clusters.labels_, self.clusters.predict(np.asarray(points, float)), self.k)
        own = self.kmer_clusters.predict(kmer_frequencies(sequences))
        low = np.array([low_complexity(s) for s in sequences])
        runs = np.array([longest_run(s) for s in sequences])
        identity = nearest_identity(sequences, list(self.training))
        words = kmer_matrix(sequences, 3)
        observed, expected = count_pairs(sequences, self.pairs)
        return {
            "jsd_nats": jsd,
            "jsd_distance": lambda rows: float(np.sqrt(jsd(rows))),
            "jsd_2mer_nats": cluster_jsd(self.kmer_clusters.labels_, own, self.k),
            "frechet": frechet_from(self.points, np.asarray(points, float)),
            "kl_residues": _kl(sequences, reference, 1),
            "kl_2mers": _kl(sequences, reference, 2),
            "distinct_3mers": lambda rows: distinct_share(words[rows]),
            "low_complexity": lambda rows: float(low[rows].mean()),
            "longest_run": lambda rows: float(runs[rows].mean()),
            "nearest_identity": lambda rows: float(identity[rows].mean()),
            "pair_log_odds": lambda rows: mean_log_odds(observed[rows], expected[rows]),
        }


def _kl(sequences: list[str], reference: list[str], k: int) -> Statistic:
    counts, target = kmer_matrix(sequences, k).toarray(), kmer_matrix(reference, k).toarray().sum(0)
    return lambda rows: composition_kl(counts[rows].sum(0), target)


def panel_rows(measured: list[dict[str, Statistic]], sizes: list[int], samples: int = 200) -> pd.DataFrame:
    """Every measure of one method, pooled over seeds: ``measure``, ``value``, ``low``, ``high``, ``n``, ``seeds``.

    Parameters
    ----------
    measured : list of dict
        ``Yardstick.measures`` of each seed.
    sizes : list of int
        Proteins of each seed.
    samples : int
        Of the bootstrap.
    """
    rows = []
    for measure in measured[0]:
        value, low, high = bootstrap([m[measure] for m in measured], sizes, samples)
        low = max(low, 0.0) if measure in NON_NEGATIVE else low
        rows.append({"measure": measure, "value": value, "low": low, "high": high, "n": sizes[0], "seeds": len(sizes)})
    return pd.DataFrame(rows)


def difference_rows(
    a: list[dict[str, Statistic]],
    b: list[dict[str, Statistic]],
    sizes: list[int],
    samples: int = 200,
    measures: Iterable[str] = MEASURES,
) -> pd.DataFrame:
    """Measures of one method minus another's: ``measure``, ``difference``, ``low``, ``high``.

    Lengths and noise are the same for both, and so are the proteins that are resampled.
    """
    rows = []
    for measure in measures:
        value, low, high = paired_bootstrap([m[measure] for m in a], [m[measure] for m in b], sizes, samples)
        rows.append({"measure": measure, "difference": value, "low": low, "high": high})
    return pd.DataFrame(rows)


def protein_claims(differences: pd.DataFrame, table2: pd.DataFrame, matched: dict[float, tuple]) -> pd.DataFrame:
    """The paper's claims on generation (§5.3), each answered by a paired interval of the JSD; lower is better.

    Parameters
    ----------
    differences : DataFrame
        ``protein_differences`` of one model.
    table2 : DataFrame
        ``table2`` of that model: its passes.
    matched : dict
        ``mi_lib.protein_runs.matched_methods`` of that model: MI guidance is its first method.

    Returns
    -------
    DataFrame
        ``claim``, ``answer``, ``difference in JSD (nats), 95 %``.
    """
    name = (table2["method"] + " " + table2["parameters"]).str.strip()
    passes = table2["passes"].groupby(name).mean()
    jsd = differences[differences["measure"] == "jsd_nats"].set_index(["a", "b"])
    rows = []
    for target, (guided, *others) in matched.items():
        ratio = passes["Sequential"] / passes[guided.label]
        about = f"({target:.0f} passes)"
        claims = [(f"{ratio:.1f} times fewer passes with no loss against Sequential", "Sequential")]
        for other in others:
            what = {"Naive": "Naive", "EB": "EB", "MI": f"MI with {other.head}"}.get(other.name, other.name)
            known = "" if other.name == "Naive" else "Not claimed by the paper: "
            claim = f"{known}MI-guided comes closer to real proteins than {what} at equal passes {about}"
            claims.append((claim, other.label))
        for claim, b in claims:
            row = jsd.loc[(guided.label, b)]
            answer = verdict(-row["high"], -row["low"])
            span = f"{row['difference']:+.4f} [{row['low']:+.4f}, {row['high']:+.4f}]"
            rows.append({"claim": claim, "answer": answer, "difference in JSD (nats), 95 %": span})
    return pd.DataFrame(rows)
