"""Cost of the MI head beside the MDM's pass, at the paper's sizes: ``pytest tests/bench/bench_head.py``.

Weights are untrained, which changes no time. ``extra_info`` holds the head's share of the pass; nothing is asserted.
"""

import pytest
import torch

from mi_lib.head import MIHead
from mi_lib.head_scores import cost_ratio
from mi_lib.mdm import MDM, forward_process
from mi_lib.sudoku import generate_grids

BATCH = 64
MASKED = (20, 50, 81)


@pytest.fixture(scope="module")
def model() -> MDM:
    return MDM().eval().requires_grad_(False)


@pytest.fixture(scope="module")
def head() -> MIHead:
    return MIHead().eval().requires_grad_(False)


def boards(masked: int) -> torch.Tensor:
    grids = torch.from_numpy(generate_grids(BATCH, seed=0)).long()
    rate = torch.full((BATCH,), (masked - 0.5) / 81)
    return forward_process(grids, rate, MDM.mask_id, torch.Generator().manual_seed(0))


@pytest.mark.parametrize("masked", MASKED)
def test_pass(benchmark, model, masked):
    with torch.inference_mode():
        benchmark(model, boards(masked))


@pytest.mark.parametrize("masked", MASKED)
def test_head(benchmark, model, head, masked):
    tokens = boards(masked)
    with torch.inference_mode():
        hidden = model(tokens).hidden
        benchmark(head, hidden, tokens == model.mask_id)
    benchmark.extra_info["share_of_pass"] = cost_ratio(model, head, masked, BATCH, repeats=7)["cost_ratio"]
