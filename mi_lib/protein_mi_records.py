"""The record of protein MI: maps of random and of cysteine-rich proteins at several shares of masked residues."""

import pandas as pd

from mi_lib import checkpoints
from mi_lib.protein_mi import cysteine_rich, measure_maps
from mi_lib.protein_runs import model_hashes
from mi_lib.protein_scores import sample
from mi_lib.proteins import load_proteins
from mi_lib.results import Progress, counting, write_result

SHARES = (0.15, 0.3, 0.6, 0.8, 1.0)
CYSTEINE_SHARES = (0.3, 0.6)  # all cysteines and other residues at random; fully masked, a protein is a length only
RANDOM, RICH = "random", "cysteine-rich"
SETS = ("held_out", "reference")  # families that the model knows, and families that it does not


def record_protein_mi(models: list[str], progress: Progress, n: int = 8, seed: int = 0) -> None:
    """MI of held-out and of reference proteins: means, separation, shares, diagnostics, cysteine pairs.

    Parameters
    ----------
    models : list of str
    progress : callable
    n : int
        Proteins of each of two samples, random and cysteine-rich, from each of two sets.
    seed : int
        Of the sample and the masks.
    """
    frames = [protein_mi_rows(model, name, name, n, seed, progress) for model in models for name in SETS]
    frame = pd.concat(frames, ignore_index=True)
    write_result("protein_mi", frame, n_proteins=n, seed=seed, checkpoints=model_hashes(models))


def protein_mi_rows(model: str, name: str, source: str, n: int, seed: int, progress: Progress) -> pd.DataFrame:
    """``protein_mi`` of one model and set: ``model``, ``set``, ``sample``, and the columns of ``measure_maps``."""
    loaded, proteins, frames = checkpoints.load_model(model), load_proteins(source), []
    for kind, chosen, shares in (
        (RANDOM, sample(proteins, n, seed), SHARES),
        (RICH, cysteine_rich(proteins, n), CYSTEINE_SHARES),
    ):
        step = counting(progress, f"{model}: {kind} proteins of {name}", len(chosen) * len(shares))
        rows = measure_maps(loaded, chosen, shares, seed, kind == RICH, progress=step)
        frames.append(rows.assign(model=model, set=name, sample=kind))
    frame = pd.concat(frames, ignore_index=True)
    first = ["model", "set", "sample"]
    return frame[[*first, *(column for column in frame if column not in first)]]
