"""Result tables in ``data/results``: written with the provenance to redo them, read by the pages."""

import gzip
from collections.abc import Callable
from pathlib import Path

import pandas as pd

from mi_lib.artifacts import RESULTS, atomic_path, checkpoint_names, provenance, read_json, read_sidecar, write_json

BESIDE = {  # tables that another record writes
    "head_deciles": "head_metrics",
    "protein_differences": "protein_panel",
    "table1_puzzles": "table1",
    "table2_sequences": "table2",
}
Progress = Callable[[str, int, int], None]  # (what, done, total)


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
    raise ValueError(f"no recorded result {name!r} in {RESULTS}; `mi record {BESIDE.get(name, name)}` makes it")


def read_provenance(name: str) -> dict | None:
    """The JSON beside a recorded table, if there is one."""
    path = RESULTS / f"{name}.json"
    return read_json(path) if path.exists() else None


def checkpoint_hashes(checkpoints: list[str]) -> dict[str, str]:
    """SHA-256 of MDM checkpoints and of their heads."""
    names = dict.fromkeys(checkpoints, "mdm")
    names |= {n: "head" for n in checkpoint_names("head") if read_sidecar(n, "head")["model"] in checkpoints}
    return {name: read_sidecar(name, kind)["sha256"] for name, kind in names.items()}


def valid_rows(name: str, **options) -> pd.DataFrame:
    """Recorded rows of every MDM that, with its heads, is the shipped one still; none if the options were others."""
    meta = read_provenance(BESIDE.get(name, name))
    if meta is None or any(meta.get(key) != value for key, value in options.items()):
        return pd.DataFrame(columns=["checkpoint", "method", "parameters", "seed"])
    frame = read_result(name)
    same = [
        checkpoint
        for checkpoint in frame["checkpoint"].unique()
        if checkpoint in checkpoint_names("mdm")
        and checkpoint_hashes([checkpoint]).items() <= meta["checkpoints"].items()
    ]
    return frame[frame["checkpoint"].isin(same)]


def write_rows(name: str, frame: pd.DataFrame, record: str | None = None, **options) -> Path:
    """``write_result`` of rows of some checkpoints; the ``valid_rows`` of others, made with the same options, stay."""
    earlier = valid_rows(name, **options)
    earlier = earlier[~earlier["checkpoint"].isin(frame["checkpoint"])]
    meta = {"extends": read_provenance(name)["commit"]} if len(earlier) else {}
    frame = pd.concat([earlier, frame], ignore_index=True) if len(earlier) else frame
    shipped = [checkpoint for checkpoint in frame["checkpoint"].unique() if checkpoint in checkpoint_names("mdm")]
    return write_result(name, frame, record=record, **options, checkpoints=checkpoint_hashes(shipped), **meta)


def counting(progress: Progress, what: str, total: int) -> Callable[[int], None]:
    """A function that takes the number just finished and reports how many of ``total`` are done."""
    done = 0

    def step(finished: int) -> None:
        nonlocal done
        done += finished
        progress(what, done, total)

    return step
