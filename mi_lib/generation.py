"""Proteins by unmasking (§5.3): whole ones from nothing, and masked residues of given ones."""

import time
from collections.abc import Callable, Iterable
from dataclasses import replace

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from mi_lib.masked import MaskedModel, MaskedOutput, marginals, require, vocab_index
from mi_lib.policies import RandomOrder
from mi_lib.proteins import AMINO_ACIDS, IDS, MASK_ID, MAX_LENGTH, MIN_LENGTH, decode_tokens, encode
from mi_lib.samplers import Policy, StepState, decode
from mi_lib.solving import Method

PAPER_TABLE2 = pd.DataFrame(
    [
        ("Sequential", "", 74.8, 0.093),
        ("Naive", "k=4", 19.1, 0.185),
        ("Naive", "k=8", 9.8, 0.196),
        ("Naive", "k=12", 6.2, 0.218),
        ("MI", "gamma=2.0 lam=1.0 head=entropy", 15.3, 0.136),
        ("MI", "gamma=4.0 lam=1.0 head=entropy", 10.0, 0.174),
    ],
    columns=["method", "parameters", "passes", "jsd"],
)  # as printed in the paper, which does not say whether its JSD is the divergence or its square root

Progress = Callable[[int], None]


def table2_methods(
    k: tuple[int, ...] = (4, 8, 12), gamma: tuple[float, ...] = (2.0, 4.0), lam: float = 1.0, head: str = "entropy"
) -> tuple[Method, ...]:
    """The rows of Table 2; the defaults are the paper's six."""
    return (
        Method("Sequential"),
        *(Method("Naive", k=value) for value in k),
        *(Method("MI", gamma=float(value), lam=float(lam), head=head) for value in gamma),
    )


def draw_lengths(n: int, seed: int = 0, shortest: int = MIN_LENGTH, longest: int = MAX_LENGTH) -> np.ndarray:
    """Lengths of ``n`` proteins, uniform from ``shortest`` to ``longest``; the first of them whatever ``n``.

    The paper gives the range only; uniform is our choice.
    """
    require(n >= 1, "n", n, "at least one protein")
    require(1 <= shortest <= longest, "shortest", shortest, f"1 to longest={longest}")
    return np.random.default_rng(seed).integers(shortest, longest + 1, size=n)


def protein_seeds(seed: int, proteins: Iterable[int]) -> list[int]:
    """The seed of each protein's noise: it depends on ``seed`` and the protein's number alone."""
    return [int(np.random.SeedSequence([seed, int(k)]).generate_state(1)[0]) for k in proteins]


def length_groups(lengths: Iterable[int]) -> list[np.ndarray]:
    """Numbers of the sequences of each length, the shortest first: what can share a batch without padding."""
    lengths = np.asarray(list(lengths))
    return [np.flatnonzero(lengths == length) for length in np.unique(lengths)]


class Unigram:
    """A masked model that knows the frequencies of the amino acids and nothing else: the baseline.

    Parameters
    ----------
    frequency : ndarray of shape (20,)
        In the order of ``AMINO_ACIDS``; need not be normalised.
    """

    def __init__(self, frequency: np.ndarray):
        frequency = np.asarray(frequency, float)
        fits = frequency.shape == (len(AMINO_ACIDS),) and (frequency >= 0).all() and frequency.sum() > 0
        require(bool(fits), "frequency", frequency, f"{len(AMINO_ACIDS)} frequencies, not all zero")
        self.log_p = torch.from_numpy(frequency / frequency.sum()).log().float()
        self.vocab, self.mask_id = IDS, MASK_ID

    def __call__(self, tokens: Tensor) -> MaskedOutput:
        return MaskedOutput(self.log_p.expand(*tokens.shape, -1), tokens.new_zeros(*tokens.shape, 1, dtype=torch.float))


def generate(
    model: MaskedModel,
    policy: Policy,
    lengths: Iterable[int],
    seed: int = 0,
    temperature: float = 1.0,
    batch_size: int = 64,
    progress: Progress = lambda finished: None,
) -> pd.DataFrame:
    """Unconditional generation: every protein starts fully masked.

    Parameters
    ----------
    model : MaskedModel
        Over the 20 amino acids.
    policy : callable
        A ``RandomOrder`` takes its order from ``seed`` here too.
    lengths : iterable of int
        One a protein; equal lengths are batched together.
    seed : int
        Protein k's noise depends on ``seed`` and k alone, so methods are compared on common random numbers.
    temperature : float
        ``1`` samples the model's own distribution.
    batch_size : int
    progress : callable
        Called with the number of proteins just finished.

    Returns
    -------
    DataFrame
        A row a protein: ``protein``, ``length``, ``sequence``, ``passes``, ``seconds`` (wall time of its group of equal
        lengths, shared out).

    Raises
    ------
    ValueError
        If there are no lengths, one is below 1, or an argument of ``decode`` is out of range.
    """
    lengths = [int(length) for length in lengths]
    require(bool(lengths) and min(lengths) >= 1, "lengths", lengths, "at least one, each at least 1")
    starts = [torch.full((length,), model.mask_id) for length in lengths]
    return _unmask(model, policy, starts, seed, temperature, batch_size, progress)


def masks(lengths: Iterable[int], share: float, seed: int = 0) -> list[np.ndarray]:
    """Which residues to mask: ``share`` of each protein, at least one, at random.

    A protein's mask depends on ``seed``, its number and its length alone; a smaller share masks a subset.
    """
    require(0 < share <= 1, "share", share, "a share above 0, at most 1")
    ranks = [np.random.default_rng([seed, k, 1]).permutation(int(length)) for k, length in enumerate(lengths)]
    return [rank < max(1, round(share * len(rank))) for rank in ranks]


def fill(
    model: MaskedModel,
    policy: Policy,
    sequences: list[str],
    mask_share: float,
    seed: int = 0,
    temperature: float = 1.0,
    batch_size: int = 64,
    progress: Progress = lambda finished: None,
) -> pd.DataFrame:
    """Conditional sampling: mask part of each protein and fill it in; the same masks and noise for every method.

    Parameters
    ----------
    model, policy, seed, temperature, batch_size, progress
        As in ``generate``.
    sequences : list of str
    mask_share : float
        Share of each protein's residues that ``masks`` hides.

    Returns
    -------
    DataFrame
        As of ``generate``, with ``masked`` (residues) and ``recovery`` (share of them that equal the original).
    """
    hidden = masks(map(len, sequences), mask_share, seed)
    whole = [encode([sequence])[0] for sequence in sequences]
    starts = [tokens.masked_fill(torch.from_numpy(m), model.mask_id) for tokens, m in zip(whole, hidden, strict=True)]
    frame = _unmask(model, policy, starts, seed, temperature, batch_size, progress)
    same = [np.array(list(a)) == np.array(list(b)) for a, b in zip(sequences, frame["sequence"], strict=True)]
    recovery = [s[m].mean() for s, m in zip(same, hidden, strict=True)]
    return frame.assign(masked=[int(m.sum()) for m in hidden], recovery=recovery)


def seeded(policy: Policy, seed: int) -> Policy:
    """The policy itself; a ``RandomOrder`` with ``seed``."""
    return replace(policy, seed=seed) if isinstance(policy, RandomOrder) else policy


def _unmask(model, policy, starts, seed, temperature, batch_size, progress) -> pd.DataFrame:
    """Decode sequences of any lengths, a length at a time."""
    require(set(model.vocab.tolist()) <= set(IDS.tolist()), "vocab", model.vocab, f"amino acids, {IDS.tolist()}")
    policy, parts = seeded(policy, seed), []
    for group in length_groups(map(len, starts)):
        tokens = torch.stack([starts[k] for k in group]).to(model.vocab.device)
        started = time.perf_counter()
        done = decode(model, tokens, policy, temperature, protein_seeds(seed, group), batch_size, progress)
        row = {"protein": group, "length": tokens.shape[1], "sequence": decode_tokens(done.tokens.cpu())}
        row |= {"passes": done.nfe.cpu().numpy(), "seconds": (time.perf_counter() - started) / len(group)}
        parts.append(pd.DataFrame(row))
    return pd.concat(parts).sort_values("protein", ignore_index=True)


@torch.inference_mode()
def masked_nll(
    model: MaskedModel,
    sequences: list[str],
    positions: list[np.ndarray],
    seed: int = 0,
    draws: int = 4,
    batch_size: int = 64,
) -> np.ndarray:
    """Negative log-likelihood of the residues at ``positions`` given the others, in nats a residue.

    Parameters
    ----------
    model : MaskedModel
    sequences : list of str
    positions : list of ndarray of shape (L,), bool
        As of ``masks``: at least one a sequence.
    seed : int
    draws : int
        Passes a sequence.
    batch_size : int

    Returns
    -------
    ndarray of shape (n,)

    Notes
    -----
    An unbiased estimate of the mean over all orders of -log p(residues | rest) / m, written one residue a pass: of the
    m positions a uniformly drawn number, at random, is masked, and the masked residues are scored (the loss that
    masked diffusion trains). It judges a sequence jointly, however it was sampled; the likelihood at write time would
    not see that residues written together contradict each other. ``draws`` numbers are drawn from equal strata.
    """
    require(draws >= 1, "draws", draws, "at least 1")
    require(all(p.any() for p in positions), "positions", "an empty one", "at least one position a sequence")
    nll = np.zeros(len(sequences))
    for group in length_groups(map(len, sequences)):
        tokens = encode([sequences[k] for k in group])
        column = vocab_index(model.vocab.cpu())[tokens]  # (G, L) of the logits
        hidden = np.stack([_partial_masks(positions[k], [seed, int(k)], draws) for k in group])  # (G, draws, L)
        hidden = torch.from_numpy(hidden).flatten(0, 1)  # (G * draws, L)
        owner = torch.arange(len(group)).repeat_interleave(draws)
        scores = []
        for rows, mask in zip(owner.split(batch_size), hidden.split(batch_size), strict=True):
            start = tokens[rows].masked_fill(mask, model.mask_id).to(model.vocab.device)
            log_p = marginals(model, start)[0].cpu().gather(-1, column[rows][..., None])[..., 0]
            scores.append(-(log_p * mask).sum(-1) / mask.sum(-1))
        nll[group] = torch.cat(scores).view(len(group), draws).mean(-1).numpy()
    return nll


def _partial_masks(positions: np.ndarray, seed: list[int], draws: int) -> np.ndarray:
    """Random subsets of ``positions``, their sizes one from each of ``draws`` equal parts of 1 .. m; (draws, L)."""
    rng, where = np.random.default_rng([*seed, 2]), np.flatnonzero(positions)
    hidden = np.zeros((draws, len(positions)), bool)
    sizes = 1 + np.floor(len(where) * (np.arange(draws) + rng.random(draws)) / draws).astype(int)
    for row, size in zip(hidden, sizes, strict=True):
        row[rng.permutation(where)[:size]] = True
    return hidden


def trajectory(
    model: MaskedModel,
    policy: Policy,
    lengths: Iterable[int],
    seed: int = 0,
    progress: Progress = lambda finished: None,
) -> pd.DataFrame:
    """Entropies along unconditional generation: what a budget of entropy meets.

    Returns
    -------
    DataFrame
        A row a protein and step: ``length`` and ``index`` (which together name the protein), ``step``, ``unmasked``
        (share, before the step), ``entropy_left`` (mean over the masked positions), ``entropy_lowest``,
        ``entropy_chosen`` (mean over the positions written now; all in nats), ``chosen`` (their number).
    """
    policy, frames = seeded(policy, seed), []

    def watched(state: StepState) -> Tensor:
        chosen = policy(state)
        h, left, written = state.entropy, state.masked.sum(-1), chosen.sum(-1)
        columns = {
            "index": state.index,
            "unmasked": 1 - left / h.shape[1],
            "entropy_left": h.where(state.masked, 0).sum(-1) / left,
            "entropy_lowest": h.amin(-1),
            "entropy_chosen": h.where(chosen, 0).sum(-1) / written,
            "chosen": written,
        }
        frame = pd.DataFrame({name: value.cpu().numpy() for name, value in columns.items()})
        frames.append(frame.assign(length=h.shape[1], step=state.step))
        return chosen

    generate(model, watched, lengths, seed, progress=progress)
    return pd.concat(frames, ignore_index=True)
