"""Scores of heads on proteins: bins and baselines by hand, on made-up pairs."""

import numpy as np
import pandas as pd
import pytest
import torch
from toy_proteins import Chain

from mi_lib.ground_truth import ESTIMATORS, probe_rows
from mi_lib.labels import PAD, Labels
from mi_lib.protein_head_scores import baselines, protein_pairs, score_proteins


def fully_probed(model, tokens: torch.Tensor) -> dict[str, torch.Tensor]:
    owner, source = (tokens == model.mask_id).nonzero(as_tuple=True)
    mi = probe_rows(model, tokens, owner, source)
    return {"owner": owner, "source": source} | {name: mi.of(name) for name in ESTIMATORS}


def test_pairs_of_proteins_of_two_lengths():
    """A chain model depends on the left neighbour: adjacent masked residues share information, others hardly."""
    model = Chain()
    long, short = torch.full((1, 6), 4), torch.full((1, 4), 4)
    long[0, [1, 2, 5]], short[0, :] = model.mask_id, model.mask_id
    a, b = fully_probed(model, long), fully_probed(model, short)
    widen = lambda x: torch.nn.functional.pad(x, (0, 2))  # noqa: E731
    tokens = torch.cat([long, torch.nn.functional.pad(short, (0, 2), value=PAD)]).to(torch.uint8)
    values = {name: torch.cat([a[name], widen(b[name])]) for name in ESTIMATORS}
    labels = Labels(tokens, torch.cat([a["owner"], b["owner"] + 1]), torch.cat([a["source"], b["source"]]), **values)
    pairs = protein_pairs(model, labels, "mixture", {})
    assert pairs["board"].tolist() == [0] * 3 + [1] * 6
    assert list(zip(pairs["i"], pairs["j"], strict=True)) == [
        *[(1, 2), (1, 5), (2, 5)],
        *[(0, 1), (0, 2), (0, 3), (1, 2), (1, 3), (2, 3)],
    ]
    assert pairs["separation"].tolist() == [1, 4, 3, 1, 2, 3, 1, 2, 1]
    assert pairs["rate"].tolist() == [0.5] * 3 + [1.0] * 6
    near = pairs["separation"] == 1
    assert pairs.loc[near, "true"].min() > 0.1
    assert pairs.loc[~near, "true"].max() < 1e-5


def pairs_of(boards: int = 9) -> pd.DataFrame:
    """True MI 1 / separation in half-masked proteins, twice that in fully masked ones."""
    rows = [
        {"board": b, "separation": s, "rate": rate, "true": (1 + (rate == 1)) / s}
        for b in range(boards)
        for rate in (0.5, 1.0)
        for s in (1, 2, 40, 50)
    ]
    return pd.DataFrame(rows)


def test_distance_knows_separation_and_rate():
    frame = pairs_of()
    made = baselines(frame, frame)
    far = frame["separation"] > 30
    np.testing.assert_allclose(made["distance"][~far], frame.loc[~far, "true"])
    np.testing.assert_allclose(made["distance"][far & (frame["rate"] == 0.5)], (1 / 40 + 1 / 50) / 2)
    assert (made["zero"] == 0).all()


def test_what_distance_never_saw_gets_the_mean_of_its_rate_or_of_all():
    fit = pd.DataFrame({"separation": [1, 2], "rate": [0.5, 0.5], "true": [0.4, 0.2]})
    test = pd.DataFrame({"separation": [3, 1], "rate": [0.5, 1.0]})
    np.testing.assert_allclose(baselines(fit, test)["distance"], [0.3, 0.3])


def test_scores_over_all_pairs_and_by_rate():
    """A head that is right at one rate and says nothing at the other, on the last six of nine proteins."""
    frame = pairs_of()
    frame["head"] = frame["true"].where(frame["rate"] == 1.0, 0.0)
    table = score_proteins(frame, ["head"]).set_index(["rate", "predictor"])
    assert table.index.get_level_values("rate").unique().tolist() == [0.0, 0.5, 1.0]
    assert (table["n_proteins"] == 6).all()
    assert table.loc[(0.0, "head"), "n_pairs"] == 48
    assert table.loc[(1.0, "head"), "r2"] == pytest.approx(1)
    true = frame.loc[frame["rate"] == 0.5, "true"]
    assert table.loc[(0.5, "head"), "r2"] == pytest.approx(1 - (true**2).mean() / true.var(ddof=0))
    assert table.loc[(0.5, "zero"), "r2"] == table.loc[(0.5, "head"), "r2"]
    assert table.loc[(0.5, "distance"), "r2"] > 0.99
