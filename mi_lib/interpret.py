"""What the MI of a Sudoku model shows: MI by relation, how consistent it is, and dependence that marginals hide."""

from collections.abc import Callable
from dataclasses import asdict

import numpy as np
import pandas as pd
import torch
from sklearn.metrics import roc_auc_score
from torch import Tensor

from mi_lib.artifacts import checkpoint_names
from mi_lib.belief import mean_by_relation
from mi_lib.checkpoints import load_mdm
from mi_lib.ground_truth import ESTIMATORS, DirectionalMI, diagnose, probe_rows
from mi_lib.head_scores import true_matrices
from mi_lib.labels import Labels
from mi_lib.masked import MaskedModel, require
from mi_lib.mdm import MDM, MDMConfig
from mi_lib.puzzles import load_puzzles
from mi_lib.sudoku import same_unit

CONTROL = "sudoku_control"  # a small MDM with one learned vector a cell: nothing gives it rows, columns and boxes

Progress = Callable[[int], None]


def partly_filled(n: int, seed: int = 0, smallest: int = 40) -> Tensor:
    """Test puzzles with a random number of empty cells filled in from their solutions: held-out boards to probe.

    Parameters
    ----------
    n : int
        Boards: the first ``n`` test puzzles.
    seed : int
    smallest : int
        Fewest masked cells; their number is uniform from there to the puzzle's. With fewer the model is mostly certain.

    Returns
    -------
    LongTensor of shape (n, 81)
    """
    puzzles, answers = load_puzzles(0, n)
    rng = np.random.default_rng(seed)
    for puzzle, answer in zip(puzzles, answers, strict=True):
        empty = rng.permutation(np.flatnonzero(puzzle == 0))
        shown = empty[rng.integers(smallest, len(empty) + 1) :]
        puzzle[shown] = answer[shown]
    return torch.from_numpy(puzzles).long()


def probe_boards(
    model: MaskedModel, boards: Tensor, tail: float = 0.0, progress: Progress = lambda boards: None
) -> Labels:
    """Boards probed from every masked cell, one after the other; ``progress`` gets the number just finished."""
    parts = []
    for k, board in enumerate(boards):
        source = (board == model.mask_id).nonzero().flatten()
        rows = probe_rows(model, board[None], torch.zeros_like(source), source, tail=tail)
        parts.append({"owner": torch.full_like(source, k), "source": source} | {n: rows.of(n) for n in ESTIMATORS})
        progress(1)
    return Labels(tokens=boards.to(torch.uint8), **{k: torch.cat([p[k] for p in parts]) for k in parts[0]})


def untrained_mdm(seed: int = 0, config: MDMConfig = MDMConfig()) -> MDM:  # noqa: B008 (frozen)
    """An MDM as it is before training: the control that has row, column and box embeddings and knows nothing."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return MDM(config).eval().requires_grad_(False)


def relation_models(checkpoints: list[str]) -> dict[str, MaskedModel]:
    """The named MDMs and their controls: an untrained one, and, if shipped, the small one with learned positions."""
    names = dict.fromkeys([*checkpoints, *(name for name in checkpoint_names("mdm") if name == CONTROL)])
    return {**{name: load_mdm(name) for name in names}, "untrained": untrained_mdm()}


def relations_table(
    models: dict[str, MaskedModel],
    n_boards: int = 40,
    seed: int = 0,
    tail: float = 1e-3,
    progress: Progress = lambda boards: None,
) -> pd.DataFrame:
    """Probed MI by relation of the two cells, over the same held-out boards for every model.

    Parameters
    ----------
    models : dict of MaskedModel
        By checkpoint name.
    n_boards, seed : int
        Of ``partly_filled``.
    tail : float
    progress : callable
        Called with the number of boards just probed; ``n_boards`` a model in all.

    Returns
    -------
    DataFrame
        A row a model, estimator, board and relation: ``checkpoint``, ``estimator``, ``board``, ``relation``, ``mi``
        (mean over the board's masked pairs, nats), ``pairs``, and ``auroc_unit``, how well the board's MI tells pairs
        that share a unit from the others (repeated for each relation).
    """
    boards, frames = partly_filled(n_boards, seed), []
    for name, model in models.items():
        labels = probe_boards(model, boards, tail, progress)
        masked = labels.tokens.numpy() == model.mask_id
        for estimator in ESTIMATORS:
            mi = true_matrices(labels, estimator)[1].numpy()
            auroc = pd.Series([unit_auroc(m, k) for m, k in zip(mi, masked, strict=True)], name="auroc_unit")
            table = mean_by_relation(mi, masked).join(auroc, on="board")
            table.insert(0, "estimator", estimator)
            table.insert(0, "checkpoint", name)
            frames.append(table)
    return pd.concat(frames, ignore_index=True)


def unit_auroc(mi: np.ndarray, masked: np.ndarray) -> float:
    """AUROC of the MI of masked pairs for sharing a unit; NaN if all pairs do, or none."""
    valid = np.triu(masked[:, None] & masked, 1)
    shares = same_unit()["any"][valid]
    return float(roc_auc_score(shares, mi[valid])) if 0 < shares.sum() < len(shares) else np.nan


def masked_pairs(board: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The pairs i < j of empty cells of a board, as two arrays of cells."""
    empty = np.asarray(board) == 0
    return np.nonzero(np.triu(empty[:, None] & empty, 1))


def strongest_pairs(mi: np.ndarray, n: int) -> np.ndarray:
    """The ``n`` pairs of cells with the largest MI, shape (n, 2), the largest first."""
    pairs = np.stack(np.triu_indices(len(mi), 1), 1)
    return pairs[np.argsort(-mi[pairs[:, 0], pairs[:, 1]], kind="stable")[:n]]


def diagnostics_table(directional: DirectionalMI, masked: Tensor) -> pd.DataFrame:
    """Diagnostics of one fully probed board a row an estimator, with the mean MI over its pairs (unclamped, nats)."""
    pairs = masked[:, None] & masked & ~torch.eye(len(masked), dtype=torch.bool)
    rows = [
        {"mean": float(directional.of(e)[pairs].mean()), **asdict(diagnose(directional, masked, e))} for e in ESTIMATORS
    ]
    return pd.DataFrame(rows, index=pd.Index(ESTIMATORS, name="estimator"))


def hidden_dependence(h: np.ndarray, mi: np.ndarray, tolerance: float = 0.02) -> dict[str, float]:
    """Two cells that neither entropies nor rules tell apart, though a third depends on only one of them (§3.4).

    Parameters
    ----------
    h : ndarray of shape (81,)
        Entropy of each cell in nats, NaN at observed cells.
    mi : ndarray of shape (81, 81)
    tolerance : float
        Largest difference in entropy, in nats.

    Returns
    -------
    dict
        ``source``, ``strong``, ``weak``: masked cells with the largest ``mi_strong - mi_weak``, where strong and weak
        each share a unit with the source and have the same entropy within the tolerance; and ``h_strong``, ``h_weak``,
        ``mi_strong``, ``mi_weak`` in nats.

    Raises
    ------
    ValueError
        If no three cells fit.
    """
    shares = same_unit()["any"] & ~np.isnan(h)[:, None]  # (source, other)
    close = np.abs(h[:, None] - h) <= tolerance  # False at observed cells
    np.fill_diagonal(close, False)
    valid = shares[:, :, None] & shares[:, None, :] & close
    require(bool(valid.any()), "tolerance", tolerance, "one within which two cells of a unit agree")
    gap = np.where(valid, mi[:, :, None] - mi[:, None, :], -np.inf)
    source, strong, weak = (int(k) for k in np.unravel_index(gap.argmax(), gap.shape))
    chosen = {"source": source, "strong": strong, "weak": weak, "h_strong": float(h[strong]), "h_weak": float(h[weak])}
    return chosen | {"mi_strong": float(mi[source, strong]), "mi_weak": float(mi[source, weak])}
