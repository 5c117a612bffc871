"""Snapshots of a training: how many validation puzzles each solves, on which the shipped one is chosen."""

from collections.abc import Callable
from pathlib import Path

import pandas as pd
import torch

from mi_lib.artifacts import CACHE, atomic_path, load_weights, read_json, read_tensors, sha256
from mi_lib.masked import require
from mi_lib.mdm import MDM, MDMConfig
from mi_lib.metrics import solve_rate
from mi_lib.policies import Sequential
from mi_lib.puzzles import load_puzzles
from mi_lib.samplers import decode
from mi_lib.sudoku import is_solved


def load_snapshot(folder: Path, step: int) -> MDM:
    """The averaged weights that a training had at ``step``, rounded to float16 as a checkpoint of them would be.

    Raises
    ------
    ValueError
        If the training in ``folder`` saved nothing at ``step``.
    """
    folder = Path(folder)
    saved = sorted(int(path.stem.removeprefix("average_")) for path in folder.glob("average_*.safetensors"))
    require(step in saved, "step", step, f"one of the snapshots {saved} in {folder}")
    model = MDM(MDMConfig(**read_json(folder / "config.json")["config"]))
    load_weights(model, read_tensors(folder / f"average_{step:07d}.safetensors"), str(folder))
    return model.half().float().eval().requires_grad_(False)


def solve_snapshots(
    folder: Path, steps: tuple[int, ...], n: int, progress: Callable[[int], None] = lambda finished: None
) -> pd.DataFrame:
    """Sequential decoding of the first ``n`` validation puzzles by several snapshots.

    Parameters
    ----------
    folder : Path
        Of ``train_mdm``.
    steps : tuple of int
    n : int
        Puzzles a snapshot.
    progress : callable
        Called with the number of puzzles just finished.

    Returns
    -------
    DataFrame
        A row a snapshot: ``step``, ``n``, ``solved`` (share) and its 95 % Wilson interval ``low``, ``high``. A snapshot
        that was solved before comes from the cache.
    """
    puzzles, _ = load_puzzles("validation", n)
    rows = []
    for step in steps:
        model = load_snapshot(folder, step)  # before the cache: an unknown step fails here
        key = sha256(Path(folder) / f"average_{step:07d}.safetensors")[:12]
        path = CACHE / "runs" / f"{key}-snapshot-validation-{n}.csv"
        if not path.exists():
            tokens = decode(model, torch.from_numpy(puzzles).long(), Sequential(), progress=progress).tokens
            outcomes = pd.DataFrame({"puzzle": range(n), "solved": is_solved(puzzles, tokens.numpy()).astype(int)})
            with atomic_path(path) as temporary:
                outcomes.to_csv(temporary, index=False)
        rate, low, high = solve_rate(pd.read_csv(path)["solved"].to_numpy())
        rows.append({"step": step, "n": n, "solved": rate, "low": low, "high": high})
    return pd.DataFrame(rows)
