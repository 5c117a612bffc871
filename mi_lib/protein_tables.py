"""Tables of the protein pages: Table 2 beside the paper's, what its orderings are worth, what a run costs."""

import itertools
import time
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import pandas as pd
import torch

from mi_lib.artifacts import checkpoint_names
from mi_lib.distributions import Statistic, bootstrap, cluster_jsd, paired_bootstrap
from mi_lib.generation import PAPER_TABLE2, table2_methods
from mi_lib.masked import MaskedModel
from mi_lib.protein_panel import MEASURES
from mi_lib.protein_records import KEYS, REFERENCE, Pair, clustered
from mi_lib.protein_runs import OTHERS, added_methods, generated_table, matched_methods, reference_split, runnable
from mi_lib.results import Progress, read_result
from mi_lib.solving import Method
from mi_lib.tables import named, readable, verdict

PAPER_MODEL = "esmc_300m"
CLUSTERS = 15  # k of k-means (§5.3)
LABELLED, LABEL_PASSES = 10_000, 1 + 6 * 20  # proteins labelled for a head (§5.1), six probed rows each
PAPER_ORDER = (0, 4, 5, 1, 2, 3)  # rows of PAPER_TABLE2 by rising JSD


def stand_in(model: str) -> str:
    """What a page made with ``model`` says in its title block; nothing for the paper's own model."""
    if model == PAPER_MODEL:
        return ""
    small = ", a small ESM-C trained here on Swiss-Prot," if model in checkpoint_names("esmc") else ","
    name = Path(model).name
    return f"Made with {name}{small} not with ESM-C 300M; -p model {PAPER_MODEL} runs it on the real one."


def missing_heads(model: str, missing: Iterable[str]) -> str:
    """What a page says of rows that need a head which is not there: the commands that make it; nothing if none is."""
    lines = [f"mi train-head --checkpoint {model} --epochs 5 --estimator {h.rsplit('_', 1)[1]}" for h in missing]
    if not lines:
        return "Every row has its head."
    label = f"mi label --checkpoint {model} --n-boards {LABELLED}"
    return f"Left out, for want of an MI head: the MI-guided rows. To make it: {label}; {'; '.join(lines)}."


def page_methods(
    model: str, k: Iterable[int], gamma: Iterable[float], lam: float, head: str
) -> tuple[tuple[Method, ...], str]:
    """Methods of Table 2 and added ones that can run on this model, and what ``missing_heads`` says of the others.

    Without a recorded grid of gammas there is no equal-passes row; random order and MI of zero need neither.
    """
    methods = [*table2_methods(tuple(k), tuple(gamma), lam, head), Method("Random")]
    methods += [Method("MI", gamma=float(g), lam=float(lam), head="zero") for g in gamma]
    methods += added_methods(model) if len(recorded_rows("protein_gammas", model)) else ()
    ready, missing = runnable(model, dict.fromkeys(methods))
    return ready, missing_heads(model, missing)


def recorded_rows(name: str, model: str) -> pd.DataFrame:
    """The rows of a recorded table that are this model's; none if there are none, or no table."""
    try:
        frame = read_result(name)
    except ValueError:
        return pd.DataFrame()
    return frame[frame["model"] == model].reset_index(drop=True)


def table2_proteins(
    model: str,
    methods: Iterable[Method],
    reference: str,
    n: int,
    seeds: Iterable[int],
    recompute: bool,
    progress: Progress,
    k: int = CLUSTERS,
) -> pd.DataFrame:
    """Every protein of Table 2 with its cluster: as recorded, or made and clustered now.

    Recorded proteins are clustered again if the reference is another; a model without recorded proteins makes them.
    """
    recorded, seeds = recorded_rows("table2_sequences", model), tuple(seeds)
    if len(recorded) and not recompute and reference == REFERENCE:
        return recorded
    known, others = reference_split(reference, n, k)
    if len(recorded) and not recompute:
        made = recorded[recorded["passes"].notna()].drop(columns="cluster")
    else:
        made = generated_table(model, methods, seeds, n, progress)
    return clustered(model, made, known, others, n, seeds, k, progress)


def jsd_statistics(frame: pd.DataFrame, k: int = CLUSTERS) -> dict[tuple[str, str], tuple[list[Statistic], list[int]]]:
    """JSD to the reference (nats) of each method, one function of the rows and one size a seed."""
    target = frame.loc[frame["method"] == REFERENCE, "cluster"].to_numpy()
    found = {}
    for key, group in frame[frame["method"] != REFERENCE].groupby(KEYS[1:3], sort=False):
        sets = [part["cluster"].to_numpy() for _, part in group.groupby("seed")]
        found[key] = ([cluster_jsd(target, labels, k) for labels in sets], [len(labels) for labels in sets])
    return found


def jsd_table(frame: pd.DataFrame, k: int = CLUSTERS, samples: int = 500) -> pd.DataFrame:
    """Passes and JSD of each method, mean over seeds, as divergence (nats) and as distance, with 95 % intervals.

    Returns
    -------
    DataFrame
        ``method``, ``parameters``, ``n``, ``seeds``, ``passes``, ``jsd``, ``low``, ``high``, ``distance``,
        ``distance_low``, ``distance_high``, ``seconds_per_protein``; the floor and the ceilings have no passes.
    """
    rows, groups = [], frame.groupby(KEYS[1:3], sort=False)
    for key, (statistics, sizes) in jsd_statistics(frame, k).items():
        made = groups.get_group(key)
        row = dict(zip(KEYS[1:3], key, strict=True)) | {"n": sizes[0], "seeds": len(sizes)}
        row["passes"] = made["passes"].mean()
        value, low, high = bootstrap(statistics, sizes, samples)
        row |= {"jsd": value, "low": max(low, 0.0), "high": high}
        value, low, high = bootstrap([_root(s) for s in statistics], sizes, samples)
        row |= {"distance": value, "distance_low": max(low, 0.0), "distance_high": high}
        rows.append(row | {"seconds_per_protein": made["seconds"].mean()})
    return pd.DataFrame(rows)


def _root(statistic: Statistic) -> Statistic:
    return lambda rows: float(np.sqrt(statistic(rows)))


def beside_table2(table: pd.DataFrame) -> pd.DataFrame:
    """The paper's rows of Table 2 beside ours of ``jsd_table``, and the floor of real proteins in the last line."""
    paper = PAPER_TABLE2.rename(columns={"passes": "paper passes", "jsd": "paper JSD"})
    shown = paper.merge(table, on=KEYS[1:3], how="left")
    shown = pd.concat([shown, table[table["method"] == OTHERS]], ignore_index=True)
    span = [_interval(*row) for row in shown[["jsd", "low", "high"]].to_numpy()]
    distance = [_interval(*row) for row in shown[["distance", "distance_low", "distance_high"]].to_numpy()]
    columns = {"here passes": shown["passes"], "JSD, nats (95 %)": span, "JSD, distance (95 %)": distance}
    columns["seconds a protein"] = shown["seconds_per_protein"]
    return named(shown[["method", "parameters", "paper passes", "paper JSD"]]).assign(**columns)


def _interval(value: float, low: float, high: float, digits: int = 3) -> str:
    return "" if np.isnan(value) else f"{value:.{digits}f} ({low:.{digits}f} to {high:.{digits}f})"


def jsd_differences(frame: pd.DataFrame, pairs: Iterable[Pair], k: int = CLUSTERS, samples: int = 500) -> pd.DataFrame:
    """JSD of one method minus another's (nats), paired: lengths and noise are the same for both.

    Returns
    -------
    DataFrame
        ``a``, ``b``, ``passes a``, ``passes b``, ``difference``, ``low``, ``high``, ``a better?`` ("yes" if the
        interval lies below zero). Pairs of which a method is not there are left out.
    """
    statistics, rows = jsd_statistics(frame, k), []
    passes = frame.groupby(KEYS[1:3])["passes"].mean()
    for a, b in pairs:
        if a not in statistics or b not in statistics:
            continue
        (one, sizes), (other, _) = statistics[a], statistics[b]
        value, low, high = paired_bootstrap(one, other, sizes, samples)
        row = {"a": readable(*a), "b": readable(*b), "passes a": passes[a], "passes b": passes[b]}
        rows.append(row | {"difference": value, "low": low, "high": high, "a better?": verdict(-high, -low)})
    return pd.DataFrame(rows)


def paper_orderings() -> list[Pair]:
    """Neighbours in the paper's order of JSD, the better one first: five statements of its Table 2."""
    rows = [tuple(PAPER_TABLE2.loc[i, ["method", "parameters"]]) for i in PAPER_ORDER]
    return list(itertools.pairwise(rows))


def equal_pass_pairs(model: str) -> list[Pair]:
    """MI guidance (entropy head) with each other method at equal passes; none if the model has no recorded gammas."""
    if not len(recorded_rows("protein_gammas", model)):
        return []
    groups = matched_methods(model).values()
    return [((a.name, a.parameters), (b.name, b.parameters)) for a, *others in groups for b in others]


def panel_table(panel: pd.DataFrame, measures: Iterable[str]) -> pd.DataFrame:
    """Chosen measures of ``protein_panel``, a row a method, each value with half the width of its 95 % interval."""
    names = named(panel)["method"]
    half = (panel["high"] - panel["low"]) / 2
    cells = [f"{v:.3f} ± {h:.3f}" for v, h in zip(panel["value"], half, strict=True)]
    table = panel.assign(method=names, cell=cells).pivot(index="method", columns="measure", values="cell")
    table = table.loc[list(dict.fromkeys(names)), list(measures)]
    return table.rename(columns=MEASURES).reset_index().rename_axis(columns=None)


@torch.inference_mode()
def pass_seconds(model: MaskedModel, length: int = 75, batch_size: int = 32, repeats: int = 5) -> float:
    """Seconds of one forward pass a sequence, in a batch: the median of ``repeats``, after one to warm up."""
    tokens, times = torch.full((batch_size, length), model.mask_id), []
    for _ in range(repeats + 1):
        started = time.perf_counter()
        model(tokens)
        times.append((time.perf_counter() - started) / batch_size)
    return float(np.median(times[1:]))


def cost_table(passes: dict[str, float], n: int, seconds: float, ratio: float) -> pd.DataFrame:
    """What rows of Table 2 and a head's labels take: ``what``, ``passes``, ``hours here``, ``hours, ESM-C 300M``.

    Parameters
    ----------
    passes : dict of float
        Mean passes a protein of each row.
    n : int
        Proteins a row, over all seeds.
    seconds : float
        Of one pass of the page's model here.
    ratio : float
        Parameters of ESM-C 300M, as a multiple of the model's: about what a pass of it costs more on the same device.
    """
    work = {name: n * value for name, value in passes.items()}
    work |= {"all these rows": sum(work.values()), "labels for a head": LABELLED * LABEL_PASSES}
    rows = [(what, count, count * seconds / 3600, count * seconds * ratio / 3600) for what, count in work.items()]
    return pd.DataFrame(rows, columns=["what", "passes", "hours here", "hours, ESM-C 300M"])


def paper_model_parameters() -> int:
    """Parameters of ESM-C 300M, counted without making its weights."""
    from mi_lib.esmc import SIZES, build

    with torch.device("meta"):
        return sum(p.numel() for p in build(SIZES[PAPER_MODEL]).parameters())


def pca_summary(points: pd.DataFrame, reference: str = "reference") -> pd.DataFrame:
    """Where each set lies in two components, in the reference's own units.

    Returns
    -------
    DataFrame
        ``set``, ``n``, and for each component ``shift`` (mean minus the reference's, in its standard deviations) and
        ``spread`` (standard deviation over the reference's), each with its 95 % interval as text.
    """
    base, rows = points.loc[points["set"] == reference, ["pc1", "pc2"]].to_numpy(), []
    mean, deviation = base.mean(0), base.std(0)
    for name, group in points.groupby("set", sort=False):
        scaled = (group[["pc1", "pc2"]].to_numpy() - mean) / deviation
        row = {"set": name, "n": len(scaled)}
        for c in (0, 1):
            x = scaled[:, c]
            row[f"PC {c + 1} shift"] = _interval(*bootstrap([lambda r, x=x: x[r].mean()], [len(x)]), 2)
            row[f"PC {c + 1} spread"] = _interval(*bootstrap([lambda r, x=x: x[r].std()], [len(x)]), 2)
        rows.append(row)
    return pd.DataFrame(rows)


def sets_of(frame: pd.DataFrame, names: dict[tuple[str, str], str], seed: int) -> dict[str, list[str]]:
    """Sequences of chosen sets by the name to show: those of ``seed``, or of seed 0 where a set has only that.

    Parameters
    ----------
    frame : DataFrame
        Of ``table2_proteins``.
    names : dict
        From (method, parameters) to a name; sets that are not there are left out.
    seed : int
    """
    found = {}
    for (method, parameters), name in names.items():
        rows = frame[(frame["method"] == method) & (frame["parameters"] == parameters)]
        if len(rows):
            chosen = seed if (rows["seed"] == seed).any() else 0
            found[name] = rows.loc[rows["seed"] == chosen, "sequence"].tolist()
    return found
