"""Probing: known answers, exact enumeration, the plain double loop, and what the two savings cost."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from references import directional_mi, pair_mi
from tabular import (
    LOG_4_3,
    Recorder,
    TabularModel,
    copied_pair,
    independent,
    random_joint,
    sudoku4_related,
    xor_triple,
)

from mi_lib.ground_truth import (
    ESTIMATORS,
    DirectionalMI,
    diagnose,
    mutual_information,
    probe,
    probe_rows,
    symmetrize,
)
from mi_lib.masked import marginals

TOLERANCE = 1e-5


@pytest.mark.parametrize("estimator", ESTIMATORS)
class TestKnownAnswers:
    def test_independent_variables_share_nothing(self, estimator):
        model = TabularModel(independent())
        assert mutual_information(model, model.masked(), estimator).abs().max() < TOLERANCE

    @pytest.mark.parametrize("size", [2, 3, 7])
    def test_a_copied_variable_shares_all_its_entropy(self, estimator, size):
        model = TabularModel(copied_pair(size))
        mi = mutual_information(model, model.masked()[0], estimator)
        assert mi[0, 1].item() == pytest.approx(math.log(size), abs=TOLERANCE)

    def test_pairs_of_an_xor_triple_share_nothing_until_the_third_is_known(self, estimator):
        model = TabularModel(xor_triple())
        assert mutual_information(model, model.masked(), estimator).abs().max() < TOLERANCE
        known = torch.tensor([1, model.mask_id, model.mask_id])
        assert mutual_information(model, known, estimator)[1, 2].item() == pytest.approx(math.log(2), abs=TOLERANCE)

    def test_cells_of_an_empty_4x4_sudoku(self, estimator, sudoku4_model):
        mi = mutual_information(sudoku4_model, sudoku4_model.masked()[0], estimator)
        related = sudoku4_related()
        torch.testing.assert_close(mi[related], torch.full((16 * 7,), LOG_4_3), atol=TOLERANCE, rtol=0)
        others = mi[~related & ~torch.eye(16, dtype=torch.bool)]
        to_zero, to_half = others.abs(), (others - LOG_4_3 / 2).abs()
        assert torch.minimum(to_zero, to_half).max() < TOLERANCE
        assert (to_zero < TOLERANCE).any()
        assert (to_half < TOLERANCE).any()

    def test_a_value_of_probability_zero_changes_nothing(self, estimator):
        joint = torch.zeros(3, 3, dtype=torch.float64)
        joint[:2, :2] = torch.tensor([[0.4, 0.1], [0.1, 0.4]])
        possible = TabularModel(joint[:2, :2])
        model = Recorder(TabularModel(joint))
        expected = mutual_information(possible, possible.masked()[0], estimator)
        torch.testing.assert_close(mutual_information(model, torch.tensor([3, 3]), estimator), expected)
        assert 2 not in torch.cat(model.calls)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("evidence", [{}, {1: 2}, {0: 0, 3: 1}])
def test_probe_is_the_mi_of_the_true_joint(seed, evidence):
    model = TabularModel(random_joint(4, 3, seed))
    tokens = torch.tensor([evidence.get(i, model.mask_id) for i in range(4)])
    directional = probe(model, tokens)
    for i in range(4):
        for j in range(4):
            free = i != j and not {i, j} & evidence.keys()
            true = pair_mi(model.sequences, model.probability, evidence, i, j) if free else 0.0
            for name in ESTIMATORS:
                assert directional.of(name)[i, j].item() == pytest.approx(true, abs=TOLERANCE)


def test_probe_is_the_mi_of_the_true_joint_on_4x4_sudoku(sudoku4_model):
    evidence = {0: 0, 5: 1, 10: 1, 13: 3}
    grids = sudoku4_model.sequences
    assert torch.stack([grids[:, k] == v for k, v in evidence.items()]).all(0).sum() > 1
    tokens = torch.tensor([evidence.get(k, -1) + 1 for k in range(16)])
    mi = mutual_information(sudoku4_model, tokens)
    for i, j in ((1, 2), (1, 14), (2, 3), (4, 7), (6, 9), (11, 15)):
        true = pair_mi(grids, sudoku4_model.probability, evidence, i, j)
        assert mi[i, j].item() == pytest.approx(true, abs=TOLERANCE)
    assert mi.max() > 0.1


@given(st.integers(0, 10_000), st.integers(2, 4), st.integers(2, 3))
def test_estimators_agree_and_are_symmetric_on_a_consistent_model(seed, length, size):
    model = TabularModel(random_joint(length, size, seed))
    tokens = model.masked()[0]
    directional = probe(model, tokens)
    for name in ESTIMATORS:
        A = directional.of(name)
        torch.testing.assert_close(A, A.T, atol=TOLERANCE, rtol=0)
        torch.testing.assert_close(A, directional.entropy, atol=TOLERANCE, rtol=0)
        assert (A > -TOLERANCE).all()
        diagnostics = diagnose(directional, tokens == model.mask_id, name)
        assert abs(diagnostics.inconsistency) < TOLERANCE
        assert diagnostics.asymmetry < 0.05


@given(st.permutations(range(3)), st.permutations(range(3)), st.integers(0, 100))
def test_relabelling_tokens_leaves_mi_unchanged(values, ids, seed):
    joint = random_joint(3, 3, seed)
    model = TabularModel(joint)
    relabelled = TabularModel(joint[values][:, values][:, :, values], vocab=torch.tensor(ids) + 4, mask_id=1)
    for name in ESTIMATORS:
        torch.testing.assert_close(
            mutual_information(model, model.masked()[0], name),
            mutual_information(relabelled, relabelled.masked()[0], name),
            atol=TOLERANCE,
            rtol=0,
        )


@given(st.permutations(range(4)), st.integers(0, 100))
def test_permuting_positions_permutes_mi(order, seed):
    joint = random_joint(4, 2, seed)
    model, moved = TabularModel(joint), TabularModel(joint.permute(order))
    mi = mutual_information(model, model.masked()[0])
    torch.testing.assert_close(
        mutual_information(moved, moved.masked()[0]), mi[order][:, order], atol=TOLERANCE, rtol=0
    )


def test_an_inconsistent_model_separates_the_estimators(case, tiny_mdm):
    model, tokens = case
    directional = probe(model, tokens[0])
    diagnostics = diagnose(directional, tokens[0] == model.mask_id)
    if model is tiny_mdm:
        assert diagnostics.inconsistency > 1e-3
        assert diagnostics.negative_share > 0.1
        assert diagnostics.asymmetry > 0.1
    else:
        assert abs(diagnostics.inconsistency) < TOLERANCE
    assert (directional.mixture > -TOLERANCE).all()
    assert (directional.kl - directional.mixture > -TOLERANCE).all()


def test_rows_are_exact_and_the_rest_is_zero(case):
    model, tokens = case
    full = probe(model, tokens[0])
    hidden = (tokens[0] == model.mask_id).nonzero().flatten()
    rows = hidden[[2, 0]]
    part = probe(model, tokens[0], rows=rows)
    others = torch.ones(len(tokens[0]), dtype=torch.bool)
    others[rows] = False
    for name in ESTIMATORS:
        torch.testing.assert_close(part.of(name)[rows], full.of(name)[rows], atol=TOLERANCE, rtol=0)
        assert (part.of(name)[others] == 0).all()
    assert part.passes < full.passes


def test_rows_of_many_sequences_equal_one_probe_each(case):
    model, tokens = case
    owner, source = (tokens == model.mask_id).nonzero(as_tuple=True)
    keep = torch.arange(len(owner)) % 3 == 1
    owner, source = owner[keep], source[keep]
    together = probe_rows(model, tokens, owner, source)
    for r in range(0, len(owner), 3):
        alone = probe(model, tokens[owner[r]], rows=source[r : r + 1])
        for name in ESTIMATORS:
            torch.testing.assert_close(together.of(name)[r], alone.of(name)[source[r]], atol=TOLERANCE, rtol=0)


@pytest.mark.parametrize("batch_size", [1, 5, 1000])
def test_batch_size_bounds_memory_and_not_the_answer(case, batch_size):
    model, tokens = case
    recorder, counted = Recorder(model), []
    part = probe(recorder, tokens[0], batch_size=batch_size, progress=counted.append)
    full = probe(model, tokens[0])
    for name in ESTIMATORS:
        torch.testing.assert_close(part.of(name), full.of(name), atol=TOLERANCE, rtol=0)
    assert max(map(len, recorder.calls)) <= batch_size
    assert part.passes == full.passes == recorder.passes == sum(counted)


def test_passes_are_one_plus_a_pass_per_masked_cell_and_value(tiny_mdm, case):
    model, tokens = case
    masked = tokens[0] == model.mask_id
    log_p = marginals(model, tokens[:1])[0][0]
    assert probe(model, tokens[0]).passes == 1 + (log_p[masked] > -torch.inf).sum()
    if model is tiny_mdm:
        assert probe(model, tokens[0]).passes == 1 + 9 * masked.sum()


@pytest.mark.parametrize("tail", [0.05, 0.2])
def test_skipped_values_count_as_changing_nothing(case, tail):
    model, tokens = case
    fast, plain = probe(model, tokens[0], tail=tail), directional_mi(model, tokens[0], tail)
    for name in ESTIMATORS:
        np.testing.assert_allclose(fast.of(name), plain[name], atol=2e-5)


@pytest.mark.parametrize("tail", [0.01, 0.05, 0.2])
def test_tail_errs_within_its_bounds(tiny_mdm, case, tail):
    model, tokens = case
    row, V = tokens[0], len(model.vocab)
    masked = row == model.mask_id
    exact, saved = probe(model, row), probe(model, row, tail=tail)
    log_p = marginals(model, row[None])[0][0].double()
    p = log_p.exp()[masked]
    skipped = (p < tail) & (p > 0)
    assert exact.passes - saved.passes == skipped.sum()
    e = (p * skipped).sum(-1, keepdim=True)
    h = -torch.special.xlogy(e, e) - torch.special.xlogy(1 - e, 1 - e)
    bounds = {
        "entropy": (e * math.log(V)).expand(-1, masked.sum()),
        "mixture": (e * math.log(V) + h).expand(-1, masked.sum()),
        "kl": e * (-log_p[masked]).where(p > 0, 0).amax(-1),
    }
    for name in ESTIMATORS:
        error = (exact.of(name) - saved.of(name)).abs().double()[masked][:, masked]
        assert (error <= bounds[name] + TOLERANCE).all()
        assert (error[e.flatten() == 0] <= TOLERANCE).all()
        if model is tiny_mdm:
            assert error.max() > 1e-4
    assert (saved.mixture >= -TOLERANCE).all()
    assert (saved.kl >= -TOLERANCE).all()


def test_matrix_is_the_clamped_mean_of_both_directions(tiny_mdm, case):
    model, tokens = case
    A = probe(model, tokens[0]).entropy
    mean = (A + A.T) / 2
    mi = mutual_information(model, tokens[0])
    torch.testing.assert_close(mi, torch.where(mean > 0, mean, torch.zeros(())))
    if model is tiny_mdm:
        assert (mean < 0).any()
    assert torch.equal(symmetrize(torch.tensor([[0.0, 1.0], [-3.0, 0.0]])), torch.zeros(2, 2))
    assert torch.equal(symmetrize(torch.tensor([[0.0, 1.0], [2.0, 0.0]])), torch.tensor([[0.0, 1.5], [1.5, 0.0]]))


def test_a_batch_is_each_of_its_sequences(case):
    model, tokens = case
    together = mutual_information(model, tokens[:3])
    for k in range(3):
        assert torch.equal(together[k], mutual_information(model, tokens[k]))


def test_diagnostics_by_hand():
    A = torch.tensor([[0.0, 0.3, 9.0], [-0.1, 0.0, 9.0], [9.0, 9.0, 0.0]])
    A[:, 2] = A[2] = 0
    kl = torch.tensor([[0.0, 0.5, 0.0], [0.7, 0.0, 0.0], [0.0, 0.0, 0.0]])
    mixture = torch.tensor([[0.0, 0.4, 0.0], [0.5, 0.0, 0.0], [0.0, 0.0, 0.0]])
    directional = DirectionalMI(entropy=A, mixture=mixture, kl=kl, passes=1)
    got = diagnose(directional, torch.tensor([True, True, False]))
    assert got.negative_share == 0.5
    assert got.asymmetry == pytest.approx(0.4 / 0.2)
    assert got.inconsistency == pytest.approx((0.1 + 0.2) / 2)
    assert diagnose(directional, torch.tensor([True, True, False]), "mixture").asymmetry == pytest.approx(0.1 / 0.9)


@pytest.mark.parametrize("n_masked", [0, 1])
def test_without_a_pair_there_is_nothing_to_share(n_masked):
    model = TabularModel(random_joint(3, 2, 0))
    tokens = torch.tensor([model.mask_id if k < n_masked else 1 for k in range(3)])
    directional = probe(model, tokens)
    assert all((directional.of(name) == 0).all() for name in ESTIMATORS)
    diagnostics = diagnose(directional, tokens == model.mask_id)
    assert diagnostics.negative_share == diagnostics.asymmetry == diagnostics.inconsistency == 0


def test_autocast_does_not_reach_the_probe(tiny_case):
    model, tokens = tiny_case
    expected = mutual_information(model, tokens[0])
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(mutual_information(model, tokens[0]), expected)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"tail": -0.1}, r"tail=-0.1, expected a probability below 1"),
        ({"tail": 1.0}, r"tail=1.0, expected"),
        ({"batch_size": 0}, r"batch_size=0, expected at least 1"),
        ({"estimator": "mine"}, r"estimator='mine', expected one of \('entropy', 'mixture', 'kl'\)"),
    ],
)
def test_bad_options_are_named(options, message):
    model = TabularModel(independent())
    with pytest.raises(ValueError, match=message):
        mutual_information(model, model.masked()[0], **options)


def test_bad_positions_and_shapes_are_named():
    model = TabularModel(independent())
    with pytest.raises(ValueError, match=r"source.* must be masked"):
        probe(model, torch.tensor([3, 0, 3]), rows=torch.tensor([0, 1]))
    with pytest.raises(ValueError, match=r"shape \(L,\), got \(1, 3\)"):
        probe(model, model.masked())
    with pytest.raises(ValueError, match="estimator='x'"):
        probe(model, model.masked()[0]).of("x")
