"""Figures of protein MI. Each function draws arrays or a tidy frame on ``ax`` and returns it."""

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator

from mi_lib.board_plots import INK, MI_MAP, OBSERVED
from mi_lib.plots import DASHES, MARKERS, PALETTE


def draw_protein_map(
    ax: Axes, mi: np.ndarray, masked: np.ndarray, sequence: str, vmax: float, label: str | None = "MI (nats)"
) -> Axes:
    """An MI matrix over the sequence; rows and columns of known residues are grey, masked cysteines ticked.

    Parameters
    ----------
    ax : Axes
    mi : ndarray of shape (L, L)
    masked : ndarray of shape (L,), bool
    sequence : str
    vmax : float
        Of the colour scale, nats.
    label : str, optional
        Of the colour bar; no bar without one.
    """
    shown = np.where(masked[:, None] & masked, mi, np.nan)
    np.fill_diagonal(shown, np.nan)
    L = len(sequence)
    ends = (0.5, L + 0.5, L + 0.5, 0.5)
    image = ax.imshow(shown, cmap=MI_MAP, vmin=0, vmax=vmax, extent=ends, interpolation="nearest")
    ax.set_facecolor(OBSERVED)
    cysteines = [i + 1 for i, letter in enumerate(sequence) if letter == "C" and masked[i]]
    ax.plot(cysteines, np.full(len(cysteines), -1.0), "v", color=PALETTE[1], ms=4, clip_on=False)
    ax.xaxis.set_major_locator(MaxNLocator(4, integer=True))
    ax.yaxis.set_major_locator(MaxNLocator(4, integer=True))
    ax.set(xlabel="residue", ylabel="residue")
    if label is not None:
        ax.figure.colorbar(image, ax=ax, fraction=0.046, pad=0.03, label=label, extend="max")
    return ax


def draw_mi_lines(ax: Axes, frame: pd.DataFrame, x: str, xlabel: str, ylabel: str = "mean MI of a pair (nats)") -> Axes:
    """A line a group with its band.

    Parameters
    ----------
    ax : Axes
    frame : DataFrame
        Columns ``group``, the one named ``x``, ``mean``, ``low``, ``high``.
    x, xlabel, ylabel : str
    """
    for k, (group, rows) in enumerate(frame.groupby("group", sort=False)):
        rows = rows.sort_values(x)
        style = {"color": PALETTE[k % 7], "ls": DASHES[k % 7], "marker": MARKERS[k % 7]}
        ax.plot(rows[x], rows["mean"], lw=1.8, ms=4, label=group, **style)
        ax.fill_between(rows[x], rows["low"], rows["high"], color=style["color"], alpha=0.15, lw=0)
    ax.set(xlabel=xlabel, ylabel=ylabel)
    ax.legend(loc="lower left", bbox_to_anchor=(0, 1.01), ncols=2, borderaxespad=0)
    return ax


def draw_kinds(ax: Axes, frame: pd.DataFrame, xlabel: str = "mean MI of a pair (nats)") -> Axes:
    """A dot with its interval for each kind of pair, a colour a group.

    Parameters
    ----------
    ax : Axes
    frame : DataFrame
        Columns ``group``, ``kind``, ``mean``, ``low``, ``high``.
    xlabel : str
    """
    kinds, groups = list(dict.fromkeys(frame["kind"])), list(dict.fromkeys(frame["group"]))
    for k, group in enumerate(groups):
        rows = frame[frame["group"] == group].set_index("kind").reindex(kinds)
        y = np.arange(len(kinds)) + 0.18 * (k - (len(groups) - 1) / 2)
        error = np.abs(rows[["low", "high"]].to_numpy().T - rows["mean"].to_numpy())
        style = {"color": PALETTE[k % 7], "marker": MARKERS[k % 7], "ls": "none", "capsize": 3}
        ax.errorbar(rows["mean"], y, xerr=error, label=group, **style)
    ax.set_yticks(range(len(kinds)), kinds, color=INK)
    ax.set(ylim=(len(kinds) - 0.5, -0.5), xlabel=xlabel, xlim=(0, None))
    ax.legend(loc="lower left", bbox_to_anchor=(0, 1.01), ncols=2, borderaxespad=0)
    return ax
