"""Figures of proteins: what is on the axes, not how it looks."""

import subprocess
import sys

import matplotlib

matplotlib.use("Agg")

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest
from matplotlib.colors import to_hex

from mi_lib import plots, protein_plots


@pytest.fixture
def ax():
    plots.set_style()
    fig, ax = plots.panels()
    yield ax
    fig.canvas.draw()  # whatever was drawn can be drawn
    plt.close(fig)


def texts(ax) -> list[str]:
    return [t.get_text() for t in ax.texts]


def legend(ax) -> list[str]:
    return [t.get_text() for t in ax.get_legend().get_texts()]


@pytest.fixture
def points() -> pd.DataFrame:
    rng = np.random.default_rng(0)
    sets = {"reference": rng.normal(0, 1, (200, 2)), "EB": rng.normal(1, 0.5, (50, 2)), "one": np.array([[99.0, 0.0]])}
    return pd.concat([pd.DataFrame(p, columns=["pc1", "pc2"]).assign(set=name) for name, p in sets.items()])


def test_pca_limits_hold_all_but_the_extremes(points):
    (low, high), _ = protein_plots.pca_limits(points)
    inside = points["pc1"].between(low, high)
    assert not inside.iloc[-1]
    assert inside.mean() > 0.98


def test_pca_panel(ax, points):
    limits = ((-4, 4), (-5, 5))
    assert protein_plots.draw_pca(ax, points, "EB", np.array([0.314, 0.12]), limits, color="#D55E00") is ax
    (cloud,) = [c for c in ax.collections if len(c.get_offsets()) == 50]
    eb = points[points["set"] == "EB"]
    np.testing.assert_allclose(cloud.get_offsets(), eb[["pc1", "pc2"]])
    assert to_hex(cloud.get_facecolor()[0]) == "#d55e00"
    assert len(ax.collections) == 3  # the reference's filled contours, the points, their contours
    assert ax.get_title() == "EB"
    assert ax.get_xlabel() == "PC 1 (31% of variance)"
    assert ax.get_ylabel() == "PC 2 (12% of variance)"
    assert (ax.get_xlim(), ax.get_ylim()) == limits
    assert texts(ax) == []


def test_points_beyond_the_axes_are_counted(ax, points):
    protein_plots.draw_pca(ax, points, "one", np.array([0.3, 0.1]), ((-4, 4), (-5, 5)))
    assert texts(ax) == ["1 outside"]


@pytest.fixture
def quality() -> pd.DataFrame:
    rows = [("Naive", p, p / 100) for p in (19.0, 6.0, 10.0)] + [("Sequential", 75.0, 0.02)]
    frame = pd.DataFrame(rows, columns=["method", "passes", "value"])
    return frame.assign(low=frame["value"] - 0.01, high=frame["value"] + 0.02)


def test_quality_curve(ax, quality):
    levels = pd.DataFrame({"method": ["other references", "unigram"], "value": [0.007, 0.3]})
    paper = pd.DataFrame({"method": ["Naive", "Naive"], "passes": [19.1, 9.8], "value": [0.03, 0.04]})
    assert protein_plots.draw_quality_curve(ax, quality, levels, "JSD (nats)", paper) is ax
    curve = next(line for line in ax.lines if len(line.get_xdata()) == 3)
    assert list(curve.get_xdata()) == [6, 10, 19]
    assert list(curve.get_ydata()) == pytest.approx([0.06, 0.1, 0.19])
    (hollow,) = [x for x in ax.lines if x.get_markerfacecolor() == "white" and len(x.get_xdata()) == 2]
    assert hollow.get_markeredgecolor() == curve.get_color()
    flat = [line.get_ydata()[0] for line in ax.lines if list(line.get_xdata()) == [0, 1]]
    assert flat == [0.007, 0.3]
    assert texts(ax) == ["other references", "unigram"]
    assert set(legend(ax)) == {"Naive", "Sequential", "hollow: the paper"}
    assert (ax.get_xscale(), ax.get_ylabel()) == ("log", "JSD (nats)")
    ax.figure.canvas.draw()
    assert {"10", "75"} <= {t.get_text() for t in ax.get_xticklabels()}


def test_a_single_point_has_an_error_bar(ax, quality):
    protein_plots.draw_quality_curve(ax, quality[quality["method"] == "Sequential"])
    (bars,) = ax.containers
    assert sorted(bars.lines[2][0].get_segments()[0][:, 1]) == pytest.approx([0.01, 0.04])


def test_entropy_trajectory(ax):
    rows = [
        (method, quantity, x, y - x, y - x - 0.1, y - x + 0.1)
        for method in ("Sequential", "MI")
        for quantity, y in (("entropy_left", 2.8), ("entropy_chosen", 2.0), ("chosen", 1.0))
        for x in (0.75, 0.25)
    ]
    columns = ["method", "quantity", "unmasked", "mean", "low", "high"]
    assert protein_plots.draw_entropy_trajectory(ax, pd.DataFrame(rows, columns=columns)) is ax
    curves = [line for line in ax.lines if list(line.get_xdata()) == [0.25, 0.75]]
    assert [line.get_ydata()[0] for line in curves] == pytest.approx([2.55, 1.75, 2.55, 1.75])
    assert curves[0].get_color() == curves[1].get_color() != curves[2].get_color()
    assert curves[0].get_linestyle() != curves[1].get_linestyle()
    assert legend(ax)[0] == "Sequential: mean of the masked"
    assert any(np.allclose(line.get_ydata(), np.log(20)) for line in ax.lines)
    assert "nats" in ax.get_ylabel()


def test_recovery(ax):
    rows = [(m, s, v - s / 10) for m, v in (("EB", 0.2), ("unigram", 0.1)) for s in (0.7, 0.3)]
    frame = pd.DataFrame(rows, columns=["method", "mask_share", "recovery"])
    frame = frame.assign(low=frame["recovery"] - 0.01, high=frame["recovery"] + 0.01)
    assert protein_plots.draw_recovery(ax, frame, shift=0) is ax
    line = ax.containers[0].lines[0]
    assert list(line.get_xdata()) == pytest.approx([0.3, 0.7])
    assert list(line.get_ydata()) == pytest.approx([0.17, 0.13])
    assert legend(ax) == ["EB", "unigram"]
    ax.figure.canvas.draw()
    assert [t.get_text() for t in ax.get_xticklabels()] == ["30%", "70%"]


def test_plots_import_no_torch():
    code = "import sys, mi_lib.protein_plots; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0
