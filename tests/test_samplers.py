"""The decode loop: against one sequence at a time, exact ancestral sampling, what policies see, and bad answers."""

import math

import numpy as np
import pytest
import references
import torch
from hypothesis import given
from hypothesis import strategies as st
from tabular import Recorder, TabularModel, independent, random_joint

from mi_lib.masked import entropy, marginals
from mi_lib.policies import EntropyBounded, MIGuided, Sequential, Threshold, TopK, no_mi
from mi_lib.samplers import decode, gumbel_noise

RULES = {
    TopK(2): lambda h: references.top_k(h, 2),
    EntropyBounded(0.7): lambda h: references.entropy_bounded(h, 0.7),
    MIGuided(no_mi, gamma=1.3): lambda h: references.mi_guided(h, np.zeros((99, 99)), 1.3, 1.0),
}


@pytest.mark.parametrize("policy", RULES, ids=str)
@pytest.mark.parametrize("temperature", [0.0, 0.7])
def test_decode_is_one_sequence_at_a_time(case, policy, temperature):
    model, tokens = case
    done = decode(model, tokens, policy, temperature, seeds=range(6))
    noise = gumbel_noise(range(6), tokens.shape[1], len(model.vocab)).numpy()
    for b in range(6):
        expected = references.decode_one(model, tokens[b], RULES[policy], temperature, noise[b])
        assert (done.tokens[b].tolist(), done.nfe[b].item(), done.step[b].tolist()) == expected


@given(st.integers(0, 1000), st.lists(st.booleans(), min_size=5, max_size=5), st.integers(1, 6))
def test_top_k_takes_masked_over_k_passes(seed, mask, k):
    model = TabularModel(random_joint(5, 2, seed))
    tokens = torch.where(torch.tensor(mask), model.mask_id, 1)[None]
    assert decode(model, tokens, TopK(k)).nfe.item() == math.ceil(sum(mask) / k)


@given(
    st.integers(0, 1000),
    st.sampled_from([Sequential(), EntropyBounded(0.3), Threshold(0.7), MIGuided(no_mi, gamma=0.9)]),
    st.lists(st.sampled_from([0, 1, 2, 2, 2]), min_size=5, max_size=5),
)
def test_decode_properties(seed, policy, tokens):
    model = TabularModel(random_joint(5, 2, seed))
    tokens = torch.tensor([tokens])
    done = decode(model, tokens, policy, temperature=1.0, seeds=[seed])
    masked = tokens == model.mask_id
    assert torch.equal(done.tokens[~masked], tokens[~masked])
    assert not (done.tokens == model.mask_id).any()
    assert min(1, masked.sum()) <= done.nfe.item() <= masked.sum()
    if policy == Sequential():
        assert done.nfe.item() == masked.sum()


def test_an_unbounded_budget_is_one_pass(case):
    model, tokens = case
    for policy in (EntropyBounded(math.inf), MIGuided(no_mi, gamma=math.inf), TopK(81)):
        assert (decode(model, tokens, policy).nfe == 1).all()


def test_one_pass_writes_the_likeliest_tokens(case):
    model, tokens = case
    done = decode(model, tokens, EntropyBounded(math.inf))
    likeliest = model.vocab[marginals(model, tokens)[0].argmax(-1)]
    assert torch.equal(done.tokens, likeliest.where(tokens == model.mask_id, tokens))


def test_sequential_sampling_draws_from_the_joint():
    """Writing one position a pass at temperature 1 is ancestral sampling, whatever the order."""
    model, n = TabularModel(random_joint(3, 3, seed=5)), 6000
    done = decode(model, model.masked(n), Sequential(), temperature=1.0, batch_size=n)
    index = (done.tokens * torch.tensor([9, 3, 1])).sum(-1)
    frequency = torch.bincount(index, minlength=27) / n
    assert (frequency - model.probability).abs().sum() / 2 < 0.03
    parallel = decode(model, model.masked(n), TopK(3), temperature=1.0, batch_size=n)
    index = (parallel.tokens * torch.tensor([9, 3, 1])).sum(-1)
    assert (torch.bincount(index, minlength=27) / n - model.probability).abs().sum() / 2 > 0.1


def test_gumbel_noise_is_standard_and_its_maxima_follow_the_marginals():
    noise = gumbel_noise(range(2000), 5, 4)
    assert noise.shape == (2000, 5, 4)
    assert noise.dtype == torch.float64
    assert noise.mean().item() == pytest.approx(np.euler_gamma, abs=0.02)
    assert noise.var().item() == pytest.approx(math.pi**2 / 6, abs=0.05)
    p = torch.tensor([0.1, 0.2, 0.3, 0.4])
    share = torch.bincount((p.log() + noise).argmax(-1).flatten()) / 10_000
    torch.testing.assert_close(share, p, atol=0.015, rtol=0)
    assert torch.equal(gumbel_noise([7], 5, 4)[0], noise[7])


def test_common_random_numbers():
    """A sequence's noise belongs to its positions: where contexts do not matter, no policy changes the sample."""
    model = TabularModel(independent(4, 3))
    samples = [
        decode(model, model.masked(50), policy, temperature=1.0).tokens
        for policy in (Sequential(), TopK(3), EntropyBounded(math.inf))
    ]
    assert torch.equal(samples[0], samples[1])
    assert torch.equal(samples[0], samples[2])
    assert len(samples[0].unique(dim=0)) > 10


def test_seeds_belong_to_sequences(case):
    model, tokens = case
    backwards = decode(model, tokens.flip(0), TopK(2), temperature=1.0, seeds=[5, 4, 3, 2, 1, 0])
    forwards = decode(model, tokens, TopK(2), temperature=1.0)
    assert torch.equal(backwards.tokens.flip(0), forwards.tokens)
    others = decode(model, tokens, TopK(2), temperature=1.0, seeds=range(100, 106))
    assert not torch.equal(others.tokens, forwards.tokens)


def test_decode_leaves_the_global_generator_alone(case):
    model, tokens = case
    before = torch.get_rng_state()
    decode(model, tokens, TopK(3), temperature=1.0)
    assert torch.equal(torch.get_rng_state(), before)


def test_policies_see_the_documented_state():
    model = TabularModel(random_joint(4, 3, seed=3), vocab=torch.tensor([5, 6, 9]), mask_id=0)
    tokens = torch.tensor([[5, 5, 6, 6], [0, 5, 6, 0], [0, 0, 0, 9]])
    seen = []

    def policy(state):
        seen.append(state)
        return TopK(1)(state)

    done = decode(model, tokens, policy)
    assert [s.step for s in seen] == [0, 1, 2]
    assert [s.index.tolist() for s in seen] == [[1, 2], [1, 2], [2]]
    assert seen[0].previous_log_p is None
    torch.testing.assert_close(seen[1].previous_log_p, seen[0].log_p)
    torch.testing.assert_close(seen[2].previous_log_p, seen[1].log_p[1:])
    for state in seen:
        log_p, hidden = marginals(model, state.tokens)
        torch.testing.assert_close(state.log_p, log_p)
        torch.testing.assert_close(state.hidden, hidden)
        assert torch.equal(state.masked, state.tokens == 0)
        assert torch.equal(state.entropy[state.masked], entropy(log_p)[state.masked])
        assert (state.entropy[~state.masked] == torch.inf).all()
        assert torch.equal(state.proposal, model.vocab[log_p.argmax(-1)])
        assert state.model is model
    now = done.step[seen[2].index] == 2
    assert torch.equal(done.tokens[seen[2].index][now], seen[2].proposal[now])


def test_entropies_stay_at_temperature_one():
    model = TabularModel(random_joint(3, 3, seed=3))
    seen = []

    def policy(state):
        seen.append(state.entropy)
        return state.masked

    for temperature in (0.0, 1.0, 5.0):
        decode(model, model.masked(), policy, temperature)
    assert torch.equal(seen[0], seen[1])
    assert torch.equal(seen[0], seen[2])


def test_order_is_by_step_then_by_entropy():
    model = TabularModel(independent(4, 3).permute(2, 0, 3, 1))
    h = entropy(marginals(model, model.masked())[0])[0]
    by_entropy = h.argsort()
    assert len(h.unique()) == 4
    done = decode(model, model.masked(), lambda s: s.masked & (torch.arange(4) // 2 == (s.step + 1) % 2))
    assert done.step.tolist() == [[1, 1, 0, 0]]
    first, second = ([i for i in by_entropy.tolist() if i in pair] for pair in ((2, 3), (0, 1)))
    assert done.order[0][first + second].tolist() == [0, 1, 2, 3]


def test_finished_sequences_leave_the_batch():
    model = Recorder(TabularModel(random_joint(4, 2, seed=0)))
    tokens = torch.tensor([[2, 2, 2, 2], [0, 1, 2, 2], [0, 0, 0, 0], [0, 0, 1, 2]])
    finished = []
    done = decode(model, tokens, TopK(1), progress=finished.append)
    assert [len(call) for call in model.calls] == [3, 2, 1, 1]
    assert done.nfe.tolist() == [4, 2, 0, 1]
    assert sum(finished) == 4
    assert finished[0] == 1


def test_batch_size_bounds_every_call(case):
    model, tokens = case
    recorder, finished = Recorder(model), []
    decode(recorder, tokens, TopK(3), batch_size=4, progress=finished.append)
    assert max(map(len, recorder.calls)) == 4
    assert sum(finished) == len(tokens)


def test_probes_are_charged_to_their_owner():
    model = Recorder(TabularModel(random_joint(3, 2, seed=0)))

    def policy(state):
        owner = torch.arange(len(state.index)).repeat_interleave(state.index)  # row n looks ahead n times
        assert state.probe(state.tokens[owner], owner).logits.shape == (len(owner), 3, 2)
        return TopK(1)(state)

    done = decode(model, model.model.masked(4), policy, batch_size=3)
    assert done.nfe.tolist() == [3 + 3 * n for n in range(4)]
    assert done.nfe.sum() == model.passes


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_no_sequences_decode_to_none(temperature):
    model = TabularModel(independent())
    done = decode(model, model.masked(0), TopK(1), temperature)
    assert done.tokens.shape == done.step.shape == done.order.shape == (0, 3)
    assert done.nfe.shape == (0,)


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (lambda s: s.masked.long(), r"torch.int64 \(2, 3\), expected torch.bool of shape \(2, 3\)"),
        (lambda s: s.masked[:1], r"torch.bool \(1, 3\), expected torch.bool of shape \(2, 3\)"),
        (lambda s: s.masked.tolist(), r"returned list, expected torch.bool"),
        (lambda s: torch.ones_like(s.masked), "not masked"),
        (lambda s: s.masked & (s.index == 0)[:, None], "no position for an unfinished sequence"),
    ],
)
def test_bad_answers_of_a_policy_are_refused(answer, message):
    model = TabularModel(independent())
    tokens = torch.tensor([[3, 3, 0], [3, 0, 0]])
    with pytest.raises(ValueError, match=message):
        decode(model, tokens, answer)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"temperature": -1.0}, "temperature=-1.0, expected at least 0"),
        ({"temperature": math.nan}, "temperature=nan"),
        ({"batch_size": 0}, "batch_size=0, expected at least 1"),
        ({"seeds": [1, 2]}, r"len\(seeds\)=2, expected one a sequence, 3"),
    ],
)
def test_bad_options_are_named(options, message):
    model = TabularModel(independent())
    with pytest.raises(ValueError, match=message):
        decode(model, model.masked(3), TopK(1), **options)
