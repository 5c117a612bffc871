"""The head: its documented formula pair by pair, what holds by construction, the paper's sizes, and that it learns."""

import pytest
import torch
from references import head_score

import mi_lib.head
from mi_lib.ground_truth import mutual_information
from mi_lib.head import HeadConfig, MIHead, head_loss
from mi_lib.masked import marginals


def count(module) -> int:
    return sum(p.numel() for p in module.parameters())


@pytest.fixture
def head() -> MIHead:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        head = MIHead(HeadConfig(width=10, h=6))
        for parameter in head.parameters():  # norms and biases away from the identity too
            torch.nn.init.normal_(parameter)
    return head.requires_grad_(False)


@pytest.fixture
def batch() -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    return torch.randn(4, 7, 10, generator=generator), torch.rand(4, 7, generator=generator) < 0.6


def test_sizes_are_the_papers():
    assert count(MIHead()) == 99_969
    assert count(MIHead(HeadConfig(width=960, h=384))) == 815_617


def test_matrix_is_the_documented_formula_of_each_pair(head, batch):
    hidden, masked = batch
    mi = head(hidden, masked)
    for b in range(4):
        for i in range(7):
            for j in range(7):
                apart = i != j and masked[b, i] and masked[b, j]
                expected = head_score(head, hidden[b, i], hidden[b, j]) if apart else torch.zeros(())
                torch.testing.assert_close(mi[b, i, j], expected, atol=1e-5, rtol=1e-5)


def test_matrix_is_symmetric_nonnegative_and_zero_at_observed_cells(head, batch):
    hidden, masked = batch
    mi = head(100 * hidden, masked)
    assert torch.equal(mi, mi.transpose(1, 2))
    assert (mi >= 0).all()
    assert (mi.diagonal(dim1=1, dim2=2) == 0).all()
    assert (mi[~masked] == 0).all()
    assert (mi > 0).any()


def test_observed_hidden_states_are_not_read(head, batch):
    hidden, masked = batch
    noise = hidden.where(masked[..., None], torch.nan)
    torch.testing.assert_close(head(noise, masked), head(hidden, masked))


def test_permuting_positions_permutes_the_matrix(head, batch):
    hidden, masked = batch
    order = torch.tensor([3, 0, 6, 2, 5, 1, 4])
    expected = head(hidden, masked)[:, order][:, :, order]
    torch.testing.assert_close(head(hidden[:, order], masked[:, order]), expected, atol=1e-5, rtol=1e-5)


def test_chunks_do_not_change_the_answer(head, batch, monkeypatch):
    expected = head(*batch)
    monkeypatch.setattr(mi_lib.head, "CHUNK", 3)
    torch.testing.assert_close(head(*batch), expected)


def test_chosen_pairs_are_entries_of_the_matrix(head, batch):
    hidden, masked = batch
    full = head(hidden, torch.ones_like(masked))
    i, j = torch.tensor([0, 3, 6, 2]), torch.tensor([5, 1, 0, 2])
    expected = torch.stack([head_score(head, hidden[2, a], hidden[2, b]) for a, b in zip(i, j, strict=True)])
    torch.testing.assert_close(head.pairs(hidden[2], i, j), expected, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(head.pairs(hidden[2], i, j)[:3], full[2, i, j][:3])


@pytest.mark.parametrize("n_masked", [0, 1])
def test_without_a_pair_the_matrix_is_zero(head, n_masked):
    masked = torch.arange(7)[None] < n_masked
    assert torch.equal(head(torch.randn(1, 7, 10), masked), torch.zeros(1, 7, 7))
    assert head.pairs(torch.randn(7, 10), torch.zeros(0).long(), torch.zeros(0).long()).shape == (0,)


def test_loss_is_the_mean_squared_error(head, batch):
    hidden = batch[0][0]
    i, j = torch.tensor([0, 1]), torch.tensor([4, 2])
    target = torch.tensor([0.3, 0.1])
    expected = ((head.pairs(hidden, i, j) - target) ** 2).mean()
    torch.testing.assert_close(head_loss(head, hidden, i, j, target), expected)


def test_head_overfits_four_mi_matrices(tiny_case):
    """From a model's hidden states to its probed matrices, end to end."""
    model, tokens = tiny_case[0], tiny_case[1][:4]
    hidden, target = marginals(model, tokens)[1], mutual_information(model, tokens, "mixture")
    masked = tokens == model.mask_id
    b, i, j = (masked[:, :, None] & masked[:, None]).triu(1).nonzero(as_tuple=True)
    spread = target[b, i, j].var()
    assert spread > 1e-3
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        head = MIHead(HeadConfig(width=hidden.shape[-1], h=64))
    optimizer = torch.optim.Adam(head.parameters(), betas=(0.8, 0.95))  # forgets the start, far above the targets
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=2e-2, total_steps=350)
    for _ in range(350):
        optimizer.zero_grad()
        head_loss(head, hidden.flatten(0, 1), 81 * b + i, 81 * b + j, target[b, i, j]).backward()
        optimizer.step()
        schedule.step()
    predicted = head(hidden, masked).detach()
    assert (predicted - target)[b, i, j].square().mean() < 0.05 * spread


@pytest.mark.parametrize(
    ("hidden", "masked", "message"),
    [
        ((2, 7, 11), (2, 7), r"hidden states are 11 wide, this head was built for width=10"),
        ((2, 7, 10), (2, 6), r"masked has shape \(2, 6\), expected \(B, L\) = \(2, 7\)"),
    ],
)
def test_other_shapes_are_named(head, hidden, masked, message):
    with pytest.raises(ValueError, match=message):
        head(torch.zeros(hidden), torch.ones(masked, dtype=torch.bool))


@pytest.mark.parametrize("sizes", [{"width": 0}, {"h": 0}])
def test_bad_sizes_are_named(sizes):
    name, value = next(iter(sizes.items()))
    with pytest.raises(ValueError, match=f"{name}={value}"):
        HeadConfig(**sizes)
