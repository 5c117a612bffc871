"""MI maps of proteins: what they look like at each mask rate, over the sequence, and between cysteines."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from mi_lib.ground_truth import DirectionalMI, check_estimator, diagnose, probe, symmetrize
from mi_lib.masked import MaskedModel, entropy, marginals, require
from mi_lib.metrics import bootstrap_means, mi_scores
from mi_lib.proteins import ProteinSet, encode

BANDS = {"near": (1, 4), "middle": (5, 12), "far": (13, 1_000)}  # separation in residues: a helix turn, two, beyond
LONGEST = 30  # separations beyond are not told apart
BIN_EDGES = np.array([1, 2, 3, 5, 8, 12, 20, 35])  # of separation, within which cysteine pairs are compared with others
KINDS = ("two cysteines", "one cysteine", "none")
THREE_FINGER = ((0, 2), (1, 3), (4, 5), (6, 7))  # disulfides of the three-finger fold, by number of the cysteine


@dataclass(frozen=True)
class MIMap:
    """A partly masked protein, fully probed.

    Attributes
    ----------
    accession, sequence : str
    tokens : LongTensor of shape (L,)
    directional : DirectionalMI
        Of shape (L, L).
    entropy : ndarray of shape (L,)
        Of each position's marginal, nats.
    hidden : Tensor of shape (L, D)
        What an MI head reads.
    """

    accession: str
    sequence: str
    tokens: Tensor
    directional: DirectionalMI
    entropy: np.ndarray
    hidden: Tensor

    @property
    def masked(self) -> np.ndarray:
        """Where a residue is masked, (L,), bool."""
        return (self.tokens != encode([self.sequence])[0]).numpy()

    def of(self, estimator: str) -> np.ndarray:
        """The MI matrix (L, L) of one estimator, symmetric and not negative, nats."""
        return symmetrize(self.directional.of(estimator)).numpy()


def mask_residues(sequence: str, share: float, mask_id: int, seed: int = 0, first: str = "") -> Tensor:
    """Tokens (L,) of a protein with ``ceil(share L)`` residues masked at random, residues of ``first`` before others.

    What is masked depends on the sequence and ``seed``; a smaller share masks a subset.
    """
    require(0 < share <= 1, "share", share, "a share above 0, at most 1")
    tokens = encode([sequence])[0]
    rng = np.random.default_rng([seed, *sequence.encode()])
    order = sorted(rng.permutation(len(sequence)).tolist(), key=lambda i: sequence[i] not in first)
    tokens[order[: int(np.ceil(share * len(sequence) - 1e-9))]] = mask_id
    return tokens


def probe_protein(model: MaskedModel, accession: str, sequence: str, tokens: Tensor, **options) -> MIMap:
    """Probe every masked position of one protein, in float32; ``options`` as of ``probe_rows``."""
    with torch.inference_mode():
        log_p, hidden = marginals(model, tokens[None])
    directional = probe(model, tokens, **options)
    return MIMap(accession, sequence, tokens, directional, entropy(log_p[0]).numpy(), hidden[0])


def pairs_of(mi: np.ndarray, masked: np.ndarray, sequence: str) -> pd.DataFrame:
    """Every pair i < j of masked residues: ``i``, ``j``, ``separation``, ``cysteines`` (0 to 2), ``mi`` (nats)."""
    i, j = np.triu(masked[:, None] & masked, 1).nonzero()
    cysteine = np.array([letter == "C" for letter in sequence])
    columns = {"i": i, "j": j, "separation": j - i, "cysteines": cysteine[i].astype(int) + cysteine[j]}
    return pd.DataFrame(columns | {"mi": mi[i, j]})


def participation(mi: np.ndarray) -> float:
    """The share of pairs that would hold all MI, if they held it equally: (sum)^2 / (n sum of squares).

    1 if all pairs have the same MI, near 1 / n if one pair has it all; nan if there is none.
    """
    mi = np.asarray(mi, float)
    total = (mi**2).sum()
    return float(mi.sum() ** 2 / (len(mi) * total)) if total > 0 else float("nan")


def matched_auroc(pairs: pd.DataFrame, positive: np.ndarray) -> float:
    """Chance that a positive pair has more MI than another pair of the same protein and bin of separation.

    Ties count half; bins count by their number of comparisons; nan without any.

    Parameters
    ----------
    pairs : DataFrame
        Of ``pairs_of``, of one protein.
    positive : ndarray of shape (n,), bool
    """
    bins = np.searchsorted(BIN_EDGES, pairs["separation"], side="right")
    won, total = 0.0, 0
    for b in np.unique(bins):
        values = pairs["mi"].to_numpy()[bins == b]
        a, other = values[positive[bins == b], None], values[~positive[bins == b]]
        won, total = won + (a > other).sum() + 0.5 * (a == other).sum(), total + a.size * other.size
    return float(won / total) if total else float("nan")


def matched_difference(pairs: pd.DataFrame, positive: np.ndarray) -> float:
    """Mean MI of positive pairs minus that of the other pairs of the same protein and bin of separation, nats.

    Bins count by their number of positive pairs; those without other pairs are left out; nan without any.
    """
    bins = np.searchsorted(BIN_EDGES, pairs["separation"], side="right")
    total, count = 0.0, 0
    for b in np.unique(bins[positive]):
        values = pairs["mi"].to_numpy()[bins == b]
        chosen = positive[bins == b]
        if not chosen.all():
            total += chosen.sum() * (values[chosen].mean() - values[~chosen].mean())
            count += chosen.sum()
    return float(total / count) if count else float("nan")


def disulfides(sequence: str) -> set[tuple[int, int]]:
    """Positions that a three-finger toxin's eight cysteines tie, first < second; none if it has another number.

    The order of the bonds is that of the fold: 1-3, 2-4, 5-6, 7-8. Whether the protein has the fold is not checked.
    """
    at = [i for i, letter in enumerate(sequence) if letter == "C"]
    return {(at[a], at[b]) for a, b in THREE_FINGER} if len(at) == 8 else set()


def cysteine_rich(proteins: ProteinSet, n: int, fewest: int = 6, most: int = 12, longest: int = 80) -> ProteinSet:
    """The first ``n`` proteins, by share of cysteine, of ``fewest`` to ``most`` cysteines and at most ``longest`` long.

    Most such small proteins are held together by disulfides; those with more cysteines bind metals. Composition alone
    decides, so that some are neither.
    """
    counts = np.array([s.count("C") for s in proteins.sequences])
    lengths = np.array([len(s) for s in proteins.sequences])
    fits = np.flatnonzero((counts >= fewest) & (counts <= most) & (lengths <= longest))
    expected = f"proteins of at most {longest} residues, {fewest} to {most} of them cysteines"
    require(len(fits) > 0, "proteins", f"{len(proteins)} without any", expected)
    best = fits[np.argsort(-(counts / lengths)[fits], kind="stable")][:n]
    columns = (proteins.accessions, proteins.sequences, proteins.clusters)
    return ProteinSet(*(tuple(column[i] for i in best) for column in columns))


def describe(mi_map: MIMap, estimator: str) -> dict[str, float]:
    """Numbers of one map: means over masked pairs (nats), by band and by separation; shares; entropy.

    Keys are ``mean``, those of ``BANDS``, ``separation 1`` and so on, ``participation``, ``negative`` (share of
    directional entries below zero), ``asymmetry``, ``inconsistency`` (nats) and ``entropy`` (nats a masked residue).
    """
    check_estimator(estimator)
    masked = mi_map.masked
    pairs = pairs_of(mi_map.of(estimator), masked, mi_map.sequence)
    found = {"mean": pairs["mi"].mean(), "participation": participation(pairs["mi"].to_numpy())}
    found |= {band: pairs.loc[pairs["separation"].between(*ends), "mi"].mean() for band, ends in BANDS.items()}
    by_separation = pairs[pairs["separation"] <= LONGEST].groupby("separation")["mi"].mean()
    found |= {f"separation {s}": value for s, value in by_separation.items()}
    scores = diagnose(mi_map.directional, torch.from_numpy(masked), estimator)
    found |= {"negative": scores.negative_share, "asymmetry": scores.asymmetry, "inconsistency": scores.inconsistency}
    return found | {"entropy": float(mi_map.entropy[masked].mean())}


def describe_cysteines(mi_map: MIMap, estimator: str) -> dict[str, float]:
    """Numbers of one map's cysteine pairs against its other pairs; nan where there is nothing to compare.

    Keys are those of ``KINDS`` (mean MI, nats), ``auroc`` and ``difference`` (pairs of two cysteines against all
    others, matched by separation), ``auroc against one`` (against pairs with one cysteine) and, for sequences with the
    eight cysteines of a three-finger toxin, ``bonded`` and ``not bonded`` (mean MI of its cysteine pairs).
    """
    pairs = pairs_of(mi_map.of(estimator), mi_map.masked, mi_map.sequence)
    both = (pairs["cysteines"] == 2).to_numpy()
    found = {kind: pairs.loc[pairs["cysteines"] == 2 - n, "mi"].mean() for n, kind in enumerate(KINDS)}
    found |= {"auroc": matched_auroc(pairs, both), "difference": matched_difference(pairs, both)}
    some = pairs[pairs["cysteines"] > 0]
    found["auroc against one"] = matched_auroc(some, (some["cysteines"] == 2).to_numpy())
    bonds = disulfides(mi_map.sequence)
    bonded = np.array([pair in bonds for pair in zip(pairs["i"], pairs["j"], strict=True)], bool)
    if bonds:
        found |= {"bonded": pairs["mi"][bonded].mean(), "not bonded": pairs["mi"][both & ~bonded].mean()}
    return found


def colour_top(mi: np.ndarray) -> float:
    """Upper end of a map's colour scale: the 99.5th percentile of its positive entries, nats."""
    return float(np.quantile(mi[mi > 0], 0.995)) if (mi > 0).any() else 1.0


def head_row(mi_map: MIMap, predicted: np.ndarray, estimator: str) -> dict[str, object]:
    """A map against its prediction (L, L): share masked, mean MI (nats), ratio of standard deviations, R2, ranks."""
    tables = [pairs_of(mi, mi_map.masked, mi_map.sequence)["mi"] for mi in (mi_map.of(estimator), predicted)]
    true, guess = (table.to_numpy(float) for table in tables)
    scores = mi_scores(guess, true)
    row = {"accession": mi_map.accession, "masked": f"{mi_map.masked.mean():.0%}", "probed": true.mean()}
    ratio = guess.std() / true.std() if true.std() > 0 else float("nan")
    return row | {
        "predicted": guess.mean(),
        "SD ratio": ratio,
        "R²": scores["r2"],
        "rank correlation": scores["spearman"],
    }


def share_differences(frame: pd.DataFrame, quantity: str, a: float, b: float) -> pd.DataFrame:
    """A quantity at share ``a`` masked minus at ``b``, paired by protein: ``set``, ``mean``, ``low``, ``high``.

    ``frame`` has the columns of ``measure_maps`` and ``set``, of one estimator.
    """
    return _differences(frame[frame["quantity"] == quantity], ["set"], "mask_share", a, b)


def quantity_differences(frame: pd.DataFrame, a: str, b: str) -> pd.DataFrame:
    """Quantity ``a`` minus ``b``, paired by protein: ``set``, ``mask_share``, ``mean``, ``low``, ``high``.

    ``frame`` as for ``share_differences``; proteins that lack one of the two are left out.
    """
    return _differences(frame[frame["quantity"].isin([a, b])], ["set", "mask_share"], "quantity", a, b)


def _differences(rows: pd.DataFrame, keys: list[str], column: str, a, b) -> pd.DataFrame:
    """``value`` where ``column`` is ``a`` minus where it is ``b``, paired by protein: means and intervals a key."""
    values = rows.pivot_table(index=[*keys, "accession"], columns=column, values="value")
    return bootstrap_means((values[a] - values[b]).rename("value").reset_index(), keys, "value")


def measure_maps(
    model: MaskedModel,
    proteins: ProteinSet,
    shares: Iterable[float],
    seed: int = 0,
    cysteines: bool = False,
    estimators: Iterable[str] = ("entropy", "mixture"),
    progress: Callable[[int], None] = lambda maps: None,
) -> pd.DataFrame:
    """Probe proteins at each share masked: a row a protein, share, estimator and quantity.

    Parameters
    ----------
    model : MaskedModel
    proteins : ProteinSet
    shares : iterable of float
    seed : int
        Of the masks.
    cysteines : bool
        Mask cysteines first, and report ``describe_cysteines`` instead of ``describe``.
    estimators : iterable of str
        One probing serves them all.
    progress : callable
        Called with the number of maps just finished.

    Returns
    -------
    DataFrame
        ``accession``, ``cluster``, ``mask_share``, ``estimator``, ``quantity``, ``value``.
    """
    rows, estimators = [], tuple(estimators)
    for accession, sequence, cluster in zip(proteins.accessions, proteins.sequences, proteins.clusters, strict=True):
        for share in shares:
            tokens = mask_residues(sequence, share, model.mask_id, seed, "C" if cysteines else "")
            mi_map = probe_protein(model, accession, sequence, tokens)
            for estimator in estimators:
                found = (describe_cysteines if cysteines else describe)(mi_map, estimator)
                rows += [(accession, cluster, share, estimator, name, float(value)) for name, value in found.items()]
            progress(1)
    return pd.DataFrame(rows, columns=["accession", "cluster", "mask_share", "estimator", "quantity", "value"])
