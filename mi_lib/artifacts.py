"""Checkpoints and result tables, with their provenance; nothing here ever loads a pickle."""

import hashlib
import json
import os
import platform
import subprocess
import tempfile
from collections.abc import Callable
from contextlib import contextmanager
from datetime import date
from importlib.metadata import version
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

ROOT = Path(__file__).resolve().parent.parent
DATA = Path(os.environ.get("MI_LIB_DATA", ROOT / "data"))
CHECKPOINTS = DATA / "checkpoints"
RESULTS = DATA / "results"
CACHE = Path(os.environ.get("MI_LIB_CACHE", Path.home() / ".cache" / "mi_lib"))


@contextmanager
def atomic_path(path: Path):
    """Yield a temporary path beside ``path`` and rename it to ``path`` on success; remove it on failure."""
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=".part")
    os.close(handle)
    try:
        yield Path(name)
        Path(name).chmod(0o644)
        os.replace(name, path)
    finally:
        Path(name).unlink(missing_ok=True)


def write_tensors(path: Path, tensors: dict[str, Tensor], metadata: dict[str, str] | None = None) -> None:
    """Write a safetensors file atomically."""
    with atomic_path(path) as temporary:
        save_file({k: v.contiguous() for k, v in tensors.items()}, temporary, metadata)


def read_tensors(path: Path) -> dict[str, Tensor]:
    """Read a safetensors file.

    Raises
    ------
    FileNotFoundError
        If there is none.
    ValueError
        If the file is truncated or not a safetensors file.
    """
    if not Path(path).is_file():
        raise FileNotFoundError(f"no such file: {path}")
    try:
        return load_file(path)
    except SafetensorError as error:
        raise ValueError(
            f"{path} is damaged or not a safetensors file ({error}); delete it and make it again"
        ) from None


def sha256(path: Path) -> str:
    """SHA-256 of a file, in hex."""
    return hashlib.sha256(Path(path).read_bytes()).hexdigest()


def write_json(path: Path, data: dict) -> None:
    """Write JSON atomically, indented."""
    with atomic_path(path) as temporary:
        temporary.write_text(json.dumps(data, indent=1) + "\n")


def read_json(path: Path) -> dict:
    """Read a JSON file; a ValueError names it if it is damaged."""
    try:
        return json.loads(Path(path).read_text())
    except ValueError as error:
        raise ValueError(f"{path} is damaged or not JSON ({error}); restore it or make it again") from None


def versions() -> dict[str, str]:
    """Versions of what numbers depend on."""
    names = ("torch", "numpy", "scipy", "scikit-learn", "numba", "safetensors")
    return {"python": platform.python_version(), **{name: version(name) for name in names}}


def commit() -> str:
    """The git commit the code runs from, ``-dirty`` appended if tracked files other than results differ from it.

    Outside a git checkout, ``unknown``.
    """

    def git(*arguments: str) -> subprocess.CompletedProcess:
        return subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=False)

    try:
        head = git("rev-parse", "--short=12", "HEAD")
        clean = git("diff", "--quiet", "HEAD", "--", ".", ":(exclude)data/results").returncode == 0
    except OSError:  # git itself is missing
        return "unknown"
    if head.returncode:
        return "unknown"
    return head.stdout.strip() + ("" if clean else "-dirty")


def provenance(**extra) -> dict:
    """What a number needs beside it to be redone: commit, versions, device, threads, date, and ``extra``."""
    return {
        **extra,
        "commit": commit(),
        "versions": versions(),
        "device": f"{platform.machine()} CPU, {torch.get_num_threads()} threads",
        "date": date.today().isoformat(),
    }


def checkpoint_names(kind: str | None = None, folder: Path | None = None) -> list[str]:
    """Names of the shipped checkpoints, of one ``kind`` ("mdm", "head") if given."""
    names = []
    for sidecar in sorted(Path(folder or CHECKPOINTS).glob("*.json")):
        if kind is None or read_json(sidecar).get("kind") == kind:
            names.append(sidecar.stem)
    return names


def save_checkpoint(name: str, module: nn.Module, kind: str, config: dict, folder: Path | None = None, **meta) -> None:
    """Write ``NAME.safetensors`` in float16 and ``NAME.json`` beside it.

    Parameters
    ----------
    name : str
    module : nn.Module
    kind : {"mdm", "head"}
    config : dict
        Arguments that rebuild the module.
    folder : Path, optional
    **meta
        Data, seed, steps, metrics and whatever else a reader should know.
    """
    path = Path(folder or CHECKPOINTS) / f"{name}.safetensors"
    made = provenance(**meta)  # before a file that replaces a committed one makes the tree dirty
    write_tensors(path, {k: v.half() for k, v in module.state_dict().items()})
    write_json(path.with_suffix(".json"), {"kind": kind, "config": config, "sha256": sha256(path), **made})


def read_sidecar(name: str, kind: str, folder: Path | None = None) -> dict:
    """The JSON beside a checkpoint.

    Raises
    ------
    ValueError
        If the checkpoint is unknown or of another kind.
    """
    sidecar = Path(folder or CHECKPOINTS) / f"{name}.json"
    known = checkpoint_names(kind, folder)
    if name not in known:
        raise ValueError(f"unknown {kind} checkpoint {name!r}, expected one of {known}")
    return read_json(sidecar)


def load_checkpoint(name: str, kind: str, build: Callable[[dict], nn.Module], folder: Path | None = None) -> nn.Module:
    """Rebuild a module in float32 and evaluation mode from its checkpoint, after checking its SHA-256.

    Parameters
    ----------
    name : str
        File stem in ``data/checkpoints``.
    kind : {"mdm", "head"}
    build : callable
        Makes the module from the sidecar's ``config``.
    folder : Path, optional

    Raises
    ------
    ValueError
        If the checkpoint is unknown, damaged, or does not fit its configuration.
    """
    meta = read_sidecar(name, kind, folder)
    path = Path(folder or CHECKPOINTS) / f"{name}.safetensors"
    if not path.is_file():
        raise ValueError(f"checkpoint {name!r} has no weights: {path} is missing")
    if sha256(path) != meta.get("sha256"):
        raise ValueError(f"checkpoint {path} is corrupted: its sha256 is not the one in {path.stem}.json")
    module = build(meta["config"])
    load_weights(module, read_tensors(path), str(path))
    return module.float().eval().requires_grad_(False)


def load_weights(module: nn.Module, tensors: dict[str, Tensor], source: str) -> None:
    """Load ``tensors`` into ``module``; a ValueError names ``source`` and the first tensor that does not fit."""
    expected = module.state_dict()
    for name in sorted(expected.keys() | tensors.keys()):
        want, got = expected.get(name), tensors.get(name)
        if want is None or got is None or want.shape != got.shape:
            shapes = [None if t is None else tuple(t.shape) for t in (got, want)]
            raise ValueError(f"{source} does not fit the model: {name!r} is {shapes[0]}, expected {shapes[1]}")
    module.load_state_dict(tensors)
