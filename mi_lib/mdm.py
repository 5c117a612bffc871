"""The masked diffusion model (MDM) for Sudoku: a bidirectional transformer, its forward process and its loss."""

import math
from dataclasses import asdict, dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mi_lib.masked import MaskedOutput

MASK_ID = 0
N_CELLS = 81


@dataclass(frozen=True)
class MDMConfig:
    """Sizes of the MDM; the defaults give the paper's 4,158,346 parameters (§5.1)."""

    width: int = 384
    n_layers: int = 4
    n_heads: int = 8  # does not change the parameter count
    feed_forward: int = 512
    head_width: int = 512
    position: str = "units"  # "units": row + column + box embeddings; "learned": one free vector per cell (a control)

    def __post_init__(self):
        if self.width % self.n_heads or self.width % 3:
            raise ValueError(f"width={self.width} must be a multiple of 3 and of n_heads={self.n_heads}")
        if self.position not in ("units", "learned"):
            raise ValueError(f"position={self.position!r}, expected 'units' or 'learned'")


class Block(nn.Module):
    """Pre-norm transformer block with full attention.

    Attention is written out: at 81 tokens PyTorch's fused CPU kernel makes training about half as fast.
    """

    def __init__(self, config: MDMConfig):
        super().__init__()
        self.n_heads = config.n_heads
        self.norm_attention = nn.LayerNorm(config.width)
        self.qkv = nn.Linear(config.width, 3 * config.width)
        self.project = nn.Linear(config.width, config.width)
        self.norm_mlp = nn.LayerNorm(config.width)
        self.mlp = nn.Sequential(
            nn.Linear(config.width, config.feed_forward), nn.GELU(), nn.Linear(config.feed_forward, config.width)
        )

    def attend(self, x: Tensor) -> Tensor:
        B, L, D = x.shape
        q, k, v = self.qkv(x).view(B, L, 3, self.n_heads, D // self.n_heads).permute(2, 0, 3, 1, 4)  # (B, H, L, D/H)
        weights = (q * (D // self.n_heads) ** -0.5 @ k.transpose(-1, -2)).softmax(-1)  # (B, H, L, L)
        return self.project((weights.to(v.dtype) @ v).transpose(1, 2).reshape(B, L, D))

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attend(self.norm_attention(x))
        return x + self.mlp(self.norm_mlp(x))


class MDM(nn.Module):
    """Masked diffusion model over 81 cells; tokens are 0 = MASK and the digits 1-9. Satisfies ``MaskedModel``."""

    mask_id = MASK_ID

    def __init__(self, config: MDMConfig = MDMConfig()):
        super().__init__()
        self.config = config
        self.token = nn.Embedding(10, config.width)
        cells = torch.arange(N_CELLS)
        if config.position == "units":
            self.row, self.col, self.box = (nn.Embedding(9, config.width // 3) for _ in range(3))
            units = torch.stack([cells // 9, cells % 9, cells // 27 * 3 + cells % 9 // 3])
            self.register_buffer("units", units, persistent=False)
        else:
            self.cell = nn.Embedding(N_CELLS, config.width)
        self.blocks = nn.ModuleList(Block(config) for _ in range(config.n_layers))
        self.out = nn.Sequential(
            nn.LayerNorm(config.width),
            nn.Linear(config.width, config.head_width),
            nn.GELU(),
            nn.Linear(config.head_width, 10),  # the tenth logit (MASK) exists for the paper's count and is dropped
        )
        self.register_buffer("vocab", torch.arange(1, 10), persistent=False)

    def positions(self) -> Tensor:
        """Position embeddings, shape (81, D)."""
        if self.config.position == "learned":
            return self.cell.weight
        row, col, box = self.units
        return torch.cat([self.row(row), self.col(col), self.box(box)], -1)

    def forward(self, tokens: Tensor) -> MaskedOutput:
        """Logits over the nine digits, (B, 81, 9), and the last block's output, (B, 81, D)."""
        if tokens.shape[-1] != N_CELLS:
            raise ValueError(f"tokens have length {tokens.shape[-1]}, the Sudoku MDM needs {N_CELLS}")
        x = self.token(tokens) + self.positions()
        for block in self.blocks:
            x = block(x)
        return MaskedOutput(self.out(x)[..., 1:].float(), x)


def mask_rate(t: Tensor, schedule: str = "linear") -> tuple[Tensor, Tensor]:
    """Masking probability of the forward process (§3.2, where it is written gamma(t)) and its derivative.

    Parameters
    ----------
    t : Tensor
        Diffusion time in [0, 1]: 0 is the clean sequence, 1 the fully masked one.
    schedule : {"linear", "cosine"}
        ``t``, or ``cos(pi/2 (1 - t))`` (MaskGIT's).

    Returns
    -------
    rate, slope : Tensor
    """
    if schedule == "linear":
        return t, torch.ones_like(t)
    if schedule == "cosine":
        return torch.sin(math.pi / 2 * t), math.pi / 2 * torch.cos(math.pi / 2 * t)
    raise ValueError(f"schedule={schedule!r}, expected 'linear' or 'cosine'")


def forward_process(tokens: Tensor, rate: Tensor, mask_id: int, generator: torch.Generator) -> Tensor:
    """Mask exactly ``ceil(rate * L)`` positions (at least one) of each sequence, chosen uniformly.

    The paper's process (§3.2) masks each position independently with probability ``rate``; fixing the count has the
    same expectation and less variance.

    Parameters
    ----------
    tokens : LongTensor of shape (B, L)
    rate : Tensor of shape (B,)
        Share of positions to mask, in (0, 1].
    mask_id : int
    generator : torch.Generator

    Returns
    -------
    LongTensor of shape (B, L)
    """
    B, L = tokens.shape
    count = (rate * L - 1e-4).ceil().clamp(1, L)  # k / L masks k positions, whatever the rounding
    rank = torch.rand(B, L, generator=generator).argsort(-1).argsort(-1)
    return torch.where(rank < count[:, None], mask_id, tokens)


def diffusion_loss(model: MDM, tokens: Tensor, generator: torch.Generator, schedule: str = "linear") -> Tensor:
    """Negative evidence bound per token, in nats.

    The continuous-time bound weighs the masked cross-entropy sum by ``mask_rate'(t) / mask_rate(t)``; as
    ``mask_rate(t) L`` positions are masked, that is ``mask_rate'(t)`` times their mean.

    Parameters
    ----------
    model : MDM
    tokens : LongTensor of shape (B, L)
        Clean sequences in random order: times are stratified, the k-th of them lies in [k / B, (k + 1) / B).
    generator : torch.Generator
        Source of times and masks.
    schedule : {"linear", "cosine"}
        Changes how often each rate is visited, not the bound itself.
    """
    B = len(tokens)
    t = (torch.arange(B) + torch.rand(B, generator=generator)) / B  # stratified: each batch spans all rates
    rate, slope = mask_rate(t, schedule)
    noisy = forward_process(tokens, rate, model.mask_id, generator)
    return (slope * masked_cross_entropy(model, noisy, tokens)).mean()


def masked_cross_entropy(model: MDM, noisy: Tensor, tokens: Tensor) -> Tensor:
    """Mean cross-entropy of each sequence over its masked positions, shape (B,), in nats."""
    masked = noisy == model.mask_id
    nll = F.cross_entropy(model(noisy).logits.transpose(1, 2), tokens - 1, reduction="none")  # digit d is column d - 1
    return (nll * masked).sum(-1) / masked.sum(-1)


def describe(config: MDMConfig) -> dict:
    """The configuration as plain JSON data."""
    return asdict(config)
