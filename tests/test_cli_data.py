"""``mi data``: the verbs pass their options on and turn errors into one message."""

import subprocess
import sys

import pytest
from test_swissprot import debian, listed  # noqa: F401 (fixtures)
from test_uniref import service  # noqa: F401
from typer.testing import CliRunner

from mi_lib import swissprot, uniref
from mi_lib.cli import app
from mi_lib.proteins import NAMES, PROTEINS, load_proteins


def mi(*words):
    return CliRunner().invoke(app, ["data", *map(str, words)])


def refused(result, message):
    assert result.exit_code == 1 and isinstance(result.exception, SystemExit)
    assert message in result.stderr and "Traceback" not in result.output
    assert len(result.stderr.strip().splitlines()) == 1 and result.stdout == ""


def test_help_is_quick_and_names_the_verbs():
    result = mi("--help")
    assert result.exit_code == 0 and "proteins" in result.stdout and "uniref50" in result.stdout
    code = "import sys, mi_lib.cli_data; sys.exit(bool({'torch', 'Bio', 'pooch', 'requests'} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


def test_proteins_are_rebuilt(debian, listed, tmp_path, monkeypatch):  # noqa: F811
    monkeypatch.setattr(swissprot.rebuild, "__defaults__", (PROTEINS, listed[0]))
    result = mi("proteins", "--from-debian", debian[0], "--folder", tmp_path / "out")
    assert result.exit_code == 0, result.output
    for name, n in zip(NAMES, (2, 2, 1), strict=True):
        assert f"{name}.fasta.gz, {n} proteins" in result.stdout
        assert (tmp_path / "out" / f"{name}.fasta.gz").read_bytes() == (listed[0] / f"{name}.fasta.gz").read_bytes()


def test_proteins_refuse_another_folder_and_another_package(debian, tmp_path):  # noqa: F811
    refused(mi("proteins", "--from-debian", tmp_path), "expected the folder into which Debian's metastudent-data")
    words = ("proteins", "--from-debian", debian[0], "--folder", tmp_path / "out")
    refused(mi(*words), "proteins, ")  # the committed list asks for proteins that the toy package lacks
    assert not (tmp_path / "out").exists()


def test_uniref50_writes_a_file_that_reads_as_reference(service, tmp_path, monkeypatch):  # noqa: F811
    monkeypatch.setattr(uniref, "CACHE", tmp_path / "cache")
    out = tmp_path / "u.fasta.gz"
    result = mi("uniref50", "--n", 600, "--seed", 2, "--out", out, "--pages", 2, "--service", service.url)
    assert result.exit_code == 0, result.output
    assert f"wrote {out}, 600 sequences of UniRef50, release 2026_03" in result.stdout
    assert len(load_proteins(str(out))) == 600 and len(service.requests) == 2


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--n", 0), "n=0, expected 1 to 10000"),
        (("--seed", -1), "seed=-1, expected at least 0"),
        (("--out", "u.fa"), "out='u.fa', expected a name that ends in .fasta.gz"),
        (("--service", "http://127.0.0.1:9"), "cannot reach http://127.0.0.1:9"),
    ],
)
def test_uniref50_refuses(words, message, tmp_path, monkeypatch):
    monkeypatch.setattr(uniref, "CACHE", tmp_path / "cache")
    monkeypatch.chdir(tmp_path)
    refused(mi("uniref50", *words), message)
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []
