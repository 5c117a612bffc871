"""Figures on a Sudoku board: digits, per-cell heat maps, and MI drawn as a map or as arcs. Nothing here computes."""

import numpy as np
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import LinearSegmentedColormap, Normalize
from matplotlib.patches import FancyArrowPatch, Rectangle
from matplotlib.text import Text

INK, FAINT, PAPER = "#222222", "#9a9a9a", "#ffffff"
GIVEN, WRITTEN, HIGHLIGHT, SOURCE = INK, "#0072B2", "#D55E00", "#CC79A7"  # Wong's colour-blind-safe palette
OBSERVED = "#ececec"
ENTROPY_MAP = LinearSegmentedColormap.from_list("entropy", ["#fff7e6", "#f0b04a", "#b3541e", "#4a1a0c"])
MI_MAP = LinearSegmentedColormap.from_list("mi", ["#f2f7fb", "#7fb8da", "#1f6fa8", "#08264a"])
ARC_MAP = LinearSegmentedColormap.from_list("arc", ["#7fb8da", "#1f6fa8", "#08264a"])
DIGIT_SIZE = 13


def _centre(cell: int) -> tuple[float, float]:
    return cell % 9 + 0.5, cell // 9 + 0.5


def _luminance(rgba) -> float:
    return 0.299 * rgba[0] + 0.587 * rgba[1] + 0.114 * rgba[2]


def draw_grid(ax: Axes) -> Axes:
    """Empty board: thin lines around cells, thick ones around boxes, rows and columns numbered from one."""
    ax.set(xlim=(-0.06, 9.06), ylim=(9.06, -0.06))
    ax.set_box_aspect(1)
    for k in range(10):
        style = {"color": INK, "lw": 2.0 if k % 3 == 0 else 0.6, "zorder": 2, "solid_capstyle": "projecting"}
        ax.plot([k, k], [0, 9], **style)
        ax.plot([0, 9], [k, k], **style)
    ticks = np.arange(9) + 0.5
    ax.set_xticks(ticks, range(1, 10), fontsize=10, color="#555555")
    ax.set_yticks(ticks, range(1, 10), fontsize=10, color="#555555")
    ax.tick_params(length=0, pad=2)
    ax.grid(False)
    for spine in ax.spines.values():
        spine.set_visible(False)
    return ax


def draw_box(ax: Axes, cell: int, color: str = HIGHLIGHT) -> Rectangle:
    """A thick frame around one cell."""
    x, y = cell % 9, cell // 9
    frame = Rectangle((x + 0.04, y + 0.04), 0.92, 0.92, fill=False, edgecolor=color, lw=3, zorder=5)
    return ax.add_patch(frame)


def draw_digits(ax: Axes, board: np.ndarray, given: np.ndarray | None = None, color: str | None = None) -> list[Text]:
    """Digits of the filled cells: clues in black and bold, digits written later in blue; all in ``color`` if given."""
    given = board if given is None else given
    texts = []
    for cell in np.flatnonzero(board):
        clue = given[cell] > 0
        style = {"color": color or (GIVEN if clue else WRITTEN), "weight": "bold" if clue and not color else "normal"}
        texts.append(ax.text(*_centre(cell), str(board[cell]), ha="center", va="center", size=DIGIT_SIZE, **style))
    return texts


def draw_board(
    ax: Axes,
    board: np.ndarray,
    given: np.ndarray | None = None,
    highlight: int | None = None,
    marks: dict[int, str] | None = None,
) -> Axes:
    """A board.

    Parameters
    ----------
    ax : Axes
    board : ndarray of shape (81,)
        ``0`` is an empty cell.
    given : ndarray of shape (81,), optional
        The clues; other digits are drawn as written later.
    highlight : int, optional
        Cell to frame.
    marks : dict of str, optional
        Pencil marks by cell.
    """
    draw_grid(ax)
    draw_digits(ax, board, given)
    for cell, text in (marks or {}).items():
        ax.text(*_centre(cell), text, ha="center", va="center", size=11, color=SOURCE, weight="bold", style="italic")
    if highlight is not None:
        draw_box(ax, highlight)
    return ax


def _draw_map(ax: Axes, values, board, cmap, vmax, label):
    """Heat map over the empty cells with its colour bar; filled cells grey, with their digits."""
    draw_grid(ax)
    shown = np.ma.masked_invalid(np.asarray(values, float).reshape(9, 9))
    if board is not None:
        shown = np.ma.masked_where(np.asarray(board).reshape(9, 9) > 0, shown)
        draw_digits(ax, board, color=FAINT)
    top = vmax if vmax is not None else float(shown.max()) if shown.count() else 1.0
    image = ax.imshow(
        shown,
        cmap=cmap.with_extremes(bad=OBSERVED),
        vmin=0,
        vmax=top or 1.0,
        extent=(0, 9, 9, 0),
        zorder=1,
        aspect="auto",
    )
    ax.set(xlim=(-0.06, 9.06), ylim=(9.06, -0.06))
    ax.figure.colorbar(image, ax=ax, fraction=0.046, pad=0.03, label=label)
    return image


def draw_cells(
    ax: Axes,
    values: np.ndarray,
    board: np.ndarray | None = None,
    highlight: int | None = None,
    vmax: float | None = None,
    label: str = "entropy (nats)",
) -> Axes:
    """A quantity of each cell as a heat map.

    Parameters
    ----------
    ax : Axes
    values : ndarray of shape (81,)
        NaN is drawn like a filled cell.
    board : ndarray of shape (81,), optional
        Its filled cells are drawn grey with their digit.
    highlight : int, optional
        Cell to frame.
    vmax : float, optional
        Top of the colour scale; the largest value by default.
    label : str
        Of the colour bar, with units.
    """
    _draw_map(ax, values, board, ENTROPY_MAP, vmax, label)
    if highlight is not None:
        draw_box(ax, highlight)
    return ax


def draw_mi_from(
    ax: Axes,
    mi_row: np.ndarray,
    cell: int,
    board: np.ndarray | None = None,
    highlight: int | None = None,
    partner: int | None = None,
    vmax: float | None = None,
    label: str = "MI (nats)",
) -> Axes:
    """MI map of one cell.

    Parameters
    ----------
    ax : Axes
    mi_row : ndarray of shape (81,)
        MI of ``cell`` with every cell, in nats.
    cell : int
        Marked with a star.
    board : ndarray of shape (81,), optional
        Its filled cells are drawn grey with their digit.
    highlight : int, optional
        Cell to frame.
    partner : int, optional
        Cell in which the value is written.
    vmax : float, optional
    label : str
    """
    image = _draw_map(ax, mi_row, board, MI_MAP, vmax, label)
    x, y = cell % 9, cell // 9
    ax.add_patch(Rectangle((x, y), 1, 1, facecolor=PAPER, zorder=1.5))
    ax.plot(*_centre(cell), marker="*", ms=15, color=SOURCE, markeredgecolor=INK, markeredgewidth=0.7, zorder=6)
    if partner is not None:
        rgba = image.cmap(image.norm(mi_row[partner]))
        color = INK if _luminance(rgba) > 0.5 else PAPER
        text = f"{mi_row[partner]:.2f}".lstrip("0")
        ax.text(*_centre(partner), text, ha="center", va="center", size=9, weight="bold", color=color, zorder=6)
    if highlight is not None:
        draw_box(ax, highlight)
    return ax


def draw_arcs(
    ax: Axes,
    board: np.ndarray,
    pairs: np.ndarray,
    mi: np.ndarray,
    highlight: int | None = None,
    vmax: float | None = None,
    label: str = "MI (nats)",
) -> Axes:
    """Pairs of cells as arcs over the board, darker and thicker the larger their MI.

    Parameters
    ----------
    ax : Axes
    board : ndarray of shape (81,)
    pairs : ndarray of shape (P, 2)
        Cells.
    mi : ndarray of shape (P,)
        In nats.
    highlight : int, optional
        Cell to frame.
    vmax : float, optional
        Top of the colour scale; the largest MI by default.
    label : str
        Of the colour bar.
    """
    draw_grid(ax)
    draw_digits(ax, board, color=FAINT)
    mi = np.asarray(mi, float)
    norm = Normalize(0, vmax if vmax is not None else max(mi.max(initial=0), 1e-9))
    for k in np.argsort(mi):  # the strongest on top
        (xa, ya), (xb, yb) = _centre(pairs[k][0]), _centre(pairs[k][1])
        dx, dy = xb - xa, yb - ya
        inward = -dy * (9 - xa - xb) + dx * (9 - ya - yb) >= 0  # an arc bends towards the middle of the board
        bend = (1.2 if inward else -1.2) / max(2.0, np.hypot(dx, dy))  # and all rise about as high
        share = float(norm(mi[k]))
        arc = FancyArrowPatch(
            (xa, ya),
            (xb, yb),
            arrowstyle="-",
            connectionstyle=f"arc3,rad={bend:.3f}",
            color=ARC_MAP(share),
            lw=1 + 3.5 * share,
            capstyle="round",
            zorder=4,
        )
        ax.add_patch(arc)
        ax.plot([xa, xb], [ya, yb], "o", ms=5, color=ARC_MAP(share), zorder=4.5)
    if highlight is not None:
        draw_box(ax, highlight)
    ax.figure.colorbar(ScalarMappable(norm, ARC_MAP), ax=ax, fraction=0.046, pad=0.03, label=label)
    return ax
