"""The seam: categorical arithmetic, what a model must return, and one body of tests over every kind of model."""

import math
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from references import directional_mi
from tabular import Recorder, TabularModel, independent

from mi_lib.ground_truth import ESTIMATORS, mutual_information, probe
from mi_lib.head import HeadConfig, MIHead
from mi_lib.masked import (
    MaskedOutput,
    check_tokens,
    entropy,
    kl_divergence,
    marginals,
    require,
    vocab_index,
)
from mi_lib.policies import EntropyBounded, HeadMI, MIGuided, OracleMI, Sequential, Threshold, TopK, no_mi
from mi_lib.samplers import decode

POLICIES = [
    Sequential(),
    TopK(3),
    EntropyBounded(0.5),
    Threshold(0.6),
    MIGuided(no_mi, gamma=2.0),
    MIGuided(OracleMI(), gamma=2.0),
]


@pytest.mark.parametrize(
    ("p", "nats"),
    [([0.5, 0.5], math.log(2)), ([1.0, 0.0], 0.0), ([0.5, 0.25, 0.25], 1.5 * math.log(2)), ([0.2] * 5, math.log(5))],
)
def test_entropy_of_known_distributions(p, nats):
    assert entropy(torch.tensor(p).log()).item() == pytest.approx(nats, abs=1e-6)


def test_kl_divergence_of_known_distributions():
    p, q = torch.tensor([0.5, 0.5, 0.0]).log(), torch.tensor([0.25, 0.5, 0.25]).log()
    assert kl_divergence(p, q).item() == pytest.approx(0.5 * math.log(2), abs=1e-6)
    assert kl_divergence(q, p).item() == math.inf
    assert kl_divergence(p, p).item() == 0


@given(st.lists(st.floats(-20, 20), min_size=2, max_size=9))
def test_entropy_lies_between_zero_and_log_v(logits):
    nats = entropy(torch.tensor(logits).log_softmax(-1)).item()
    assert -1e-5 <= nats <= math.log(len(logits)) + 1e-5


def test_vocab_index_inverts_the_vocabulary():
    vocab = torch.tensor([7, 2, 5])
    assert vocab_index(vocab).tolist() == [-1, -1, 1, -1, -1, 2, -1, 0]
    assert vocab_index(vocab, 10)[vocab].tolist() == [0, 1, 2]
    assert vocab_index(vocab, 10).shape == (10,)


def test_require_names_parameter_value_and_expectation():
    require(True, "k", 1, "anything")
    with pytest.raises(ValueError, match=r"^gamma=-1, expected at least 0$"):
        require(False, "gamma", -1, "at least 0")


@pytest.mark.parametrize(
    "tokens",
    [
        torch.zeros(3, dtype=torch.long),
        torch.zeros(2, 3),
        torch.zeros(2, 3, dtype=torch.bool),
        torch.zeros(1, 2, 3).long(),
    ],
)
def test_tokens_must_be_a_batch_of_integers(tokens):
    with pytest.raises(ValueError, match=r"tokens must be .* of shape \(B, L\), got torch\."):
        check_tokens(TabularModel(independent()), tokens)


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int32])
def test_narrow_integers_are_refused_before_the_model_sees_them(dtype):
    model = Recorder(TabularModel(independent()))
    with pytest.raises(ValueError, match=f"int64.*{dtype}"):
        decode(model, torch.full((1, 3), 3, dtype=dtype), TopK(1))
    assert model.calls == []


@pytest.mark.parametrize("missing", ["mask_id", "vocab"])
def test_a_model_without_mask_or_vocabulary_is_named(missing):
    model = SimpleNamespace(mask_id=3, vocab=torch.arange(3))
    delattr(model, missing)
    with pytest.raises(ValueError, match=f"SimpleNamespace has no `{missing}`"):
        check_tokens(model, torch.zeros(1, 2, dtype=torch.long))


@pytest.mark.parametrize(
    ("logits", "hidden", "message"),
    [
        (torch.zeros(1, 3, 4), torch.zeros(1, 3, 2), r"logits have shape \(1, 3, 4\), expected .* \(1, 3, 3\)"),
        (torch.zeros(1, 3, 3), None, r"hidden states have shape None, expected .* \(1, 3\)"),
        (torch.zeros(1, 3, 3), torch.zeros(1, 2, 2), r"hidden states have shape \(1, 2, 2\)"),
        (torch.full((1, 3, 3), torch.nan), torch.zeros(1, 3, 2), "NaN"),
        (torch.full((1, 3, 3), -torch.inf), torch.zeros(1, 3, 2), "NaN"),
    ],
)
def test_a_malformed_output_is_refused(logits, hidden, message):
    class Broken:
        mask_id, vocab = 3, torch.arange(3)

        def __call__(self, tokens):
            return MaskedOutput(logits, hidden)

    with pytest.raises(ValueError, match=message):
        marginals(Broken(), torch.full((1, 3), 3))


# The same body over an exact table, 4x4 Sudoku and a small transformer.


def test_marginals_are_normalised_and_hidden_states_come_with_them(case):
    model, tokens = case
    log_p, hidden = marginals(model, tokens)
    assert log_p.shape == (*tokens.shape, len(model.vocab))
    assert log_p.dtype == torch.float32
    assert hidden.shape[:2] == tokens.shape
    torch.testing.assert_close(log_p.exp().sum(-1), torch.ones(tokens.shape))


def test_probe_equals_the_double_loop(case):
    model, tokens = case
    for row in tokens[:2]:
        fast, plain = probe(model, row, batch_size=7), directional_mi(model, row)
        for name in ESTIMATORS:
            np.testing.assert_allclose(fast.of(name), plain[name], atol=2e-5)
        np.testing.assert_allclose(fast.kl - fast.mixture, plain["inconsistency"], atol=4e-5)


@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_mi_is_symmetric_nonnegative_and_zero_where_nothing_is_unknown(case, estimator):
    model, tokens = case
    mi = mutual_information(model, tokens[:2], estimator)
    observed = tokens[:2] != model.mask_id
    assert torch.equal(mi, mi.transpose(-1, -2))
    assert (mi >= 0).all()
    assert mi.amax() > 0.01
    assert (mi.diagonal(dim1=-2, dim2=-1) == 0).all()
    assert (mi[observed] == 0).all()
    if estimator == "mixture":
        assert (mi <= math.log(len(model.vocab)) + 1e-5).all()


def test_probing_leaves_its_argument_alone(case):
    model, tokens = case
    before = tokens.clone()
    mutual_information(model, tokens[:1])
    decode(model, tokens, TopK(2))
    assert torch.equal(tokens, before)


@pytest.mark.parametrize("policy", POLICIES, ids=str)
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_decode_fills_the_mask_and_nothing_else(case, policy, temperature):
    model, tokens = case
    recorder = Recorder(model)
    done = decode(recorder, tokens, policy, temperature)
    masked = tokens == model.mask_id
    assert torch.equal(done.tokens[~masked], tokens[~masked])
    assert torch.isin(done.tokens[masked], model.vocab).all()
    assert ((done.step >= 0) == masked).all()
    assert ((done.order >= 0) == masked).all()
    for n, order in zip(masked.sum(-1).tolist(), done.order, strict=True):
        assert sorted(order[order >= 0].tolist()) == list(range(n))
    assert done.nfe.sum() == recorder.passes
    assert (done.step.amax(-1) < masked.sum(-1)).all()
    if not isinstance(getattr(policy, "mi", None), OracleMI):
        assert torch.equal(done.nfe, done.step.amax(-1) + 1)


@pytest.mark.parametrize("policy", POLICIES, ids=str)
def test_any_split_into_batches_gives_the_same_sample(case, policy):
    model, tokens = case
    whole = decode(model, tokens, policy, temperature=1.0, seeds=range(10, 16))
    for batch_size in (1, 4):
        parts = decode(model, tokens, policy, temperature=1.0, seeds=range(10, 16), batch_size=batch_size)
        for name in ("tokens", "nfe", "step", "order"):
            assert torch.equal(getattr(whole, name), getattr(parts, name))


def test_a_head_reads_the_hidden_states_of_any_model(case):
    model, tokens = case
    hidden = marginals(model, tokens)[1]
    head = MIHead(HeadConfig(width=hidden.shape[-1], h=8))
    with torch.inference_mode():
        mi = head(hidden, tokens == model.mask_id)
    assert mi.shape == (*tokens.shape, tokens.shape[1])
    done = decode(model, tokens, MIGuided(HeadMI(head), gamma=1.0))
    assert not (done.tokens == model.mask_id).any()
