"""Scores of MI heads on held-out, fully probed proteins, beside baselines that look at no hidden state."""

import numpy as np
import pandas as pd
import torch

from mi_lib.head import MIHead
from mi_lib.head_scores import pair_table
from mi_lib.labels import Labels, split_lengths
from mi_lib.masked import MaskedModel
from mi_lib.metrics import mi_scores, r2_interval

RATE_BINS = np.array([0.25, 0.5, 0.75, 1.0])  # upper ends of the shares of masked positions that are told apart
MAX_SEPARATION = 30  # pairs further apart are taken together


def protein_pairs(model: MaskedModel, labels: Labels, estimator: str, heads: dict[str, MIHead]) -> pd.DataFrame:
    """Every masked pair of fully probed proteins, of any lengths.

    Returns
    -------
    DataFrame
        As of ``mi_lib.head_scores.pair_table``, with ``separation`` (residues) and ``rate`` (the upper end of the bin
        of ``RATE_BINS`` that the protein's share of masked positions lies in); ``board`` numbers the proteins.
    """
    frames = []
    for boards, part in split_lengths(labels):
        L = part.tokens.shape[1]
        separation = (torch.arange(L)[:, None] - torch.arange(L)).abs()
        frame = pair_table(model, part, estimator, heads, {"separation": separation})
        share = (frame["masked"] / L).to_numpy()
        frame["rate"] = RATE_BINS[np.searchsorted(RATE_BINS, share - 1e-9)]
        frames.append(frame.assign(board=boards.numpy()[frame["board"]]))
    return pd.concat(frames).sort_values("board", kind="stable", ignore_index=True)


def baselines(fit: pd.DataFrame, test: pd.DataFrame) -> dict[str, np.ndarray]:
    """Predictions of two baselines on ``test``, in nats: ``zero``, and ``distance``.

    ``distance`` is the mean MI of the pairs ``fit`` with the same separation (beyond ``MAX_SEPARATION`` together) and
    bin of mask rate; a combination that was not seen gets the mean of its bin, and a bin that was not seen that of all.
    """

    def keys(frame: pd.DataFrame) -> pd.DataFrame:
        return pd.DataFrame({"separation": frame["separation"].clip(upper=MAX_SEPARATION), "rate": frame["rate"]})

    seen = keys(fit).assign(true=fit["true"])
    means = seen.groupby(["separation", "rate"])["true"].mean().rename("mean").reset_index()
    fallback = keys(test)["rate"].map(seen.groupby("rate")["true"].mean()).fillna(seen["true"].mean())
    distance = keys(test).merge(means, on=["separation", "rate"], how="left")["mean"].to_numpy()
    return {"zero": np.zeros(len(test)), "distance": np.where(np.isnan(distance), fallback.to_numpy(), distance)}


def score_proteins(pairs: pd.DataFrame, heads: list[str]) -> pd.DataFrame:
    """Scores on the last two thirds of the proteins, over all pairs and by mask rate; baselines see the first third.

    Returns
    -------
    DataFrame
        A row a predictor and bin: ``rate`` (0 for all pairs), ``predictor``, ``r2``, ``spearman``, ``rmse`` (nats),
        ``r2_low``, ``r2_high`` (95 %, bootstrap over proteins), ``mean`` (of the probed MI, nats), ``n_proteins``,
        ``n_pairs``.
    """
    third = (pairs["board"].max() + 1) // 3
    fit, test = pairs[pairs["board"] < third], pairs[pairs["board"] >= third]
    predictions = {name: test[name].to_numpy() for name in heads} | baselines(fit, test)
    rows = []
    for rate in (0.0, *sorted(test["rate"].unique())):
        chosen = (test["rate"] == rate).to_numpy() if rate else np.ones(len(test), bool)
        true, board = test["true"].to_numpy()[chosen], test["board"].to_numpy()[chosen]
        common = {"mean": true.mean(), "n_proteins": len(np.unique(board)), "n_pairs": len(true)}
        for name, predicted in predictions.items():
            low, high = r2_interval(predicted[chosen], true, board)
            scores = mi_scores(predicted[chosen], true)
            rows.append({"rate": rate, "predictor": name, **scores, "r2_low": low, "r2_high": high, **common})
    return pd.DataFrame(rows)
