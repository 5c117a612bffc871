"""What README.md and data/README.md show of the recorded results; ``python -m mi_lib.readme`` writes it."""

import re
from pathlib import Path

import pandas as pd

from mi_lib.artifacts import ROOT, atomic_path, checkpoint_names, read_json
from mi_lib.runs import recorded_outcomes
from mi_lib.tables import beside_paper

PICTURE = ROOT / "book" / "_static" / "result.png"


def markdown(table: pd.DataFrame) -> str:
    """A Markdown table; numbers are strings already."""
    lines = ["| " + " | ".join(table.columns) + " |", "|" + " --- |" * len(table.columns)]
    return "\n".join(lines + ["| " + " | ".join(map(str, row)) + " |" for row in table.to_numpy()])


def table1_markdown(checkpoint: str = "sudoku_paper") -> str:
    """The paper's seven rows beside the recorded ones, on the committed test set."""
    table = beside_paper(recorded_outcomes(checkpoint, 0))
    shown = pd.DataFrame(
        {
            "method": (table["method"] + " " + table["parameters"]).str.strip(),
            "passes, paper": table["paper passes"].map("{:.1f}".format),
            "passes, here": table["here passes"].map("{:.1f}".format),
            "solved, paper": table["paper solved"].map("{:.1f} %".format),
            "solved, here (95 %)": [
                f"{row['here solved']:.1f} % ({row['low']:.1f} to {row['high']:.1f})" for _, row in table.iterrows()
            ],
        }
    )
    return markdown(shown)


def checkpoints_markdown() -> str:
    """The shipped checkpoints."""
    rows = []
    for name in checkpoint_names():
        meta = read_json(ROOT / "data" / "checkpoints" / f"{name}.json")
        if meta["kind"] == "mdm":
            what = f"MDM, {meta['examples']:,} training examples"
            command = f"`mi train sudoku`, snapshot at step {meta['step']:,}"
        elif meta["kind"] == "esmc":
            what = f"ESM-C, {meta['residues']:,} training residues"
            command = f"`mi train esmc`, step {meta['step']:,}"
        else:
            estimator = meta["training"]["estimator"]
            what = f"MI head of `{meta['model']}`, `{estimator}` estimator, {meta['n_boards']:,} states"
            command = f"`mi label`, `mi train-head --checkpoint {meta['model']} --estimator {estimator}`"
        rows.append((f"`{name}`", meta["kind"], what, command))
    return "\n".join("| " + " | ".join(row) + " |" for row in rows)


def fill(text: str, marker: str, content: str) -> str:
    """``text`` with what stands between the begin and end comments of ``marker`` replaced."""
    pattern = re.compile(rf"(<!-- {marker}:begin -->\n).*?(<!-- {marker}:end -->)", re.DOTALL)
    if not pattern.search(text):
        raise ValueError(f"no <!-- {marker}:begin --> ... <!-- {marker}:end --> in the text")
    return pattern.sub(lambda m: f"{m[1]}{content}\n{m[2]}", text)


def documents() -> dict[Path, str]:
    """The two README files as they should be."""
    readme, data = ROOT / "README.md", ROOT / "data" / "README.md"
    return {
        readme: fill(readme.read_text(encoding="utf-8"), "table1", table1_markdown()),
        data: fill(data.read_text(encoding="utf-8"), "checkpoints", checkpoints_markdown()),
    }


def draw_picture(checkpoint: str = "sudoku_paper") -> None:
    """The README's picture: solve rate against passes, and a board with its strongest dependences."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt
    import torch

    from mi_lib import board_plots, fig1, interpret, plots
    from mi_lib.checkpoints import load_mdm
    from mi_lib.ground_truth import mutual_information
    from mi_lib.results import read_result
    from mi_lib.solving import PAPER_TABLE1
    from mi_lib.tables import families, with_intervals

    plots.set_style()
    model = load_mdm(checkpoint)
    state = fig1.choose_state(model, read_result("fig1_state"), checkpoint, -1, -1)
    with torch.inference_mode():
        mi = mutual_information(model, state.board, tail=1e-3).numpy()
    strongest = interpret.strongest_pairs(mi, 12)
    fig, axes = plt.subplots(1, 2, figsize=(13, 5.4), layout="constrained", width_ratios=(1.25, 1))
    curve = families(with_intervals(recorded_outcomes(checkpoint, 0)))
    plots.draw_accuracy_curve(axes[0], curve, families(PAPER_TABLE1))
    board_plots.draw_arcs(axes[1], state.board.numpy(), strongest, mi[tuple(strongest.T)], state.next_cell)
    axes[0].set_title("accuracy against passes, 1000 hard puzzles")
    axes[1].set_title("the strongest dependences on a board")
    with atomic_path(PICTURE) as temporary:
        fig.savefig(temporary, dpi=110, format="png")


if __name__ == "__main__":
    for path, content in documents().items():
        path.write_text(content, encoding="utf-8")
    draw_picture()
