"""Training of a small ESM-C on protein sequences: resumable, with an exponential moving average of the weights."""

import copy
import csv
import hashlib
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from mi_lib.artifacts import load_weights, read_json, read_tensors, save_checkpoint, write_json, write_tensors
from mi_lib.esmc import ESMCConfig, ESMCModel
from mi_lib.masked import require
from mi_lib.mdm import forward_process
from mi_lib.protein_scores import masked_scores, of_model, summarise
from mi_lib.proteins import FIRST_ID, ProteinSet, encode
from mi_lib.train import (
    MDMTraining,
    append_row,
    check_resumable,
    drop_rows_after,
    make_optimizers,
    pack_state,
    unpack_state,
    update,
)


@dataclass(frozen=True)
class ESMCTraining:
    """How a small ESM-C is trained; the paper uses a trained one."""

    steps: int = 40_000
    residues: int = 600  # a batch: small ones learn far faster per residue
    lr: float = 2e-3
    warmup: int = 100
    decay: float = 0.9  # last share of the steps, in which the rate falls linearly to zero
    weight_decay: float = 0.01
    clip: float = 1.0
    ema: float = 0.998  # weights averaged over about 500 steps
    seed: int = 0
    optimizer: str = "muon"  # "adamw" needs about twice as many steps

    def __post_init__(self):
        for name in ("steps", "residues"):
            require(getattr(self, name) >= 1, name, getattr(self, name), "at least 1")
        require(self.lr > 0, "lr", self.lr, "above 0")
        require(0 <= self.decay <= 1, "decay", self.decay, "a share")
        require(0 <= self.ema < 1, "ema", self.ema, "in [0, 1)")
        require(self.optimizer in ("adamw", "muon"), "optimizer", self.optimizer, "'adamw' or 'muon'")

    rate = MDMTraining.rate


@dataclass(frozen=True)
class Buckets:
    """Training proteins by length; a batch holds proteins of one length, so that there is no padding.

    Attributes
    ----------
    tokens : tuple of Tensor of shape (n, L), uint8
        One tensor a length.
    size : tuple of int
        Proteins a batch of each length.
    share : ndarray
        How often each length is drawn, so that every protein is drawn equally often.
    """

    tokens: tuple[Tensor, ...]
    size: tuple[int, ...]
    share: np.ndarray

    @classmethod
    def of(cls, proteins: ProteinSet, residues: int) -> "Buckets":
        """Sort proteins into batches of about ``residues`` residues."""
        by_length: dict[int, list[str]] = {}
        for sequence in proteins.sequences:
            by_length.setdefault(len(sequence), []).append(sequence)
        tokens = tuple(encode(by_length[length]).to(torch.uint8) for length in sorted(by_length))
        size = tuple(max(1, round(residues / t.shape[1])) for t in tokens)
        batches = np.array([len(t) / n for t, n in zip(tokens, size, strict=True)])
        return cls(tokens, size, batches / batches.sum())

    def draw(self, rng: np.random.Generator) -> Tensor:
        """A batch of random proteins of one random length, int64 of shape (B, L)."""
        bucket = rng.choice(len(self.share), p=self.share)
        tokens = self.tokens[bucket]
        return tokens[rng.integers(len(tokens), size=self.size[bucket])].long()


def protein_loss(model: ESMCModel, tokens: Tensor, generator: torch.Generator) -> Tensor:
    """Negative evidence bound per residue, in nats: ``mdm.diffusion_loss`` with mask rates uniform in (0, 1].

    Parameters
    ----------
    model : ESMCModel
    tokens : LongTensor of shape (B, L)
        Clean sequences in random order: rates are stratified, the k-th of them lies in [k / B, (k + 1) / B).
    generator : torch.Generator
        Source of rates and masks.
    """
    B = len(tokens)
    rate = (torch.arange(B) + torch.rand(B, generator=generator)) / B
    noisy = forward_process(tokens, rate, model.mask_id, generator)
    masked = noisy == model.mask_id
    nll = F.cross_entropy(model(noisy).logits.transpose(1, 2), tokens - FIRST_ID, reduction="none")  # (B, L)
    return ((nll * masked).sum(-1) / masked.sum(-1)).mean()


def train_esmc(
    folder: Path,
    proteins: ProteinSet,
    held_out: ProteinSet,
    config: ESMCConfig = ESMCConfig(),  # noqa: B008 (frozen)
    training: ESMCTraining = ESMCTraining(),
    save_every: int = 500,
    report: Callable[[dict], None] = lambda row: None,
) -> ESMCModel:
    """Train an ESM-C, or go on with the training that ``folder`` holds.

    Every ``save_every`` steps the folder gets ``state.safetensors`` (to resume from), ``average_STEP.safetensors`` (the
    averaged weights) and a row of ``curve.csv``: training loss, and perplexity of the averaged weights on ``held_out``
    at 15, 50 and 100 % masked. A batch depends on the seed and the step alone, so a resumed training ends where an
    uninterrupted one does.

    Parameters
    ----------
    folder : Path
    proteins, held_out : ProteinSet
    config : ESMCConfig
    training : ESMCTraining
    save_every : int
    report : callable
        Called with each row of the curve.

    Returns
    -------
    ESMCModel
        With the averaged weights, in evaluation mode.

    Raises
    ------
    ValueError
        If the state in ``folder`` is damaged, of another configuration or of other proteins.
    """
    require(save_every >= 1, "save_every", save_every, "at least 1")
    folder, data = Path(folder), hashlib.sha256("\n".join(proteins.sequences).encode()).hexdigest()
    with torch.random.fork_rng(devices=[]):  # PyTorch's default initialisation, without touching the global generator
        torch.manual_seed(training.seed)
        model = ESMCModel(config)
    average = copy.deepcopy(model).requires_grad_(False)
    optimizers, step = make_optimizers(model, training), 0
    if (folder / "state.safetensors").exists():
        check_resumable(folder / "config.json", config, training)
        if read_json(folder / "config.json")["data"] != data:
            raise ValueError(f"the training in {folder} is of other proteins; use another folder")
        step = unpack_state(read_tensors(folder / "state.safetensors"), model, average, optimizers)
        drop_rows_after(folder / "curve.csv", step)
    write_json(folder / "config.json", {"config": asdict(config), "training": asdict(training), "data": data})
    buckets = Buckets.of(proteins, training.residues)
    started, losses = time.perf_counter(), []
    while step < training.steps:
        losses.append(train_step(model, average, optimizers, buckets, training, step))
        step += 1
        if step % save_every == 0 or step == training.steps:
            row = {
                "step": step,
                "residues": step * training.residues,
                "loss": float(np.mean(losses)),
                **held_out_perplexity(average, held_out),
                "seconds": time.perf_counter() - started,
                "cpu_seconds": time.process_time(),
            }
            write_tensors(folder / f"average_{step:07d}.safetensors", average.state_dict())
            append_row(folder / "curve.csv", row)  # before the state: resuming drops a row that no state followed
            write_tensors(folder / "state.safetensors", pack_state(model, average, optimizers, step))
            report(row)
            losses = []
    return average.eval()


def train_step(model, average, optimizers, buckets: Buckets, training: ESMCTraining, step: int) -> float:
    """One optimiser step in bfloat16 autocast; returns the loss in nats per residue."""
    rng = np.random.default_rng([training.seed, step])
    tokens = buckets.draw(rng)
    generator = torch.Generator().manual_seed(int(rng.integers(2**62)))
    with torch.autocast("cpu", torch.bfloat16):
        loss = protein_loss(model, tokens, generator)
    loss.backward()
    update(model, average, optimizers, training, step)
    return loss.item()


def held_out_perplexity(model: ESMCModel, proteins: ProteinSet) -> dict[str, float]:
    """Masked perplexity at 15, 50 and 100 % masked, by the name of the column in the curve."""
    summary = summarise(masked_scores(of_model(model), proteins), n=1)
    pairs = zip(summary["rate"], summary["perplexity"], strict=True)
    return {f"perplexity_{100 * rate:.0f}": perplexity for rate, perplexity in pairs}


def load_snapshot(folder: Path, step: int) -> ESMCModel:
    """The averaged weights that a training had at ``step``, rounded to float16 as a checkpoint of them would be.

    Raises
    ------
    ValueError
        If the training in ``folder`` saved nothing at ``step``.
    """
    folder = Path(folder)
    saved = sorted(int(path.stem.removeprefix("average_")) for path in folder.glob("average_*.safetensors"))
    require(step in saved, "step", step, f"one of the snapshots {saved} in {folder}")
    model = ESMCModel(ESMCConfig(**read_json(folder / "config.json")["config"]))
    weights = read_tensors(folder / f"average_{step:07d}.safetensors")
    load_weights(model, {name: tensor.half().float() for name, tensor in weights.items()}, str(folder))
    return model.eval().requires_grad_(False)


def ship_esmc(folder: Path, step: int, name: str, checkpoints: Path | None = None, **meta) -> None:
    """Make a checkpoint of the averaged weights that a training had at ``step``.

    Parameters
    ----------
    folder : Path
        Of ``train_esmc``.
    step : int
        One at which it saved.
    name : str
        Of the checkpoint.
    checkpoints : Path, optional
        Where it goes; ``data/checkpoints`` by default.
    **meta
        Added to the sidecar, such as scores.
    """
    plan, model = read_json(Path(folder) / "config.json"), load_snapshot(folder, step)
    with (Path(folder) / "curve.csv").open() as file:
        row = next(row for row in csv.DictReader(file) if int(row["step"]) == step)
    held_out = {key: float(value) for key, value in row.items() if key.startswith("perplexity_")}
    extra = {"step": step, "residues": int(row["residues"]), "held_out": held_out, "data_sha256": plan["data"], **meta}
    save_checkpoint(name, model, "esmc", plan["config"], checkpoints, training=plan["training"], **extra)
