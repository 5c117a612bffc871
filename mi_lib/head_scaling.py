"""How the score of an MI head grows with the number of labelled boards it is trained on."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pandas as pd

from mi_lib.head import HeadConfig
from mi_lib.head_scores import pair_table, score_table
from mi_lib.head_training import HeadTraining, Pairs, gather_pairs, train_head
from mi_lib.labels import Labels, read_labels
from mi_lib.mdm import MDM


def first_boards(pairs: Pairs, n: int) -> Pairs:
    """The pairs of the first ``n`` boards; hidden states are shared."""
    keep = pairs.board < n
    return replace(pairs, i=pairs.i[keep], j=pairs.j[keep], board=pairs.board[keep], target=pairs.target[keep])


def scale_head(
    model: MDM,
    folder: Path,
    held_out: Labels,
    estimator: str,
    sizes: tuple[int, ...],
    progress: Callable[[int], None] = lambda heads: None,
    training: HeadTraining = HeadTraining(),  # noqa: B008 (frozen)
) -> pd.DataFrame:
    """Train a head on the first ``n`` boards of a folder of labels, for each size ``n``, and score it.

    Parameters
    ----------
    model : MDM
    folder : Path
        Of ``make_labels``.
    held_out : Labels
        Fully probed boards.
    estimator : {"entropy", "mixture", "kl"}
    sizes : tuple of int
        Each at most the number of boards in ``folder``.
    progress : callable
        Called with 1 after each head.
    training : HeadTraining
        Its ``estimator`` is replaced; epochs are the same at every size, so steps grow with it.

    Returns
    -------
    DataFrame
        A row a size: ``n_boards``, ``n_pairs``, ``loss`` (of the last epoch, nats squared, on the directional rows),
        ``r2``, ``r2_low``, ``r2_high`` (95 %, bootstrap over boards), ``spearman``.
    """
    training = replace(training, estimator=estimator)
    everything = gather_pairs(model, read_labels(folder, max(sizes)), estimator)
    rows = []
    for n in sizes:
        pairs, curve = first_boards(everything, n), []
        head = train_head(pairs, HeadConfig(width=model.config.width), training, curve.append)
        score = score_table(pair_table(model, held_out, estimator, {"head": head}), ["head"]).iloc[0]
        kept = {name: score[name] for name in ("r2", "r2_low", "r2_high", "spearman")}
        rows.append({"n_boards": n, "n_pairs": len(pairs.target), "loss": curve[-1]["loss"], **kept})
        progress(1)
    return pd.DataFrame(rows)
