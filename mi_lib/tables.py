"""Tables of the book, from per-puzzle outcomes: intervals, the paper beside here, paired differences, verdicts."""

import re

import pandas as pd

from mi_lib.masked import require
from mi_lib.metrics import paired_difference, solve_rate
from mi_lib.solving import PAPER_TABLE1, Method

KEYS = ["method", "parameters"]


def readable(method: str, parameters: str) -> str:
    """A row's name for the page: ``MI γ=2.0, entropy head``; the rule with MI of zero is the ``budget rule``."""
    name = f"{method} {parameters}".strip().replace("gamma=", "γ=").replace("tau=", "τ=")
    if name.endswith("head=zero"):
        name = name.replace("MI ", "budget rule ", 1).removesuffix(" head=zero") + ", MI = 0"
    name = re.sub(r" head=(\w+)", r", \1 head", name)
    name = name.replace(" lam=1.0", "").replace(" lam=", ", λ=")
    return re.sub(r"\d+\.\d{3,}", lambda m: f"{float(m[0]):.3g}", name)


def named(frame: pd.DataFrame) -> pd.DataFrame:
    """The frame with one column ``method`` of ``readable`` names in place of ``method`` and ``parameters``."""
    names = [readable(*key) for key in zip(frame["method"], frame["parameters"], strict=True)]
    return frame.drop(columns="parameters").assign(method=names)


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


def outcome(outcomes: pd.DataFrame, method: str, parameters: str) -> pd.DataFrame:
    """``solved`` (bool) and ``passes`` of one method, indexed by seed and puzzle; a ValueError lists what there is."""
    rows = outcomes[(outcomes["method"] == method) & (outcomes["parameters"] == parameters)]
    known = sorted({f"{m} {p}".strip() for m, p in zip(outcomes["method"], outcomes["parameters"], strict=True)})
    require(len(rows) > 0, "method", f"{method} {parameters}".strip(), f"one of {known}")
    index = ["seed", "puzzle"] if "seed" in rows else ["puzzle"]
    return rows.set_index(index)[["solved", "passes"]].astype({"solved": bool})


def paired_table(outcomes: pd.DataFrame, pairs: list[tuple[tuple[str, str], tuple[str, str]]]) -> pd.DataFrame:
    """Paired differences in solve rate for pairs of methods, each a (method, parameters), on the puzzles they share.

    Returns
    -------
    DataFrame
        Columns ``a``, ``b`` (readable names), ``passes a``, ``passes b``, ``difference``, ``low``, ``high`` (percentage
        points), ``p`` (exact McNemar) and ``n``.
    """
    rows = []
    for a, b in pairs:
        both = pd.concat([outcome(outcomes, *a), outcome(outcomes, *b)], axis=1, join="inner", keys=["a", "b"])
        d = paired_difference(both["a"]["solved"].to_numpy(), both["b"]["solved"].to_numpy())
        row = {"a": readable(*a), "b": readable(*b)}
        row |= {f"passes {side}": both[side]["passes"].mean() for side in ("a", "b")}
        row |= {key: 100 * d[key] for key in ("difference", "low", "high")}
        rows.append(row | {"p": d["p"], "n": len(both)})
    return pd.DataFrame(rows)


def equal_passes(outcomes: pd.DataFrame, matched: dict[float, tuple[Method, ...]], head: str) -> pd.DataFrame:
    """MI guidance with one head against every other method at equal passes and against Sequential, paired.

    Parameters
    ----------
    outcomes : DataFrame
        Of one checkpoint.
    matched : dict
        ``mi_lib.runs.matched_methods`` of that checkpoint.
    head : {"entropy", "mixture", "zero"}

    Returns
    -------
    DataFrame
        ``paired_table`` with a column ``a better?``; for each number of passes, the other methods and then Sequential.
    """
    pairs = []
    for methods in matched.values():
        guided = next(m for m in methods if m.head == head)
        others = [(m.name, m.parameters) for m in methods if m != guided]
        pairs += [((guided.name, guided.parameters), other) for other in (*others, ("Sequential", ""))]
    table = paired_table(outcomes, pairs)
    return table.assign(**{"a better?": list(map(verdict, table["low"], table["high"], table["p"]))})


def decoding_claims(
    outcomes: pd.DataFrame, matched: dict[float, tuple[Method, ...]], margin: float
) -> tuple[pd.DataFrame, pd.DataFrame]:
    """The paper's claims on decoding, each answered by a paired interval on one checkpoint's outcomes.

    Parameters
    ----------
    outcomes : DataFrame
    matched : dict
        ``mi_lib.runs.matched_methods`` of that checkpoint: MI guidance is its first method.
    margin : float
        Loss of accuracy, a share, that still counts as preserved.

    Returns
    -------
    claims : DataFrame
        ``claim``, ``answer``, ``difference in points, 95 %``.
    pairs : DataFrame
        ``paired_table`` of what was compared, with the ratio of passes.
    """
    rows, tables = [], []
    for target, methods in matched.items():
        keys = [(m.name, m.parameters) for m in methods]
        zero = next(key for key, m in zip(keys, methods, strict=True) if m.head == "zero")
        table = paired_table(outcomes, [(keys[0], ("Sequential", "")), (keys[0], keys[-1]), (keys[0], zero)])
        table["fewer passes"] = table["passes b"] / table["passes a"]
        tables.append(table)
        s, e, z = (row for _, row in table.iterrows())
        about = f"({target:.0f} passes)"
        kept = verdict(s["low"] + 100 * margin, s["high"] + 100 * margin)
        for claim, answer, row in (
            (f"{s['fewer passes']:.1f} times fewer passes at preserved accuracy", kept, s),
            (f"MI-guided solves more than Sequential {about}", verdict(s["low"], s["high"], s["p"]), s),
            (f"MI-guided solves more than EB at equal passes {about}", verdict(e["low"], e["high"], e["p"]), e),
            (
                f"Not claimed by the paper: MI adds to the budget rule alone {about}",
                verdict(z["low"], z["high"], z["p"]),
                z,
            ),
        ):
            span = f"{row['difference']:+.1f} [{row['low']:+.1f}, {row['high']:+.1f}]"
            rows.append({"claim": claim, "answer": answer, "difference in points, 95 %": span})
    return pd.DataFrame(rows), pd.concat(tables, ignore_index=True)


def families(table: pd.DataFrame) -> pd.DataFrame:
    """``table`` with ``method`` replaced by the curve a row belongs to (MI-guided rows: one a head), by passes."""
    head = table["parameters"].str.extract(r"head=(\S+)")[0]
    names = {"zero": "budget rule, MI = 0", "entropy": "MI, entropy head", "mixture": "MI, mixture head"}
    return table.assign(method=head.map(names).fillna(table["method"])).sort_values(["method", "passes"])


def show(table: pd.DataFrame, digits: int = 1, **finer: int):
    """A table for the page, without its index: ``digits`` after the point, more for the columns in ``finer``.

    A p-value that would round to zero is shown as smaller than the last digit.
    """
    formats = {c: f"{{:.{finer.get(c, digits)}f}}" for c in table.select_dtypes("float")}
    if "p" in formats:
        least = 10 ** -finer.get("p", digits)
        plain = formats["p"].format
        formats["p"] = lambda p: plain(p) if p >= least else f"&lt; {plain(least)}"
    return table.style.hide(axis="index").format(formats, na_rep="")


def verdict(low: float, high: float, p: float = 0.0) -> str:
    """Whether a difference is above zero by its 95 % interval (and p-value): "yes", "no" or "not resolved"."""
    if p >= 0.05:
        return "not resolved"
    if low > 0:
        return "yes"
    return "no" if high < 0 else "not resolved"
