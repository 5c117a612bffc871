"""Notebook parameters: what each name means, and the one validator that notebooks, runner and command line share."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

STARTED = time.perf_counter()  # a notebook imports this module first: its wall time is counted from here

PRESETS = ("smoke", "paper")
ESTIMATORS = ("entropy", "mixture", "kl")
N_PUZZLES = 1_000  # in the committed test set
N_CELLS = 81
ESMC = ("esmc_300m", "esmc_600m")  # on the model hub
WEIGHTS = (".pth", ".safetensors")  # files that hold an ESM-C


@dataclass(frozen=True)
class Parameter:
    """What a notebook parameter may be.

    Attributes
    ----------
    type : type
        ``bool``, ``int``, ``float``, ``str`` or, with ``items``, ``list``. An int is a float too, a bool is no number.
    expected : str
        Ends the sentence "name=value, expected ...".
    check : callable
        Whether a value of that type, or one item of the list, is in range.
    items : type, optional
        Type of a list's items; a list has at least one.
    checkpoint : {"mdm", "head", "esmc"}, optional
        The value (or each item) names a shipped checkpoint of this kind; an ESM-C may also be on the model hub or in a
        file of its own.
    """

    type: type
    expected: str
    check: Callable = lambda value: True
    items: type | None = None
    checkpoint: str | None = None

    def accepts(self, value) -> bool:
        """Whether ``value`` has the right type and range; the names of checkpoints are looked up elsewhere."""
        if self.items is None:
            return _is(value, self.type) and self.check(value)
        return isinstance(value, list) and bool(value) and all(_is(v, self.items) and self.check(v) for v in value)


def _is(value, kind: type) -> bool:
    if kind is float:
        return isinstance(value, int | float) and not isinstance(value, bool)
    return isinstance(value, kind) and not (kind is int and isinstance(value, bool))


def _integer(low: int, high: int | None = None, what: str = "an integer") -> Parameter:
    bound = f"of at least {low}" if high is None else f"from {low} to {high}"
    return Parameter(int, f"{what} {bound}", lambda v: v >= low and (high is None or v <= high))


def _one_of(names: tuple[str, ...]) -> Parameter:
    return Parameter(str, f"one of {names}", lambda v: v in names)


PARAMETERS: dict[str, Parameter] = {
    "preset": _one_of(PRESETS),
    "checkpoint": Parameter(str, "the name of an MDM checkpoint", checkpoint="mdm"),
    "protein_model": Parameter(str, "the name of a shipped ESM-C", checkpoint="esmc"),
    "other": Parameter(str, "the name of an MDM checkpoint", checkpoint="mdm"),
    "model": Parameter(str, "the name of an ESM-C or the path of its weights", checkpoint="esmc"),
    "reference": Parameter(str, "'reference' or the path of a FASTA file", lambda v: v == "reference" or is_file(v)),
    "checkpoints": Parameter(list, "a list of names of MDM checkpoints", items=str, checkpoint="mdm"),
    "head": _one_of((*ESTIMATORS, "zero")),
    "estimator": _one_of(ESTIMATORS),
    "mi": _one_of(("probe", "head")),
    "n_puzzles": _integer(1, N_PUZZLES, "an integer (number of test puzzles)"),
    "n_boards": _integer(1),
    "n_steps": _integer(1, what="an integer (training steps)"),
    "n_states": _integer(1, what="an integer (states to label)"),
    "n_samples": _integer(1, what="an integer (sequences a method)"),
    "n_proteins": _integer(15, what="an integer (proteins a method: at least one a cluster)"),
    "n_seeds": _integer(1, 3, "an integer (recorded seeds)"),
    "n_live": _integer(1, what="an integer (proteins that the page itself makes)"),
    "n_maps": _integer(1, what="an integer (proteins that are probed)"),
    "n_measured": _integer(1, what="an integer (proteins of a sample)"),
    "mask_shares": Parameter(list, "a list of shares above 0, at most 1", lambda v: 0 < v <= 1, items=float),
    "n_sets": _integer(1, 5, "an integer (number of puzzle sets)"),
    "puzzle": _integer(-1, N_PUZZLES - 1, "an integer (test puzzle; -1 is the page's choice)"),
    "step": _integer(-1, what="an integer (-1 is the page's choice)"),
    "cell": _integer(-1, N_CELLS - 1, "an integer (cell, row by row; -1 is the page's choice)"),
    "gamma": Parameter(list, "a list of numbers >= 0 (nats)", lambda v: v >= 0, items=float),
    "gamma_eb": Parameter(list, "a list of numbers >= 0 (nats)", lambda v: v >= 0, items=float),
    "lam": Parameter(float, "a number >= 0", lambda v: v >= 0),
    "k": Parameter(list, "a list of integers >= 1", lambda v: v >= 1, items=int),
    "tau": Parameter(float, "a probability", lambda v: 0 <= v <= 1),
    "tail": Parameter(float, "a probability below 1", lambda v: 0 <= v < 1),
    "temperature": Parameter(float, "a number >= 0", lambda v: v >= 0),
    "margin": Parameter(float, "a share from 0 to 1", lambda v: 0 <= v <= 1),
    "seed": _integer(0),
    "batch_size": _integer(1),
    "threads": _integer(1),
    "recompute": Parameter(bool, "True or False"),
}


def is_file(path: str) -> bool:
    """Whether there is a file of that name."""
    return Path(path).is_file()


def validate(**values) -> None:
    """Check notebook parameters; the first code line after a notebook's ``parameters`` cell calls this.

    Parameters
    ----------
    **values
        Parameters by name.

    Raises
    ------
    ValueError
        Naming the parameter, its value and what was expected: an unknown name, a wrong type (the string ``"false"`` is
        no bool), a value out of range, or a checkpoint that is not there.
    """
    for name, value in values.items():
        parameter = PARAMETERS.get(name)
        if parameter is None:
            raise ValueError(f"unknown parameter {name!r} (value {value!r}), expected one of {tuple(PARAMETERS)}")
        if not parameter.accepts(value):
            raise ValueError(f"{name}={value!r}, expected {parameter.expected}")
        known = shipped(parameter.checkpoint) if parameter.checkpoint else ()
        for item in checkpoints_of(name, value):
            elsewhere = parameter.checkpoint == "esmc" and (item in ESMC or (item.endswith(WEIGHTS) and is_file(item)))
            if item not in known and not elsewhere:
                names = (*known, *ESMC) if parameter.checkpoint == "esmc" else known
                raise ValueError(f"{name}={value!r}, expected {parameter.expected}: one of {names}")


def shipped(kind: str | None = None) -> tuple[str, ...]:
    """Names of the shipped checkpoints of a kind."""
    from mi_lib.artifacts import checkpoint_names  # imports torch, which most parameters do not need

    return tuple(checkpoint_names(kind))


def checkpoints_of(name: str, value) -> list[str]:
    """The names of checkpoints that a parameter holds, none if it is of another sort."""
    if name not in PARAMETERS or PARAMETERS[name].checkpoint is None:
        return []
    return value if isinstance(value, list) else [value]
