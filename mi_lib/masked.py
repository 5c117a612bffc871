"""The seam every other module stands on: what a masked model is, and the categorical arithmetic it needs."""

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor


@dataclass(frozen=True)
class MaskedOutput:
    """One forward pass of a masked model.

    Attributes
    ----------
    logits : Tensor of shape (B, L, V), float32
        Unnormalised log-probabilities over the model's ``vocab`` only.
    hidden : Tensor of shape (B, L, D)
        The hidden state that a mutual-information head reads.
    """

    logits: Tensor
    hidden: Tensor


class MaskedModel(Protocol):
    """Anything that fills masked tokens from per-position marginals.

    Attributes
    ----------
    mask_id : int
        The token id written at a masked position.
    vocab : LongTensor of shape (V,)
        The token ids that may be sampled; ``logits[..., v]`` belongs to ``vocab[v]``.
    """

    mask_id: int
    vocab: Tensor

    def __call__(self, tokens: Tensor) -> MaskedOutput:
        """Run the model on ``tokens`` of shape (B, L)."""
        ...


def require(condition: bool, name: str, value, expected: str) -> None:
    """Raise a ValueError that names the parameter, its value and what was expected, unless ``condition`` holds."""
    if not condition:
        raise ValueError(f"{name}={value!r}, expected {expected}")


def entropy(log_p: Tensor) -> Tensor:
    """Shannon entropy of categorical distributions, in nats.

    Parameters
    ----------
    log_p : Tensor of shape (..., V)
        Normalised log-probabilities; ``-inf`` is allowed and counts as probability zero.

    Returns
    -------
    Tensor of shape (...)
    """
    return torch.special.entr(log_p.exp()).sum(-1)


def kl_divergence(log_p: Tensor, log_q: Tensor) -> Tensor:
    """Kullback-Leibler divergence KL(p || q) of categorical distributions over the last axis, in nats."""
    p = log_p.exp()
    return torch.where(p > 0, p * (log_p - log_q), 0.0).sum(-1)


def vocab_index(vocab: Tensor, size: int | None = None) -> Tensor:
    """Invert ``vocab``: a lookup from token id to its column in the logits.

    Parameters
    ----------
    vocab : LongTensor of shape (V,)
        Token ids.
    size : int, optional
        Length of the lookup; the largest id plus one by default.

    Returns
    -------
    LongTensor of shape (size,)
        ``-1`` where an id is not in the vocabulary.
    """
    lookup = torch.full((size or int(vocab.max()) + 1,), -1, dtype=torch.long, device=vocab.device)
    lookup[vocab] = torch.arange(len(vocab), device=vocab.device)
    return lookup


def check_tokens(model: MaskedModel, tokens: Tensor) -> Tensor:
    """Return ``tokens`` if it is a batch of int64 sequences, else say what is wrong.

    Raises
    ------
    ValueError
        If ``tokens`` is not an int64 tensor of shape (B, L), or the model lacks ``mask_id`` or ``vocab``.
    """
    for name in ("mask_id", "vocab"):
        if getattr(model, name, None) is None:
            raise ValueError(f"{type(model).__name__} has no `{name}`; a MaskedModel needs mask_id and vocab")
    if tokens.dim() != 2 or tokens.dtype != torch.int64:
        raise ValueError(f"tokens must be int64 of shape (B, L), got {tokens.dtype} of shape {tuple(tokens.shape)}")
    return tokens


def marginals(model: MaskedModel, tokens: Tensor) -> tuple[Tensor, Tensor]:
    """One checked forward pass: log-marginals and hidden states.

    Parameters
    ----------
    model : MaskedModel
    tokens : LongTensor of shape (B, L)

    Returns
    -------
    log_p : Tensor of shape (B, L, V), float32
    hidden : Tensor of shape (B, L, D)

    Raises
    ------
    ValueError
        If the model returns logits or hidden states of another shape, or non-finite logits.
    """
    out = model(tokens)
    expected = (*tokens.shape, len(model.vocab))
    if out.logits.shape != expected:
        raise ValueError(f"logits have shape {tuple(out.logits.shape)}, expected (B, L, V) = {expected}")
    if out.hidden is None or out.hidden.shape[:2] != tokens.shape:
        got = None if out.hidden is None else tuple(out.hidden.shape)
        raise ValueError(f"hidden states have shape {got}, expected (B, L, D) with (B, L) = {tuple(tokens.shape)}")
    log_p = out.logits.float().log_softmax(-1)
    if torch.isnan(log_p).any():
        raise ValueError("the model returned NaN logits (or a position with no finite logit)")
    return log_p, out.hidden
