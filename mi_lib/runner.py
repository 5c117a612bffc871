"""Running a notebook: jupytext text in, executed notebook out; and what a notebook shows of its own run."""

import ast
import hashlib
import html
import json
import os
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import yaml

from mi_lib.parameters import PRESETS, STARTED, checkpoints_of, validate

ROOT = Path(__file__).resolve().parent.parent
NOTEBOOKS = ROOT / "notebooks"


class BuildError(RuntimeError):
    """A notebook, or the book, that stopped before its end; the message says where."""


@dataclass(frozen=True)
class Declared:
    """One line of a ``parameters`` cell."""

    type: str
    default: object
    help: str


def find_notebook(name: str, folder: Path = NOTEBOOKS) -> Path:
    """The text of a notebook, from its name or a path ending in ``.md``.

    Raises
    ------
    ValueError
        If there is none; the message lists those that are there.
    """
    path = Path(name) if name.endswith(".md") else folder / f"{name}.md"
    if not path.is_file():
        known = tuple(p.stem for p in sorted(folder.glob("*.md")))
        raise ValueError(f"unknown notebook {name!r}, expected one of {known} or the path of a .md file")
    return path


def read_notebook(source: Path):
    """A MyST notebook as an nbformat node for the ``python3`` kernel."""
    import jupytext

    notebook = jupytext.reads(source.read_text(encoding="utf-8"), fmt="md:myst")
    notebook.metadata["kernelspec"] = {"name": "python3", "display_name": "Python 3", "language": "python"}
    return notebook


def declared_parameters(notebook) -> dict[str, Declared]:
    """The parameters of a notebook as papermill sees them, by name.

    Raises
    ------
    ValueError
        If a default is not a plain value.
    """
    import papermill

    found = {}
    for name, line in papermill.inspect_notebook(notebook).items():
        try:
            default = ast.literal_eval(line["default"])
        except (ValueError, SyntaxError):
            raise ValueError(f"default of parameter {name!r} is {line['default']}, expected a plain value") from None
        found[name] = Declared(line["inferred_type_name"], default, line["help"])
    return found


def parse_value(text: str):
    """A value typed on the command line: JSON if it is any (``1e-3``, ``[0.1, 0.3]``, ``true``), else YAML.

    Raises
    ------
    ValueError
        If it is neither.
    """
    try:
        return json.loads(text)
    except json.JSONDecodeError:
        pass
    try:
        return yaml.safe_load(text)
    except yaml.YAMLError:
        raise ValueError(f"value {text!r}, expected a number, true, false, a name or a list like [0.1, 0.3]") from None


def resolve(source: Path, preset: str = "paper", given: dict | None = None) -> dict:
    """All parameters of a notebook: its defaults, overridden by the preset, overridden by ``given``.

    Parameters
    ----------
    source : Path
        MyST text; ``params/PRESET.yaml`` beside it maps names of notebooks to parameters.
    preset : {"smoke", "paper"}
    given : dict, optional

    Returns
    -------
    dict

    Raises
    ------
    ValueError
        If a parameter is not the notebook's, or its value is not valid. No kernel has been started by then.
    """
    given = given or {}
    preset = given.get("preset", preset)
    validate(preset=preset)
    defaults = {key: line.default for key, line in declared_parameters(read_notebook(source)).items()}
    sizes = source.parent / "params" / f"{preset}.yaml"
    listed = yaml.safe_load(sizes.read_text(encoding="utf-8")) or {} if sizes.is_file() else {}
    chosen = (listed.get(source.stem) or {}) | given
    for key, value in chosen.items():
        if key not in defaults:
            raise ValueError(f"{source.stem} has no parameter {key!r} (value {value!r}), it has {tuple(defaults)}")
    if "preset" in defaults:
        defaults["preset"] = preset
    resolved = defaults | chosen
    validate(**resolved)
    return resolved


def run_key(source: Path, parameters: dict) -> str:
    """Hash of all that decides an output: text, parameters, ``mi_lib``, data, results, checkpoints, lock file."""
    from mi_lib import artifacts

    data = [p for p in artifacts.DATA.rglob("*") if p.is_file() and p.suffix not in (".md", ".part")]
    files = [source, *(ROOT / "mi_lib").glob("*.py"), *data, ROOT / "requirements.lock"]
    digest = hashlib.sha256(json.dumps(parameters, sort_keys=True).encode())
    for path in sorted(files):
        if path.exists():
            digest.update(f"{path.name} {artifacts.sha256(path)}\n".encode())
    return digest.hexdigest()


def is_fresh(out: Path, key: str) -> bool:
    """Whether ``out`` is the complete output of the run with this key."""
    try:
        metadata = json.loads(out.read_text(encoding="utf-8"))["metadata"]
    except (OSError, ValueError, KeyError):
        return False
    return metadata.get("mi_lib", {}).get("key") == key and not metadata.get("papermill", {}).get("exception")


def run_notebook(source: Path, out: Path, parameters: dict) -> None:
    """Execute a notebook with papermill; ``out`` appears, or changes, only if it runs to its end.

    Parameters
    ----------
    source : Path
        MyST text.
    out : Path
        Where the executed notebook goes; one that fails goes to ``NAME.failed.ipynb`` beside it.
    parameters : dict
        All of them, as ``resolve`` returns them.

    Raises
    ------
    ValueError
        If ``out`` does not end in ``.ipynb``.
    BuildError
        If a cell fails or the kernel dies.
    """
    import nbformat
    import papermill
    from nbclient.exceptions import DeadKernelError

    out = Path(out)
    if out.suffix != ".ipynb":
        raise ValueError(f"out={str(out)!r}, expected a name that ends in .ipynb")
    notebook = read_notebook(source)
    declared = declared_parameters(notebook)
    notebook.metadata["mi_lib"] = {"key": run_key(source, parameters), "parameters": parameters}
    out.parent.mkdir(parents=True, exist_ok=True)
    partial, failed = out.with_name(f".{out.stem}.part.ipynb"), out.with_name(f"{out.stem}.failed.ipynb")
    partial.unlink(missing_ok=True)
    failed.unlink(missing_ok=True)
    try:
        executed = papermill.execute_notebook(
            notebook,
            str(partial).replace("{", "{{").replace("}", "}}"),  # papermill formats the path
            {key: value for key, value in parameters.items() if value != declared[key].default},
            kernel_name="python3",
            progress_bar={"desc": source.stem},
            stderr_file=sys.stderr,  # progress bars of the cells
            extra_arguments=["--log-level=CRITICAL"],  # errors of cells arrive as messages
        )
        executed.metadata["papermill"].update(input_path=source.name, output_path=out.name)  # no machine's paths
        nbformat.write(executed, partial)
        os.replace(partial, out)
    except (papermill.PapermillExecutionError, DeadKernelError) as error:
        if partial.exists():
            os.replace(partial, failed)
        raise BuildError(f"notebook {source.stem!r} stopped: {_cause(error)}; see {failed}") from None
    finally:
        partial.unlink(missing_ok=True)


def _cause(error: Exception) -> str:
    if not hasattr(error, "ename"):
        return "its kernel died (out of memory?)"
    first = next((line for line in error.source.splitlines() if line.strip()), "")
    return f"cell In [{error.exec_count}] ({first!r}) raised {error.ename}: {error.evalue}"


def banner(preset: str, note: str = ""):
    """A box that marks the page of a smoke run, or of a stand-in; nothing for a page at the paper's sizes.

    Parameters
    ----------
    preset : {"smoke", "paper"}
    note : str
        What on this page stands in for the real thing.

    Returns
    -------
    IPython.display.HTML or None
    """
    from IPython.display import HTML

    if preset not in PRESETS:
        raise ValueError(f"preset={preset!r}, expected one of {PRESETS}")
    smoke = "Small sizes, to check that the page runs: its numbers are no result. " if preset == "smoke" else ""
    if not smoke and not note:
        return None
    title = "Smoke run" if smoke else "Stand-in"
    return HTML(
        f'<div class="admonition warning mi-banner"><p class="admonition-title">{title}</p>'
        f"<p>{smoke}{html.escape(note)}</p></div>"
    )


def footer(*checkpoints: str, **parameters):
    """The provenance of a page: parameters, checkpoints with their SHA-256, commit, versions, device, wall time.

    Parameters
    ----------
    *checkpoints : str
        Checkpoints used that no parameter names (heads).
    **parameters
        The notebook's parameters.

    Returns
    -------
    IPython.display.HTML
    """
    from IPython.display import HTML

    from mi_lib import artifacts

    used = dict.fromkeys([n for key, value in parameters.items() for n in checkpoints_of(key, value)] + [*checkpoints])
    facts = artifacts.provenance()
    rows = {
        "Parameters": ", ".join(f"{key} = {value!r}" for key, value in parameters.items()),
        **{f"Checkpoint {n}": _weights(n) for n in used},
        "Commit": facts["commit"],
        "Versions": ", ".join(f"{name} {version}" for name, version in facts["versions"].items()),
        "Device": facts["device"],
        "Date": facts["date"],
        "Wall time": f"{time.perf_counter() - STARTED:.0f} s",
    }
    lines = (f"<tr><th>{html.escape(k)}</th><td>{html.escape(str(v))}</td></tr>" for k, v in rows.items())
    return HTML(f'<table class="provenance"><caption>Provenance</caption><tbody>{"".join(lines)}</tbody></table>')


def _weights(name: str) -> str:
    from mi_lib import artifacts

    if name not in artifacts.checkpoint_names():
        return f"sha256 {artifacts.sha256(Path(name))}" if Path(name).is_file() else "from the model hub"
    return f"sha256 {artifacts.read_json(artifacts.CHECKPOINTS / f'{name}.json')['sha256']}"
