"""The MI head (§4.2): predicts the whole pairwise MI matrix from one forward pass' hidden states."""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

CHUNK = 1_024  # pairs at once in inference: their features stay in a core's cache


@dataclass(frozen=True)
class HeadConfig:
    """Sizes of the head; the defaults give the paper's 99,969 parameters for the Sudoku MDM (§5.1)."""

    width: int = 384  # D, of the model's hidden states
    h: int = 128

    def __post_init__(self):
        if self.width < 1 or self.h < 1:
            raise ValueError(f"width={self.width} and h={self.h} must be at least 1")


class MIHead(nn.Module):
    """Symmetric, non-negative MI predictor over pairs of masked positions.

    With ``a_i`` the normed projection of hidden state i, the pair features ``(a_i + a_j, |a_i - a_j|, a_i * a_j)``
    pass through Linear(3h, h) - LayerNorm - GELU - Linear(h, 1) - softplus.

    Notes
    -----
    The part of the first layer that acts on ``a_i + a_j`` is linear in each position: it is computed once a position.
    """

    def __init__(self, config: HeadConfig = HeadConfig()):
        super().__init__()
        self.config = config
        h = config.h
        self.norm_hidden = nn.LayerNorm(config.width)
        self.project = nn.Linear(config.width, h)
        self.norm = nn.LayerNorm(h)
        self.pair = nn.Linear(3 * h, h)
        self.norm_pair = nn.LayerNorm(h)
        self.out = nn.Linear(h, 1)

    def embed(self, hidden: Tensor) -> Tensor:
        """Per-position features, (P, 2h): ``a``, and the first layer's share of it (with half the bias)."""
        a = self.norm(self.project(self.norm_hidden(hidden)))
        return torch.cat([a, F.linear(a, self.pair.weight[:, : self.config.h], self.pair.bias / 2)], -1)

    def score(self, e_i: Tensor, e_j: Tensor) -> Tensor:
        """MI of pairs from the two positions' features (N, 2h); shape (N,)."""
        h = self.config.h
        features = torch.cat([(e_i[:, :h] - e_j[:, :h]).abs(), e_i[:, :h] * e_j[:, :h]], -1)
        x = torch.addmm(e_i[:, h:] + e_j[:, h:], features, self.pair.weight[:, h:].T)
        return F.softplus(self.out(F.gelu(self.norm_pair(x)))).squeeze(-1)

    def pairs(self, hidden: Tensor, i: Tensor, j: Tensor) -> Tensor:
        """Predicted MI of chosen pairs, in nats.

        Parameters
        ----------
        hidden : Tensor of shape (P, D)
            Hidden states of any positions, of any sequences.
        i, j : LongTensor of shape (N,)
            Rows of ``hidden``.

        Returns
        -------
        Tensor of shape (N,)
        """
        e = self.embed(hidden)
        scores = [self.score(e[m], e[n]) for m, n in zip(i.split(CHUNK), j.split(CHUNK), strict=True)]
        return torch.cat(scores) if scores else hidden.new_zeros(0)

    def forward(self, hidden: Tensor, masked: Tensor) -> Tensor:
        """The predicted MI matrix, in nats.

        Parameters
        ----------
        hidden : Tensor of shape (B, L, D)
        masked : BoolTensor of shape (B, L)

        Returns
        -------
        Tensor of shape (B, L, L)
            Symmetric, non-negative, zero on the diagonal and at observed positions.

        Raises
        ------
        ValueError
            If the hidden states are not as wide as the head expects, or the shapes do not match.
        """
        B, L, D = hidden.shape
        if self.config.width != D:
            raise ValueError(f"hidden states are {D} wide, this head was built for width={self.config.width}")
        if masked.shape != (B, L):
            raise ValueError(f"masked has shape {tuple(masked.shape)}, expected (B, L) = {(B, L)}")
        count = masked.sum(-1)  # (B,)
        position = torch.full((B, L), -1, device=hidden.device)
        position[masked] = torch.arange(int(count.sum()), device=hidden.device)
        b, i, j = (masked[:, :, None] & masked[:, None, :]).triu(1).nonzero(as_tuple=True)
        values = self.pairs(hidden[masked].float(), position[b, i], position[b, j])
        mi = values.new_zeros(B, L, L)
        mi[b, i, j] = mi[b, j, i] = values
        return mi


def head_loss(head: MIHead, hidden: Tensor, i: Tensor, j: Tensor, target: Tensor) -> Tensor:
    """Mean squared error over masked pairs (the paper's Frobenius loss, §4.2, a pair), in nats squared."""
    return F.mse_loss(head.pairs(hidden, i, j), target)
