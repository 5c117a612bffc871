"""Masked models whose distribution is known exactly: the tests' source of true answers."""

import math
from itertools import permutations, product

import torch
from torch import Tensor

from mi_lib.masked import MaskedOutput


class SupportModel:
    """Exact marginals of a distribution given as a list of sequences, by keeping those that agree with the tokens.

    Parameters
    ----------
    sequences : LongTensor of shape (N, L)
        Value indices, 0 .. V - 1.
    probability : Tensor of shape (N,)
        Need not be normalised.
    vocab : LongTensor of shape (V,), optional
        Token id of each value; ``0 .. V - 1`` by default.
    mask_id : int, optional
        V by default.

    Notes
    -----
    Tokens that no sequence agrees with get uniform marginals. The hidden state is the marginal itself.
    """

    def __init__(self, sequences: Tensor, probability: Tensor, vocab: Tensor | None = None, mask_id: int | None = None):
        size = int(sequences.max()) + 1 if vocab is None else len(vocab)
        self.vocab = torch.arange(size) if vocab is None else vocab
        self.mask_id = size if mask_id is None else mask_id
        self.sequences = sequences
        self.ids = self.vocab[sequences]  # (N, L)
        self.probability = probability.double() / probability.double().sum()  # (N,)
        self.indicator = torch.nn.functional.one_hot(sequences, size).double()  # (N, L, V)

    def __call__(self, tokens: Tensor) -> MaskedOutput:
        agree = ((tokens[:, None] == self.mask_id) | (tokens[:, None] == self.ids)).all(-1)  # (B, N)
        weight = agree * self.probability
        total = weight.sum(-1)[:, None, None]
        p = torch.einsum("bn,nlv->blv", weight, self.indicator) / total.clamp(min=1e-300)
        p = torch.where(total > 0, p, 1 / len(self.vocab)).float()
        return MaskedOutput(p.log(), p)

    def masked(self, n: int = 1) -> Tensor:
        """``n`` fully masked sequences, (n, L)."""
        return torch.full((n, self.sequences.shape[1]), self.mask_id)


class TabularModel(SupportModel):
    """Exact model of a joint distribution given as a tensor of shape (V,) * L."""

    def __init__(self, joint: Tensor, vocab: Tensor | None = None, mask_id: int | None = None):
        sequences = torch.tensor(list(product(range(joint.shape[0]), repeat=joint.dim())))
        vocab = torch.arange(joint.shape[0]) if vocab is None else vocab
        super().__init__(sequences, joint.flatten(), vocab, mask_id)


class Recorder:
    """A model that remembers the tokens of each of its calls."""

    def __init__(self, model):
        self.model, self.mask_id, self.vocab = model, model.mask_id, model.vocab
        self.calls: list[Tensor] = []

    def __call__(self, tokens: Tensor) -> MaskedOutput:
        self.calls.append(tokens.clone())
        return self.model(tokens)

    @property
    def passes(self) -> int:
        """Sequences run so far."""
        return sum(map(len, self.calls))


def random_joint(length: int, size: int, seed: int) -> Tensor:
    """A joint without structure: positive, far from independent."""
    weight = torch.rand((size,) * length, dtype=torch.float64, generator=torch.Generator().manual_seed(seed)) ** 4
    weight += 1e-3
    return weight / weight.sum()


def independent(length: int = 3, size: int = 3) -> Tensor:
    """Independent variables, each with other probabilities."""
    joint = torch.ones((), dtype=torch.float64)
    for i in range(length):
        p = torch.arange(1, size + 1, dtype=torch.float64) + i
        joint = joint[..., None] * (p / p.sum())
    return joint


def copied_pair(size: int = 3) -> Tensor:
    """Two variables that always agree, uniform over ``size`` values: their MI is log(size)."""
    return torch.eye(size, dtype=torch.float64) / size


def xor_triple() -> Tensor:
    """Three fair bits of even parity: every pair is independent, the triple is not."""
    bits = torch.arange(2)
    return ((bits[:, None, None] ^ bits[:, None] ^ bits) == 0).double() / 4


def sudoku4_grids() -> Tensor:
    """The 288 grids of 4x4 Sudoku (2x2 boxes) as value indices 0-3, shape (288, 16)."""
    rows = list(permutations(range(4)))
    grids = [
        a + b + c + d
        for a, b, c, d in product(rows, repeat=4)
        if all(len({a[k], b[k], c[k], d[k]}) == 4 for k in range(4))
        and all(len({*x[k : k + 2], *y[k : k + 2]}) == 4 for x, y in ((a, b), (c, d)) for k in (0, 2))
    ]
    return torch.tensor(grids)


def sudoku4() -> SupportModel:
    """Uniform over 4x4 Sudoku grids; tokens are 0 = MASK and the digits 1-4, as in the 9x9 game."""
    grids = sudoku4_grids()
    return SupportModel(grids, torch.ones(len(grids)), vocab=torch.arange(1, 5), mask_id=0)


def sudoku4_related() -> Tensor:
    """Whether two cells of the 4x4 game share a row, column or box; False on the diagonal, shape (16, 16)."""
    i = torch.arange(16)
    ids = (i // 4, i % 4, i // 8 * 2 + i % 4 // 2)
    shared = torch.stack([x[:, None] == x for x in ids]).any(0)
    return shared & ~torch.eye(16, dtype=torch.bool)


LOG_4_3 = math.log(4 / 3)
