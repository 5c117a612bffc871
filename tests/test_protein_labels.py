"""States to probe: of one length, of real proteins or reachable by decoding, and a function of the seed alone."""

import numpy as np
import pytest
import torch
from scipy import stats

from mi_lib.esmc import ESMCConfig, ESMCModel
from mi_lib.labels import Labelling, make_labels, read_labels
from mi_lib.protein_labels import protein_states, visited_states
from mi_lib.proteins import AMINO_ACIDS, ProteinSet, encode, load_proteins


@pytest.fixture(scope="module")
def model():
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return ESMCModel(ESMCConfig(16, 2, 1)).eval().requires_grad_(False)


def some_proteins(lengths, seed: int = 0) -> ProteinSet:
    rng = np.random.default_rng(seed)
    sequences = tuple("".join(rng.choice(list(AMINO_ACIDS), length)) for length in lengths)
    return ProteinSet(sequences, sequences, ("",) * len(sequences))


PROTEINS = some_proteins([12] * 9 + [20] * 3)


def test_half_are_training_proteins_with_residues_masked(model):
    states = protein_states(model, 40, 0, PROTEINS)
    L = states.shape[1]
    assert len(states) == 40
    known = encode([s for s in PROTEINS.sequences if len(s) == L])
    same = (states[:20, None] == known[None]) | (states[:20, None] == 32)  # (20, P, L)
    assert same.all(-1).any(-1).all()
    assert ((states == 32).sum(-1) >= 2).all()


def test_masked_counts_of_the_first_half_are_uniform(model):
    counts = []
    for seed in range(60):
        states = protein_states(model, 11, seed, some_proteins([12] * 5))[:6]
        counts += (states == 32).sum(-1).tolist()
    observed = np.bincount(counts, minlength=13)[2:]
    assert observed.sum() == 360
    assert stats.chisquare(observed).pvalue > 0.001


def test_lengths_come_as_often_as_among_the_proteins(model):
    lengths = [protein_states(model, 1, seed, PROTEINS).shape[1] for seed in range(200)]
    assert set(lengths) == {12, 20}
    assert stats.binomtest(lengths.count(12), 200, 9 / 12).pvalue > 0.001


def test_visited_states_by_hand():
    """Three decodes whose steps are known: each state masks what was written at its step or later."""
    tokens = torch.arange(4, 16).reshape(3, 4)
    step = torch.tensor([[0, 1, 2, 3], [0, 0, 0, 0], [1, 1, 0, 0]])
    states = visited_states(tokens, step, 32, np.random.default_rng(0))
    possible = [[32, 32, 32, 32], [4, 32, 32, 32], [4, 5, 32, 32], [32, 32, 14, 15]]
    assert all(row in possible for row in states.tolist())
    many = visited_states(tokens.repeat(50, 1), step.repeat(50, 1), 32, np.random.default_rng(1)).tolist()
    assert all(row in many for row in possible)
    assert many.count(possible[1]) == pytest.approx(50, abs=25)  # a quarter of four states of 50 decodes
    assert many.count(possible[3]) == pytest.approx(100, abs=35)


def test_the_second_half_is_where_the_sampler_goes(model):
    """A model certain of one letter: every visited state holds nothing else."""

    class Certain(ESMCModel):
        def forward(self, tokens):
            out = super().forward(tokens)
            out.logits[:] = 0
            out.logits[..., AMINO_ACIDS.index("W")] = 20
            return out

    states = protein_states(Certain(ESMCConfig(16, 2, 1)), 30, 1, PROTEINS)[15:]
    assert set(states.flatten().tolist()) <= {32, 4 + AMINO_ACIDS.index("W")}


def test_states_depend_on_the_seed_alone(model):
    a, b, c = (protein_states(model, 9, seed, PROTEINS) for seed in (3, 3, 4))
    assert torch.equal(a, b)
    assert a.shape != c.shape or not torch.equal(a, c)


def test_labels_of_proteins(model, tmp_path):
    """Shards of several lengths, read as one set; probed sources are masked positions of their own protein."""
    labelling = Labelling("abc", n_boards=12, rows=2, shard_size=4, seed=1)
    make_labels(tmp_path, model, labelling, lambda *args: protein_states(*args, PROTEINS))
    labels = read_labels(tmp_path)
    assert len(labels.tokens) == 12
    assert (labels.tokens[labels.owner, labels.source] == 32).all()
    assert len(labels.owner) == 24


def test_the_training_set_is_the_default(model):
    states = protein_states(model, 2, 0)
    known = encode([s for s in load_proteins("training").sequences if len(s) == states.shape[1]])
    assert ((states[:1] == known) | (states[:1] == 32)).all(-1).any()


@pytest.mark.parametrize(
    ("n", "proteins", "message"),
    [
        (0, PROTEINS, "n=0, expected at least 1"),
        (2, some_proteins([1]), "proteins=1, expected sequences of at least 2"),
    ],
)
def test_bad_arguments_are_named(model, n, proteins, message):
    with pytest.raises(ValueError, match=message):
        protein_states(model, n, 0, proteins)
