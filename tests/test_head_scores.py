"""Scores of heads: matrices, pairs, baselines, the ceiling and deciles, each by hand or by a plain loop."""

import numpy as np
import pandas as pd
import pytest
import torch
from conftest import random_tokens
from references import distribution, head_score
from tabular import Recorder
from test_head_training import label

from mi_lib.ground_truth import ESTIMATORS, mutual_information
from mi_lib.head import HeadConfig, MIHead
from mi_lib.head_scores import (
    baselines,
    cost_ratio,
    directional_ceiling,
    error_by_decile,
    pair_table,
    score_table,
    true_matrices,
)
from mi_lib.labels import Labels


def by_hand(entries: list[list[float]]) -> Labels:
    """Boards of three cells, the middle one given: MI from the first to the last cell and back."""
    rows = torch.zeros(2 * len(entries), 3)
    rows[0::2, 2] = torch.tensor([forth for forth, _ in entries])
    rows[1::2, 0] = torch.tensor([back for _, back in entries])
    owner = torch.arange(len(entries)).repeat_interleave(2)
    source = torch.tensor([0, 2] * len(entries))
    tokens = torch.tensor([[0, 5, 0]] * len(entries), dtype=torch.uint8)
    return Labels(tokens, owner, source, entropy=rows, mixture=2 * rows, kl=3 * rows)


@pytest.mark.parametrize(("estimator", "factor"), [("entropy", 1), ("mixture", 2), ("kl", 3)])
def test_true_matrices_by_hand(estimator, factor):
    directional, symmetric = true_matrices(by_hand([[0.1, 0.3], [-0.4, 0.2]]), estimator)
    expected = torch.zeros(2, 3, 3)
    expected[0, 0, 2], expected[0, 2, 0] = 0.1, 0.3
    expected[1, 0, 2], expected[1, 2, 0] = -0.4, 0.2
    torch.testing.assert_close(directional, factor * expected)
    expected[0, 0, 2] = expected[0, 2, 0] = 0.2
    expected[1] = 0  # the mean is negative
    torch.testing.assert_close(symmetric, factor * expected)


def test_ceiling_by_hand():
    """Symmetric 0.2 and 0.6 predict rows 0.1, 0.3, 0.5, 0.7 of mean 0.4: errors 4 x 0.01 over a spread of 0.2."""
    assert directional_ceiling(by_hand([[0.1, 0.3], [0.5, 0.7]]), "entropy") == pytest.approx(0.8)
    assert directional_ceiling(by_hand([[0.2, 0.2], [0.5, 0.5]]), "kl") == pytest.approx(1)


def test_ceiling_counts_what_clamping_costs():
    """A mean of -0.1 is clamped to 0: errors 0.3 and 0.1, and 0.1 twice, over a spread of 0.6775 about 0.15."""
    ceiling = directional_ceiling(by_hand([[-0.3, 0.1], [0.3, 0.5]]), "entropy")
    assert ceiling == pytest.approx(1 - (0.09 + 0.01 + 0.01 + 0.01) / (0.45**2 + 0.05**2 + 0.15**2 + 0.35**2))


def test_row_probed_labels_are_refused(tiny_case):
    labels = label(*tiny_case, rows=2)
    for call in (true_matrices, directional_ceiling, lambda *a: pair_table(tiny_case[0], *a, {})):
        with pytest.raises(ValueError, match="12 rows for 42 masked positions: label with rows=0 to score"):
            call(labels, "entropy")


def test_an_unknown_estimator_is_named():
    with pytest.raises(ValueError, match="estimator='source', expected one of"):
        true_matrices(by_hand([[0.1, 0.2]]), "source")


@pytest.fixture(scope="module")
def boards(tiny_mdm) -> torch.Tensor:
    """More than a batch of the table, so that batches are put together again."""
    return torch.cat([random_tokens(tiny_mdm, 81, n, n=33, seed=n) for n in (2, 4)])


@pytest.fixture(scope="module")
def full(tiny_mdm, boards) -> Labels:
    return label(tiny_mdm, boards, rows=0)


@pytest.fixture(scope="module")
def head() -> MIHead:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        head = MIHead(HeadConfig(width=24, h=8))
        for parameter in head.parameters():
            torch.nn.init.normal_(parameter)
    return head.requires_grad_(False)


@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_pair_table_holds_every_pair(tiny_mdm, boards, full, head, estimator):
    table = pair_table(tiny_mdm, full, estimator, {"one": head, "two": head})
    expected = [
        (b, int(i), int(j))
        for b, board in enumerate(boards)
        for i in (board == 0).nonzero()
        for j in (board == 0).nonzero()
        if i < j
    ]
    assert list(table[["board", "i", "j"]].itertuples(index=False, name=None)) == expected
    assert len(table) == 33 * (1 + 6)
    assert (table["masked"] == np.where(table["board"] < 33, 2, 4)).all()
    same = {
        "row": table["i"] // 9 == table["j"] // 9,
        "col": table["i"] % 9 == table["j"] % 9,
        "box": (table["i"] // 27 == table["j"] // 27) & (table["i"] % 9 // 3 == table["j"] % 9 // 3),
    }
    same["any"] = same["row"] | same["col"] | same["box"]
    for name, values in same.items():
        assert (table[name] == values).all()
        assert values.any()
    assert (table["one"] == table["two"]).all()
    for board in (0, 40, 65):
        rows = table[table["board"] == board]
        p, hidden = distribution(tiny_mdm, boards[board]), tiny_mdm(boards[board][None]).hidden[0]
        mi = mutual_information(tiny_mdm, boards[board], estimator)
        for row in rows.itertuples():
            assert row.true == pytest.approx(mi[row.i, row.j].item(), abs=1e-5)
            assert row.overlap == pytest.approx(p[row.i] @ p[row.j], abs=1e-5)
            assert row.one == pytest.approx(head_score(head, hidden[row.i], hidden[row.j]).item(), rel=1e-3, abs=1e-5)


def frame(boards: list[int], **columns) -> pd.DataFrame:
    """A pair a board; pairs share no unit unless a column says so."""
    table = pd.DataFrame({"board": boards, "row": False, "col": False, "box": False, "overlap": 0.0, "true": 0.0})
    table = table.assign(**columns)
    return table.assign(any=table["row"] | table["col"] | table["box"])


def test_baselines_by_hand():
    fit = frame(
        [0] * 7,
        row=[True, True, True, False, False, False, False],
        box=[False, False, True, True, False, False, False],
        true=[0.1, 0.3, 0.5, 0.4, 0.0, 0.02, 0.01],
    )
    test = frame([1] * 4, row=[False, True, True, False], box=[False, False, True, True])
    made = baselines(fit, test)
    assert sorted(made) == ["overlap", "relation", "zero"]
    assert made["zero"].tolist() == [0, 0, 0, 0]
    np.testing.assert_allclose(made["relation"], [0.01, 0.2, 0.5, 0.4])


def test_a_relation_that_was_never_seen_has_no_mean():
    test = frame([1] * 3, row=[False, True, False], true=[0.1, 0.2, 0.3])
    np.testing.assert_allclose(baselines(frame([0] * 2, true=[0.0, 0.4]), test)["relation"], [0.2, np.nan, 0.2])


def test_overlap_baseline_is_a_line_for_units_and_one_for_the_rest():
    rng = np.random.default_rng(0)

    def draw(board: int) -> pd.DataFrame:
        row, overlap = rng.random(30) < 0.5, rng.random(30)
        return frame([board] * 30, row=row, overlap=overlap, true=np.where(row, 0.1 + 0.5 * overlap, 0.3 * overlap))

    fit, test = draw(0), draw(1)
    np.testing.assert_allclose(baselines(fit, test)["overlap"], test["true"], atol=1e-12)


@pytest.fixture(scope="module")
def scored() -> pd.DataFrame:
    """Nine boards of a unit pair and another; the last six have more MI than the first three."""
    boards = np.repeat(np.arange(9), 2)
    row = np.tile([True, False], 9)
    true = np.where(row, 0.3, 0.01) + 0.002 * boards + np.where(boards < 3, 0, 0.1)
    overlap = np.random.default_rng(0).random(18)
    return frame(boards, row=row, true=true, overlap=overlap, perfect=true, off=true + 0.05)


def test_score_table_judges_the_last_two_thirds(scored):
    table = score_table(scored, ["perfect", "off"]).set_index("predictor")
    assert list(table.index) == ["perfect", "off", "zero", "relation", "overlap"]
    assert (table["n_boards"] == 6).all()
    assert (table["n_pairs"] == 12).all()
    assert table.loc["perfect", ["r2", "spearman", "auroc_unit"]].tolist() == pytest.approx([1, 1, 1])
    assert table.loc["perfect", "rmse"] == pytest.approx(0, abs=1e-12)
    assert table.loc["off", "rmse"] == pytest.approx(0.05)
    test = scored[scored["board"] >= 3]
    spread = test["true"].var(ddof=0)
    assert table.loc["off", "r2"] == pytest.approx(1 - 0.05**2 / spread)
    assert table.loc["zero", "r2"] == pytest.approx(1 - (test["true"] ** 2).mean() / spread)
    assert np.isnan(table.loc["zero", "spearman"])
    assert table.loc["zero", "auroc_unit"] == 0.5


def test_baselines_are_fitted_on_the_first_third(scored):
    """Means 0.302 and 0.012 of boards 0 to 2, never corrected by the boards that are judged."""
    table = score_table(scored, []).set_index("predictor")
    test = scored[scored["board"] >= 3]
    error = test["true"] - np.where(test["row"], 0.302, 0.012)
    assert table.loc["relation", "rmse"] == pytest.approx(np.sqrt((error**2).mean()))
    judged = scored.assign(true=scored["true"].where(scored["board"] < 3, scored["true"] + 5))
    moved = score_table(judged, []).set_index("predictor")
    assert moved.loc["relation", "rmse"] == pytest.approx(np.sqrt(((error + 5) ** 2).mean()))


def test_deciles_by_hand():
    """Twenty pairs, two a decile, in any order; the error grows with the MI."""
    true = np.arange(20) / 10
    order = np.random.default_rng(0).permutation(20)
    pairs = pd.DataFrame({"true": true, "head": true + true * np.tile([1, -1], 10)}).iloc[order]
    table = error_by_decile(pairs, "head")
    assert table["decile"].tolist() == list(range(1, 11))
    pair = true.reshape(10, 2)
    np.testing.assert_allclose(table["true"], pair.mean(1))
    np.testing.assert_allclose(table["predicted"], pair[:, 0], atol=1e-12)  # twice the even one, and nothing
    np.testing.assert_allclose(table["rmse"], np.sqrt((pair**2).mean(1)))
    assert list(table) == ["decile", "true", "predicted", "rmse"]


def test_deciles_of_equal_values_are_tenths_all_the_same():
    table = error_by_decile(pd.DataFrame({"true": np.zeros(50), "head": np.full(50, 0.2)}), "head")
    assert table["decile"].tolist() == list(range(1, 11))
    np.testing.assert_allclose(table["rmse"], 0.2)


@pytest.mark.parametrize("masked", [45, 50, 53])
def test_cost_is_measured_on_boards_of_so_many_masked_cells(tiny_mdm, head, masked):
    """The clock is not tested: what is timed is, and that the ratio is that of the two times."""
    recorder, hidden_cells = Recorder(tiny_mdm), []

    def timed(hidden, hide):
        hidden_cells.append(hide)
        return head(hidden, hide)

    cost = cost_ratio(recorder, timed, masked, batch=4, repeats=3)
    assert sorted(cost) == ["cost_ratio", "head_seconds", "pass_seconds"]
    assert cost["cost_ratio"] == pytest.approx(cost["head_seconds"] / cost["pass_seconds"])
    assert len(recorder.calls) == 1 + 3
    assert len(hidden_cells) == 3
    for tokens in recorder.calls:
        assert ((tokens == 0).sum(-1) == masked).all()
    assert all(torch.equal(hide, recorder.calls[0] == 0) for hide in hidden_cells)


def test_tables_leave_their_arguments_alone(scored):
    before = scored.copy()
    score_table(scored, ["off"])
    error_by_decile(scored, "off")
    pd.testing.assert_frame_equal(scored, before)
