"""Each policy against its rule written plainly, on values that hit ties and budgets exactly, and known behaviour."""

import math

import pytest
import references
import torch
from hypothesis import given
from hypothesis import strategies as st
from tabular import LOG_4_3, Recorder, TabularModel, copied_pair, random_joint, sudoku4_related, xor_triple

from mi_lib.ground_truth import mutual_information
from mi_lib.head import HeadConfig, MIHead
from mi_lib.masked import entropy, marginals
from mi_lib.policies import EntropyBounded, HeadMI, MIGuided, OracleMI, RandomOrder, Sequential, Threshold, TopK, no_mi
from mi_lib.samplers import StepState, decode

EIGHTHS = st.integers(0, 12).map(lambda n: n / 8)  # sums are exact in float32: a budget can be met to the bit


def make_state(h: torch.Tensor, masked: torch.Tensor, log_p: torch.Tensor | None = None) -> StepState:
    """A state with given entropies at masked positions; the rest is what these policies do not read."""
    log_p = torch.zeros(*h.shape, 2) if log_p is None else log_p
    return StepState(
        tokens=torch.zeros(h.shape, dtype=torch.long),
        masked=masked,
        log_p=log_p,
        entropy=h.where(masked, torch.inf),
        hidden=log_p,
        proposal=torch.zeros(h.shape, dtype=torch.long),
        previous_log_p=None,
        step=0,
        index=torch.arange(len(h)),
        model=None,
        probe=None,
    )


@st.composite
def states(draw) -> tuple[StepState, torch.Tensor]:
    """A batch of states, each row with a masked position, and MI matrices (symmetric, any diagonal)."""
    B, L = draw(st.integers(1, 3)), draw(st.integers(1, 6))
    h = torch.tensor(draw(st.lists(st.lists(EIGHTHS, min_size=L, max_size=L), min_size=B, max_size=B)))
    rows = st.lists(st.booleans(), min_size=L, max_size=L).filter(any)
    masked = torch.tensor(draw(st.lists(rows, min_size=B, max_size=B)))
    mi = torch.tensor(draw(st.lists(EIGHTHS, min_size=B * L * L, max_size=B * L * L))).view(B, L, L)
    return make_state(h, masked), torch.maximum(mi, mi.transpose(1, 2))


def open_entropies(state: StepState, b: int) -> dict[int, float]:
    """Position -> entropy of the masked positions of row b."""
    return {i: state.entropy[b, i].item() for i in state.masked[b].nonzero().flatten().tolist()}


def chosen(mask: torch.Tensor) -> list[set[int]]:
    return [set(row.nonzero().flatten().tolist()) for row in mask]


@given(states(), st.integers(1, 7))
def test_top_k_is_its_rule(drawn, k):
    state, _ = drawn
    expected = [references.top_k(open_entropies(state, b), k) for b in range(len(state.tokens))]
    assert chosen(TopK(k)(state)) == expected
    if k == 1:
        assert chosen(Sequential()(state)) == expected


@given(states(), EIGHTHS | st.just(math.inf))
def test_entropy_bounded_is_its_rule(drawn, gamma):
    state, _ = drawn
    expected = [references.entropy_bounded(open_entropies(state, b), gamma) for b in range(len(state.tokens))]
    assert chosen(EntropyBounded(gamma)(state)) == expected


@given(states(), EIGHTHS | st.just(math.inf), st.sampled_from([0.0, 0.5, 1.0, 2.0]))
def test_mi_guided_is_its_rule(drawn, gamma, lam):
    state, mi = drawn
    expected = [references.mi_guided(open_entropies(state, b), mi[b], gamma, lam) for b in range(len(state.tokens))]
    assert chosen(MIGuided(lambda _: mi, gamma, lam)(state)) == expected


@given(st.integers(0, 1000), st.sampled_from([0.0, 0.4, 0.5, 0.9, 1.0]))
def test_threshold_is_its_rule(seed, tau):
    generator = torch.Generator().manual_seed(seed)
    log_p = (4 * torch.randn(3, 6, 3, generator=generator)).log_softmax(-1)
    masked = torch.rand(3, 6, generator=generator) < 0.6
    masked[:, 2] = True
    state = make_state(entropy(log_p), masked, log_p)
    confidence = log_p.exp().amax(-1)
    expected = [
        references.threshold({i: confidence[b, i].item() for i in range(6) if masked[b, i]}, tau) for b in range(3)
    ]
    assert chosen(Threshold(tau)(state)) == expected


def test_threshold_is_strict():
    log_p = torch.tensor([[[0.0, -torch.inf], [0.0, -torch.inf]]])
    state = make_state(entropy(log_p), torch.ones(1, 2, dtype=torch.bool), log_p)
    assert chosen(Threshold(1.0)(state)) == [{0}]
    assert chosen(Threshold(0.99)(state)) == [{0, 1}]


@given(states(), EIGHTHS)
def test_without_mi_or_weight_only_entropies_count(drawn, gamma):
    state, mi = drawn
    budget = MIGuided(no_mi, gamma)(state)
    assert torch.equal(MIGuided(lambda _: mi, gamma, lam=0.0)(state), budget)
    assert (budget <= EntropyBounded(gamma)(state)).all()  # EB leaves the largest entropy uncharged


def test_random_order_takes_one_at_a_time_in_every_order():
    """All six orders of three positions come up equally often (chi-squared, 5 degrees of freedom, p about 1e-4)."""
    model = TabularModel(random_joint(3, 2, seed=0))
    done = decode(model, model.masked(600), RandomOrder(seed=3), batch_size=100)
    assert (done.nfe == 3).all()
    assert torch.equal(done.order, done.step)
    counts = done.order.unique(dim=0, return_counts=True)[1]
    assert len(counts) == 6
    assert ((counts - 100) ** 2 / 100).sum() < 25.7


def test_random_order_depends_on_seed_and_sequence_alone(case):
    """Not on the batch, not on what is written; and given positions are passed over."""
    model, tokens = case
    done = decode(model, tokens, RandomOrder(1), batch_size=2)
    again = decode(model, tokens, RandomOrder(1), temperature=1.0, seeds=range(50, 56))
    assert torch.equal(done.order, again.order)
    assert torch.equal(done.nfe, (tokens == model.mask_id).sum(-1))
    assert not torch.equal(done.order, decode(model, tokens, RandomOrder(2)).order)


def test_mi_guided_by_hand():
    h = torch.tensor([[0.5, 0.125, 0.25, 0.75]])
    mi = torch.zeros(1, 4, 4)
    mi[0, 1, 2] = mi[0, 2, 1] = 0.5
    state = make_state(h, torch.ones(1, 4, dtype=torch.bool))
    # 1 costs 1/8 and leaves 7/8; 2 costs 1/4 + 1/2 and leaves 1/8; 0 would cost 1/2.
    assert chosen(MIGuided(lambda _: mi, gamma=1.0)(state)) == [{1, 2}]
    # With twice the weight, 2 would cost 5/4: postponed; 0 then fits.
    assert chosen(MIGuided(lambda _: mi, gamma=1.0, lam=2.0)(state)) == [{1, 0}]
    # Nothing fits, the first is taken all the same.
    assert chosen(MIGuided(lambda _: mi, gamma=0.0)(state)) == [{1}]


def test_zero_entropy_is_free_under_a_zero_bound():
    h = torch.tensor([[0.0, 0.5, 0.0, 0.75]])
    state = make_state(h, torch.ones(1, 4, dtype=torch.bool))
    assert chosen(EntropyBounded(0.0)(state)) == [{0, 1, 2}]
    assert chosen(MIGuided(no_mi, gamma=0.0)(state)) == [{0, 2}]


@pytest.mark.parametrize("gamma", [0.2, math.log(2), 0.9])
def test_a_copied_pair_is_split_by_mi_and_broken_by_marginals(gamma):
    """The paper's argument in two bits: marginals cannot tell a pair of coins from one coin seen twice."""
    model = TabularModel(copied_pair(2))
    blind = decode(model, model.masked(400), EntropyBounded(1.0), temperature=1.0)
    guided = decode(model, model.masked(400), MIGuided(OracleMI(), gamma=math.log(2) + gamma), temperature=1.0)
    assert (blind.tokens[:, 0] != blind.tokens[:, 1]).float().mean() == pytest.approx(0.5, abs=0.08)
    assert (guided.tokens[:, 0] == guided.tokens[:, 1]).all()
    assert 0 < guided.tokens.float().mean() < 1


def test_xor_is_beyond_pairwise_mi():
    """The method's limit: each pair is independent, so the guide sees no reason to wait."""
    model = TabularModel(xor_triple())
    for policy in (TopK(3), MIGuided(OracleMI(), gamma=3.0)):
        done = decode(model, model.masked(1000), policy, temperature=1.0)
        assert (done.tokens.sum(-1) % 2).float().mean() == pytest.approx(0.5, abs=0.05)
    done = decode(model, model.masked(200), Sequential(), temperature=1.0)
    assert (done.tokens.sum(-1) % 2 == 0).all()


def test_oracle_passes_over_the_cells_of_one_unit(sudoku4_model):
    """On an empty board all entropies are equal and cells of one unit share log(4/3): the budget keeps them apart."""
    gamma = 2 * math.log(4) + LOG_4_3 / 2  # room for two cells that share nothing or half
    answers = []

    def policy(state):
        answers.append(MIGuided(OracleMI(), gamma)(state))
        return answers[-1]

    decode(sudoku4_model, sudoku4_model.masked(), policy)
    i, j = answers[0][0].nonzero().flatten().tolist()
    related = sudoku4_related()
    assert not related[i, j]
    assert related[0, 1]  # the pair that entropies alone would take, all being equal


def test_oracle_is_the_probed_matrix_and_pays_for_it(case):
    model, tokens = case
    recorder, seen = Recorder(model), []

    def spy(state):
        before = recorder.passes
        seen.append((state.tokens.clone(), OracleMI("mixture")(state), recorder.passes - before))
        return seen[-1][1]

    done = decode(recorder, tokens, MIGuided(spy, gamma=2.0), batch_size=3)
    assert done.nfe.sum() == recorder.passes
    state_tokens, mi, passes = seen[0]
    torch.testing.assert_close(mi, mutual_information(model, state_tokens, "mixture"))
    log_p = marginals(model, state_tokens)[0]
    probed = (log_p[state_tokens == model.mask_id] > -torch.inf).sum()
    assert passes == len(state_tokens) + probed


def test_oracle_passes_are_charged_to_their_own_sequence():
    model = TabularModel(random_joint(4, 3, seed=0))
    tokens = torch.tensor([[3, 3, 3, 3], [0, 1, 3, 3], [0, 1, 2, 0]])
    done = decode(model, tokens, MIGuided(OracleMI(), gamma=math.inf))
    # one pass to decode, one base pass and one for each masked position and value to probe
    assert done.nfe.tolist() == [1 + 1 + 4 * 3, 1 + 1 + 2 * 3, 0]


def test_head_mi_is_the_head_on_this_pass(case):
    model, tokens = case
    hidden = marginals(model, tokens)[1]
    head = MIHead(HeadConfig(width=hidden.shape[-1], h=8)).requires_grad_(False)
    seen = []

    def spy(state):
        seen.append(HeadMI(head)(state))
        return seen[-1]

    done = decode(model, tokens, MIGuided(spy, gamma=1.0))
    torch.testing.assert_close(seen[0], head(hidden, tokens == model.mask_id))
    assert torch.equal(done.nfe, done.step.amax(-1) + 1)


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: TopK(0), "k=0, expected an integer of at least 1"),
        (lambda: TopK(1.5), "k=1.5, expected an integer"),
        (lambda: EntropyBounded(-0.1), "gamma=-0.1, expected a budget of at least 0 nats"),
        (lambda: EntropyBounded(math.nan), "gamma=nan"),
        (lambda: Threshold(1.1), "tau=1.1, expected a probability"),
        (lambda: RandomOrder(-1), "seed=-1, expected an integer of at least 0"),
        (lambda: MIGuided(no_mi, gamma=-1), "gamma=-1, expected a budget"),
        (lambda: MIGuided(no_mi, lam=-2), "lam=-2, expected a weight of at least 0"),
        (lambda: OracleMI("exact"), "estimator='exact', expected one of"),
        (lambda: OracleMI(tail=1), "tail=1, expected a probability below 1"),
    ],
)
def test_bad_parameters_are_named(build, message):
    with pytest.raises(ValueError, match=message):
        build()
