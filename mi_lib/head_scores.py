"""Scores of MI heads on fully probed held-out boards, beside baselines that look at no hidden state."""

import time

import numpy as np
import pandas as pd
import torch
from sklearn.linear_model import LinearRegression
from torch import Tensor

from mi_lib.ground_truth import check_estimator, symmetrize
from mi_lib.head import MIHead
from mi_lib.labels import Labels
from mi_lib.masked import MaskedModel, marginals
from mi_lib.mdm import MASK_ID, forward_process
from mi_lib.metrics import mi_scores, r2_interval
from mi_lib.sudoku import generate_grids, same_unit


def true_matrices(labels: Labels, estimator: str, mask_id: int = MASK_ID) -> tuple[Tensor, Tensor]:
    """Directional and symmetrised, clamped MI matrices of fully probed boards, both (N, L, L), in nats.

    ``mask_id`` is the model's; Sudoku's by default.

    Raises
    ------
    ValueError
        If a board is not fully probed (labels made with ``rows=0`` are).
    """
    check_estimator(estimator)
    N, L = labels.tokens.shape
    masked = labels.tokens == mask_id
    if len(labels.owner) != int(masked.sum()):
        raise ValueError(
            f"{len(labels.owner)} rows for {int(masked.sum())} masked positions: label with rows=0 to score"
        )
    directional = torch.zeros(N, L, L)
    directional[labels.owner, labels.source] = getattr(labels, estimator)
    return directional, symmetrize(directional)


@torch.inference_mode()
def pair_table(
    model: MaskedModel,
    labels: Labels,
    estimator: str,
    heads: dict[str, MIHead],
    relations: dict[str, Tensor] | None = None,
) -> pd.DataFrame:
    """Every masked pair i < j of fully probed boards: what was probed, what is predicted, what the marginals say.

    Parameters
    ----------
    model : MaskedModel
    labels : Labels
        Fully probed.
    estimator : {"entropy", "mixture", "kl"}
    heads : dict of MIHead
    relations : dict of Tensor of shape (L, L), optional
        What to say of a pair besides; by default the units that two cells of a Sudoku share.

    Returns
    -------
    DataFrame
        Columns ``board``, ``i``, ``j``, ``masked`` (cells of the board), ``true``, ``overlap`` (the probability
        ``sum_v p_i(v) p_j(v)`` that independent samples collide), one column of predictions a head (MI in nats), and
        the relations: ``row``, ``col``, ``box``, ``any`` by default.
    """
    _, true = true_matrices(labels, estimator, model.mask_id)
    tokens = labels.tokens.long()
    masked = tokens == model.mask_id
    b, i, j = (masked[:, :, None] & masked[:, None, :]).triu(1).nonzero(as_tuple=True)
    overlap, predicted = [], {name: [] for name in heads}
    for chunk, keep in zip(tokens.split(64), masked.split(64), strict=True):
        log_p, hidden = marginals(model, chunk)
        overlap.append(log_p.exp() @ log_p.exp().transpose(-1, -2))
        for name, head in heads.items():
            predicted[name].append(head(hidden, keep))
    columns = {"board": b, "i": i, "j": j, "masked": masked.sum(-1)[b], "true": true[b, i, j]}
    columns |= {"overlap": torch.cat(overlap)[b, i, j]} | {k: torch.cat(v)[b, i, j] for k, v in predicted.items()}
    known = {n: torch.from_numpy(r) for n, r in same_unit().items()} if relations is None else relations
    columns |= {name: relation[i, j] for name, relation in known.items()}
    return pd.DataFrame({k: v.numpy() for k, v in columns.items()})


def baselines(fit: pd.DataFrame, test: pd.DataFrame) -> dict[str, np.ndarray]:
    """Predictions of three baselines on ``test``, fitted on the pairs ``fit``, in nats.

    ``zero``; ``relation``: the mean MI of pairs with the same shared units; ``overlap``: linear in the marginals'
    overlap, apart for pairs that share a unit and pairs that do not.
    """

    def features(frame: pd.DataFrame) -> np.ndarray:
        unit = frame["any"].to_numpy(float)
        return np.column_stack([frame["overlap"], frame["overlap"] * unit, unit])

    relation = fit.groupby(["row", "col", "box"])["true"].mean().rename("mean").reset_index()
    return {
        "zero": np.zeros(len(test)),
        "relation": test.merge(relation, on=["row", "col", "box"], how="left")["mean"].to_numpy(),
        "overlap": LinearRegression().fit(features(fit), fit["true"]).predict(features(test)),
    }


def score_table(pairs: pd.DataFrame, heads: list[str]) -> pd.DataFrame:
    """Scores of heads and baselines on the last two thirds of the boards; baselines are fitted on the first third.

    Returns
    -------
    DataFrame
        A row a predictor: ``predictor``, ``r2``, ``spearman``, ``rmse``, ``auroc_unit``, ``r2_low``,
        ``r2_high`` (95 %, bootstrap over boards), ``n_boards``, ``n_pairs``.
    """
    third = (pairs["board"].max() + 1) // 3
    fit, test = pairs[pairs["board"] < third], pairs[pairs["board"] >= third]
    predictions = {name: test[name].to_numpy() for name in heads} | baselines(fit, test)
    common = {"n_boards": test["board"].nunique(), "n_pairs": len(test)}
    true, unit, board = (test[name].to_numpy() for name in ("true", "any", "board"))
    rows = []
    for name, predicted in predictions.items():
        low, high = r2_interval(predicted, true, board)
        rows.append({"predictor": name, **mi_scores(predicted, true, unit), "r2_low": low, "r2_high": high, **common})
    return pd.DataFrame(rows)


def directional_ceiling(labels: Labels, estimator: str, mask_id: int = MASK_ID) -> float:
    """R2 of the symmetrised truth as a predictor of the directional rows a head is trained on."""
    directional, symmetric = true_matrices(labels, estimator, mask_id)
    masked = labels.tokens == mask_id
    pairs = masked[:, :, None] & masked[:, None, :] & ~torch.eye(masked.shape[1], dtype=torch.bool)
    return mi_scores(symmetric[pairs].numpy(), directional[pairs].numpy())["r2"]


def error_by_decile(pairs: pd.DataFrame, head: str) -> pd.DataFrame:
    """Mean true and predicted MI and root mean squared error by decile of the true MI, in nats."""
    frame = pairs.assign(decile=pd.qcut(pairs["true"].rank(method="first"), 10, labels=range(1, 11)))
    frame["squared"] = (frame[head] - frame["true"]) ** 2
    table = frame.groupby("decile", observed=True).agg(
        true=("true", "mean"), predicted=(head, "mean"), squared=("squared", "mean")
    )
    return table.assign(rmse=np.sqrt(table.pop("squared"))).reset_index()


@torch.inference_mode()
def cost_ratio(
    model: MaskedModel, head: MIHead, masked: int = 50, batch: int = 64, repeats: int = 20
) -> dict[str, float]:
    """Time of the head over time of the model's pass on Sudoku boards, medians of ``repeats``.

    Parameters
    ----------
    model : MaskedModel
    head : MIHead
    masked : int
        Masked cells of each board.
    batch, repeats : int

    Returns
    -------
    dict
        ``pass_seconds`` and ``head_seconds`` a batch, and their ratio ``cost_ratio``.
    """
    generator = torch.Generator().manual_seed(0)
    grids = torch.from_numpy(generate_grids(batch, 0)).long()
    tokens = forward_process(grids, torch.full((batch,), masked / grids.shape[1]), model.mask_id, generator)
    hide, hidden = tokens == model.mask_id, model(tokens).hidden
    times = {"pass": [], "head": []}
    for _ in range(repeats):
        for name, run in (("pass", lambda: model(tokens)), ("head", lambda: head(hidden, hide))):
            started = time.perf_counter()
            run()
            times[name].append(time.perf_counter() - started)
    spent = {name: float(np.median(values)) for name, values in times.items()}
    return {f"{name}_seconds": value for name, value in spent.items()} | {"cost_ratio": spent["head"] / spent["pass"]}
