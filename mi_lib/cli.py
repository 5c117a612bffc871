"""The ``mi`` command: thin verbs over the library. Heavy imports are inside the verbs, so that ``--help`` is quick."""

import csv
import json
import os
import signal
import sys
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer
from safetensors import SafetensorError
from tqdm import tqdm
from typer import Argument, Option

from mi_lib import cli_esmc  # noqa: F401 (registers `train esmc`)
from mi_lib.cli_data import data
from mi_lib.cli_training import Checkpoint, Threads, given, label, train, train_head, use_threads
from mi_lib.parameters import PARAMETERS, PRESETS
from mi_lib.runner import BuildError

# Read when PyTorch is loaded, here and in the kernels of notebooks: threads that spin while they wait for one another
# are ten times slower as soon as another process wants one of the cores.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")


class OneMessage(typer.core.TyperGroup):
    """Turns the errors a user can mend into one message on stderr and exit code 1 (130 if interrupted)."""

    def invoke(self, ctx):
        before = signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # clean up on `kill` as on Ctrl-C
        try:
            return super().invoke(ctx)
        except (BrokenPipeError, typer.Exit, typer.Abort):
            raise
        except (ValueError, OSError, SafetensorError, BuildError) as error:
            typer.echo(f"mi: {error}", err=True)
            raise typer.Exit(1) from None
        except KeyboardInterrupt:
            typer.echo("mi: interrupted; what was finished is kept, the same command goes on from there", err=True)
            raise typer.Exit(130) from None
        finally:
            signal.signal(signal.SIGTERM, before)


class PairCommand(typer.core.TyperCommand):
    """Lets ``-p`` take two values, as papermill's does."""

    def parse_args(self, ctx, args):
        joined, rest = [], list(args)
        while rest:
            word = rest.pop(0)
            joined.append(word)
            if word == "-p" and len(rest) > 1 and "=" not in rest[0]:
                joined.append(f"{rest.pop(0)}={rest.pop(0)}")
        return super().parse_args(ctx, joined)


HELP = "Mutual information in masked discrete sequence models: notebooks, book, training, Sudoku."
COLUMNS = ("line", "solution", "passes", "solved")  # of `mi solve`

app = typer.Typer(cls=OneMessage, no_args_is_help=True, pretty_exceptions_enable=False, add_completion=False, help=HELP)
app.add_typer(train, name="train")
app.add_typer(data, name="data")
app.command()(label)
app.command()(train_head)

Preset = Annotated[str, Option(help=f"Sizes: one of {', '.join(PRESETS)}.")]


@app.command(cls=PairCommand)
def run(
    name: Annotated[str, Argument(help="Name of a notebook, or the path of a .md file.")],
    p: Annotated[list[str] | None, Option("-p", metavar="NAME VALUE", help="Set a parameter; repeatable.")] = None,
    out: Annotated[Path | None, Option(help="The executed notebook; _build/runs/NAME.ipynb by default.")] = None,
    preset: Preset = "paper",
    help_parameters: Annotated[bool, Option("--help-parameters", help="List the parameters, run nothing.")] = False,
):
    """Execute a notebook with papermill; parameters are checked before a kernel starts."""
    from mi_lib import runner

    source = runner.find_notebook(name)
    if help_parameters:
        typer.echo(_describe_parameters(source))
        return
    values = {}
    for pair in p or []:
        key, equals, text = pair.partition("=")
        if not equals:
            raise ValueError(f"-p {pair}: expected a name and a value, as in -p seed 1")
        values[key] = runner.parse_value(text)
    out = out or runner.ROOT / "_build" / "runs" / f"{source.stem}.ipynb"
    runner.run_notebook(source, out, runner.resolve(source, preset, values))
    typer.echo(f"wrote {out}")


def _describe_parameters(source: Path) -> str:
    from mi_lib.runner import declared_parameters, read_notebook

    lines = [f"Parameters of {source.stem}, as -p NAME VALUE:"]
    for name, line in declared_parameters(read_notebook(source)).items():
        expected = PARAMETERS[name].expected if name in PARAMETERS else "no such parameter in mi_lib.parameters"
        lines.append(f"  {name}: {line.type} = {line.default!r}")
        lines.append(f"      {line.help} ({expected})" if line.help else f"      {expected}")
    return "\n".join(lines)


@app.command()
def book(
    preset: Preset = "paper",
    force: Annotated[bool, Option("--force", help="Run every notebook, stale or not.")] = False,
):
    """Run the notebooks that are missing or stale, then build the HTML book."""
    from mi_lib.book import build_book

    page = build_book(preset, force, lambda line: typer.echo(line, err=True))
    typer.echo(f"open {page.as_uri()}")


@app.command()
def record(
    name: Annotated[str, Argument(help="Name of a table in data/results.")],
    checkpoint: Annotated[list[str] | None, Option(help="An MDM checkpoint; repeatable; all with heads else.")] = None,
    threads: Threads = None,
):
    """Redo a recorded result; refuses a working tree with uncommitted changes."""
    from mi_lib import records

    use_threads(threads)
    with tqdm(total=0, unit="", delay=1) as bar:

        def progress(what: str, done: int, total: int) -> None:
            bar.set_description(what, refresh=False)
            bar.total, bar.n = total, done
            bar.refresh()

        records.record(name, checkpoint or None, progress)
    typer.echo(f"recorded {name}")


@app.command()
def solve(
    file: Annotated[str, Argument(help="Puzzles, 81 characters a line, '.' or '0' for empty; '-' reads stdin.")] = "-",
    checkpoint: Checkpoint = "sudoku_best",
    policy: Annotated[str, Option(help="sequential, naive, eb, threshold or mi.")] = "sequential",
    k: Annotated[int | None, Option(help="Cells a pass (naive).")] = None,
    gamma: Annotated[float | None, Option(help="Budget in nats (eb, mi).")] = None,
    lam: Annotated[float | None, Option(help="Weight of the MI (mi).")] = None,
    tau: Annotated[float | None, Option(help="Confidence (threshold).")] = None,
    head: Annotated[str | None, Option(help="Estimator of the MI head: entropy, mixture or zero (mi).")] = None,
    output: Annotated[str, Option("--format", help="text, csv, or json (an object a line).")] = "text",
    batch_size: Annotated[int, Option(min=1, help="Puzzles decoded together.")] = 64,
    threads: Threads = None,
):
    """Solve Sudoku puzzles with a checkpoint; writes line, solution, passes and whether it is solved.

    Blank lines and lines that begin with # are skipped; malformed and contradictory puzzles are reported by line.
    """
    from mi_lib.checkpoints import load_mdm

    method = _method(policy, **given(k=k, gamma=gamma, lam=lam, tau=tau, head=head))
    model = load_mdm(checkpoint)
    chosen = method.policy(checkpoint)
    use_threads(threads)
    numbers, puzzles, bad = _read_puzzles(_lines(file))
    if not puzzles and not bad:
        raise ValueError(f"no puzzle in {file}")
    write = _writer(output)
    with tqdm(total=len(puzzles), unit="puzzle", delay=2, leave=False, disable=None) as bar:
        for start in range(0, len(puzzles), batch_size):
            part = slice(start, start + batch_size)
            rows = _solve_batch(model, chosen, numbers[part], puzzles[part], bar.update)
            with tqdm.external_write_mode(sys.stdout):
                for row in rows:
                    write(row)
    if bad:
        typer.echo(f"mi: {bad} of {bad + len(puzzles)} puzzles skipped", err=True)
        raise typer.Exit(1)


def _method(policy: str, **given):
    """The method of Table 1 that a policy name stands for, with the parameters given."""
    from mi_lib.solving import Method

    methods = {
        "sequential": Method("Sequential"),
        "naive": Method("Naive", k=4),
        "eb": Method("EB", gamma=0.2),
        "threshold": Method("Threshold", tau=0.9),
        "mi": Method("MI", gamma=0.3, lam=1.0, head="entropy"),
    }
    if policy not in methods:
        raise ValueError(f"policy={policy!r}, expected one of {tuple(methods)}")
    for name, value in given.items():
        if getattr(methods[policy], name) is None:
            raise ValueError(f"{name}={value!r}, but policy {policy!r} has no such parameter")
    return replace(methods[policy], **given)


def _lines(file: str) -> list[str]:
    data = sys.stdin.buffer.read() if file == "-" else Path(file).read_bytes()
    return data.decode("utf-8-sig", errors="replace").splitlines()


def _read_puzzles(lines: Iterable[str]) -> tuple[list[int], list, int]:
    """Line numbers and boards of the puzzles, and how many bad lines were reported on stderr."""
    from mi_lib.sudoku import parse_puzzle, solutions

    numbers, puzzles, bad = [], [], 0
    for number, line in enumerate(lines, start=1):
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        try:
            board = parse_puzzle(line)
            if not len(solutions(board, limit=1)):
                raise ValueError("the puzzle has no solution")
        except ValueError as error:
            typer.echo(f"line {number}: {error}", err=True)
            bad += 1
        else:
            numbers.append(number)
            puzzles.append(board)
    return numbers, puzzles, bad


def _solve_batch(model, policy, numbers: list[int], puzzles: list, progress: Callable) -> list[dict]:
    import numpy as np
    import torch

    from mi_lib.samplers import decode
    from mi_lib.sudoku import format_board, is_solved

    boards = np.stack(puzzles)
    decoded = decode(model, torch.from_numpy(boards).long(), policy, batch_size=len(boards), progress=progress)
    found = decoded.tokens.numpy()
    rows = zip(numbers, map(format_board, found), decoded.nfe.tolist(), is_solved(boards, found).tolist(), strict=True)
    return [dict(zip(COLUMNS, row, strict=True)) for row in rows]


def _writer(output: str) -> Callable[[dict], None]:
    """A function that writes one row to stdout; the header has been written."""
    if output == "json":
        return lambda row: typer.echo(json.dumps(row))
    if output == "csv":
        table = csv.DictWriter(sys.stdout, COLUMNS, lineterminator="\n")
        table.writeheader()
        return table.writerow
    if output != "text":
        raise ValueError(f"format={output!r}, expected 'text', 'csv' or 'json'")

    def write(*cells) -> None:
        typer.echo("{:<5} {:<81} {:<6} {}".format(*cells))

    write("#line", *COLUMNS[1:])
    return lambda row: write(row["line"], row["solution"], row["passes"], "yes" if row["solved"] else "no")
