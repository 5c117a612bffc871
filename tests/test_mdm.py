"""The Sudoku MDM: the paper's size, another implementation's logits, the forward process, the bound, and learning."""

import copy
import math

import pytest
import torch
from tabular import TabularModel, copied_pair, sudoku4

from mi_lib.mdm import (
    MDM,
    MDMConfig,
    describe,
    diffusion_loss,
    forward_process,
    mask_rate,
    masked_cross_entropy,
)
from mi_lib.sudoku import generate_grids
from mi_lib.train import MDMTraining, make_optimizers


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


@pytest.mark.parametrize("n_heads", [8, 12])
def test_size_is_the_papers(n_heads):
    assert sum(p.numel() for p in MDM(MDMConfig(n_heads=n_heads)).parameters()) == 4_158_346


def test_logits_are_those_of_pytorchs_own_encoder(tiny_case):
    model, tokens = copy.deepcopy(tiny_case[0]).double(), tiny_case[1]
    config = model.config
    x = model.token.weight[tokens] + torch.stack(
        [
            torch.cat([model.row.weight[k // 9], model.col.weight[k % 9], model.box.weight[3 * (k // 27) + k % 9 // 3]])
            for k in range(81)
        ]
    )
    for block in model.blocks:
        layer = torch.nn.TransformerEncoderLayer(
            config.width, config.n_heads, config.feed_forward, 0.0, "gelu", batch_first=True, norm_first=True
        )
        ours = {
            "self_attn.in_proj_weight": block.qkv.weight,
            "self_attn.in_proj_bias": block.qkv.bias,
            "self_attn.out_proj.weight": block.project.weight,
            "self_attn.out_proj.bias": block.project.bias,
            "norm1.weight": block.norm_attention.weight,
            "norm1.bias": block.norm_attention.bias,
            "norm2.weight": block.norm_mlp.weight,
            "norm2.bias": block.norm_mlp.bias,
            "linear1.weight": block.mlp[0].weight,
            "linear1.bias": block.mlp[0].bias,
            "linear2.weight": block.mlp[2].weight,
            "linear2.bias": block.mlp[2].bias,
        }
        layer.load_state_dict(ours)
        x = layer.double().eval()(x).detach()
    out = model(tokens)
    torch.testing.assert_close(out.hidden, x)
    torch.testing.assert_close(out.logits, model.out(x)[..., 1:].float())


def test_learned_positions_hide_the_units():
    model = MDM(MDMConfig(width=24, n_layers=1, n_heads=2, feed_forward=8, head_width=8, position="learned"))
    assert model.positions().shape == (81, 24)
    assert not any(name.split(".")[0] in ("row", "col", "box") for name, _ in model.named_parameters())
    assert model(torch.zeros(2, 81, dtype=torch.long)).logits.shape == (2, 81, 9)


def test_bad_configurations_and_lengths_are_named(tiny_mdm):
    with pytest.raises(ValueError, match=r"width=25 must be a multiple of 3 and of n_heads=8"):
        MDMConfig(width=25)
    with pytest.raises(ValueError, match=r"width=384 .* n_heads=7"):
        MDMConfig(n_heads=7)
    with pytest.raises(ValueError, match=r"position='rotary', expected 'units' or 'learned'"):
        MDMConfig(position="rotary")
    with pytest.raises(ValueError, match=r"length 80, the Sudoku MDM needs 81"):
        tiny_mdm(torch.zeros(1, 80, dtype=torch.long))


def test_a_described_configuration_rebuilds_itself():
    config = MDMConfig(width=48, n_heads=4, position="learned")
    assert MDMConfig(**describe(config)) == config


@pytest.mark.parametrize("schedule", ["linear", "cosine"])
def test_mask_rate_runs_from_clean_to_masked_and_slope_is_its_derivative(schedule):
    t, step = torch.linspace(0.01, 0.99, 50, dtype=torch.float64), 1e-6
    rate, slope = mask_rate(t, schedule)
    torch.testing.assert_close(mask_rate(torch.tensor([0.0, 1.0]), schedule)[0], torch.tensor([0.0, 1.0]))
    difference = (mask_rate(t + step, schedule)[0] - mask_rate(t - step, schedule)[0]) / (2 * step)
    torch.testing.assert_close(slope, difference, atol=1e-8, rtol=1e-6)
    assert (rate.diff() > 0).all()
    if schedule == "cosine":
        torch.testing.assert_close(rate, torch.cos(math.pi / 2 * (1 - t)))


def test_unknown_schedule_is_named():
    with pytest.raises(ValueError, match="schedule='square', expected 'linear' or 'cosine'"):
        mask_rate(torch.zeros(1), "square")


def test_forward_process_masks_the_counted_positions_and_no_others():
    tokens = torch.randint(1, 10, (6, 20), generator=generator())
    rate = torch.tensor([0.001, 0.05, 0.051, 0.5, 0.999, 1.0])
    noisy = forward_process(tokens, rate, 0, generator(1))
    masked = noisy == 0
    assert masked.sum(-1).tolist() == [1, 1, 2, 10, 20, 20]
    assert torch.equal(noisy[~masked], tokens[~masked])
    assert (tokens > 0).all()
    assert torch.equal(forward_process(tokens, rate, 0, generator(1)), noisy)


@pytest.mark.parametrize("length", [9, 50, 81, 100])
def test_a_rate_of_k_in_l_masks_k(length):
    """In float32, 45 / 81 * 81 is a little above 45: rounding must not mask one position more."""
    count = torch.arange(1, length + 1)
    noisy = forward_process(torch.ones(length, length, dtype=torch.long), count / length, 0, generator())
    assert torch.equal((noisy == 0).sum(-1), count)


def test_forward_process_masks_every_position_alike():
    noisy = forward_process(torch.ones(4000, 10, dtype=torch.long), torch.full((4000,), 0.3), 0, generator())
    torch.testing.assert_close((noisy == 0).float().mean(0), torch.full((10,), 0.3), atol=0.03, rtol=0)
    pair = ((noisy[:, 0] == 0) & (noisy[:, 1] == 0)).float().mean().item()
    assert pair == pytest.approx(3 / 10 * 2 / 9, abs=0.015)


def test_cross_entropy_by_hand(tiny_case):
    model, noisy = tiny_case
    tokens = torch.where(noisy == 0, torch.randint(1, 10, noisy.shape, generator=generator()), noisy)
    log_p = model(noisy).logits.log_softmax(-1)
    expected = [
        -sum(log_p[b, i, tokens[b, i] - 1].item() for i in range(81) if noisy[b, i] == 0) / 7 for b in range(len(noisy))
    ]
    torch.testing.assert_close(masked_cross_entropy(model, noisy, tokens), torch.tensor(expected))


@pytest.mark.parametrize("schedule", ["linear", "cosine"])
@pytest.mark.parametrize(
    ("model", "nats"),
    [
        (sudoku4(), math.log(288) / 16),
        (TabularModel(copied_pair(5), vocab=torch.arange(1, 6), mask_id=0), math.log(5) / 2),
    ],
    ids=["sudoku4", "copied pair"],
)
def test_bound_is_tight_for_the_exact_model(model, nats, schedule):
    """Averaged over times and masks, the loss of the true conditionals is the entropy of the data, per token."""
    n = 6000
    pick = torch.multinomial(model.probability, n, replacement=True, generator=generator())
    loss = diffusion_loss(model, model.ids[pick], generator(1), schedule)
    assert loss.item() == pytest.approx(nats, rel=0.04)


def test_bound_of_an_ignorant_model_is_log_v(tiny_mdm):
    model = MDM(tiny_mdm.config).requires_grad_(False)
    model.out[-1].weight.zero_()
    model.out[-1].bias.zero_()
    grids = torch.from_numpy(generate_grids(16, 0)).long()
    assert diffusion_loss(model, grids, generator()).item() == pytest.approx(math.log(9), abs=1e-5)


def test_loss_depends_on_its_generator_alone(tiny_mdm):
    grids = torch.from_numpy(generate_grids(4, 0)).long()
    before = torch.get_rng_state()
    first = diffusion_loss(tiny_mdm, grids, generator(3))
    assert torch.equal(diffusion_loss(tiny_mdm, grids, generator(3)), first)
    assert not torch.equal(diffusion_loss(tiny_mdm, grids, generator(4)), first)
    assert torch.equal(torch.get_rng_state(), before)


def test_mdm_overfits_eight_boards():
    """It must read the clues: without them, no predictor beats the entropy of each cell's digits over the boards."""
    grids = torch.from_numpy(generate_grids(8, 0)).long()
    share = torch.nn.functional.one_hot(grids, 10).double().mean(0)
    without_clues = torch.special.entr(share).sum(-1).mean().item()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = MDM(MDMConfig(width=48, n_layers=1, n_heads=4, feed_forward=96, head_width=48))
    optimizers, noise = make_optimizers(model, MDMTraining(lr=2e-2, optimizer="muon")), generator()
    for _ in range(230):
        batch = grids[torch.randint(8, (32,), generator=noise)]
        diffusion_loss(model, batch, noise).backward()
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()
    noisy = forward_process(grids, torch.full((8,), 0.5), model.mask_id, generator(1))
    assert masked_cross_entropy(model, noisy, grids).mean().item() < 0.5 * without_clues
