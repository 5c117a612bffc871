"""What ``decode`` and the policies cost beside the model and the head: ``pytest tests/bench/bench_decode.py``.

The stand-in model answers at once with fixed logits, so all that is timed is the loop and the policy. ``extra_info``
sets that beside the time the MDM would take for as many passes, measured once; nothing is asserted.
"""

import time

import pytest
import torch

from mi_lib.masked import MaskedOutput
from mi_lib.mdm import MDM
from mi_lib.policies import EntropyBounded, MIGuided, Sequential, Threshold, TopK
from mi_lib.samplers import decode
from mi_lib.sudoku import generate_puzzles

BOARDS = (64, 256, 1000)


class FreeModel:
    """Marginals that cost nothing: some cells nearly certain, some open, as halfway through a puzzle."""

    mask_id, vocab = 0, torch.arange(1, 10)

    def __init__(self, boards: int):
        generator = torch.Generator().manual_seed(0)
        scale = 30 * torch.rand(boards, 81, 1, generator=generator)
        self.logits = scale * torch.randn(boards, 81, 9, generator=generator)
        self.hidden = torch.zeros(1).expand(boards, 81, 384)

    def __call__(self, tokens):
        return MaskedOutput(self.logits[: len(tokens)], self.hidden[: len(tokens)])


def free_mi(state):
    """MI matrices that cost nothing: 0.01 nats between any two cells."""
    return state.entropy.new_full((1, 1, 1), 0.01).expand(*state.tokens.shape, state.tokens.shape[1])


POLICIES = {
    "Sequential": Sequential(),
    "Naive": TopK(4),
    "EB": EntropyBounded(0.2),
    "Threshold": Threshold(0.9),
    "MI": MIGuided(free_mi, 0.3, 1.0),
}


@pytest.fixture(scope="module")
def seconds_per_pass() -> float:
    """Of the MDM at the paper's size, per board, in batches of 64."""
    model = MDM().eval().requires_grad_(False)
    tokens, times = torch.zeros(64, 81, dtype=torch.long), []
    with torch.inference_mode():
        for _ in range(6):
            started = time.perf_counter()
            model(tokens)
            times.append(time.perf_counter() - started)
    return min(times) / 64


@pytest.mark.parametrize("boards", BOARDS)
@pytest.mark.parametrize("name", POLICIES)
def test_overhead(benchmark, seconds_per_pass, name, boards):
    puzzles, _ = generate_puzzles(boards, seed=0)
    tokens, model = torch.from_numpy(puzzles).long(), FreeModel(boards)
    decoded = benchmark.pedantic(decode, (model, tokens, POLICIES[name]), rounds=3, warmup_rounds=1)
    passes = int(decoded.nfe.sum())
    in_model = passes * seconds_per_pass
    benchmark.extra_info["passes_per_board"] = passes / boards
    if benchmark.stats:  # not with --benchmark-disable
        spent = benchmark.stats.stats.min
        benchmark.extra_info["share_of_decoding"] = spent / (spent + in_model)
