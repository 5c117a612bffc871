"""The toy grammar: its MI by hand and by brute force over all sequences, and that a small model can learn it."""

import math
from itertools import product

import numpy as np
import pytest
import torch

from mi_lib.ground_truth import ESTIMATORS, mutual_information
from mi_lib.toy_grammar import Grammar, GrammarModel, grammar_states, tiny_bert, train_on

SMALL = Grammar(5, links=((0, 4, 0.01), (1, 2, 0.2), (2, 3, 0.1)), free=((1, (0.4, 0.3, 0.2, 0.1)),))


def brute_force() -> tuple[np.ndarray, np.ndarray]:
    """All 1024 sequences of SMALL and their probabilities, from the rules in words."""
    sequences, p = np.array(list(product(range(4), repeat=5))), []
    for a, b, c, d, e in sequences:
        pair = lambda x, y, noise: 1 - noise if x + y == 3 else noise / 3  # noqa: E731
        p.append(0.25 * pair(a, e, 0.01) * (0.4, 0.3, 0.2, 0.1)[b] * pair(b, c, 0.2) * pair(c, d, 0.1))
    return sequences, np.array(p)


def test_probabilities_are_those_of_the_rules():
    sequences, p = brute_force()
    assert p.sum() == pytest.approx(1)
    assert SMALL.components() == [[0, 4], [1, 2, 3]]
    expected = 1.0
    for component in SMALL.components():
        letters, probability = SMALL.table(component)
        find = {tuple(row): value for row, value in zip(letters.tolist(), probability.tolist(), strict=True)}
        expected = expected * np.array([find[tuple(row)] for row in sequences[:, component]])
    np.testing.assert_allclose(expected, p, rtol=1e-12)


@pytest.mark.parametrize("given", [{}, {2: 1}, {4: 0, 1: 2}, {0: 3, 3: 3}])
def test_marginals_and_mi_by_brute_force(given):
    """Over all sequences that agree with the given letters."""
    sequences, p = brute_force()
    model = GrammarModel(SMALL, vocab=torch.tensor([7, 5, 9, 6]), mask_id=2)
    tokens = torch.full((1, 5), 2)
    for position, letter in given.items():
        tokens[0, position] = model.vocab[letter]
        p = p * (sequences[:, position] == letter)
    p = p / p.sum()
    mi, marginal = model.true_mi(tokens)[0], model(tokens).logits[0].exp()
    for i in range(5):
        for v in range(4):
            assert marginal[i, v].item() == pytest.approx(p[sequences[:, i] == v].sum(), abs=1e-6)
        for j in range(5):
            nats = 0.0
            for v, w in product(range(4), repeat=2):
                joint = p[(sequences[:, i] == v) & (sequences[:, j] == w)].sum()
                if joint > 0 and i != j:
                    nats += joint * math.log(joint / p[sequences[:, i] == v].sum() / p[sequences[:, j] == w].sum())
            assert mi[i, j].item() == pytest.approx(nats, abs=1e-6)


def test_mi_of_a_noisy_pair_has_a_closed_form():
    """Uniform letters: log 4 - h(noise) - noise log 3, and along the chain the noises compound."""
    grammar = Grammar()
    mi = GrammarModel(grammar, torch.arange(4), 4).true_mi(torch.full((1, 12), 4))[0]

    def closed_form(e):
        return math.log(4) + (1 - e) * math.log(1 - e) + e * math.log(e / 3)

    for i, j, noise in grammar.links:
        assert mi[i, j].item() == pytest.approx(closed_form(noise), abs=1e-6)
    a, b = 0.1, 0.2
    assert mi[3, 7].item() == pytest.approx(closed_form(1 - (1 - a) * (1 - b) - a * b / 3), abs=1e-6)
    assert (mi > 1e-6).sum() == 2 * 6


@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_probing_the_grammar_finds_its_mi(estimator):
    model = GrammarModel(Grammar(), torch.arange(5, 9), 4)
    tokens = grammar_states(model, 12, seed=0)
    probed = mutual_information(model, tokens, estimator)
    torch.testing.assert_close(probed, model.true_mi(tokens), atol=2e-6, rtol=0)
    assert probed.amax() > 0.3


def test_samples_follow_the_grammar():
    grammar, n = Grammar(), 20_000
    letters = grammar.sample(n, np.random.default_rng(0))
    assert letters.shape == (n, 12) and letters.min() >= 0 and letters.max() <= 3
    for i, j, noise in grammar.links:
        share = (letters[:, i] + letters[:, j] != 3).float().mean().item()
        assert abs(share - noise) < 5 * math.sqrt(noise / n)
    assert grammar.paired(letters).float().mean().item() == pytest.approx(0.99**3, abs=0.01)
    expected = (3 * 15 + 63 + 3 * 3) / (2 * n)  # of a sample of the grammar itself
    assert 0 < grammar.divergence(letters) < 2 * expected
    assert torch.equal(grammar.sample(9, np.random.default_rng(0)), grammar.sample(9, np.random.default_rng(0)))


def test_divergence_of_known_frequencies():
    """A pair that never keeps its link but is otherwise right, and a free letter that is always A."""
    grammar = Grammar(3, links=((0, 2, 0.25),), free=((1, (0.5, 0.5 / 3, 0.5 / 3, 0.5 / 3)),))
    sequences = torch.tensor([[a, 0, b] for a in range(4) for b in range(4) if a + b != 3])
    assert grammar.divergence(sequences) == pytest.approx(math.log(1 / 0.25) + math.log(1 / 0.5))


def test_paired_wants_every_pair_of_the_stem():
    good = torch.tensor([0, 1, 2, 0, 0, 0, 0, 0, 0, 1, 2, 3])
    sequences = good.repeat(4, 1)
    for row, position in ((1, 11), (2, 1), (3, 5)):
        sequences[row, position] = 2 if position != 1 else 3
    assert Grammar().paired(sequences).tolist() == [True, False, False, True]  # 5 is no part of the stem


@pytest.mark.parametrize(
    ("links", "message"),
    [
        (((0, 3, 0.1),), r"links=\(0, 3\), expected 0 <= i < j < length=3"),
        (((1, 0, 0.1),), r"links=\(1, 0\), expected 0 <= i < j"),
        (((0, 1, 1.5),), "noise=1.5, expected a probability"),
        (((0, 2, 0.1), (1, 2, 0.1)), r"links=\[2, 2\], expected at most one link to a position"),
    ],
)
def test_a_grammar_that_is_none_is_refused(links, message):
    with pytest.raises(ValueError, match=message):
        Grammar(3, links=links, free=())


def test_states_have_a_pair_to_probe_and_follow_the_seed():
    model = GrammarModel(Grammar(), torch.arange(5, 9), 4)
    states = grammar_states(model, 400, seed=1)
    masked = (states == 4).sum(-1)
    assert masked.min() == 2 and masked.max() == 12
    assert torch.isin(states[states != 4], model.vocab).all()
    assert torch.equal(states, grammar_states(model, 400, seed=1))
    assert not torch.equal(states, grammar_states(model, 400, seed=2))


def test_a_tiny_bert_learns_where_which_letter_is_likely():
    free = (0.7, 0.1, 0.1, 0.1), (0.05, 0.15, 0.3, 0.5)
    grammar = Grammar(2, links=(), free=((0, free[0]), (1, free[1])))
    model, before = tiny_bert(width=16, n_layers=1), torch.get_rng_state()
    assert model.vocab.tolist() == [5, 6, 7, 8] and model.mask_id == 4
    train_on(model, grammar, steps=80, batch_size=128, lr=1e-2)
    assert torch.equal(torch.get_rng_state(), before)
    found = model(torch.full((1, 2), 4)).logits[0].softmax(-1)
    torch.testing.assert_close(found, torch.tensor(free), atol=0.06, rtol=0)
    runs = [train_on(tiny_bert(width=16, n_layers=1), grammar, steps=5, seed=seed) for seed in (0, 0, 1)]
    assert runs[0] == runs[1] != runs[2]
