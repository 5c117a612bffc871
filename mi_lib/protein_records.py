"""Recorded results of the proteins: Table 2, its panel, gammas at equal passes, entropies, conditional sampling."""

import time
from collections.abc import Iterable

import numpy as np
import pandas as pd

from mi_lib import checkpoints
from mi_lib.distributions import bootstrap, fit_clusters, jensen_shannon, paired_bootstrap
from mi_lib.generation import Unigram, draw_lengths, fill, table2_methods, trajectory
from mi_lib.metrics import bootstrap_means
from mi_lib.policies import TopK
from mi_lib.protein_panel import Yardstick, difference_rows, panel_rows
from mi_lib.protein_runs import (
    HEADS,
    UNIGRAM,
    added_methods,
    control_sets,
    embedded,
    file_part,
    filled,
    from_cache,
    generated_table,
    labelled,
    matched_methods,
    model_hashes,
    reference_split,
    scored,
    text_hash,
)
from mi_lib.proteins import load_proteins
from mi_lib.results import Progress, counting, read_result, write_result
from mi_lib.sequence_scores import kmer_matrix
from mi_lib.solving import Method

GAMMA_GRID = (2.0, 4.0, 8.0, 16.0, 32.0)  # nats; a residue costs up to ln 20 = 3.0
TAU_GRID = (0.05, 0.1, 0.15, 0.2, 0.3, 0.5, 0.7)
MATCH_SEED, N_MATCH = 1000, 100  # proteins that no table judges
MASK_SHARES = (0.3, 0.5, 0.7)
KEYS = ["model", "method", "parameters", "seed"]
REFERENCE = "reference"  # how the reference itself is named in tables
Pair = tuple[tuple[str, str], tuple[str, str]]  # two methods, each (name, parameters)


def record_protein_gammas(models: list[str], progress: Progress, n: int = N_MATCH, seed: int = MATCH_SEED) -> None:
    """Passes against gamma and tau, on proteins of another seed than the tables'."""
    methods = [Method("EB", gamma=g) for g in GAMMA_GRID]
    methods += [Method("Threshold", tau=t) for t in TAU_GRID]
    methods += [Method("MI", gamma=g, lam=1.0, head=h) for h in HEADS for g in GAMMA_GRID]
    frames = [generated_table(model, methods, [seed], n, progress) for model in models]
    means = pd.concat(frames).groupby(KEYS, sort=False)
    frame = means.agg(n=("passes", "size"), passes=("passes", "mean"), seconds_per_protein=("seconds", "mean"))
    write_result("protein_gammas", frame.reset_index(), n_proteins=n, seed=seed, checkpoints=model_hashes(models))


def record_table2(
    models: list[str],
    progress: Progress,
    n: int = 500,
    seeds: tuple[int, ...] = (0, 1, 2),
    reference: str = "reference",
    k: int = 15,
) -> None:
    """Table 2 with added rows, floor and ceilings, and beside it every protein with its cluster."""
    started, tables, proteins = time.perf_counter(), [], []
    known, others = reference_split(reference, n, k)
    for model in models:
        methods = dict.fromkeys((*table2_methods(), *added_methods(model)))  # a matched gamma may be the paper's
        made = generated_table(model, methods, seeds, n, progress)
        proteins.append(clustered(model, made, known, others, n, seeds, k, progress))
        tables.append(summarize(proteins[-1], k))
    columns = [*KEYS, "protein", "sequence", "passes", "seconds", "cluster"]
    write_result("table2_sequences", pd.concat(proteins)[columns].round({"seconds": 6}), compressed=True)
    meta = {"n_proteins": n, "seeds": list(seeds), "reference": reference, "reference_hash": text_hash(known), "k": k}
    meta |= {"checkpoints": model_hashes(models), "seconds": time.perf_counter() - started}
    write_result("table2", pd.concat(tables, ignore_index=True), **meta)


def clustered(
    model: str, made: pd.DataFrame, known: list[str], others: list[str], n: int, seeds: Iterable[int], k: int, progress
) -> pd.DataFrame:
    """Proteins of ``generated_table`` with reference, floor and ceilings, each with its cluster of embeddings."""
    controls = {REFERENCE: [known], **control_sets(known, others, n, seeds)}
    sets = [labelled(_given(s), model, name, "", i) for name, sets in controls.items() for i, s in enumerate(sets)]
    frame = pd.concat([made, *sets], ignore_index=True)
    clusters = fit_clusters(embedded(model, known, progress), k)
    groups = frame.groupby(KEYS, sort=False)["sequence"]
    labels = [pd.Series(clusters.predict(embedded(model, s.tolist(), progress)), s.index) for _, s in groups]
    return frame.assign(cluster=pd.concat(labels))


def _given(sequences: list[str]) -> pd.DataFrame:
    """Proteins that no method made."""
    return pd.DataFrame({"protein": range(len(sequences)), "sequence": sequences, "passes": np.nan, "seconds": np.nan})


def summarize(frame: pd.DataFrame, k: int = 15) -> pd.DataFrame:
    """Rows of ``table2`` from clustered proteins: the JSD of each method and seed from the model's reference."""
    rows = []
    for model, made in frame.groupby("model", sort=False):
        target = np.bincount(made.loc[made["method"] == REFERENCE, "cluster"], minlength=k)
        for key, group in made[made["method"] != REFERENCE].groupby(KEYS[1:], sort=False):
            nats = jensen_shannon(target, np.bincount(group["cluster"], minlength=k))
            row = dict(zip(KEYS, (model, *key), strict=True)) | {"n": len(group), "passes": group["passes"].mean()}
            row |= {"jsd_nats": nats, "jsd_distance": np.sqrt(nats), "seconds_per_protein": group["seconds"].mean()}
            rows.append(row)
    return pd.DataFrame(rows)


def record_protein_panel(models: list[str], progress: Progress, samples: int = 200, k: int = 15) -> None:
    """Every measure of the proteins of ``table2_sequences``, and paired differences between methods."""
    recorded, training = read_result("table2_sequences"), load_proteins("training").sequences
    panels, differences = [], []
    for model in models:
        made = recorded[recorded["model"] == model]
        tables = measured_panel(model, made, training, compared(model), samples, k, progress)
        panels.append(tables[0])
        differences.append(tables[1])
    meta = {"bootstrap_samples": samples, "checkpoints": model_hashes(models)}
    frame = pd.concat(differences, ignore_index=True)
    write_result("protein_differences", frame, record="protein_panel", **meta)
    write_result("protein_panel", pd.concat(panels, ignore_index=True), **meta)


def measured_panel(
    model: str, made: pd.DataFrame, training: list[str], pairs: list[Pair], samples: int, k: int, progress: Progress
) -> tuple[pd.DataFrame, pd.DataFrame]:
    """``protein_panel`` and ``protein_differences`` of one model, from proteins as of ``clustered``."""
    known = made.loc[made["method"] == REFERENCE, "sequence"].tolist()
    yardstick = Yardstick(known, embedded(model, known, progress), training, k)
    step = counting(progress, f"{model}: measures", made.groupby(KEYS).ngroups - 1)
    measured, sizes, panels, differences = {}, {}, [], []
    for key, group in made[made["method"] != REFERENCE].groupby(KEYS[1:3], sort=False):
        sets = [part["sequence"].tolist() for _, part in group.groupby("seed")]
        measured[key] = [yardstick.measures(s, embedded(model, s, progress)) for s in sets]
        sizes[key] = [len(s) for s in sets]
        rows = panel_rows(measured[key], sizes[key], samples)
        panels.append(named(rows, model=model, method=key[0], parameters=key[1]))
        step(len(sets))
    for a, b in pairs:
        rows = difference_rows(measured[a], measured[b], sizes[a], samples)
        differences.append(named(rows, model=model, a=" ".join(a).strip(), b=" ".join(b).strip()))
    return pd.concat(panels, ignore_index=True), pd.concat(differences, ignore_index=True)


def compared(model: str) -> list[Pair]:
    """Pairs of methods: MI (entropy head) with each other at equal passes, and all of them with Sequential."""
    pairs, every = [], [*table2_methods()[1:], *added_methods(model)]
    for guided, *rest in matched_methods(model).values():
        pairs += [(guided, other) for other in rest]
    pairs += [(method, Method("Sequential")) for method in dict.fromkeys(every)]
    return [((a.name, a.parameters), (b.name, b.parameters)) for a, b in pairs]


def named(frame: pd.DataFrame, **names: str) -> pd.DataFrame:
    """``frame`` with the same first columns in every row."""
    return pd.concat([pd.DataFrame(names, index=frame.index), frame], axis=1)


def record_entropy_trajectory(
    models: list[str], progress: Progress, n: int = 60, seed: int = MATCH_SEED, bins: int = 20
) -> None:
    """Entropies against the share unmasked, for Sequential and MI at gamma 2: what the budget has to pay."""
    methods = (Method("Sequential"), Method("MI", gamma=2.0, lam=1.0, head="entropy"))
    frames = [trajectory_rows(model, method, n, seed, bins, progress) for model in models for method in methods]
    frame = pd.concat(frames, ignore_index=True)
    write_result("entropy_trajectory", frame, n_proteins=n, seed=seed, checkpoints=model_hashes(models))


def trajectory_rows(model: str, method: Method, n: int, seed: int, bins: int, progress: Progress) -> pd.DataFrame:
    """``entropy_trajectory`` of one method, proteins resampled for the intervals."""
    columns = ["entropy_left", "entropy_lowest", "entropy_chosen", "chosen"]
    step = counting(progress, f"{model} {method.label}: entropies", n)
    made = trajectory(checkpoints.load_model(model), method.policy(model), draw_lengths(n, seed), seed, step)
    made["unmasked"] = (np.floor(made["unmasked"] * bins).clip(upper=bins - 1) + 0.5) / bins
    means = made.groupby(["length", "index", "unmasked"])[columns].mean().reset_index()
    rows = [
        bootstrap_means(means, ["unmasked"], column).sort_values("unmasked").assign(quantity=column)
        for column in columns
    ]
    return named(pd.concat(rows), model=model, method=method.name, parameters=method.parameters)


def record_conditional(
    models: list[str],
    progress: Progress,
    n: int = 200,
    seed: int = 0,
    shares: tuple[float, ...] = MASK_SHARES,
    draws: int = 4,
    reference: str = "reference",
) -> None:
    """Masked reference proteins filled in by each method: recovery, passes, perplexity, against Sequential."""
    known, others = reference_split(reference, n)
    frames = []
    for model in models:
        methods = dict.fromkeys((*table2_methods(), *added_methods(model)))
        frames += [conditional_rows(model, methods, s, known, others, seed, draws, progress) for s in shares]
    meta = {"n_proteins": len(known), "seed": seed, "draws": draws, "reference": reference}
    meta |= {"reference_hash": text_hash(known), "checkpoints": model_hashes(models)}
    write_result("conditional", pd.concat(frames, ignore_index=True), **meta)


def conditional_rows(
    model: str,
    methods: Iterable[Method],
    share: float,
    known: list[str],
    others: list[str],
    seed: int,
    draws: int,
    progress,
) -> pd.DataFrame:
    """``conditional`` for one share: methods (Sequential among them), residues at their frequencies, the originals."""
    made = {}
    for method in methods:
        made[method.name, method.parameters] = filled(model, method, known, share, seed, draws, progress)

    def controls() -> pd.DataFrame:
        loaded, frequency = checkpoints.load_model(model), np.asarray(kmer_matrix(others, 1).sum(0)).ravel()
        unigram = fill(Unigram(frequency), TopK(max(map(len, known))), known, share, seed).assign(method=UNIGRAM)
        given = unigram.assign(method=REFERENCE, sequence=known, recovery=1.0)
        frame = pd.concat([unigram, given], ignore_index=True)
        nll = [
            scored(loaded, s.tolist(), share, seed, draws) for _, s in frame.groupby("method", sort=False)["sequence"]
        ]
        return frame.assign(nll=np.concatenate(nll), passes=np.nan, seconds=np.nan)

    key = f"{file_part(model)}-fill-controls-{text_hash(known + others)}-{share}-{seed}-{draws}"
    for name, group in from_cache(key, controls).groupby("method", sort=False):
        made[name, ""] = group.reset_index(drop=True)
    sequential = made["Sequential", ""]["recovery"].to_numpy()
    rows = [
        {"model": model, "method": name, "parameters": parameters, "mask_share": share, "seed": seed}
        | conditional_row(frame, sequential)
        for (name, parameters), frame in made.items()
    ]
    return pd.DataFrame(rows)


def conditional_row(frame: pd.DataFrame, sequential: np.ndarray, samples: int = 1000) -> dict[str, float]:
    """Means of one method's filled proteins with their intervals; perplexity is exp of the mean nll."""
    recovery, nll, n = frame["recovery"].to_numpy(), frame["nll"].to_numpy(), len(frame)

    def rate(rows: np.ndarray) -> float:
        return recovery[rows].mean()

    def perplexity(rows: np.ndarray) -> float:
        return float(np.exp(nll[rows].mean()))

    def baseline(rows: np.ndarray) -> float:
        return sequential[rows].mean()

    row = {"n": n, "passes": frame["passes"].mean()}
    row |= zip(("recovery", "low", "high"), bootstrap([rate], [n], samples), strict=True)
    names = ("perplexity", "perplexity_low", "perplexity_high")
    row |= zip(names, bootstrap([perplexity], [n], samples), strict=True)
    names = ("minus_sequential", "minus_sequential_low", "minus_sequential_high")
    row |= zip(names, paired_bootstrap([rate], [baseline], [n], samples), strict=True)
    return row | {"seconds_per_protein": frame["seconds"].mean()}
