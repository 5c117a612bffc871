"""Recorded results: the only writer of ``data/results``, each table with the provenance to redo it."""

import gzip
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd

from mi_lib.artifacts import CACHE, RESULTS, atomic_path, checkpoint_names, commit, provenance, read_sidecar, write_json
from mi_lib.checkpoints import load_head, load_mdm
from mi_lib.fig1 import find_fig1_state
from mi_lib.head_scores import cost_ratio, directional_ceiling, error_by_decile, pair_table, score_table
from mi_lib.interpret import relation_models, relations_table
from mi_lib.labels import read_labels
from mi_lib.masked import require
from mi_lib.puzzles import count_repeats, load_puzzles
from mi_lib.solving import Method, run_method, table1_methods
from mi_lib.train import MDMTraining, drawn_grids

Progress = Callable[[str, int, int], None]  # (what, done, total)
TARGET_PASSES = (15.2, 9.7)  # the paper's MI-guided rows: methods are compared at equal passes
GAMMA_GRID = (0.05, 0.1, 0.2, 0.4, 0.8, 1.6)
N_MATCH = 200  # validation puzzles a point of the grid
HEADS = ("entropy", "mixture", "zero")
HELD_OUT_LABELS = "held_out"


def write_result(
    name: str, frame: pd.DataFrame, compressed: bool = False, record: str | None = None, **parameters
) -> Path:
    """Write ``data/results/NAME.csv`` (``.csv.gz`` if compressed) and, with parameters, its JSON of provenance.

    ``record`` is the name that ``mi record`` knows, if it is another.
    """
    path = RESULTS / f"{name}.csv{'.gz' if compressed else ''}"
    content = frame.to_csv(index=False).encode()
    with atomic_path(path) as temporary:
        temporary.write_bytes(gzip.compress(content, mtime=0) if compressed else content)  # the same table, same bytes
    if parameters:
        write_json(RESULTS / f"{name}.json", provenance(command=f"mi record {record or name}", **parameters))
    return path


def read_result(name: str) -> pd.DataFrame:
    """A recorded table; a ValueError says how to make one that is missing."""
    for path in (RESULTS / f"{name}.csv", RESULTS / f"{name}.csv.gz"):
        if path.exists():
            frame = pd.read_csv(path, keep_default_na=False, na_values=["nan", ""], dtype={"parameters": "str"})
            return frame.fillna({"parameters": ""})
    raise ValueError(f"no recorded result {name!r} in {RESULTS}; `mi record {name}` makes it")


def checkpoint_hashes(checkpoints: list[str]) -> dict[str, str]:
    """SHA-256 of MDM checkpoints and of their heads."""
    names = dict.fromkeys(checkpoints, "mdm")
    names |= {n: "head" for n in checkpoint_names("head") if read_sidecar(n, "head")["model"] in checkpoints}
    return {name: read_sidecar(name, kind)["sha256"] for name, kind in names.items()}


def counting(progress: Progress, what: str, total: int) -> Callable[[int], None]:
    """A function that takes the number just finished and reports how many of ``total`` are done."""
    done = 0

    def step(finished: int) -> None:
        nonlocal done
        done += finished
        progress(what, done, total)

    return step


def cached_run(checkpoint: str, method: Method, puzzle_set: int | str, n: int, progress: Progress) -> pd.DataFrame:
    """Outcomes of one method on one puzzle set, from the cache if the same checkpoints made them."""
    used = {checkpoint: "mdm"}
    if method.head in ("entropy", "mixture"):
        used[f"{checkpoint}_head_{method.head}"] = "head"
    key = "-".join(read_sidecar(name, kind)["sha256"][:12] for name, kind in used.items())
    path = CACHE / "runs" / f"{key}-{method.label.replace(' ', '_')}-{puzzle_set}-{n}.csv"
    if not path.exists():
        puzzles, _ = load_puzzles(puzzle_set, n)
        step = counting(progress, f"{checkpoint} {method.label} on set {puzzle_set}", n)
        outcomes, seconds = run_method(checkpoint, method, puzzles, progress=step)
        with atomic_path(path) as temporary:
            outcomes.assign(seconds=seconds / n).to_csv(temporary, index=False)
    return pd.read_csv(path)


def run_table(checkpoint: str, methods: tuple[Method, ...], sets: list, n: int, progress: Progress) -> pd.DataFrame:
    """Per-puzzle outcomes of several methods on several sets: checkpoint, method, parameters, seed, puzzle, ..."""
    frames = []
    for puzzle_set in sets:
        for method in methods:
            labels = {"checkpoint": checkpoint, "method": method.name, "parameters": method.parameters}
            runs = cached_run(checkpoint, method, puzzle_set, n, progress)
            frames.append(runs.assign(**labels, seed=puzzle_set))
    return pd.concat(frames, ignore_index=True)


def summarize(outcomes: pd.DataFrame) -> pd.DataFrame:
    """Means a method and set: checkpoint, method, parameters, seed, n, passes, solved, seconds_per_puzzle."""
    keys = ["checkpoint", "method", "parameters", "seed"]
    return (
        outcomes.groupby(keys, sort=False)
        .agg(
            n=("solved", "size"),
            passes=("passes", "mean"),
            solved=("solved", "mean"),
            seconds_per_puzzle=("seconds", "mean"),
        )
        .reset_index()
    )


def record_gammas(checkpoints: list[str], progress: Progress) -> None:
    """Passes and solve rate against gamma on validation puzzles, for every method with a budget."""
    frames = []
    for checkpoint in checkpoints:
        methods = [Method("EB", gamma=g) for g in GAMMA_GRID]
        methods += [Method("MI", gamma=g, lam=1.0, head=h) for h in HEADS for g in GAMMA_GRID]
        frames.append(summarize(run_table(checkpoint, tuple(methods), ["validation"], N_MATCH, progress)))
    frame = pd.concat(frames, ignore_index=True)
    write_result("gammas", frame, n_puzzles=N_MATCH, checkpoints=checkpoint_hashes(checkpoints))


def matched_methods(checkpoint: str) -> dict[float, tuple[Method, ...]]:
    """Each budgeted method at the gamma that gives each of ``TARGET_PASSES`` on the recorded validation grid.

    Returns
    -------
    dict
        From passes to methods: MI with the entropy head first, then the mixture head, MI of zero, EB.
    """
    frame = read_result("gammas")
    frame = frame[frame["checkpoint"] == checkpoint]
    require(len(frame) > 0, "checkpoint", checkpoint, "one with recorded gammas (`mi record gammas`)")
    values = frame["parameters"].str.extract(r"gamma=(?P<gamma>\S+)(?:.*head=(?P<head>\S+))?")
    grid = frame.assign(gamma=values["gamma"].astype(float), head=values["head"].fillna("EB")).sort_values("passes")
    matched = {}
    for target in TARGET_PASSES:
        gammas = {
            head: round(float(np.exp(np.interp(target, points["passes"], np.log(points["gamma"])))), 3)
            for head, points in grid.groupby("head")
        }
        guided = tuple(Method("MI", gamma=gammas[head], lam=1.0, head=head) for head in HEADS if head in gammas)
        matched[target] = (*guided, Method("EB", gamma=gammas["EB"]))
    return matched


def added_methods(checkpoint: str) -> tuple[Method, ...]:
    """The rows that Table 1 gets beside the paper's: every budgeted method at equal passes, and a modern baseline."""
    matched = (method for methods in matched_methods(checkpoint).values() for method in methods)
    return tuple(dict.fromkeys((*matched, Method("Threshold", tau=0.9))))


def record_table1(checkpoints: list[str], progress: Progress, sets: tuple[int, ...] = (0,), n: int = 1000) -> None:
    """Table 1 with added rows, and the per-puzzle outcomes beside it."""
    started, outcomes = time.perf_counter(), []
    for checkpoint in checkpoints:
        methods = dict.fromkeys((*table1_methods(), *added_methods(checkpoint)))  # a matched gamma may be the paper's
        outcomes.append(run_table(checkpoint, tuple(methods), list(sets), n, progress))
    frame = pd.concat(outcomes, ignore_index=True)
    columns = ["checkpoint", "method", "parameters", "seed", "puzzle", "solved", "passes", "seconds"]
    write_result("table1_puzzles", frame[columns].round({"seconds": 6}), compressed=True)
    write_result(
        "table1",
        summarize(frame),
        n_puzzles=n,
        puzzle_sets=list(sets),
        checkpoints=checkpoint_hashes(checkpoints),
        seconds=time.perf_counter() - started,
    )


def recorded_outcomes(checkpoint: str, seed: int | None = None, n: int | None = None) -> pd.DataFrame:
    """Recorded outcomes of a checkpoint, a row a method and puzzle; of one puzzle set, of its first ``n`` puzzles."""
    frame = read_result("table1_puzzles")
    frame = frame[frame["checkpoint"] == checkpoint]
    frame = frame if seed is None else frame[frame["seed"] == seed]
    require(len(frame) > 0, "checkpoint and seed", (checkpoint, seed), "recorded ones (`mi record table1`)")
    return frame if n is None else frame[frame["puzzle"] < n]


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
    hashes = checkpoint_hashes(checkpoints)
    write_result("head_deciles", pd.concat(deciles, ignore_index=True), record="head_metrics", checkpoints=hashes)
    write_result("head_metrics", frame[first + [c for c in frame if c not in first]], checkpoints=hashes)


def record_learning_curve(checkpoints: list[str], progress: Progress, training: str = "sudoku_best") -> None:
    """The curve of a training in the cache, of which the checkpoints are snapshots."""
    folder = CACHE / "train" / training
    require((folder / "curve.csv").exists(), "training", training, f"one with a curve in {folder.parent}")
    curve = pd.read_csv(folder / "curve.csv").drop_duplicates("step", keep="last").sort_values("step")
    write_result("learning_curve", curve, training=training, checkpoints=checkpoint_hashes(checkpoints))


def record_relations(checkpoints: list[str], progress: Progress, n_boards: int = 40) -> None:
    """MI by the relation of two cells, for the checkpoints and their controls, over held-out boards."""
    models = relation_models(checkpoints)
    step = counting(progress, "relations", n_boards * len(models))
    frame = relations_table(models, n_boards, progress=step)
    write_result(
        "relations", frame, n_boards=n_boards, checkpoints=checkpoint_hashes([m for m in models if m != "untrained"])
    )


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
    write_result("fig1_state", frame, n_puzzles=n_puzzles, n_probe=n_probe, checkpoints=checkpoint_hashes(checkpoints))


def record_unseen(checkpoints: list[str], progress: Progress) -> None:
    """Puzzles of each set whose solution, up to symmetry, is among the grids that a checkpoint was trained on."""
    rows = []
    for checkpoint in checkpoints:
        meta = read_sidecar(checkpoint, "mdm")
        grids = drawn_grids(MDMTraining(**meta["training"]), meta["step"])
        progress(f"{checkpoint}: canonical forms", 0, 1)
        repeats = count_repeats(grids)
        rows += [{"checkpoint": checkpoint, "grids": len(grids), "set": k, "repeats": v} for k, v in repeats.items()]
    write_result("unseen", pd.DataFrame(rows), checkpoints=checkpoint_hashes(checkpoints))


RECORDS: dict[str, Callable] = {
    "fig1_state": record_fig1_state,
    "gammas": record_gammas,
    "head_metrics": record_head_metrics,
    "learning_curve": record_learning_curve,
    "relations": record_relations,
    "table1": record_table1,
    "unseen": record_unseen,
}


def record(name: str, checkpoints: list[str] | None = None, progress: Progress = lambda *_: None, **options) -> None:
    """Redo a recorded result.

    Parameters
    ----------
    name : str
        One of ``RECORDS``.
    checkpoints : list of str, optional
        MDM checkpoints with heads; all shipped ones by default.
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
        checkpoints = sorted({read_sidecar(head, "head")["model"] for head in checkpoint_names("head")})
    RECORDS[name](checkpoints, progress, **options)
