"""The book: runs the notebooks that need it, then builds the HTML."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

import yaml

from mi_lib.runner import NOTEBOOKS, ROOT, BuildError, is_fresh, resolve, run_key, run_notebook

SMOKE = "Smoke run: small sizes, to check that the pages build. No number here is a result."


def run_notebooks(
    preset: str,
    force: bool = False,
    report: Callable[[str], None] = lambda line: None,
    notebooks: Path = NOTEBOOKS,
    out: Path = ROOT / "_build" / "executed",
) -> list[Path]:
    """Execute the notebooks whose output is missing or stale; all parameters are checked before the first one starts.

    Parameters
    ----------
    preset : {"smoke", "paper"}
    force : bool
        Execute all.
    report : callable
        Called with a line a notebook.
    notebooks, out : Path
        Folders of the texts, and of one folder of outputs a preset.

    Returns
    -------
    list of Path
        The executed notebooks.
    """
    sources = sorted(notebooks.glob("*.md"))
    plan = [(source, out / preset / f"{source.stem}.ipynb", resolve(source, preset)) for source in sources]
    for n, (source, target, parameters) in enumerate(plan, start=1):
        stale = force or not is_fresh(target, run_key(source, parameters))
        report(f"[{n}/{len(plan)}] {source.stem} ({preset}): {'running' if stale else 'up to date'}")
        if stale:
            run_notebook(source, target, parameters)
    return [target for _, target, _ in plan]


def publish(executed: list[Path], folder: Path) -> None:
    """Copy executed notebooks to the book's ``executed`` folder, and remove others from it.

    Raises
    ------
    ValueError
        If one of them holds a failed cell: Jupyter Book would publish it without a word.
    """
    folder.mkdir(parents=True, exist_ok=True)
    for path in executed:
        if json.loads(path.read_text(encoding="utf-8"))["metadata"].get("papermill", {}).get("exception"):
            raise ValueError(f"{path} holds a failed cell")
        partial = folder / f".{path.name}.part"
        shutil.copyfile(path, partial)
        os.replace(partial, folder / path.name)
    for old in folder.glob("*.ipynb"):
        if old.name not in {path.name for path in executed}:
            old.unlink()


def copy_mathjax(folder: Path) -> None:
    """Put MathJax's files into ``folder``, unless they are there: equations then work without a network."""
    if folder.exists():
        return
    spec = find_spec("mathjax")
    if spec is None:
        raise ValueError("django-static-mathjax is not installed; `make` installs it")
    partial = folder.with_name(f".{folder.name}.part")
    shutil.rmtree(partial, ignore_errors=True)
    shutil.copytree(Path(spec.submodule_search_locations[0]) / "static" / "mathjax" / "es5", partial / "es5")
    os.replace(partial, folder)


def write_config(preset: str, source: Path, target: Path) -> None:
    """Write the book's configuration for a preset: a smoke book carries a banner on every page."""
    config = yaml.safe_load(source.read_text())
    if preset == "smoke":
        sphinx = config.setdefault("sphinx", {}).setdefault("config", {})
        sphinx.setdefault("html_theme_options", {})["announcement"] = SMOKE
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(yaml.safe_dump(config, sort_keys=False))


def build_book(preset: str, force: bool = False, report: Callable[[str], None] = lambda line: None) -> Path:
    """Run what is stale, then build the HTML with warnings as errors.

    Parameters
    ----------
    preset : {"smoke", "paper"}
    force : bool
        Run every notebook.
    report : callable
        Called with progress lines.

    Returns
    -------
    Path
        The first page.

    Raises
    ------
    ValueError
        If a parameter is not valid.
    BuildError
        If a notebook or Jupyter Book fails.
    """
    publish(run_notebooks(preset, force, report), ROOT / "book" / "executed")
    copy_mathjax(ROOT / "book" / "_extra" / "mathjax")
    config = ROOT / "_build" / f"config_{preset}.yml"
    write_config(preset, ROOT / "_config.yml", config)
    command = [sys.executable, "-c", "from jupyter_book.cli.main import main; main()", "build", "book"]
    report("building the HTML")
    options = ["--config", str(config), "--path-output", ".", "-W", "--keep-going", "--all"]
    built = subprocess.run([*command, *options], cwd=ROOT)
    if built.returncode:
        raise BuildError("Jupyter Book failed; its warnings, which count as errors, are above")
    return ROOT / "_build" / "html" / "index.html"
