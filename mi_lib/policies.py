"""Policies (§4.3): given what one forward pass says, which masked positions to unmask now."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from mi_lib.ground_truth import check_estimator, mutual_information
from mi_lib.masked import MaskedOutput, require
from mi_lib.samplers import StepState


@dataclass(frozen=True)
class TopK:
    """The k masked positions of lowest entropy ("Naive" in the paper)."""

    k: int = 4

    def __post_init__(self):
        require(isinstance(self.k, int) and self.k >= 1, "k", self.k, "an integer of at least 1")

    def __call__(self, state: StepState) -> Tensor:
        rank = state.entropy.argsort(dim=-1, stable=True).argsort(-1)
        return (rank < self.k) & state.masked


@dataclass(frozen=True)
class Sequential(TopK):
    """One position a pass, lowest entropy first: TopK(1)."""

    k: int = 1


@dataclass(frozen=True)
class EntropyBounded:
    """EB-Sampler (arXiv 2505.24857): the longest prefix, entropies ascending, with ``sum H - max H <= gamma``.

    ``gamma`` is in nats. The largest entropy of the prefix is not charged, so one position always passes.
    """

    gamma: float = 0.2

    def __post_init__(self):
        require(self.gamma >= 0, "gamma", self.gamma, "a budget of at least 0 nats")

    def __call__(self, state: StepState) -> Tensor:
        h, order = state.entropy.sort(dim=-1, stable=True)
        h = h.where(h.isfinite(), 0)  # observed positions come last and are masked out below
        chosen = h.cumsum(-1) - h <= self.gamma
        return torch.zeros_like(state.masked).scatter(-1, order, chosen) & state.masked


@dataclass(frozen=True)
class Threshold:
    """Every position whose likeliest token has probability above ``tau``, and the likeliest one (Fast-dLLM)."""

    tau: float = 0.9

    def __post_init__(self):
        require(0 <= self.tau <= 1, "tau", self.tau, "a probability")

    def __call__(self, state: StepState) -> Tensor:
        confidence = state.log_p.amax(-1).exp().where(state.masked, -1)
        best = torch.zeros_like(state.masked).scatter(-1, confidence.argmax(-1, keepdim=True), True)
        return (confidence > self.tau) | best


@dataclass(frozen=True)
class RandomOrder:
    """One position a pass, in a random order that depends on ``seed``, the length and the sequence's index alone."""

    seed: int = 0

    def __post_init__(self):
        require(isinstance(self.seed, int) and self.seed >= 0, "seed", self.seed, "an integer of at least 0")

    def __call__(self, state: StepState) -> Tensor:
        L = state.tokens.shape[1]
        rank = np.stack([np.random.default_rng([self.seed, L, i]).permutation(L) for i in state.index.tolist()])
        rank = torch.from_numpy(rank).to(state.masked.device).where(state.masked, L)  # (B, L)
        return torch.zeros_like(state.masked).scatter(-1, rank.argmin(-1, keepdim=True), True)


@dataclass(frozen=True)
class MIGuided:
    """Greedy selection under a budget of entropy plus dependence (§4.3).

    Entropies ascending, candidate i costs ``H_i + lam * sum over chosen j of MI_ij``; it is chosen if the remaining
    budget covers the cost, which is then subtracted, else postponed. The first candidate is always chosen.

    Attributes
    ----------
    mi : callable
        Maps a StepState to MI matrices (B, L, L) in nats: ``HeadMI``, ``OracleMI``, ``no_mi``.
    gamma : float
        Budget of a step, in nats.
    lam : float
        Weight of dependence against entropy.
    """

    mi: Callable[[StepState], Tensor]
    gamma: float = 0.3
    lam: float = 1.0

    def __post_init__(self):
        require(self.gamma >= 0, "gamma", self.gamma, "a budget of at least 0 nats")
        require(self.lam >= 0, "lam", self.lam, "a weight of at least 0")

    def __call__(self, state: StepState) -> Tensor:
        h, order = state.entropy.sort(dim=-1, stable=True)  # (B, L), observed positions last with inf
        rows = torch.arange(len(h), device=h.device)
        chosen = torch.zeros_like(state.masked)
        budget = h.new_full((len(h),), self.gamma)
        dependence = torch.zeros_like(h)  # sum of MI to the chosen positions
        mi = self.mi(state)
        for rank in range(h.shape[1]):
            if rank and not (h[:, rank] <= budget).any():  # entropies ascend: nothing later fits either
                break
            i = order[:, rank]
            cost = h[:, rank] + self.lam * dependence[rows, i]
            take = cost <= budget if rank else torch.ones_like(cost, dtype=torch.bool)
            chosen[rows, i] = take
            budget = budget - cost.where(take, 0)
            dependence += mi[rows, i] * take[:, None]
        return chosen & state.masked


@dataclass(frozen=True)
class HeadMI:
    """MI predicted by a head from the pass that was made anyway."""

    head: Callable[[Tensor, Tensor], Tensor]

    def __call__(self, state: StepState) -> Tensor:
        return self.head(state.hidden, state.masked)


@dataclass(frozen=True)
class OracleMI:
    """MI by probing the model itself: the head's upper bound, at 1 + N|V| passes a step."""

    estimator: str = "entropy"
    tail: float = 0.0

    def __post_init__(self):
        check_estimator(self.estimator)
        require(0 <= self.tail < 1, "tail", self.tail, "a probability below 1")

    def __call__(self, state: StepState) -> Tensor:
        return torch.stack([self._row(state, b) for b in range(len(state.tokens))])

    def _row(self, state: StepState, b: int) -> Tensor:
        return mutual_information(_CountedModel(state, b), state.tokens[b], self.estimator, tail=self.tail)


def no_mi(state: StepState) -> Tensor:
    """MI of zero for every pair: the budget rule alone."""
    return state.entropy.new_zeros(1, 1, 1).expand(*state.tokens.shape, state.tokens.shape[1])


@dataclass(frozen=True)
class _CountedModel:
    """A MaskedModel whose passes are counted as those of one row of a state."""

    state: StepState
    row: int

    @property
    def mask_id(self) -> int:
        return self.state.model.mask_id

    @property
    def vocab(self) -> Tensor:
        return self.state.model.vocab

    def __call__(self, tokens: Tensor) -> MaskedOutput:
        return self.state.probe(tokens, torch.full((len(tokens),), self.row))
