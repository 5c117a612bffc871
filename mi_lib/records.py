"""Recorded results: the only writer of ``data/results``, each table with the provenance to redo it."""

import time
from collections.abc import Callable
from functools import partial
from itertools import product

import numpy as np
import pandas as pd

from mi_lib import protein_mi_records, protein_model_records, protein_records
from mi_lib.artifacts import CACHE, checkpoint_names, commit, read_sidecar
from mi_lib.checkpoints import load_head, load_mdm
from mi_lib.fig1 import find_fig1_state
from mi_lib.head_scaling import scale_head
from mi_lib.head_scores import cost_ratio, directional_ceiling, error_by_decile, pair_table, score_table
from mi_lib.interpret import relation_models, relations_table
from mi_lib.labels import read_labels
from mi_lib.masked import require
from mi_lib.puzzles import count_repeats
from mi_lib.results import (
    Progress,
    checkpoint_hashes,
    counting,
    read_provenance,
    read_result,
    valid_rows,
    write_result,
    write_rows,
)
from mi_lib.runs import HEADS, KEYS, TARGET_PASSES, added_methods, frontier_methods, run_table, summarize
from mi_lib.snapshots import solve_snapshots
from mi_lib.solving import Method, table1_methods
from mi_lib.train import MDMTraining, drawn_grids

GAMMA_GRID = (0.05, 0.1, 0.2, 0.4, 0.8, 1.6)
SMALLEST_GAMMA = 1e-5
N_MATCH = 200  # validation puzzles a point of the grid
HELD_OUT_LABELS = "held_out"


def record_gammas(checkpoints: list[str], progress: Progress) -> None:
    """Passes and solve rate against gamma on validation puzzles, for every method with a budget.

    A model that is surer of itself spends less: the grid goes on to smaller gammas until it reaches ``TARGET_PASSES``.
    """
    makers = [partial(Method, "EB"), *(partial(Method, "MI", lam=1.0, head=head) for head in HEADS)]
    frames = []
    for checkpoint in checkpoints:
        for make in makers:
            methods = [make(gamma=g) for g in GAMMA_GRID]
            while True:
                rows = summarize(run_table(checkpoint, tuple(methods), ["validation"], N_MATCH, progress))
                smallest = methods[0].gamma / 5
                if rows["passes"].max() >= max(TARGET_PASSES) or smallest < SMALLEST_GAMMA:
                    break
                methods.insert(0, make(gamma=round(smallest, 6)))
            frames.append(rows)
    frame = pd.concat(frames, ignore_index=True)
    write_rows("gammas", frame, n_puzzles=N_MATCH)


def record_table1(checkpoints: list[str], progress: Progress, sets: tuple[int, ...] = (0,), n: int = 1000) -> None:
    """Table 1 with added rows, and the per-puzzle outcomes beside it.

    Recorded outcomes of the shipped checkpoints stay: all those of other checkpoints, and of these the wanted ones.
    """
    started, earlier = time.perf_counter(), valid_rows("table1_puzzles", n_puzzles=n)
    outcomes = [rows for name, rows in earlier.groupby("checkpoint", sort=False) if name not in checkpoints]
    extends = bool(outcomes)
    for checkpoint in checkpoints:
        methods = dict.fromkeys((*table1_methods(), *added_methods(checkpoint)))  # a matched gamma may be the paper's
        known = dict(list(earlier[earlier["checkpoint"] == checkpoint].groupby(["method", "parameters", "seed"])))
        for seed, method in product(sets, methods):
            rows = known.get((method.name, method.parameters, seed))
            outcomes.append(run_table(checkpoint, (method,), [seed], n, progress) if rows is None else rows)
            extends |= rows is not None
    frame = pd.concat(outcomes, ignore_index=True).round({"seconds": 6})
    columns = ["checkpoint", "method", "parameters", "seed", "puzzle", "solved", "passes", "seconds"]
    write_result("table1_puzzles", frame[columns], compressed=True)
    recorded = {name: sorted(map(int, rows.unique())) for name, rows in frame.groupby("checkpoint")["seed"]}
    write_result(
        "table1",
        summarize(frame),
        n_puzzles=n,
        puzzle_sets=recorded,
        checkpoints=checkpoint_hashes(list(recorded)),
        seconds=time.perf_counter() - started,
        **({"extends": read_provenance("table1")["commit"]} if extends else {}),
    )


def record_frontier(checkpoints: list[str], progress: Progress, n: int = 1000) -> None:
    """Accuracy, passes and conflicts along each method's curve, on the committed test set."""
    frames = []
    for checkpoint in checkpoints:
        outcomes = run_table(checkpoint, frontier_methods(checkpoint), [0], n, progress)
        known = {"conflict", "conflict_first"} <= set(outcomes)
        require(known, "outcomes", "without conflicts", f"those of this version: delete {CACHE / 'runs'}")
        rates = outcomes.groupby(KEYS)[["conflict", "conflict_first"]].mean().add_suffix("_rate")
        frames.append(summarize(outcomes).join(rates, on=KEYS))
    write_rows("frontier", pd.concat(frames, ignore_index=True), n_puzzles=n)


def record_head_metrics(checkpoints: list[str], progress: Progress) -> None:
    """Scores of every shipped head and of the baselines on held-out, fully probed boards; errors by decile."""
    scores, deciles = [], []
    for checkpoint in checkpoints:
        labels = read_labels(CACHE / "labels" / f"{checkpoint}_{HELD_OUT_LABELS}")
        model = load_mdm(checkpoint)
        for n, estimator in enumerate(("entropy", "mixture")):
            progress(f"{checkpoint} {estimator}", n + 1, 2)
            head = load_head(f"{checkpoint}_head_{estimator}", checkpoint)
            pairs = pair_table(model, labels, estimator, {"head": head})
            common = {"checkpoint": checkpoint, "estimator": estimator}
            ratio = cost_ratio(model, head)
            table = score_table(pairs, ["head"]).assign(ceiling_r2=directional_ceiling(labels, estimator), **common)
            for column, value in ratio.items():
                table[column] = np.where(table["predictor"] == "head", value, np.nan)
            scores.append(table)
            deciles.append(error_by_decile(pairs, "head").assign(**common))
    frame = pd.concat(scores, ignore_index=True)
    first = ["checkpoint", "estimator", "predictor", "r2", "spearman", "auroc_unit", "cost_ratio"]
    write_rows("head_deciles", pd.concat(deciles, ignore_index=True), record="head_metrics")
    write_rows("head_metrics", frame[first + [c for c in frame if c not in first]])


def record_learning_curve(
    checkpoints: list[str], progress: Progress, trainings: tuple[str, ...] = ("sudoku_best", "sudoku_paper")
) -> None:
    """The curves of the trainings that made the checkpoints; one that the cache lacks stays as it was recorded."""
    known = read_result("learning_curve") if read_provenance("learning_curve") else pd.DataFrame({"training": []})
    frames = []
    for training in trainings:
        path = CACHE / "train" / training / "curve.csv"
        rows = known[known["training"] == training]
        require(path.exists() or len(rows) > 0, "training", training, f"one with a curve in {path.parent.parent}")
        if path.exists():
            rows = pd.read_csv(path).drop_duplicates("step", keep="last").sort_values("step")
        frames.append(rows.assign(training=training))
    write_result("learning_curve", pd.concat(frames, ignore_index=True), checkpoints=checkpoint_hashes(checkpoints))


def record_snapshots(
    checkpoints: list[str],
    progress: Progress,
    training: str = "sudoku_paper",
    steps: tuple[int, ...] = (2400, 2700, 3000),
    n: int = 1000,
) -> None:
    """Validation puzzles that snapshots of a training solve sequentially, on which ``sudoku_paper`` is chosen."""
    step = counting(progress, "snapshots", n * len(steps))
    frame = solve_snapshots(CACHE / "train" / training, steps, n, step)
    write_result("snapshots", frame, training=training, n_puzzles=n, checkpoints=checkpoint_hashes(checkpoints))


def record_head_scaling(
    checkpoints: list[str], progress: Progress, sizes: tuple[int, ...] = (1500, 3000, 6000, 12000)
) -> None:
    """Held-out R2 of heads trained on the first so many of a checkpoint's labelled boards."""
    frames = []
    for checkpoint in checkpoints:
        folder = CACHE / "labels"
        held_out = read_labels(folder / f"{checkpoint}_{HELD_OUT_LABELS}")
        step = counting(progress, f"{checkpoint}: heads", 2 * len(sizes))
        model = load_mdm(checkpoint)
        for estimator in ("entropy", "mixture"):
            frame = scale_head(model, folder / f"{checkpoint}_train", held_out, estimator, sizes, step)
            frames.append(frame.assign(checkpoint=checkpoint, estimator=estimator))
    frame = pd.concat(frames, ignore_index=True)
    write_rows("head_scaling", frame)


def record_relations(checkpoints: list[str], progress: Progress, n_boards: int = 40) -> None:
    """MI by the relation of two cells, for the checkpoints and their controls, over held-out boards."""
    models = relation_models(checkpoints)
    step = counting(progress, "relations", n_boards * len(models))
    frame = relations_table(models, n_boards, progress=step)
    write_rows("relations", frame, n_boards=n_boards)


def record_fig1_state(checkpoints: list[str], progress: Progress, n_puzzles: int = 400, n_probe: int = 50) -> None:
    """States like the paper's Fig. 1, closest to its 0.44 nats first."""
    frames = []
    for checkpoint in checkpoints:
        progress(f"{checkpoint}: states like Fig. 1", 0, 1)
        head = load_head(f"{checkpoint}_head_entropy", checkpoint)
        states = find_fig1_state(load_mdm(checkpoint), head, n_puzzles, n_probe)
        states.insert(0, "checkpoint", checkpoint)
        frames.append(states)
    frame = pd.concat(frames, ignore_index=True)
    write_rows("fig1_state", frame, n_puzzles=n_puzzles, n_probe=n_probe)


def record_unseen(checkpoints: list[str], progress: Progress) -> None:
    """Puzzles of each set whose solution, up to symmetry, is among the grids that a checkpoint was trained on."""
    rows = []
    for checkpoint in checkpoints:
        meta = read_sidecar(checkpoint, "mdm")
        grids = drawn_grids(MDMTraining(**meta["training"]), meta["step"])
        progress(f"{checkpoint}: canonical forms", 0, 1)
        repeats = count_repeats(grids)
        rows += [{"checkpoint": checkpoint, "grids": len(grids), "set": k, "repeats": v} for k, v in repeats.items()]
    write_rows("unseen", pd.DataFrame(rows))


SUDOKU: dict[str, Callable] = {
    "fig1_state": record_fig1_state,
    "frontier": record_frontier,
    "gammas": record_gammas,
    "head_metrics": record_head_metrics,
    "head_scaling": record_head_scaling,
    "learning_curve": record_learning_curve,
    "relations": record_relations,
    "snapshots": record_snapshots,
    "table1": record_table1,
    "unseen": record_unseen,
}
PROTEINS: dict[str, Callable] = {
    "conditional": protein_records.record_conditional,
    "entropy_trajectory": protein_records.record_entropy_trajectory,
    "esmc_curve": protein_model_records.record_esmc_curve,
    "protein_gammas": protein_records.record_protein_gammas,
    "protein_head_metrics": protein_model_records.record_protein_head_metrics,
    "protein_mi": protein_mi_records.record_protein_mi,
    "protein_panel": protein_records.record_protein_panel,
    "protein_scores": protein_model_records.record_protein_scores,
    "table2": protein_records.record_table2,
}
RECORDS = SUDOKU | PROTEINS


def record(name: str, checkpoints: list[str] | None = None, progress: Progress = lambda *_: None, **options) -> None:
    """Redo a recorded result.

    Parameters
    ----------
    name : str
        One of ``RECORDS``.
    checkpoints : list of str, optional
        Checkpoints with heads, MDMs or protein models as the record wants; all shipped ones by default.
    progress : callable
        Called with what runs, how much is done and of how much.
    **options
        Of the record's own function.

    Raises
    ------
    ValueError
        If the name is unknown, or the working tree has changes: a recorded number names the commit that made it.
    """
    require(name in RECORDS, "name", name, f"one of {tuple(RECORDS)}")
    if commit().endswith("-dirty"):
        raise ValueError(
            "the working tree has uncommitted changes: commit them, so that the record can name its commit"
        )
    if checkpoints is None:
        known = checkpoint_names("mdm" if name in SUDOKU else "esmc")
        checkpoints = sorted({read_sidecar(head, "head")["model"] for head in checkpoint_names("head")} & set(known))
    RECORDS[name](checkpoints, progress, **options)
