"""Figures: what is on the axes, not how it looks."""

import matplotlib

matplotlib.use("Agg")

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest
from matplotlib.colors import to_hex, to_rgb
from matplotlib.patches import FancyArrowPatch, Rectangle

from mi_lib import board_plots, plots
from mi_lib.sudoku import parse_puzzle

BOARD = parse_puzzle("53..7....6..195....98....6.8...6...34..8.3..17...2...6.6....28....419..5....8..79")
FILLED = np.flatnonzero(BOARD)


@pytest.fixture
def ax():
    plots.set_style()
    fig, ax = plots.panels()
    yield ax
    fig.canvas.draw()  # whatever was drawn can be drawn
    plt.close(fig)


def digits(ax):
    """Text by cell."""
    return {int(t.get_position()[1]) * 9 + int(t.get_position()[0]): t for t in ax.texts}


def frames(ax):
    return [p for p in ax.patches if isinstance(p, Rectangle) and not p.get_fill()]


def colorbar_label(ax):
    bars = [other for other in ax.figure.axes if other is not ax]
    assert len(bars) == 1
    return bars[0].get_ylabel()


def test_board_shows_clues_written_digits_marks_and_the_frame(ax):
    board = BOARD.copy()
    board[2] = 4
    assert board_plots.draw_board(ax, board, BOARD, highlight=3, marks={80 - 2: "1"}) is ax
    texts = digits(ax)
    assert {c: int(texts[c].get_text()) for c in np.flatnonzero(board)} == {c: board[c] for c in np.flatnonzero(board)}
    assert texts[0].get_weight() == "bold" != texts[2].get_weight()
    assert texts[0].get_color() != texts[2].get_color()
    assert texts[78].get_text() == "1"
    assert [f.get_xy() for f in frames(ax)] == [(pytest.approx(3.04), pytest.approx(0.04))]
    assert sum(line.get_linewidth() == 2 for line in ax.lines) == 8
    assert len(ax.lines) == 20


def test_rows_run_down_and_are_numbered_from_one(ax):
    board_plots.draw_board(ax, BOARD)
    low, high = ax.get_ylim()
    assert low > high
    assert [t.get_text() for t in ax.get_yticklabels()] == [str(k) for k in range(1, 10)]
    assert [t.get_text() for t in ax.get_xticklabels()] == [str(k) for k in range(1, 10)]


def test_cells_are_a_heat_map_of_the_empty_cells(ax):
    values = np.linspace(0, 2, 81)
    assert board_plots.draw_cells(ax, values, BOARD, highlight=2) is ax
    shown = ax.images[0].get_array()
    assert shown.shape == (9, 9)
    assert (shown.mask.ravel() == (BOARD > 0)).all()
    assert shown.compressed() == pytest.approx(values[BOARD == 0])
    assert ax.images[0].get_clim() == (0, values[BOARD == 0].max())
    assert set(digits(ax)) == set(FILLED)
    assert colorbar_label(ax) == "entropy (nats)"
    assert len(frames(ax)) == 1


@pytest.mark.parametrize("values", [np.zeros(81), np.full(81, np.nan)])
def test_cells_without_any_value_to_show(ax, values):
    board_plots.draw_cells(ax, values)
    assert ax.images[0].get_clim() == (0, 1)


def test_mi_map_marks_its_cell_and_writes_the_partners_value(ax):
    row = np.zeros(81)
    row[2:4] = 0.44, 0.9
    assert board_plots.draw_mi_from(ax, row, 5, BOARD, highlight=6, partner=2, vmax=1.0) is ax
    star = [line for line in ax.lines if line.get_marker() == "*"]
    assert [(*line.get_xdata(), *line.get_ydata()) for line in star] == [(5.5, 0.5)]
    assert digits(ax)[2].get_text() == ".44"
    assert ax.images[0].get_clim() == (0, 1)
    assert colorbar_label(ax) == "MI (nats)"


def test_partners_value_can_be_read_on_dark_and_light(ax):
    row = np.zeros(81)
    row[2:4] = 0.9, 0.02
    board_plots.draw_mi_from(ax, row, 5, BOARD, partner=2)
    board_plots.draw_mi_from(ax, row, 5, BOARD, partner=3)
    dark, light = (next(t for t in ax.texts if t.get_text() == text) for text in (".90", ".02"))
    assert to_hex(dark.get_color()) == board_plots.PAPER
    assert to_hex(light.get_color()) == board_plots.INK


def test_arcs_join_their_cells_and_grow_with_mi(ax):
    pairs, mi = np.array([[2, 3], [5, 75], [11, 20]]), np.array([0.1, 0.5, 0.3])
    assert board_plots.draw_arcs(ax, BOARD, pairs, mi, highlight=6) is ax
    arcs = [p for p in ax.patches if isinstance(p, FancyArrowPatch)]
    widths = [arc.get_linewidth() for arc in arcs]
    assert widths == sorted(widths)  # the strongest on top
    ends = [line for line in ax.lines if line.get_marker() == "o"]
    assert ends[-1].get_xdata() == pytest.approx([5.5, 3.5])
    assert ends[-1].get_ydata() == pytest.approx([0.5, 8.5])
    luminance = [board_plots._luminance(to_rgb(arc.get_edgecolor()[:3])) for arc in arcs]
    assert luminance == sorted(luminance, reverse=True)
    assert colorbar_label(ax) == "MI (nats)"


@pytest.mark.parametrize("pair", [(0, 54), (54, 0), (8, 62), (2, 6), (6, 2), (74, 78)])
def test_arcs_at_the_edge_bend_into_the_board(ax, pair):
    board_plots.draw_arcs(ax, BOARD, np.array([pair]), np.array([0.3]))
    (arc,) = [p for p in ax.patches if isinstance(p, FancyArrowPatch)]
    ax.figure.canvas.draw()
    points = ax.transData.inverted().transform(arc.get_transform().transform(arc.get_path().vertices))
    assert points.min() > 0.3 and points.max() < 8.7


def test_no_arcs(ax):
    board_plots.draw_arcs(ax, BOARD, np.zeros((0, 2), int), np.zeros(0))
    assert not [p for p in ax.patches if isinstance(p, FancyArrowPatch)]


def test_mi_matrix_of_the_empty_cells(ax):
    rng = np.random.default_rng(0)
    mi = rng.random((81, 81))
    cells = np.flatnonzero(BOARD == 0)
    assert plots.draw_mi_matrix(ax, mi, cells) is ax
    assert (ax.images[0].get_array() == mi[np.ix_(cells, cells)]).all()
    assert [t.get_text() for t in ax.get_xticklabels()] == [str(k) for k in range(1, 10)]
    assert "nats" in colorbar_label(ax)


def test_predicted_against_probed_counts_every_pair(ax):
    rng = np.random.default_rng(0)
    probed = rng.random(500)
    predicted = 0.8 * probed
    assert plots.draw_predicted_against_probed(ax, probed, predicted) is ax
    assert ax.collections[0].get_array().sum() == 500
    (line,) = ax.lines
    assert (line.get_xdata() == line.get_ydata()).all()
    assert ax.get_xlim() == ax.get_ylim()
    assert ax.get_xlabel() == "probed MI (nats)"
    assert ax.get_ylabel() == "predicted MI (nats)"
    assert colorbar_label(ax) == "pairs"


def test_relation_bars(ax):
    rows = [
        (model, relation, mean, mean - 0.01, mean + 0.02)
        for model, scale in (("trained", 1.0), ("control", 0.5))
        for relation, mean in (("row", 0.1 * scale), ("line and box", 0.2 * scale))
    ]
    frame = pd.DataFrame(rows, columns=["model", "relation", "mean", "low", "high"])
    assert plots.draw_relation_bars(ax, frame) is ax
    heights = [[bar.get_height() for bar in bars] for bars in ax.containers if hasattr(bars, "patches")]
    assert heights == [pytest.approx([0.1, 0.2]), pytest.approx([0.05, 0.1])]
    assert [t.get_text() for t in ax.get_legend().get_texts()] == ["trained", "control"]
    assert [t.get_text() for t in ax.get_xticklabels()] == ["row", "line\nand box"]
    segments = ax.collections[0].get_segments()  # error bars of the first model
    assert sorted(segments[0][:, 1]) == pytest.approx([0.09, 0.12])
    assert "nats" in ax.get_ylabel()


def test_relation_bars_leave_a_gap_for_what_is_missing(ax):
    frame = pd.DataFrame(
        [("a", "row", 0.1, 0.0, 0.2), ("a", "none", 0.1, 0.0, 0.2), ("b", "row", 0.3, 0.2, 0.4)],
        columns=["model", "relation", "mean", "low", "high"],
    )
    plots.draw_relation_bars(ax, frame)
    heights = [bar.get_height() for bars in ax.containers if hasattr(bars, "patches") for bar in bars]
    assert np.isnan(heights).sum() == 1


@pytest.fixture
def frontier():
    rows = [("Sequential", 53.9, 0.616)] + [("EB", p, 0.5 + p / 100) for p in (15.0, 8.0, 11.0)]
    frame = pd.DataFrame(rows, columns=["method", "passes", "solved"])
    return frame.assign(low=frame["solved"] - 0.03, high=frame["solved"] + 0.02)


def test_accuracy_curve_has_a_curve_and_band_a_method(ax, frontier):
    assert plots.draw_accuracy_curve(ax, frontier) is ax
    curve = next(line for line in ax.lines if len(line.get_xdata()) == 3)
    assert list(curve.get_xdata()) == [8, 11, 15]
    assert list(curve.get_ydata()) == pytest.approx([0.58, 0.61, 0.65])
    assert [t.get_text() for t in ax.get_legend().get_texts()] == ["Sequential", "EB"]
    assert ax.get_xscale() == "log"
    ax.figure.canvas.draw()
    assert {"10", "50"} <= {t.get_text() for t in ax.get_xticklabels()}
    assert all(t.get_text().endswith("%") for t in ax.get_yticklabels())


def test_papers_points_are_hollow_and_have_their_methods_colour(ax, frontier):
    paper = pd.DataFrame(
        [("Sequential", 53.9, 0.6), ("EB", 15.3, 0.61), ("EB", 9.9, 0.512), ("Naive", 9.0, 0.368)],
        columns=["method", "passes", "solved"],
    )
    plots.draw_accuracy_curve(ax, frontier, paper)
    hollow = [line for line in ax.lines if line.get_markerfacecolor() == "white"]
    assert sum(len(line.get_xdata()) for line in hollow) == 4
    curve = next(line for line in ax.lines if len(line.get_xdata()) == 3)
    (eb,) = [line for line in hollow if len(line.get_xdata()) == 2]
    assert eb.get_markeredgecolor() == curve.get_color()
    assert eb.get_marker() == curve.get_marker()
    assert ax.get_legend().get_texts()[-1].get_text() == "hollow: the paper"


def test_conflict_curve(ax):
    rows = [("Sequential", 53.9, 0.0), ("EB", 15.0, 0.2), ("EB", 9.0, 0.4), ("Naive", 14.0, 0.3)]
    frame = pd.DataFrame(rows, columns=["method", "passes", "conflict_rate"])
    frame = frame.assign(low=frame["conflict_rate"] - 0.01, high=frame["conflict_rate"] + 0.02)
    assert plots.draw_conflict_curve(ax, frame) is ax
    (curve,) = [line for line in ax.lines if len(line.get_xdata()) == 2]
    assert curve.get_xydata().tolist() == [[9.0, 0.4], [15.0, 0.2]]
    assert [t.get_text() for t in ax.get_legend().get_texts()] == ["Sequential", "EB", "Naive"]
    assert ax.get_ylabel() == "puzzles with a contradiction"
    assert ax.get_xscale() == "log"
    colours = [line.get_color() for line in ax.lines if len(line.get_xdata()) == 2]
    assert colours == [plots.PALETTE[1]]


def test_learning_curve(ax):
    frame = pd.DataFrame({"examples": [1000, 2000], "nats_20": [1, 0.1], "nats_40": [2, 1.0], "nats_54": [2.1, 1.5]})
    assert plots.draw_learning_curve(ax, frame.assign(loss=[2.0, 1.2])) is ax
    labels = [t.get_text() for t in ax.get_legend().get_texts()]
    assert labels == ["54 masked cells", "40 masked cells", "20 masked cells", "training loss"]
    assert list(ax.lines[2].get_ydata()) == [1, 0.1]
    assert any(np.allclose(line.get_ydata(), np.log(9)) for line in ax.lines)
    assert "nats" in ax.get_ylabel()


def test_no_colour_and_no_marker_stands_for_two_methods():
    assert len(set(plots.PALETTE)) == len(plots.PALETTE) == len(set(plots.MARKERS)) == len(plots.MARKERS)


def test_fonts_are_readable(ax):
    board_plots.draw_board(ax, BOARD, marks={2: "1"})
    board_plots.draw_mi_from(ax, np.linspace(0, 1, 81), 2, BOARD, partner=3)
    sizes = [t.get_size() for t in (*ax.texts, *ax.get_xticklabels(), *ax.get_yticklabels(), ax.title)]
    assert min(sizes) >= 9
    assert matplotlib.rcParams["legend.fontsize"] >= 9


def test_plots_import_no_torch():
    import subprocess
    import sys

    code = "import sys, mi_lib.plots, mi_lib.board_plots; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0
