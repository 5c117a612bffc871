"""Running notebooks: parameters, stale outputs, and what a failure or an interruption leaves behind."""

import hashlib
import json
import os
import signal
import subprocess
import sys
import time

import papermill
import pytest

from mi_lib import artifacts, book, runner
from mi_lib.runner import BuildError, is_fresh, parse_value, resolve, run_key, run_notebook

TINY = """---
jupytext:
  text_representation:
    extension: .md
    format_name: myst
kernelspec:
  name: python3
  display_name: Python 3
  language: python
---

# Tiny

```{code-cell} ipython3
:tags: [parameters]

preset: str = "paper"  # sizes
seed: int = 0  # 7 fails
gamma: list = [0.1, 0.3]  # budgets
```

```{code-cell} ipython3
from mi_lib.parameters import validate
validate(preset=preset, seed=seed, gamma=gamma)
```

```{code-cell} ipython3
answer = 10 / (seed - 7)
print("answer", answer, gamma)
```
"""


@pytest.fixture
def source(tmp_path):
    folder = tmp_path / "notebooks"
    (folder / "params").mkdir(parents=True)
    (folder / "params" / "smoke.yaml").write_text("tiny: {gamma: [0.5], seed: 2}\n")
    (folder / "tiny.md").write_text(TINY)
    return folder / "tiny.md"


def printed(path) -> str:
    cells = json.loads(path.read_text())["cells"]
    return "".join("".join(o.get("text", "")) for c in cells for o in c.get("outputs", []))


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("3", 3),
        ("1e-3", 1e-3),  # YAML 1.1 would read a string
        ("[0.1, 0.3]", [0.1, 0.3]),
        ("false", False),
        ("False", False),
        ('"false"', "false"),
        ("sudoku_paper", "sudoku_paper"),
        ("[a, b]", ["a", "b"]),
    ],
)
def test_values_from_the_command_line(text, value):
    parsed = parse_value(text)
    assert parsed == value and type(parsed) is type(value)


def test_value_that_is_nothing():
    with pytest.raises(ValueError, match=r"value '\[0.1', expected a number"):
        parse_value("[0.1")


def test_resolve_layers_defaults_preset_and_given(source):
    assert resolve(source) == {"preset": "paper", "seed": 0, "gamma": [0.1, 0.3]}
    assert resolve(source, "smoke") == {"preset": "smoke", "seed": 2, "gamma": [0.5]}
    assert resolve(source, "smoke", {"seed": 4}) == {"preset": "smoke", "seed": 4, "gamma": [0.5]}
    assert resolve(source, "paper", {"preset": "smoke"})["gamma"] == [0.5]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"sed": 1}, r"tiny has no parameter 'sed' \(value 1\), it has \('preset', 'seed', 'gamma'\)"),
        ({"lam": 1.0}, "tiny has no parameter 'lam'"),  # known elsewhere, not here
        ({"seed": "1"}, "seed='1', expected an integer"),
        ({"gamma": [-1]}, r"gamma=\[-1\], expected"),
        ({"preset": "big"}, "preset='big', expected"),
    ],
)
def test_resolve_refuses(source, given, message):
    with pytest.raises(ValueError, match=message):
        resolve(source, "paper", given)


def test_default_that_is_no_plain_value(source):
    source.write_text(TINY.replace("seed: int = 0", "seed: int = f(0)"))
    with pytest.raises(ValueError, match="default of parameter 'seed'"):
        resolve(source)


def test_preset_that_names_an_unknown_parameter(source):
    (source.parent / "params" / "smoke.yaml").write_text("tiny: {gama: [0.5]}\n")
    with pytest.raises(ValueError, match="no parameter 'gama'"):
        resolve(source, "smoke")


def test_a_run_failure_and_what_they_leave(source, tmp_path):
    out = tmp_path / "out{1}" / "tiny.ipynb"
    good = resolve(source, "paper", {"seed": 2})
    run_notebook(source, out, good)
    assert "answer -2.0 [0.1, 0.3]" in printed(out)
    assert is_fresh(out, run_key(source, good))
    assert str(tmp_path) not in out.read_text()  # no machine's paths in a page
    first = out.read_bytes()

    with pytest.raises(BuildError, match=r"'tiny' stopped: cell In \[4\].*answer.*ZeroDivisionError: division by zero"):
        run_notebook(source, out, good | {"seed": 7})
    assert out.read_bytes() == first
    assert sorted(p.name for p in out.parent.iterdir()) == ["tiny.failed.ipynb", "tiny.ipynb"]

    run_notebook(source, out, good | {"seed": 3})
    assert [p.name for p in out.parent.iterdir()] == ["tiny.ipynb"]  # the old failure is gone


def test_a_dead_kernel_is_one_message(source, tmp_path):
    source.write_text(TINY.replace("answer = 10 / (seed - 7)", "import os; os._exit(1)"))
    with pytest.raises(BuildError, match="'tiny' stopped: its kernel died"):
        run_notebook(source, tmp_path / "tiny.ipynb", resolve(source))
    assert not (tmp_path / "tiny.ipynb").exists()


def test_notebook_refuses_bad_values_by_hand_too(source, tmp_path):
    """`papermill -p` injects strings and checks nothing: the notebook's own first line does."""
    node = runner.read_notebook(source)
    with pytest.raises(papermill.PapermillExecutionError, match=r"gamma='\[0.1\]', expected a list"):
        papermill.execute_notebook(node, None, {"gamma": "[0.1]"}, kernel_name="python3", progress_bar=False)


def test_interruption_leaves_nothing_half_written(source, tmp_path, monkeypatch):
    out = tmp_path / "tiny.ipynb"
    out.write_text("earlier")

    def interrupted(notebook, path, *args, **kwargs):
        (tmp_path / ".tiny.part.ipynb").write_text("half")
        raise KeyboardInterrupt

    monkeypatch.setattr(papermill, "execute_notebook", interrupted)
    with pytest.raises(KeyboardInterrupt):
        run_notebook(source, out, resolve(source))
    assert out.read_text() == "earlier"
    assert sorted(p.name for p in tmp_path.iterdir()) == ["notebooks", "tiny.ipynb"]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_stops_cleanly(source, tmp_path, number):
    source.write_text(TINY.replace("answer = 10 / (seed - 7)", "import time; time.sleep(600)"))
    out = tmp_path / "out" / "tiny.ipynb"
    command = [sys.executable, "-c", "from mi_lib.cli import app; app()", "run", str(source), "--out", str(out)]

    def heed() -> None:  # a job in a shell's background inherits that SIGINT is ignored
        signal.signal(signal.SIGINT, signal.SIG_DFL)

    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, preexec_fn=heed)
    deadline = time.monotonic() + 120
    partial = out.with_name(".tiny.part.ipynb")
    while not (partial.exists() and '"execution_count": 2' in partial.read_text()) and time.monotonic() < deadline:
        time.sleep(0.2)
    os.kill(process.pid, number)
    _, errors = process.communicate(timeout=60)
    assert process.returncode in (130, 143)
    assert "Traceback" not in errors
    assert list(out.parent.iterdir()) == []


def test_out_must_be_a_notebook(source, tmp_path):
    with pytest.raises(ValueError, match=r"expected a name that ends in \.ipynb"):
        run_notebook(source, tmp_path / "tiny.html", resolve(source))


def test_key_follows_all_that_decides_an_output(source, tmp_path, monkeypatch):
    monkeypatch.setattr(runner, "ROOT", tmp_path)
    monkeypatch.setattr(artifacts, "DATA", tmp_path / "data")
    parameters = resolve(source)
    files = ["mi_lib/head.py", "data/checkpoints/a.safetensors", "data/results/t.csv", "requirements.lock"]
    keys = [run_key(source, parameters)]
    for name in files:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        for text in ("one", "two"):
            (tmp_path / name).write_text(text)
            keys.append(run_key(source, parameters))
    keys.append(run_key(source, parameters | {"seed": 1}))
    source.write_text(TINY + "\nMore.\n")
    keys.append(run_key(source, parameters))
    assert len(set(keys)) == len(keys)
    (tmp_path / "data" / "README.md").write_text("prose")
    assert run_key(source, parameters) == keys[-1]


@pytest.mark.parametrize(
    "text",
    ["", "{", "{}", '{"metadata": {}}', '{"metadata": {"mi_lib": {"key": "k"}, "papermill": {"exception": true}}}'],
)
def test_damaged_or_failed_outputs_are_stale(tmp_path, text):
    (tmp_path / "a.ipynb").write_text(text)
    assert not is_fresh(tmp_path / "a.ipynb", "k")
    assert not is_fresh(tmp_path / "missing.ipynb", "k")


def test_banner_and_footer(monkeypatch, tmp_path):
    (tmp_path / "net.json").write_text('{"kind": "mdm", "sha256": "abc123"}')
    (tmp_path / "net_head.json").write_text('{"kind": "head", "sha256": "def456"}')
    monkeypatch.setattr(artifacts, "CHECKPOINTS", tmp_path)
    assert runner.banner("paper") is None
    assert "Smoke run" in runner.banner("smoke").data
    assert "a &lt;small&gt; model" in runner.banner("paper", "a <small> model").data
    with pytest.raises(ValueError, match="preset='big'"):
        runner.banner("big")
    (tmp_path / "own.pth").write_bytes(b"weights")
    own = str(tmp_path / "own.pth")
    assert hashlib.sha256(b"weights").hexdigest() in runner.footer(model=own).data
    assert "from the model hub" in runner.footer(model="esmc_300m").data
    page = runner.footer("net_head", preset="smoke", checkpoint="net", gamma=[0.1], seed=3).data
    for text in ("gamma = [0.1]", "seed = 3", "abc123", "def456", "Commit", "torch", "Device", "Wall time", "smoke"):
        assert text in page


def fake_run(source, out, parameters):
    out.parent.mkdir(parents=True, exist_ok=True)
    key = run_key(source, parameters)
    out.write_text(json.dumps({"metadata": {"mi_lib": {"key": key, "parameters": parameters}, "papermill": {}}}))


def test_book_runs_only_what_is_missing_or_stale(source, tmp_path, monkeypatch):
    (source.parent / "other.md").write_text(TINY)
    monkeypatch.setattr(book, "run_notebook", fake_run)

    def run(preset, **kwargs):
        lines = []
        paths = book.run_notebooks(preset, report=lines.append, notebooks=source.parent, out=tmp_path / "ex", **kwargs)
        assert [p.parent.name for p in paths] == [preset] * 2
        return [line.split(":")[1].strip() for line in lines]

    assert run("paper") == ["running", "running"]
    assert run("paper") == ["up to date", "up to date"]
    assert run("smoke") == ["running", "running"]  # in a folder of its own
    assert run("paper") == ["up to date", "up to date"]
    source.write_text(TINY + "\nMore.\n")
    assert run("paper") == ["up to date", "running"]
    (source.parent / "params" / "smoke.yaml").write_text("other: {seed: 5}\n")
    assert run("smoke") == ["running", "running"]
    assert run("smoke", force=True) == ["running", "running"]


def test_book_checks_every_notebook_before_the_first_runs(source, tmp_path, monkeypatch):
    (source.parent / "worse.md").write_text(TINY.replace("seed: int = 0", "seed: int = -1"))
    monkeypatch.setattr(book, "run_notebook", lambda *args: pytest.fail("a kernel was started"))
    with pytest.raises(ValueError, match="seed=-1"):
        book.run_notebooks("paper", notebooks=source.parent, out=tmp_path / "ex")


def test_publish_copies_removes_and_refuses(source, tmp_path):
    good, bad, folder = tmp_path / "a.ipynb", tmp_path / "b.ipynb", tmp_path / "executed"
    good.write_text('{"metadata": {"papermill": {"exception": null}}}')
    bad.write_text('{"metadata": {"papermill": {"exception": true}}}')
    folder.mkdir()
    (folder / "old.ipynb").write_text("")
    book.publish([good], folder)
    assert [p.name for p in folder.iterdir()] == ["a.ipynb"]
    with pytest.raises(ValueError, match=r"b.ipynb holds a failed cell"):
        book.publish([bad], folder)


def test_smoke_book_is_marked_on_every_page(tmp_path):
    config = tmp_path / "_config.yml"
    config.write_text("sphinx:\n  config:\n    html_theme_options: {show_toc_level: 2}\n")
    for preset in ("smoke", "paper"):
        book.write_config(preset, config, tmp_path / f"{preset}.yml")
    assert "announcement: 'Smoke run" in (tmp_path / "smoke.yml").read_text()
    assert "show_toc_level: 2" in (tmp_path / "smoke.yml").read_text()
    assert "announcement" not in (tmp_path / "paper.yml").read_text()


def test_mathjax_is_copied_once(tmp_path):
    book.copy_mathjax(tmp_path / "mathjax")
    script = tmp_path / "mathjax" / "es5" / "tex-mml-chtml.js"
    assert script.stat().st_size > 100_000
    script.write_text("kept")
    book.copy_mathjax(tmp_path / "mathjax")
    assert script.read_text() == "kept"
    assert [p.name for p in tmp_path.iterdir()] == ["mathjax"]
