"""Tables of the book, from per-puzzle outcomes: intervals, the paper beside here, paired differences, verdicts."""

import pandas as pd

from mi_lib.masked import require
from mi_lib.metrics import paired_difference, solve_rate
from mi_lib.solving import PAPER_TABLE1

KEYS = ["method", "parameters"]


def with_intervals(outcomes: pd.DataFrame) -> pd.DataFrame:
    """Passes and solve rate a method, with 95 % intervals.

    Parameters
    ----------
    outcomes : DataFrame
        A row a puzzle and method: ``method``, ``parameters``, ``solved``, ``passes`` and, if measured, ``seconds``.

    Returns
    -------
    DataFrame
        Columns ``method``, ``parameters``, ``n``, ``passes``, ``solved``, ``low``, ``high`` (shares), and
        ``seconds_per_puzzle`` if measured; methods in order of appearance.
    """
    rows = []
    for (method, parameters), group in outcomes.groupby(KEYS, sort=False):
        rate, low, high = solve_rate(group["solved"].to_numpy())
        row = {"method": method, "parameters": parameters, "n": len(group), "passes": group["passes"].mean()}
        row |= {"solved": rate, "low": low, "high": high}
        if "seconds" in group:
            row["seconds_per_puzzle"] = group["seconds"].mean()
        rows.append(row)
    return pd.DataFrame(rows)


def beside_paper(outcomes: pd.DataFrame) -> pd.DataFrame:
    """The paper's rows beside ours: passes and per cent solved, our interval, and whether it holds the paper's.

    Rows of ours without a counterpart in the paper are left out.
    """
    paper = PAPER_TABLE1.rename(columns={"passes": "paper passes", "solved": "paper solved"})
    table = paper.merge(with_intervals(outcomes), on=KEYS, how="inner")
    shown = table[[*KEYS, "paper passes"]].assign(**{"here passes": table["passes"]})
    for column, name in (("paper solved", "paper solved"), ("solved", "here solved"), ("low", "low"), ("high", "high")):
        shown[name] = 100 * table[column]
    shown["paper inside"] = shown["paper solved"].between(shown["low"], shown["high"])
    if "seconds_per_puzzle" in table:
        shown["seconds a puzzle"] = table["seconds_per_puzzle"]
    return shown


def outcome(outcomes: pd.DataFrame, method: str, parameters: str) -> pd.Series:
    """Solved (bool) a puzzle of one method, indexed by seed and puzzle; a ValueError lists what there is."""
    rows = outcomes[(outcomes["method"] == method) & (outcomes["parameters"] == parameters)]
    known = sorted({f"{m} {p}".strip() for m, p in zip(outcomes["method"], outcomes["parameters"], strict=True)})
    require(len(rows) > 0, "method", f"{method} {parameters}".strip(), f"one of {known}")
    index = ["seed", "puzzle"] if "seed" in rows else ["puzzle"]
    return rows.set_index(index)["solved"].astype(bool)


def paired_table(outcomes: pd.DataFrame, pairs: list[tuple[tuple[str, str], tuple[str, str]]]) -> pd.DataFrame:
    """Paired differences in solve rate for pairs of methods, each a (method, parameters), on the puzzles they share.

    Returns
    -------
    DataFrame
        Columns ``a``, ``b``, ``passes a``, ``passes b``, ``difference``, ``low``, ``high`` (percentage points), ``p``
        (exact McNemar) and ``n``.
    """
    passes = outcomes.groupby(KEYS)["passes"].mean()
    rows = []
    for a, b in pairs:
        both = pd.concat([outcome(outcomes, *a), outcome(outcomes, *b)], axis=1, join="inner", keys=["a", "b"])
        d = paired_difference(both["a"].to_numpy(), both["b"].to_numpy())
        row = {"a": " ".join(a).strip(), "b": " ".join(b).strip(), "passes a": passes[a], "passes b": passes[b]}
        row |= {key: 100 * d[key] for key in ("difference", "low", "high")}
        rows.append(row | {"p": d["p"], "n": len(both)})
    return pd.DataFrame(rows)


def families(table: pd.DataFrame) -> pd.DataFrame:
    """``table`` with ``method`` replaced by the curve a row belongs to (MI-guided rows: one a head), by passes."""
    head = table["parameters"].str.extract(r"head=(\S+)")[0]
    names = {"zero": "budget rule, MI = 0", "entropy": "MI, entropy head", "mixture": "MI, mixture head"}
    return table.assign(method=head.map(names).fillna(table["method"])).sort_values(["method", "passes"])


def show(table: pd.DataFrame, digits: int = 1, **finer: int):
    """A table for the page, without its index: ``digits`` after the point, more for the columns in ``finer``."""
    formats = {c: f"{{:.{finer.get(c, digits)}f}}" for c in table.select_dtypes("float")}
    return table.style.hide(axis="index").format(formats, na_rep="")


def verdict(low: float, high: float) -> str:
    """Whether a difference is above zero by its interval: "yes", "no" or "not resolved"."""
    if low > 0:
        return "yes"
    return "no" if high < 0 else "not resolved"
