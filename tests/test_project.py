"""The project's own promises: one list of dependencies, a complete lock, short modules."""

import ast
import os
import re
import subprocess
import sys
import tomllib
from importlib.metadata import PackageNotFoundError, packages_distributions, requires
from itertools import chain
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
EXTRAS = PROJECT["optional-dependencies"]
DECLARED = [Requirement(line) for line in [*PROJECT["dependencies"], *chain(*EXTRAS.values())]]
LOCKED = [
    Requirement(line)
    for line in (ROOT / "requirements.lock").read_text().splitlines()
    if line and not line.startswith("#")
]
VERSIONS = {canonicalize_name(r.name): str(r.specifier).removeprefix("==") for r in LOCKED}
LEFT_OUT = {"torchvision", "torchtext"}


def test_environment_file_adds_no_dependency_of_its_own():
    conda = yaml.safe_load((ROOT / "environment.yml").read_text())["dependencies"]
    python, pip, installed = conda
    assert Requirement(python.replace("=", "==")).specifier.filter(["3.11"]) and pip == "pip"
    ((editable,),) = [installed["pip"]]
    assert re.fullmatch(r"-e \.\[(.*)\]", editable)[1].split(",") == list(EXTRAS)
    assert Requirement(f"python{PROJECT['requires-python']}").specifier.contains(f"{python.split('=')[1]}.0")


def test_lock_pins_each_package_once_and_names_no_index():
    text = (ROOT / "requirements.lock").read_text()
    assert "://" not in text and not re.search(r"^-", text, re.M)
    assert len(VERSIONS) == len(LOCKED)
    for requirement in LOCKED:
        assert re.fullmatch(r"==[\w.]+", str(requirement.specifier)), requirement  # no local version such as +cpu
    assert VERSIONS["torch"] == "2.13.0"
    assert not LEFT_OUT & VERSIONS.keys()


@pytest.mark.parametrize("requirement", DECLARED, ids=lambda r: r.name)
def test_lock_holds_every_declared_dependency(requirement):
    assert requirement.specifier.contains(VERSIONS[canonicalize_name(requirement.name)], prereleases=True)


def test_lock_is_closed():
    """Installed with --no-deps, the lock must hold what its packages require (torch's own CUDA libraries apart)."""
    missing = []
    for name in VERSIONS.keys() - {"torch"}:
        try:
            lines = requires(name) or []
        except PackageNotFoundError:  # for another Python
            continue
        for line in lines:
            needed = Requirement(line)
            if needed.marker is None or needed.marker.evaluate({"extra": ""}):
                version = VERSIONS.get(canonicalize_name(needed.name))
                if version is None or not needed.specifier.contains(version, prereleases=True):
                    missing.append(f"{name} requires {needed}")
    assert [line for line in missing if Requirement(line.split(" requires ")[1]).name not in LEFT_OUT] == []


def imported(folder: Path) -> set[str]:
    names = set()
    for path in folder.glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                names |= {alias.name.split(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.level == 0:
                names.add(node.module.split(".")[0])
    return names


@pytest.mark.parametrize("folder", ["mi_lib", "tests"])
def test_every_import_is_declared(folder):
    own = {"mi_lib", *(path.stem for path in (ROOT / "tests").glob("*.py"))}
    where = packages_distributions()
    declared = {canonicalize_name(r.name) for r in DECLARED}
    foreign = imported(ROOT / folder) - sys.stdlib_module_names - own
    undeclared = {n for n in foreign if not {canonicalize_name(d) for d in where.get(n, [n])} & declared}
    assert undeclared == set()


@pytest.mark.parametrize("path", sorted((ROOT / "mi_lib").glob("*.py")), ids=lambda path: path.stem)
def test_a_module_holds_one_noun(path):
    assert len(path.read_text().splitlines()) <= 300


def test_plots_import_no_torch():
    code = "import sys, mi_lib.plots; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


def test_ci_runs_lint_book_and_tests():
    script = ROOT / ".ci" / "run"
    assert os.access(script, os.X_OK)
    assert subprocess.run(["bash", "-n", script]).returncode == 0
    text = script.read_text()
    assert "set -euo pipefail" in text
    for command in ("make lint", "make test", "make book PRESET=smoke"):
        assert re.search(f"^{command}", text, re.M)


def test_workflows_are_yaml_and_call_make():
    commands = {}
    for path in (ROOT / ".github" / "workflows").glob("*.yml"):
        jobs = yaml.safe_load(path.read_text())["jobs"]
        commands[path.stem] = [step.get("run") for job in jobs.values() for step in job["steps"]]
    assert ".ci/run" in commands["tests"] and "make linkcheck" in commands["tests"]
    assert "make book PRESET=paper" in commands["book"]


def test_make_refuses_another_python(tmp_path):
    """With no fitting interpreter on the path, one line says what is needed."""
    for name in ("make", "sh", "head", "cut", "touch", "bash"):
        for folder in ("/usr/bin", "/bin"):
            if (Path(folder) / name).exists() and not (tmp_path / name).exists():
                (tmp_path / name).symlink_to(Path(folder) / name)
    command = ["make", "install", f"VENV={tmp_path / 'venv'}"]
    run = subprocess.run(command, cwd=ROOT, env={"PATH": str(tmp_path)}, capture_output=True, text=True)
    assert run.returncode != 0
    assert "Python 3.11 or 3.12 is needed" in run.stderr
