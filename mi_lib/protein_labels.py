"""Masked proteins to probe for MI labels, one length a call."""

import functools

import numpy as np
import torch
from torch import Tensor

from mi_lib.labels import LABEL_SEED
from mi_lib.masked import MaskedModel, require
from mi_lib.mdm import forward_process
from mi_lib.policies import MIGuided, no_mi
from mi_lib.proteins import ProteinSet, encode, load_proteins
from mi_lib.samplers import decode

STEPS_A_DECODE = 4  # visited states taken from each decoded protein


def protein_states(
    model: MaskedModel, n: int, seed: int, proteins: ProteinSet | None = None, gamma: float = 4.0
) -> Tensor:
    """Proteins to probe, all of one length: half uniformly masked ones, half states that a sampler visits.

    The length is that of a random training protein. The first half are training proteins of that length with a uniform
    number of masked residues, 2 to all. The second half come from unconditional decoding at temperature 1 with the
    budget rule (``MIGuided`` without MI): four random steps of each decode, the fully masked start included.

    Parameters
    ----------
    model : MaskedModel
        Over the 20 amino acids.
    n : int
    seed : int
        Decides length, proteins, masks and noise.
    proteins : ProteinSet, optional
        The training set by default.
    gamma : float
        Budget of a step in nats; the paper's larger one by default.

    Returns
    -------
    LongTensor of shape (n, L), each protein with at least two masked residues
    """
    require(n >= 1, "n", n, "at least 1")
    proteins = proteins or _training()
    lengths = np.array([len(sequence) for sequence in proteins.sequences])
    require(int(lengths.max()) >= 2, "proteins", int(lengths.max()), "sequences of at least 2 residues")
    rng = np.random.default_rng([LABEL_SEED, seed])
    L = int(rng.choice(lengths[lengths >= 2]))
    half = n - n // 2
    chosen = rng.choice(np.flatnonzero(lengths == L), size=half)
    tokens = encode([proteins.sequences[i] for i in chosen])
    rate = torch.from_numpy(rng.integers(2, L + 1, size=half) / L)
    generator = torch.Generator().manual_seed(int(rng.integers(2**62)))
    uniform = forward_process(tokens, rate, model.mask_id, generator)
    if n == half:
        return uniform
    start = torch.full((-(-(n - half) // STEPS_A_DECODE), L), model.mask_id)
    seeds = rng.integers(2**62, size=len(start)).tolist()
    decoded = decode(model, start, MIGuided(no_mi, gamma=gamma), temperature=1.0, seeds=seeds)
    visited = visited_states(decoded.tokens, decoded.step, model.mask_id, rng)
    missing = max(0, n - half - len(visited))  # decodes whose last step wrote a single residue
    return torch.cat([uniform, visited[: n - half], uniform[:missing]])


def visited_states(tokens: Tensor, step: Tensor, mask_id: int, rng: np.random.Generator) -> Tensor:
    """Random states of decodes from fully masked sequences: what was not written yet is masked again.

    Parameters
    ----------
    tokens, step : LongTensor of shape (P, L)
        Of ``Decoded``.
    mask_id : int
    rng : numpy.random.Generator

    Returns
    -------
    LongTensor of shape (Q, L)
        ``STEPS_A_DECODE`` states of each decode but those with fewer than two masked positions.
    """
    last = step.amax(-1).numpy()  # (P,)
    at = torch.from_numpy(rng.integers(last + 1, size=(STEPS_A_DECODE, len(last))))  # (S, P)
    states = torch.where(step[None] >= at[..., None], mask_id, tokens[None]).flatten(0, 1)
    return states[(states == mask_id).sum(-1) >= 2]


@functools.cache
def _training() -> ProteinSet:
    return load_proteins("training")
