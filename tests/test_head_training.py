"""Head training: the pairs by a plain loop, that it learns what a few boards hold, and that the seed decides all."""

import dataclasses

import numpy as np
import pytest
import torch
from conftest import random_tokens

from mi_lib.ground_truth import ESTIMATORS, probe_rows
from mi_lib.head import HeadConfig, MIHead
from mi_lib.head_training import HeadTraining, Pairs, gather_pairs, train_head
from mi_lib.labels import PAD, Labels, choose_rows
from mi_lib.masked import MaskedOutput

SMALL = HeadConfig(width=24, h=32)


def label(model, tokens, rows: int) -> Labels:
    owner, source = choose_rows(tokens == model.mask_id, rows, seed=0)
    mi = probe_rows(model, tokens, owner, source)
    return Labels(tokens.to(torch.uint8), owner, source, mi.entropy, mi.mixture, mi.kl)


@pytest.fixture(scope="module")
def labels(tiny_mdm) -> Labels:
    """Five boards of other masked counts, three probed rows each."""
    tokens = torch.cat([random_tokens(tiny_mdm, 81, n, n=1, seed=n) for n in (7, 2, 20, 9, 4)])
    return label(tiny_mdm, tokens, rows=3)


@pytest.fixture(scope="module")
def pairs(tiny_mdm, labels) -> Pairs:
    return gather_pairs(tiny_mdm, labels, "mixture")


@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_pairs_are_those_of_a_plain_loop(tiny_mdm, labels, estimator):
    pairs = gather_pairs(tiny_mdm, labels, estimator)
    hidden = tiny_mdm(labels.tokens.long()).hidden
    n = 0
    for r, (board, source) in enumerate(zip(labels.owner.tolist(), labels.source.tolist(), strict=True)):
        for j in range(81):
            if labels.tokens[board, j] == 0 and j != source:
                assert pairs.board[n] == board
                assert pairs.target[n] == getattr(labels, estimator)[r, j]
                for row, position in ((pairs.i[n], source), (pairs.j[n], j)):
                    torch.testing.assert_close(pairs.hidden[row].float(), hidden[board, position], atol=1e-5, rtol=1e-3)
                n += 1
    assert n == len(pairs.board) == len(pairs.i) == len(pairs.j) == len(pairs.target)
    assert n == 3 * 6 + 2 * 1 + 3 * 19 + 3 * 8 + 3 * 3
    assert pairs.hidden.dtype == torch.float16
    assert len(pairs.hidden) == 7 + 2 + 20 + 9 + 4


def test_batches_do_not_change_the_pairs(tiny_mdm, labels, pairs):
    done = []
    small = gather_pairs(tiny_mdm, labels, "mixture", batch_size=2, progress=done.append)
    assert done == [2, 2, 1]
    for name in ("i", "j", "board", "target"):
        assert torch.equal(getattr(small, name), getattr(pairs, name))
    torch.testing.assert_close(small.hidden, pairs.hidden, atol=1e-3, rtol=1e-2)


def test_head_overfits_a_few_boards(tiny_mdm):
    """From probed labels to a trained head: it comes near the best that a symmetric predictor can do."""
    tokens = random_tokens(tiny_mdm, 81, 7, n=4, seed=0)
    labels = label(tiny_mdm, tokens, rows=0)
    pairs, reports = gather_pairs(tiny_mdm, labels, "kl"), []
    training = HeadTraining("kl", epochs=250, boards_per_batch=4, lr=2e-2, warmup=0.1)
    head = train_head(pairs, SMALL, training, reports.append)
    assert [row["epoch"] for row in reports] == list(range(1, 251))
    matrix = torch.zeros(4, 81, 81)
    matrix[labels.owner, labels.source] = labels.kl
    mean = (matrix + matrix.transpose(1, 2)) / 2
    masked = tokens == 0
    both = masked[:, :, None] & masked[:, None] & ~torch.eye(81, dtype=torch.bool)
    target, predicted = mean[both], head(tiny_mdm(tokens).hidden, masked)[both]
    assert len(target) == 4 * 7 * 6
    assert (predicted - target).square().mean() < 0.05 * target.var()
    floor = (matrix[both] - target).square().mean()
    assert floor <= reports[-1]["loss"] < floor + 0.05 * target.var()


def test_two_directions_of_a_pair_meet_in_the_middle():
    hidden = torch.randn(2, 24, generator=torch.Generator().manual_seed(0)).half()
    i, j, board = torch.tensor([0, 1]), torch.tensor([1, 0]), torch.tensor([0, 0])
    pairs = Pairs(hidden, i, j, board, target=torch.tensor([0.6, -0.2]))
    reports = []
    head = train_head(pairs, SMALL, HeadTraining(epochs=150, lr=1e-2), reports.append)
    torch.testing.assert_close(head.pairs(hidden.float(), i, j), torch.tensor([0.2, 0.2]), atol=0.01, rtol=0)
    assert reports[-1]["loss"] == pytest.approx(0.4**2, abs=1e-3)


def equal(a: MIHead, b: MIHead) -> bool:
    return all(torch.equal(x, y) for x, y in zip(a.state_dict().values(), b.state_dict().values(), strict=True))


def test_the_seed_decides_everything(pairs):
    training = HeadTraining(epochs=2, boards_per_batch=2, seed=4)
    first = train_head(pairs, SMALL, training)
    torch.manual_seed(99)
    np.random.seed(99)
    assert equal(train_head(pairs, SMALL, training), first)
    assert not equal(train_head(pairs, SMALL, HeadTraining(epochs=2, boards_per_batch=2, seed=5)), first)


def test_global_generators_and_the_pairs_are_left_alone(pairs):
    before, numpy_before = torch.get_rng_state(), np.random.get_state()[1].copy()
    copies = {name: getattr(pairs, name).clone() for name in ("hidden", "i", "j", "board", "target")}
    train_head(pairs, SMALL, HeadTraining(epochs=1))
    assert torch.equal(torch.get_rng_state(), before)
    assert (np.random.get_state()[1] == numpy_before).all()
    assert all(torch.equal(getattr(pairs, name), value) for name, value in copies.items())


def test_head_comes_back_ready_for_use(pairs):
    head = train_head(pairs, SMALL, HeadTraining(epochs=1))
    assert head.config == SMALL
    assert not head.training
    assert not any(p.requires_grad for p in head.parameters())


@pytest.mark.parametrize("mean", [0.004, 0.3, -0.1])
def test_an_untrained_head_predicts_the_mean(pairs, mean):
    """Not softplus(0) = 0.69 nats, from which a short training does not get down; a negative mean counts as zero."""
    few = dataclasses.replace(pairs, target=torch.full_like(pairs.target, mean))
    head = train_head(few, SMALL, HeadTraining(epochs=1, lr=1e-12))
    predicted = head.pairs(pairs.hidden.float(), pairs.i, pairs.j).mean().item()
    assert 0.5 * mean < predicted < 2 * mean if mean > 0 else predicted < 1e-3


def test_loss_of_an_epoch_is_the_mean_over_its_batches(pairs):
    """With a rate of next to nothing the head stays as it was made, so the report can be computed afterwards."""
    reports = []
    head = train_head(pairs, SMALL, HeadTraining(epochs=1, boards_per_batch=5, lr=1e-12), reports.append)
    error = head.pairs(pairs.hidden.float(), pairs.i, pairs.j) - pairs.target
    assert reports[0]["loss"] == pytest.approx(error.square().mean().item(), rel=1e-4)


def test_rate_warms_up_and_falls(pairs):
    """Over 20 steps, a longer warm-up and a shorter one start alike and go other ways."""
    early, late = [], []
    for warmup, reports in ((0.25, early), (0.5, late)):
        train_head(pairs, SMALL, HeadTraining(epochs=20, boards_per_batch=5, warmup=warmup), reports.append)
    assert early[0]["loss"] == late[0]["loss"]
    assert early[5]["loss"] < late[5]["loss"]


@pytest.mark.parametrize(("epochs", "warmup"), [(1, 0.05), (20, 0.05), (10, 0.1), (4, 0.25), (3, 0.0)])
def test_any_number_of_steps_trains(pairs, epochs, warmup):
    """A warm-up of exactly one step too, where PyTorch's schedule divides by zero."""
    reports = []
    train_head(pairs, SMALL, HeadTraining(epochs=epochs, boards_per_batch=5, warmup=warmup), reports.append)
    assert len(reports) == epochs
    assert all(np.isfinite(row["loss"]) for row in reports)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"estimator": "mi"}, r"estimator='mi', expected one of \('entropy', 'mixture', 'kl'\)"),
        ({"epochs": 0}, "epochs=0, expected at least 1"),
        ({"boards_per_batch": 0}, "boards_per_batch=0, expected at least 1"),
        ({"lr": 0.0}, r"lr=0\.0, expected above 0"),
        ({"warmup": 1.0}, r"warmup=1\.0, expected a share below 1"),
        ({"warmup": -0.1}, r"warmup=-0\.1, expected a share below 1"),
    ],
)
def test_bad_settings_are_named(values, message):
    with pytest.raises(ValueError, match=message):
        HeadTraining(**values)


def test_an_unknown_estimator_is_named(tiny_mdm, labels):
    with pytest.raises(ValueError, match="estimator='tokens', expected one of"):
        gather_pairs(tiny_mdm, labels, "tokens")


def test_sequences_of_other_lengths_are_run_without_their_padding(tiny_mdm):
    """A model that takes any length: its hidden states and pairs are those of each sequence alone."""

    class Counting:
        mask_id, vocab = 0, torch.arange(1, 10)

        def __call__(self, tokens):
            assert (tokens <= 9).all()
            hidden = torch.stack([tokens.cumsum(-1), torch.arange(tokens.shape[1]).expand_as(tokens)], -1).float()
            return MaskedOutput(torch.zeros(*tokens.shape, 9), hidden)

    tokens = torch.tensor([[0, 5, 0, PAD], [2, 0, 0, 3], [0, 0, 4, PAD]], dtype=torch.uint8)
    owner, source = torch.tensor([0, 1, 2]), torch.tensor([0, 2, 1])
    mi = torch.tensor([[0.0, 0, 7, 0], [0, 8, 0, 0], [9, 0, 0, 0]])
    pairs = gather_pairs(Counting(), Labels(tokens, owner, source, mi, mi, mi), "kl")
    assert pairs.board.tolist() == [0, 1, 2]
    assert pairs.target.tolist() == [7, 8, 9]
    assert pairs.hidden[pairs.i].tolist() == [[0, 0], [2, 2], [0, 1]]
    assert pairs.hidden[pairs.j].tolist() == [[5, 2], [2, 1], [0, 0]]
