"""Shared fixtures: deterministic property tests, and the models that every part of the seam is tested on."""

import pytest
import torch
from hypothesis import settings
from tabular import TabularModel, random_joint, sudoku4

from mi_lib.mdm import MDM, MDMConfig

settings.register_profile("suite", deadline=None, derandomize=True, max_examples=40)
settings.load_profile("suite")

TINY = MDMConfig(width=24, n_layers=2, n_heads=2, feed_forward=32, head_width=32)


@pytest.fixture(scope="session")
def tiny_mdm() -> MDM:
    """An untrained MDM with weights large enough that its cells depend on each other, as inconsistently as any."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = MDM(TINY)
    with torch.no_grad():
        for parameter in (*model.blocks.parameters(), *model.out.parameters()):
            parameter *= 3
    return model.eval().requires_grad_(False)


@pytest.fixture(scope="session")
def sudoku4_model():
    return sudoku4()


def random_tokens(model, length: int, masked: int, n: int, seed: int) -> torch.Tensor:
    """``n`` sequences of random tokens, ``masked`` random positions of each masked."""
    generator = torch.Generator().manual_seed(seed)
    tokens = model.vocab[torch.randint(len(model.vocab), (n, length), generator=generator)]
    rank = torch.rand(n, length, generator=generator).argsort(-1)
    return torch.where(rank < masked, model.mask_id, tokens)


@pytest.fixture(scope="session")
def tiny_case(tiny_mdm):
    """The tiny MDM and six boards of random digits, seven cells masked."""
    return tiny_mdm, random_tokens(tiny_mdm, 81, 7, n=6, seed=0)


@pytest.fixture(scope="session", params=["tabular", "sudoku4", "mdm"])
def case(request, tiny_case, sudoku4_model):
    """The seam: a model, and six sequences of its kind with masked and given positions."""
    if request.param == "mdm":
        return tiny_case
    if request.param == "tabular":
        model = TabularModel(random_joint(5, 3, seed=1), vocab=torch.tensor([7, 2, 5]), mask_id=4)
        return model, random_tokens(model, 5, 4, n=6, seed=0)
    masked = random_tokens(sudoku4_model, 16, 11, n=6, seed=0) == sudoku4_model.mask_id
    return sudoku4_model, torch.where(masked, sudoku4_model.mask_id, sudoku4_model.ids[:252:42])
