"""Unmasking (§4.3): one ``decode`` loop; a policy says which positions it unmasks now."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

import torch
from torch import Tensor

from mi_lib.masked import MaskedModel, MaskedOutput, check_tokens, entropy, marginals, require


@dataclass(frozen=True)
class StepState:
    """What a policy sees; B sequences that are not finished yet.

    Attributes
    ----------
    tokens : LongTensor of shape (B, L)
    masked : BoolTensor of shape (B, L)
    log_p : Tensor of shape (B, L, V)
        Log-marginals at temperature 1.
    entropy : Tensor of shape (B, L)
        In nats, at temperature 1; ``inf`` at positions that are not masked.
    hidden : Tensor of shape (B, L, D)
    proposal : LongTensor of shape (B, L)
        The token that will be written at each position if it is chosen now.
    previous_log_p : Tensor of shape (B, L, V) or None
        ``log_p`` of the step before; None in the first step.
    step : int
    index : LongTensor of shape (B,)
        Which sequence of ``decode``'s input each row is.
    model : MaskedModel
        The model being decoded; policies that run it do so through ``probe``.
    probe : callable
        ``probe(tokens, owner)`` runs the model on tokens (N, L) for rows ``owner`` (N,), whose passes these are.
    """

    tokens: Tensor
    masked: Tensor
    log_p: Tensor
    entropy: Tensor
    hidden: Tensor
    proposal: Tensor
    previous_log_p: Tensor | None
    step: int
    index: Tensor
    model: MaskedModel = field(repr=False)
    probe: Callable[[Tensor, Tensor], MaskedOutput] = field(repr=False)


@dataclass(frozen=True)
class Decoded:
    """Result of ``decode``.

    Attributes
    ----------
    tokens : LongTensor of shape (B, L)
    nfe : LongTensor of shape (B,)
        Forward passes of the model (number of function evaluations), probes included.
    step : LongTensor of shape (B, L)
        The step each position was written in, from 0; ``-1`` where it was given.
    order : LongTensor of shape (B, L)
        Rank of each position in the order of unmasking, lowest entropy first within a step; ``-1`` where given.
    """

    tokens: Tensor
    nfe: Tensor
    step: Tensor
    order: Tensor


Policy = Callable[[StepState], Tensor]  # returns the positions to unmask now: BoolTensor (B, L)


def gumbel_noise(seeds: Iterable[int], length: int, size: int) -> Tensor:
    """Standard Gumbel noise drawn from one CPU generator a sequence.

    Parameters
    ----------
    seeds : iterable of int
        One a sequence: its noise depends on nothing else, so neither does its sample.
    length, size : int
        L and V.

    Returns
    -------
    Tensor of shape (B, L, V), float64
    """
    uniform = [
        torch.rand(length, size, dtype=torch.float64, generator=torch.Generator().manual_seed(int(s))) for s in seeds
    ]
    stacked = torch.stack(uniform) if uniform else torch.empty(0, length, size, dtype=torch.float64)
    return -torch.log(-torch.log(stacked.clamp(min=1e-300)))


def decode(
    model: MaskedModel,
    tokens: Tensor,
    policy: Policy,
    temperature: float = 0.0,
    seeds: Iterable[int] | None = None,
    batch_size: int = 64,
    progress: Callable[[int], None] = lambda finished: None,
) -> Decoded:
    """Unmask every masked position, as many a pass as ``policy`` says.

    Parameters
    ----------
    model : MaskedModel
    tokens : LongTensor of shape (B, L)
        Positions that hold ``model.mask_id`` are filled, the others never change.
    policy : callable
        Maps a StepState to the positions to unmask now, BoolTensor (B, L).
    temperature : float
        ``0``: the likeliest token; else ``argmax(log_p + temperature * G)`` with Gumbel noise G drawn up front, so that
        a sequence's noise depends neither on the batch nor on the policy (common random numbers).
    seeds : iterable of int, optional
        One a sequence; ``0 .. B - 1`` by default. Unused at temperature 0.
    batch_size : int
        Sequences decoded together; finished ones leave the batch.
    progress : callable
        Called with the number of sequences just finished.

    Returns
    -------
    Decoded

    Raises
    ------
    ValueError
        If an argument is out of range, or the policy's answer is not boolean of shape (B, L), leaves the mask, or is
        empty for a sequence.
    """
    check_tokens(model, tokens)
    require(temperature >= 0, "temperature", temperature, "at least 0")
    require(batch_size >= 1, "batch_size", batch_size, "at least 1")
    seeds = list(range(len(tokens))) if seeds is None else list(seeds)
    require(len(seeds) == len(tokens), "len(seeds)", len(seeds), f"one a sequence, {len(tokens)}")
    parts = [
        _decode_batch(
            model, chunk, policy, temperature, seeds[n * batch_size :][: len(chunk)], n * batch_size, progress
        )
        for n, chunk in enumerate(tokens.split(batch_size))
    ]
    return Decoded(*(torch.cat(column) for column in zip(*parts, strict=True)))


@torch.inference_mode()
def _decode_batch(model, tokens, policy, temperature, seeds, first, progress):
    B, L = tokens.shape
    tokens = tokens.clone()
    nfe = torch.zeros(B, dtype=torch.long, device=tokens.device)
    step = torch.full((B, L), -1, device=tokens.device)
    certainty = torch.zeros(B, L, device=tokens.device)  # entropy when written, to rank positions written together
    noise = gumbel_noise(seeds, L, len(model.vocab)).to(tokens.device) if temperature > 0 else None
    active = (tokens == model.mask_id).any(-1).nonzero().flatten()
    progress(B - len(active))
    previous, now = None, 0
    while len(active):
        rows = active

        def probe(probed: Tensor, owner: Tensor, rows: Tensor = rows) -> MaskedOutput:
            nfe.index_add_(0, rows[owner], torch.ones(len(owner), dtype=torch.long, device=nfe.device))
            return model(probed)

        current = tokens[rows]
        masked = current == model.mask_id
        log_p, hidden = marginals(model, current)
        nfe[rows] += 1
        score = log_p if noise is None else log_p.double() + temperature * noise[rows]
        state = StepState(
            tokens=current,
            masked=masked,
            log_p=log_p,
            entropy=entropy(log_p).where(masked, torch.inf),
            hidden=hidden,
            proposal=model.vocab[score.argmax(-1)],
            previous_log_p=previous,
            step=now,
            index=rows + first,
            model=model,
            probe=probe,
        )
        chosen = check_choice(policy(state), masked)
        tokens[rows] = torch.where(chosen, state.proposal, current)
        step[rows] = torch.where(chosen, now, step[rows])
        certainty[rows] = torch.where(chosen, state.entropy, certainty[rows])
        left = (masked & ~chosen).any(-1)
        active, previous, now = rows[left], log_p[left], now + 1
        progress(int((~left).sum()))
    given = step < 0
    by_certainty = certainty.argsort(dim=-1, stable=True)
    by_step = step.gather(-1, by_certainty).argsort(dim=-1, stable=True)
    order = by_certainty.gather(-1, by_step).argsort(-1) - given.sum(-1, keepdim=True)
    return tokens, nfe, step, order.where(~given, -1)


def check_choice(chosen: Tensor, masked: Tensor) -> Tensor:
    """Return a policy's answer if it is boolean, shaped and placed like the mask, and empty for no sequence."""
    if not isinstance(chosen, Tensor) or chosen.dtype != torch.bool or chosen.shape != masked.shape:
        got = f"{chosen.dtype} {tuple(chosen.shape)}" if isinstance(chosen, Tensor) else type(chosen).__name__
        raise ValueError(f"the policy returned {got}, expected torch.bool of shape {tuple(masked.shape)}")
    if (chosen & ~masked).any():
        raise ValueError("the policy chose a position that is not masked")
    if not chosen.any(-1).all():
        raise ValueError("the policy chose no position for an unfinished sequence")
    return chosen
