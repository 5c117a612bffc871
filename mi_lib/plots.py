"""Figures of scores and curves. Each function draws arrays or a tidy frame on ``ax`` and returns it."""

import matplotlib as mpl
import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import seaborn as sns
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.ticker import FixedLocator, FuncFormatter, NullFormatter, PercentFormatter

from mi_lib.board_plots import ARC_MAP, INK, MI_MAP

# Wong's colour-blind-safe palette; marker and dash tell methods apart without colour.
PALETTE = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#222222")
MARKERS = ("o", "s", "^", "D", "v", "P", "X")
DASHES = ("-", "--", "-.", ":", (0, (5, 1, 1, 1, 1, 1)), (0, (1, 1)), (0, (7, 2)))


def set_style(font_size: float = 12) -> None:
    """Style of the book's figures: fonts for a phone's width, white background on light and dark pages."""
    sns.set_theme(style="ticks", palette=PALETTE, font="DejaVu Sans")
    mpl.rcParams.update(
        {
            "font.size": font_size,
            "axes.labelsize": font_size,
            "axes.titlesize": font_size,
            "xtick.labelsize": font_size - 1,
            "ytick.labelsize": font_size - 1,
            "legend.fontsize": font_size - 1,
            "legend.frameon": False,
            "axes.spines.top": False,
            "axes.spines.right": False,
            "figure.dpi": 120,
            "figure.facecolor": "white",
            "savefig.facecolor": "white",
        }
    )


def panels(rows: int = 1, columns: int = 1, width: float = 6.4, aspect: float = 0.75):
    """A figure and its axes: ``width`` inches wide, each panel ``aspect`` times as high as wide."""
    return plt.subplots(rows, columns, figsize=(width, width / columns * aspect * rows), layout="compressed")


def draw_mi_matrix(
    ax: Axes,
    mi: np.ndarray,
    cells: np.ndarray | None = None,
    vmax: float | None = None,
    label: str = "MI (nats)",
) -> Axes:
    """An MI matrix; lines part the rows of the board.

    Parameters
    ----------
    ax : Axes
    mi : ndarray of shape (81, 81)
    cells : ndarray of int, optional
        Show only these cells (the masked ones), in this order.
    vmax : float, optional
    label : str
        Of the colour bar.
    """
    cells = np.arange(len(mi)) if cells is None else np.asarray(cells)
    top = vmax if vmax is not None else mi.max() or 1.0
    image = ax.imshow(mi[np.ix_(cells, cells)], cmap=MI_MAP, vmin=0, vmax=top, interpolation="nearest")
    row = cells // 9
    for edge in np.flatnonzero(np.diff(row)) + 0.5:
        ax.axhline(edge, color="#bbbbbb", lw=0.5)
        ax.axvline(edge, color="#bbbbbb", lw=0.5)
    present = np.unique(row)
    middles = [np.flatnonzero(row == r).mean() for r in present]
    ax.set_xticks(middles, present + 1)
    ax.set_yticks(middles, present + 1)
    ax.set(xlabel="cell, by row of the board", ylabel="cell, by row of the board")
    ax.figure.colorbar(image, ax=ax, fraction=0.046, pad=0.03, label=label)
    return ax


def draw_predicted_against_probed(
    ax: Axes,
    probed: np.ndarray,
    predicted: np.ndarray,
    xlabel: str = "probed MI (nats)",
    ylabel: str = "predicted MI (nats)",
    line: str = "equal",
    bins: int = 40,
) -> Axes:
    """Density of pairs (log colour scale) with the identity line.

    Parameters
    ----------
    ax : Axes
    probed, predicted : ndarray of shape (n,)
        In nats.
    xlabel, ylabel : str
    line : str
        What the identity line means.
    bins : int
        Hexagons across.
    """
    top = 1.03 * max(float(np.max(probed)), float(np.max(predicted)), 1e-3)
    hexes = ax.hexbin(
        probed,
        predicted,
        gridsize=bins,
        extent=(0, top, 0, top),
        bins="log",
        mincnt=1,
        cmap=ARC_MAP,
        linewidths=0.2,
    )
    ax.plot([0, top], [0, top], color=PALETTE[1], lw=1.5, ls="--", label=line)
    ax.set(xlim=(-0.01 * top, top), ylim=(-0.01 * top, top), xlabel=xlabel, ylabel=ylabel)
    ax.set_box_aspect(1)
    ax.legend(loc="upper left")
    ax.figure.colorbar(hexes, ax=ax, fraction=0.046, pad=0.03, label="pairs")
    return ax


def draw_relation_bars(ax: Axes, frame: pd.DataFrame) -> Axes:
    """Mean MI by relation of the two cells, a bar a model, with intervals.

    Parameters
    ----------
    ax : Axes
    frame : DataFrame
        Columns ``model``, ``relation``, ``mean``, ``low``, ``high`` (nats), in the order to draw.
    """
    models, relations = list(dict.fromkeys(frame["model"])), list(dict.fromkeys(frame["relation"]))
    width, at = 0.8 / len(models), np.arange(len(relations))
    for k, model in enumerate(models):
        rows = frame[frame["model"] == model].set_index("relation").reindex(relations)
        x, mean = at + (k - (len(models) - 1) / 2) * width, rows["mean"].to_numpy()
        error = np.abs(rows[["low", "high"]].to_numpy().T - mean)
        hatch = ("", "//", "..", "xx")[k % 4]
        ax.bar(x, mean, width, color=PALETTE[k % len(PALETTE)], edgecolor="white", hatch=hatch, label=model)
        ax.errorbar(x, mean, error, fmt="none", ecolor=INK, elinewidth=1.2, capsize=2.5)
    ax.set_xticks(at, [relation.replace(" and ", "\nand ") for relation in relations])
    ax.set(xlabel="unit that the two cells share", ylabel="mean MI (nats)", ylim=(0, None))
    ax.legend()
    return ax


def draw_accuracy_curve(ax: Axes, frame: pd.DataFrame, paper: pd.DataFrame | None = None) -> Axes:
    """Share of puzzles solved against forward passes: a curve a method with its band, the paper's points hollow.

    Parameters
    ----------
    ax : Axes
    frame : DataFrame
        Columns ``method``, ``passes``, ``solved``, ``low``, ``high`` (shares, 0-1).
    paper : DataFrame, optional
        Columns ``method``, ``passes``, ``solved``; methods take the colours of ``frame``'s.
    """
    methods = list(dict.fromkeys([*frame["method"], *(() if paper is None else paper["method"])]))
    handles = _draw_over_passes(ax, frame, "solved", methods)
    if paper is not None:
        for k, method in enumerate(methods):
            color, marker = _style(k)
            points = paper[paper["method"] == method]
            style = {"marker": marker, "ms": 9, "ls": "none", "markerfacecolor": "white", "markeredgewidth": 1.8}
            ax.plot(points["passes"], points["solved"], markeredgecolor=color, zorder=5, **style)
        hollow = {"marker": "o", "ms": 9, "ls": "none", "markerfacecolor": "white", "markeredgecolor": INK}
        handles["hollow: the paper"] = Line2D([], [], **hollow)
    ax.legend(handles.values(), handles.keys(), loc="best")
    ax.set_ylabel("puzzles solved")
    return ax


def draw_conflict_curve(ax: Axes, frame: pd.DataFrame) -> Axes:
    """Share of puzzles in which cells written together contradict each other, against forward passes.

    Parameters
    ----------
    ax : Axes
    frame : DataFrame
        Columns ``method``, ``passes``, ``conflict_rate``, ``low``, ``high`` (shares, 0-1).
    """
    handles = _draw_over_passes(ax, frame, "conflict_rate", list(frame["method"].unique()))
    ax.legend(handles.values(), handles.keys(), loc="best")
    ax.set_ylabel("puzzles with a contradiction")
    return ax


def _style(k: int) -> tuple[str, str]:
    return PALETTE[k % len(PALETTE)], MARKERS[k % len(MARKERS)]


def _draw_over_passes(ax: Axes, frame: pd.DataFrame, value: str, methods: list[str]) -> dict[str, Artist]:
    """A curve and band a method, a single point with a bar; handles for the legend in the order of ``methods``."""
    for k, method in enumerate(methods):
        rows = frame[frame["method"] == method].sort_values("passes")
        color, marker = _style(k)
        if len(rows) == 1:
            error = np.abs(rows[["low", "high"]].to_numpy().T - rows[value].to_numpy())
            ax.errorbar(
                rows["passes"], rows[value], error, color=color, marker=marker, ls="none", capsize=3, label=method
            )
        elif len(rows):
            dash = DASHES[k % len(DASHES)]
            ax.plot(rows["passes"], rows[value], color=color, marker=marker, ms=5, ls=dash, lw=1.8, label=method)
            ax.fill_between(rows["passes"], rows["low"], rows["high"], color=color, alpha=0.15, lw=0)
    ax.set_xscale("log")
    ax.xaxis.set_major_locator(FixedLocator([2, 3, 5, 7, 10, 15, 20, 30, 50, 70]))
    ax.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    ax.xaxis.set_minor_formatter(NullFormatter())
    ax.yaxis.set_major_formatter(PercentFormatter(1, decimals=0))
    ax.set_xlabel("forward passes a puzzle (NFE, log scale)")
    drawn = dict(zip(*reversed(ax.get_legend_handles_labels()), strict=True))
    return {method: drawn[method] for method in methods if method in drawn}


def draw_learning_curve(ax: Axes, frame: pd.DataFrame) -> Axes:
    """Masked cross-entropy of held-out grids while the MDM trains, at three numbers of masked cells.

    Parameters
    ----------
    ax : Axes
    frame : DataFrame
        Columns ``examples``, ``nats_20``, ``nats_40``, ``nats_54`` and ``loss`` (training), nats a masked cell.
    """
    for k, count in enumerate((54, 40, 20)):
        label, style = f"{count} masked cells", {"marker": MARKERS[k], "ms": 4, "ls": DASHES[k], "lw": 1.8}
        ax.plot(frame["examples"], frame[f"nats_{count}"], color=PALETTE[k], label=label, **style)
    ax.plot(frame["examples"], frame["loss"], color="#888888", lw=1.2, label="training loss")
    ax.axhline(np.log(9), color=INK, lw=0.8, ls=":")
    ax.annotate(
        "ln 9: nothing learned", (1, 0.97 * np.log(9)), xycoords=("axes fraction", "data"), ha="right", va="top"
    )
    ax.set_yscale("log")
    ax.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    ax.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value / 1000:g}k"))
    ax.set(xlabel="training examples", ylabel="cross-entropy (nats a masked cell)")
    ax.legend(loc="lower left", bbox_to_anchor=(0, 1.01), ncols=2, borderaxespad=0)
    return ax


def draw_perplexity(ax: Axes, frame: pd.DataFrame) -> Axes:
    """Perplexity of masked residues while a protein model trains, at three shares of masked residues.

    Parameters
    ----------
    ax : Axes
    frame : DataFrame
        Columns ``residues``, ``perplexity_15``, ``perplexity_50``, ``perplexity_100``.
    """
    for k, share in enumerate((100, 50, 15)):
        style = {"marker": MARKERS[k], "ms": 4, "ls": DASHES[k], "lw": 1.8, "color": PALETTE[k]}
        ax.plot(frame["residues"], frame[f"perplexity_{share}"], label=f"{share} % masked", **style)
    ax.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value / 1e6:g}M"))
    ax.set(xlabel="training residues", ylabel="perplexity of masked residues")
    ax.legend()
    return ax
