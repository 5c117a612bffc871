"""A masked model of proteins that is quick, and proteins for it: what the tests of records use."""

import numpy as np
import pytest
import torch

import mi_lib.artifacts
import mi_lib.checkpoints
import mi_lib.protein_records
import mi_lib.protein_runs
import mi_lib.results
from mi_lib.artifacts import save_checkpoint
from mi_lib.head import HeadConfig, MIHead
from mi_lib.masked import MaskedOutput
from mi_lib.proteins import AMINO_ACIDS, IDS, MASK_ID, ProteinSet


class Chain:
    """Prefers, right of each residue, the next amino acid of the alphabet; knows nothing else."""

    vocab, mask_id = IDS, MASK_ID

    def __call__(self, tokens):
        left = torch.cat([tokens.new_full((len(tokens), 1), MASK_ID), tokens[:, :-1]], 1)
        wanted = torch.where(left == MASK_ID, -1, (left - 3) % 20)
        logits = 3.0 * (wanted[..., None] == torch.arange(20)).float() + torch.arange(20) / 20
        return MaskedOutput(logits, logits)


def random_proteins(n: int, seed: int = 0) -> ProteinSet:
    """Proteins of 50 to 100 random residues."""
    rng = np.random.default_rng(seed)
    sequences = tuple("".join(rng.choice(list(AMINO_ACIDS), rng.integers(50, 101))) for _ in range(n))
    return ProteinSet(tuple(f"P{k}" for k in range(n)), sequences, ("",) * n)


def store_heads(model: str, seed: int = 0) -> None:
    """Heads of both estimators that fit ``Chain``."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        for estimator in ("entropy", "mixture"):
            config = {"width": 20, "h": 4}
            save_checkpoint(f"{model}_head_{estimator}", MIHead(HeadConfig(**config)), "head", config, model=model)


@pytest.fixture
def toy(tmp_path, monkeypatch):
    """The model "toy" with heads; results, cache, checkpoints and proteins of its own. Returns the folder."""
    sets = {"reference": random_proteins(60), "training": random_proteins(200, seed=1)}
    monkeypatch.setattr(mi_lib.artifacts, "CHECKPOINTS", tmp_path / "checkpoints")
    monkeypatch.setattr(mi_lib.results, "RESULTS", tmp_path / "results")
    monkeypatch.setattr(mi_lib.protein_runs, "CACHE", tmp_path / "cache")
    monkeypatch.setattr(mi_lib.checkpoints, "load_model", lambda name: Chain(), raising=False)
    for module in (mi_lib.protein_runs, mi_lib.protein_records):
        monkeypatch.setattr(module, "load_proteins", sets.__getitem__)
    store_heads("toy")
    return tmp_path
