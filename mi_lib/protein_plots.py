"""Figures of generated proteins. Each function draws a tidy frame on ``ax`` and returns it."""

import numpy as np
import pandas as pd
import seaborn as sns
from matplotlib.axes import Axes
from matplotlib.ticker import FixedLocator, FuncFormatter, NullFormatter, PercentFormatter

from mi_lib.board_plots import INK
from mi_lib.plots import DASHES, MARKERS, PALETTE

REFERENCE_COLOR = "#8c8c8c"
PASSES = [2, 3, 5, 7, 10, 15, 20, 30, 50, 75]


def pca_limits(points: pd.DataFrame, margin: float = 0.05) -> tuple[tuple[float, float], tuple[float, float]]:
    """Ranges of ``pc1`` and ``pc2`` that hold the middle 99.5 % of all points: the same axes for every panel."""
    limits = []
    for column in ("pc1", "pc2"):
        low, high = points[column].quantile([0.0025, 0.9975])
        room = margin * (high - low) or 1.0
        limits.append((low - room, high + room))
    return tuple(limits)


def draw_pca(
    ax: Axes,
    points: pd.DataFrame,
    name: str,
    explained: np.ndarray,
    limits: tuple[tuple[float, float], tuple[float, float]],
    color: str = PALETTE[0],
    reference: str = "reference",
) -> Axes:
    """One set of proteins over the reference in two principal components, as points and as contours of density.

    Parameters
    ----------
    ax : Axes
    points : DataFrame
        Columns ``set``, ``pc1``, ``pc2``.
    name : str
        The set to show.
    explained : ndarray of shape (2,)
        Share of variance along each component.
    limits : pair of ranges
        Of ``pca_limits``; points outside are counted on the panel.
    color : str
    reference : str
        The set in the background: grey, its contours filled.
    """
    back, front = points[points["set"] == reference], points[points["set"] == name]
    levels = [0.1, 0.3, 0.5, 0.7, 0.9]
    density = {"x": "pc1", "y": "pc2", "ax": ax, "warn_singular": False}
    sns.kdeplot(back, fill=True, levels=[*levels, 1.0], color=REFERENCE_COLOR, alpha=0.35, zorder=1, **density)
    ax.scatter(front["pc1"], front["pc2"], s=5, color=color, alpha=0.35, lw=0, zorder=2, rasterized=True)
    if len(front) > 2:
        sns.kdeplot(front, levels=levels, color=color, linewidths=1.2, zorder=3, **density)
    outside = sum(~(front["pc1"].between(*limits[0]) & front["pc2"].between(*limits[1])))
    if outside:
        ax.text(0.98, 0.02, f"{outside} outside", transform=ax.transAxes, ha="right", va="bottom", size=9, color=INK)
    ax.set(xlim=limits[0], ylim=limits[1], title=name)
    ax.set(xlabel=f"PC 1 ({explained[0]:.0%} of variance)", ylabel=f"PC 2 ({explained[1]:.0%} of variance)")
    return ax


def _styles(names: pd.Series) -> dict[str, dict]:
    """Colour, marker and dash of each name, in order of appearance; a colour's second turn has another dash."""
    styles = {}
    for k, name in enumerate(dict.fromkeys(names)):
        n = (k + k // 7) % 7
        styles[name] = {"color": PALETTE[k % 7], "marker": MARKERS[n], "ls": DASHES[n]}
    return styles


def _curve(ax: Axes, rows: pd.DataFrame, x: str, y: str, low: str, high: str, style: dict, label: str) -> None:
    """A line with its band; a single point with its error bar."""
    if len(rows) == 1:
        error = np.abs(rows[[low, high]].to_numpy().T - rows[y].to_numpy())
        ax.errorbar(rows[x], rows[y], error, **style | {"ls": "none"}, capsize=3, label=label)
    elif len(rows):
        ax.plot(rows[x], rows[y], ms=5, lw=1.8, label=label, **style)
        ax.fill_between(rows[x], rows[low], rows[high], color=style["color"], alpha=0.15, lw=0)


def draw_quality_curve(
    ax: Axes,
    frame: pd.DataFrame,
    levels: pd.DataFrame | None = None,
    label: str = "JSD to the reference (nats)",
    paper: pd.DataFrame | None = None,
) -> Axes:
    """A measure of generated proteins against forward passes: a curve a method, lines for the floor and the ceilings.

    Parameters
    ----------
    ax : Axes
    frame : DataFrame
        Columns ``method``, ``passes``, ``value``, ``low``, ``high``.
    levels : DataFrame, optional
        Columns ``method``, ``value``: sets that took no passes.
    label : str
        The measure and its unit.
    paper : DataFrame, optional
        Columns ``method``, ``passes``, ``value``; hollow, in the colours of ``frame``'s methods.
    """
    styles = _styles(pd.concat([frame["method"], *([] if paper is None else [paper["method"]])]))
    for method, style in styles.items():
        rows = frame[frame["method"] == method].sort_values("passes")
        _curve(ax, rows, "passes", "value", "low", "high", style, method)
        if paper is not None:
            points = paper[paper["method"] == method]
            hollow = {"ms": 9, "ls": "none", "markerfacecolor": "white", "markeredgewidth": 1.8, "zorder": 5}
            ax.plot(points["passes"], points["value"], markeredgecolor=style["color"], marker=style["marker"], **hollow)
    for row in () if levels is None else levels.itertuples():
        ax.axhline(row.value, color=REFERENCE_COLOR, lw=1, ls=":", zorder=0)
        at = {"transform": ax.get_yaxis_transform(), "va": "center", "ha": "left", "size": 9, "color": "#555555"}
        ax.text(1.01, row.value, row.method, **at)  # beside the axes, where no curve runs
    if paper is not None:
        hollow = {"marker": "o", "ms": 9, "ls": "none", "markerfacecolor": "white", "markeredgecolor": INK}
        ax.plot([], [], **hollow, label="hollow: the paper")
    ax.set_xscale("log")
    ax.xaxis.set_major_locator(FixedLocator(PASSES))
    ax.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    ax.xaxis.set_minor_formatter(NullFormatter())
    ax.set(xlabel="forward passes a protein (NFE, log scale)", ylabel=label)
    ax.legend(loc="lower left", bbox_to_anchor=(0, 1.01), ncols=2, borderaxespad=0)
    return ax


QUANTITIES = {"entropy_left": "mean of the masked", "entropy_chosen": "mean of those written"}


def draw_entropy_trajectory(ax: Axes, frame: pd.DataFrame, quantities: dict[str, str] = QUANTITIES) -> Axes:
    """Entropies along decoding: a colour a method, full for the masked positions, dashed for those written now.

    Parameters
    ----------
    ax : Axes
    frame : DataFrame
        Columns ``method``, ``quantity``, ``unmasked`` (share), ``mean``, ``low``, ``high`` (nats).
    quantities : dict
        From values of ``quantity`` to their name in the legend.
    """
    for name, style in _styles(frame["method"]).items():
        for dash, (quantity, text) in zip(DASHES, quantities.items(), strict=False):
            rows = frame[(frame["method"] == name) & (frame["quantity"] == quantity)].sort_values("unmasked")
            drawn = {"color": style["color"], "ls": dash, "marker": None}
            _curve(ax, rows, "unmasked", "mean", "low", "high", drawn, f"{name}: {text}")
    ax.axhline(np.log(20), color=INK, lw=0.8, ls=":")
    ax.text(0.01, 0.985 * np.log(20), "ln 20", transform=ax.get_yaxis_transform(), va="top", size=9, color=INK)
    ax.xaxis.set_major_formatter(PercentFormatter(1, decimals=0))
    ax.set(xlim=(0, 1), ylim=(0, None), xlabel="residues unmasked", ylabel="entropy (nats a residue)")
    ax.legend(loc="lower left", bbox_to_anchor=(0, 1.01), ncols=1, borderaxespad=0)
    return ax


def draw_recovery(ax: Axes, frame: pd.DataFrame, shift: float = 0.006) -> Axes:
    """Share of masked residues that come back, against the share masked, a line a method with its intervals.

    Parameters
    ----------
    ax : Axes
    frame : DataFrame
        Columns ``method``, ``mask_share``, ``recovery``, ``low``, ``high``.
    shift : float
        Between methods, so that their intervals do not hide each other.
    """
    styles = _styles(frame["method"])
    for k, (method, style) in enumerate(styles.items()):
        rows = frame[frame["method"] == method].sort_values("mask_share")
        x = rows["mask_share"] + shift * (k - (len(styles) - 1) / 2)
        error = np.abs(rows[["low", "high"]].to_numpy().T - rows["recovery"].to_numpy())
        ax.errorbar(x, rows["recovery"], error, ms=5, lw=1.5, capsize=2.5, elinewidth=1, label=method, **style)
    ax.set_xticks(sorted(frame["mask_share"].unique()))
    ax.xaxis.set_major_formatter(PercentFormatter(1, decimals=0))
    ax.yaxis.set_major_formatter(PercentFormatter(1, decimals=0))
    ax.set(xlabel="residues masked", ylabel="masked residues recovered")
    ax.legend(loc="lower left", bbox_to_anchor=(0, 1.01), ncols=2, borderaxespad=0)
    return ax
