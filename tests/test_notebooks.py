"""Every notebook keeps the structure of a page; `make book PRESET=smoke` executes them."""

import ast
import re
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

import pytest
import yaml

from mi_lib.parameters import PARAMETERS, PRESETS
from mi_lib.runner import NOTEBOOKS, declared_parameters, read_notebook, resolve

SOURCES = sorted(NOTEBOOKS.glob("*.md"))
EVERY = pytest.mark.parametrize("source", SOURCES, ids=lambda path: path.stem)


def code(notebook) -> list[str]:
    return [cell.source for cell in notebook.cells if cell.cell_type == "code"]


def tree(source: str) -> ast.Module:
    """The code of a cell without IPython's magics."""
    return ast.parse("\n".join(line for line in source.splitlines() if not line.lstrip().startswith(("%", "!"))))


def test_there_are_notebooks_and_each_is_listed_in_both_presets():
    assert SOURCES
    for preset in PRESETS:
        listed = yaml.safe_load((NOTEBOOKS / "params" / f"{preset}.yaml").read_text())
        assert sorted(listed) == [path.stem for path in SOURCES]


def test_each_is_a_page_of_the_book():
    toc = yaml.safe_load((NOTEBOOKS.parent / "book" / "_toc.yml").read_text())
    files = [chapter["file"] for part in toc["parts"] for chapter in part["chapters"]]
    assert sorted(Path(f).name for f in files if f.startswith("executed/")) == [path.stem for path in SOURCES]


@EVERY
@pytest.mark.parametrize("preset", PRESETS)
def test_parameters_are_valid_in_each_preset(source, preset):
    assert resolve(source, preset)["preset"] == preset


@EVERY
def test_defaults_are_the_papers_sizes(source):
    assert resolve(source, "paper") == {
        k: line.default for k, line in declared_parameters(read_notebook(source)).items()
    }


@EVERY
def test_one_parameters_cell_of_plain_typed_lines_with_help(source):
    notebook = read_notebook(source)
    tagged = [cell for cell in notebook.cells if "parameters" in cell.metadata.get("tags", [])]
    assert len(tagged) == 1
    assert tagged[0].source == code(notebook)[0]
    declared = declared_parameters(notebook)
    statements = tree(tagged[0].source).body
    assert all(isinstance(s, ast.AnnAssign) for s in statements)
    assert [s.target.id for s in statements] == list(declared)  # papermill sees every one
    for name, line in declared.items():
        assert name in PARAMETERS and line.help, name
        assert line.type == PARAMETERS[name].type.__name__, name


@EVERY
def test_first_line_after_the_parameters_validates_them_all(source):
    notebook = read_notebook(source)
    first, call = tree(code(notebook)[1]).body[:2]
    assert ast.unparse(first) == "from mi_lib.parameters import validate"
    assert call.value.func.id == "validate"
    passed = {keyword.arg: ast.unparse(keyword.value) for keyword in call.value.keywords}
    assert passed == {name: name for name in declared_parameters(notebook)}


@EVERY
def test_text_is_a_page(source):
    text = source.read_text()
    notebook = read_notebook(source)
    assert "format_name: myst" in text and re.search(r"^  name: python3$", text, re.M)
    assert notebook.cells[0].source.startswith("# ")
    assert "Try this" in text
    assert "banner(preset" in text
    assert re.search(r"\bfooter\(", code(notebook)[-1]), "the last cell is the provenance footer"
    for literal in re.findall(r"\{literalinclude\} (\S+)", text):
        assert (NOTEBOOKS.parent / "book" / "executed" / literal).resolve().is_file(), literal


@EVERY
def test_cells_are_short_and_free_of_shell_and_dead_code(source):
    for cell in code(read_notebook(source)):
        assert not re.search(r"^\s*[!%]\s*pip|tqdm\.(auto|notebook)|if False", cell, re.M)
        statements = tree(cell)
        imports = [s for s in statements.body if isinstance(s, ast.Import | ast.ImportFrom)]
        lines = sum(bool(line.strip()) and not line.lstrip().startswith("#") for line in cell.splitlines())
        assert lines - sum(s.end_lineno - s.lineno + 1 for s in imports) <= 14, cell
        for node in ast.walk(statements):
            if isinstance(node, ast.FunctionDef):
                assert node.end_lineno - node.lineno <= 3, f"{node.name} belongs in mi_lib"


@EVERY
def test_every_import_exists(source):
    """Names that a notebook takes from ``mi_lib`` are there: a page fails here in a second, not in the book's build."""
    for cell in code(read_notebook(source)):
        for node in ast.walk(tree(cell)):
            if isinstance(node, ast.ImportFrom) and node.module.startswith("mi_lib"):
                module = import_module(node.module)
                for name in (alias.name for alias in node.names):
                    assert hasattr(module, name) or find_spec(f"{node.module}.{name}"), f"{node.module}.{name}"


@EVERY
def test_glued_keys_are_those_the_page_makes(source):
    """A key holds no colon, which would start a format: ``{glue:text}`solved:.1f` ``."""
    text = source.read_text()
    made = set(re.findall(r"\bglue\(\s*f?\"([^\"]+)\"", text))
    assert not [key for key in made if ":" in key]
    patterns = [re.sub(r"\\\{.*?\\\}", ".+", re.escape(key)) for key in made]  # keys made in a loop
    for key in re.findall(r"\{glue:(?:text|figure)\}[ `]*([^\s`:]+)", text):
        assert any(re.fullmatch(pattern, key) for pattern in patterns), key
