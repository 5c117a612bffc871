"""What the MI of a Sudoku model shows: held-out boards, relations, diagnostics, hidden dependence."""

import numpy as np
import pytest
import torch
from tabular import SupportModel

from mi_lib.belief import RELATIONS, empty_clues, exact_belief
from mi_lib.ground_truth import ESTIMATORS, mutual_information, probe
from mi_lib.head_scores import true_matrices
from mi_lib.interpret import (
    diagnostics_table,
    hidden_dependence,
    masked_pairs,
    partly_filled,
    probe_boards,
    relations_table,
    strongest_pairs,
    unit_auroc,
    untrained_mdm,
)
from mi_lib.mdm import MDMConfig
from mi_lib.puzzles import load_puzzles
from mi_lib.sudoku import same_unit

TINY = MDMConfig(width=24, n_layers=1, n_heads=2, feed_forward=32, head_width=32)


def test_partly_filled_boards_are_puzzles_with_part_of_their_solutions():
    puzzles, answers = load_puzzles(0, 20)
    boards = partly_filled(20, seed=1, smallest=30).numpy()
    assert ((boards == 0) | (boards == answers)).all()
    assert (boards[puzzles > 0] == puzzles[puzzles > 0]).all()
    count = (boards == 0).sum(1)
    assert count.min() >= 30
    assert (count < (puzzles == 0).sum(1)).any()
    assert (partly_filled(20, seed=1, smallest=30).numpy() == boards).all()
    assert (partly_filled(20, seed=2, smallest=30).numpy() != boards).any()


def test_probe_boards_is_probing_each_board(tiny_case):
    model, tokens = tiny_case
    done = []
    labels = probe_boards(model, tokens[:2], progress=done.append)
    assert done == [1, 1]
    for estimator in ESTIMATORS:
        expected = mutual_information(model, tokens[:2], estimator)
        assert torch.allclose(true_matrices(labels, estimator)[1], expected, atol=1e-6)


def test_relations_table():
    models = {"a": untrained_mdm(0, TINY), "b": untrained_mdm(1, TINY)}
    done = []
    table = relations_table(models, n_boards=2, tail=0.3, progress=done.append)
    assert sum(done) == 4
    assert len(table) == 2 * len(ESTIMATORS) * 2 * len(RELATIONS)
    assert set(table["checkpoint"]) == {"a", "b"}
    boards = table.groupby(["checkpoint", "estimator", "board"])
    masked = (partly_filled(2) == 0).sum(1).tolist()
    assert boards["pairs"].sum().unstack().iloc[0].tolist() == [m * (m - 1) // 2 for m in masked]
    assert (boards["auroc_unit"].nunique() == 1).all()


def test_untrained_mdm_leaves_the_global_generator_alone():
    state = torch.get_rng_state()
    one, two = untrained_mdm(3, TINY), untrained_mdm(3, TINY)
    assert torch.equal(torch.get_rng_state(), state)
    assert all(torch.equal(a, b) for a, b in zip(one.parameters(), two.parameters(), strict=True))


def test_unit_auroc():
    masked = np.zeros(81, bool)
    masked[[0, 1, 9, 80, 70]] = True
    shares = same_unit()["any"].astype(float)
    assert unit_auroc(shares, masked) == 1
    assert unit_auroc(1 - shares, masked) == 0
    assert unit_auroc(np.zeros((81, 81)), masked) == 0.5
    masked[[80, 70]] = False
    assert np.isnan(unit_auroc(shares, masked))


def test_pairs():
    board = np.ones(81, int)
    board[[4, 20, 66]] = 0
    assert np.transpose(masked_pairs(board)).tolist() == [[4, 20], [4, 66], [20, 66]]
    mi = np.zeros((81, 81))
    mi[4, 20] = mi[20, 4] = 0.1
    mi[20, 66] = mi[66, 20] = 0.3
    assert strongest_pairs(mi, 2).tolist() == [[20, 66], [4, 20]]


def test_diagnostics_of_a_consistent_model():
    board = empty_clues(load_puzzles(0, 1)[0][0], 3, 20, seed=0)
    exact = exact_belief(board)
    sequences = torch.from_numpy(exact.solutions).long() - 1
    model = SupportModel(sequences, torch.ones(len(sequences)), vocab=torch.arange(1, 10), mask_id=0)
    tokens = torch.from_numpy(board).long()
    table = diagnostics_table(probe(model, tokens), tokens == 0)
    assert list(table.index) == list(ESTIMATORS)
    i, j = masked_pairs(board)
    assert table["mean"].to_numpy() == pytest.approx(exact.mi[i, j].mean(), abs=1e-5)
    assert table["inconsistency"].to_numpy() == pytest.approx(0, abs=1e-6)
    assert table["asymmetry"].to_numpy() == pytest.approx(0, abs=1e-3)


def test_hidden_dependence_by_hand():
    h, mi = np.full(81, np.nan), np.zeros((81, 81))
    h[[0, 1, 2, 3, 80]] = [0.9, 0.500, 0.505, 0.8, 0.5]
    for i, j, value in ((0, 1, 0.4), (0, 2, 0.1), (0, 3, 0.6), (1, 2, 0.05), (0, 80, 0.0)):
        mi[i, j] = mi[j, i] = value
    found = hidden_dependence(h, mi)
    # cell 3 depends more, but its entropy differs; cell 80 depends less, but shares no unit with cell 0
    assert (found["source"], found["strong"], found["weak"]) == (0, 1, 2)
    assert (found["h_strong"], found["h_weak"]) == (0.5, 0.505)
    assert found["mi_strong"] - found["mi_weak"] == pytest.approx(0.3)
    with pytest.raises(ValueError, match=r"tolerance=0\.001, expected one within which two cells of a unit agree"):
        hidden_dependence(h, mi, tolerance=0.001)
