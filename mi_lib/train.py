"""Training of the Sudoku MDM: resumable, with an exponential moving average of the weights."""

import copy
import csv
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from mi_lib.artifacts import (
    atomic_path,
    load_weights,
    read_json,
    read_tensors,
    save_checkpoint,
    write_json,
    write_tensors,
)
from mi_lib.masked import require
from mi_lib.mdm import MDM, MDMConfig, diffusion_loss, forward_process, masked_cross_entropy
from mi_lib.processes import ALONE, Processes
from mi_lib.sudoku import generate_grids

HELD_OUT_SEED = 10_000_019  # grids for the learning curve; training seeds are small


@dataclass(frozen=True)
class MDMTraining:
    """How an MDM is trained; the paper states only the number of puzzles."""

    steps: int = 4_000
    batch_size: int = 32  # small: the number of steps is what counts
    lr: float = 7e-4
    warmup: int = 300
    decay: float = 0.3  # last share of the steps, in which the rate falls linearly to zero
    weight_decay: float = 0.01
    clip: float = 1.0
    ema: float = 0.998  # weights averaged over about 500 steps
    n_grids: int = 100_000  # §5.1
    seed: int = 0
    schedule: str = "linear"
    optimizer: str = "adamw"  # "muon": orthogonalised updates for the matrices of the blocks
    precision: str = "bf16"  # mixed: weights and updates stay float32; or "float32"

    def __post_init__(self):
        for name in ("steps", "batch_size", "n_grids"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name}={getattr(self, name)}, expected at least 1")
        if not 0 <= self.decay <= 1 or not 0 <= self.ema < 1:
            raise ValueError(f"decay={self.decay} must lie in [0, 1] and ema={self.ema} in [0, 1)")
        if self.optimizer not in ("adamw", "muon"):
            raise ValueError(f"optimizer={self.optimizer!r}, expected 'adamw' or 'muon'")
        require(self.precision in ("bf16", "float32"), "precision", self.precision, "'bf16' or 'float32'")

    def rate(self, step: int) -> float:
        """Learning rate at ``step``, as a share of the peak."""
        left = (self.steps - step) / max(1.0, self.decay * self.steps)
        return min(1.0, (step + 1) / max(1, self.warmup), left)


def make_optimizers(model: nn.Module, training: MDMTraining) -> list[torch.optim.Optimizer]:
    """AdamW for everything, or Muon for the matrices inside the blocks and AdamW for the rest."""
    matrices = {id(p) for p in model.blocks.parameters() if p.dim() == 2} if training.optimizer == "muon" else set()
    rest = [p for p in model.parameters() if id(p) not in matrices]
    adamw = torch.optim.AdamW(rest, lr=training.lr, betas=(0.9, 0.98), weight_decay=training.weight_decay, fused=True)
    if not matrices:
        return [adamw]
    chosen = [p for p in model.parameters() if id(p) in matrices]
    return [
        adamw,
        torch.optim.Muon(
            chosen, lr=training.lr, weight_decay=training.weight_decay, adjust_lr_fn="match_rms_adamw", ns_steps=4
        ),
    ]


def pack_state(model: nn.Module, average: nn.Module, optimizers: list[torch.optim.Optimizer], step: int) -> dict:
    """Everything a training needs to go on, as flat tensors."""
    state = {"step": torch.tensor(step)}
    for prefix, module in (("model", model), ("average", average)):
        state |= {f"{prefix}.{k}": v.clone() for k, v in module.state_dict().items()}
    for n, optimizer in enumerate(optimizers):
        for index, slots in optimizer.state_dict()["state"].items():
            state |= {f"optimizer.{n}.{index}.{k}": torch.as_tensor(v) for k, v in slots.items()}
    return state


def unpack_state(state: dict[str, Tensor], model: nn.Module, average: nn.Module, optimizers: list) -> int:
    """Restore what ``pack_state`` wrote; returns the step."""
    for prefix, module in (("model.", model), ("average.", average)):
        part = {k.removeprefix(prefix): v for k, v in state.items() if k.startswith(prefix)}
        load_weights(module, part, "the training state")
    for n, optimizer in enumerate(optimizers):
        saved = optimizer.state_dict()
        for key, value in state.items():
            if key.startswith(f"optimizer.{n}."):
                index, slot = key.split(".", 3)[2:]
                saved["state"].setdefault(int(index), {})[slot] = value
        optimizer.load_state_dict(saved)
    return int(state["step"])


def held_out_loss(model: MDM, masked_cells: tuple[int, ...] = (20, 40, 54), n: int = 256) -> dict[str, float]:
    """Masked cross-entropy on held-out grids, in nats per cell, at several numbers of masked cells."""
    grids = torch.from_numpy(generate_grids(n, HELD_OUT_SEED)).long()
    losses = {}
    with torch.inference_mode():
        for count in masked_cells:
            generator = torch.Generator().manual_seed(count)
            noisy = forward_process(grids, torch.full((n,), count / grids.shape[1]), model.mask_id, generator)
            losses[f"nats_{count}"] = masked_cross_entropy(model, noisy, grids).mean().item()
    return losses


def train_mdm(
    folder: Path,
    config: MDMConfig = MDMConfig(),  # noqa: B008 (frozen)
    training: MDMTraining = MDMTraining(),
    save_every: int = 500,
    report: Callable[[dict], None] = lambda row: None,
    processes: Processes = ALONE,
) -> MDM:
    """Train a Sudoku MDM, or go on with the training that ``folder`` holds.

    Every ``save_every`` steps the folder gets ``state.safetensors`` (to resume from), ``average_STEP.safetensors`` (the
    averaged weights) and a row of ``curve.csv``. A batch depends on the seed and the step alone, so a resumed training
    ends where an uninterrupted one does, and one on several processes where one on a single process does.

    Parameters
    ----------
    folder : Path
    config : MDMConfig
    training : MDMTraining
    save_every : int
    report : callable
        Called with each row of the curve, in process 0.
    processes : Processes
        They share the rows of each batch; process 0 writes.

    Returns
    -------
    MDM
        With the averaged weights, on the CPU and in evaluation mode.

    Raises
    ------
    ValueError
        If the state in ``folder`` is damaged or of another configuration.
    """
    require(save_every >= 1, "save_every", save_every, "at least 1")
    folder = Path(folder)
    with torch.random.fork_rng(devices=[]):  # PyTorch's default initialisation, without touching the global generator
        torch.manual_seed(training.seed)
        model = MDM(config).to(processes.device)
    average = copy.deepcopy(model).requires_grad_(False)
    optimizers, step = make_optimizers(model, training), 0
    if (folder / "state.safetensors").exists():
        check_resumable(folder / "config.json", config, training)
        step = unpack_state(read_tensors(folder / "state.safetensors"), model, average, optimizers)
    processes.wait()  # all have read what is there
    if processes.is_main:
        drop_rows_after(folder / "curve.csv", step)
        write_json(folder / "config.json", {"config": asdict(config), "training": asdict(training)})
    grids = torch.from_numpy(generate_grids(training.n_grids, training.seed))
    started, losses = time.perf_counter(), []
    while step < training.steps:
        losses.append(train_step(model, average, optimizers, grids, training, step, processes))
        step += 1
        if processes.is_main and (step % save_every == 0 or step == training.steps):
            row = {
                "step": step,
                "examples": step * training.batch_size,
                "loss": float(np.mean(losses)),
                **held_out_loss(processes.place(average)),
                "seconds": time.perf_counter() - started,
            }
            write_tensors(folder / f"average_{step:07d}.safetensors", average.state_dict())
            append_row(folder / "curve.csv", row)  # before the state: resuming drops a row that no state followed
            write_tensors(folder / "state.safetensors", pack_state(model, average, optimizers, step))
            report(row)
            losses = []
    return average.cpu().eval()


def check_resumable(path: Path, config: MDMConfig, training: MDMTraining) -> None:
    """Raise a ValueError unless a training started with this configuration; its length and rates may change."""
    if not path.exists():
        return
    held, free = read_json(path), ("steps", "lr", "warmup", "decay", "weight_decay", "clip", "ema")
    for part, now in (("config", asdict(config)), ("training", asdict(training))):
        for name, value in now.items():
            if name not in free and held[part].get(name, value) != value:
                raise ValueError(f"{name}={value!r}, but the training in {path.parent} has {held[part][name]!r}")


def drawn_grids(training: MDMTraining, steps: int) -> np.ndarray:
    """The distinct grids that the first ``steps`` steps of a training have drawn, shape (n, 81)."""
    rows = [
        np.random.default_rng([training.seed, step]).integers(training.n_grids, size=training.batch_size)
        for step in range(steps)
    ]
    return generate_grids(training.n_grids, training.seed)[np.unique(np.concatenate(rows))]


def train_step(
    model, average, optimizers, grids: Tensor, training: MDMTraining, step: int, processes: Processes = ALONE
) -> float:
    """One optimiser step, each process on its share of the batch; returns the batch's loss in nats per cell."""
    rng = np.random.default_rng([training.seed, step])
    batch = grids[rng.integers(len(grids), size=training.batch_size)].long()
    generator = torch.Generator().manual_seed(int(rng.integers(2**62)))
    with torch.autocast(processes.device.type, torch.bfloat16, enabled=training.precision == "bf16"):
        loss = diffusion_loss(processes.divide(model), batch, generator, training.schedule)
    loss.backward()
    processes.sum_gradients(model)
    update(model, average, optimizers, training, step)
    return loss.item()


def update(model: nn.Module, average: nn.Module, optimizers: list, training: MDMTraining, step: int) -> None:
    """Change the weights by the gradients they hold, at the learning rate of ``step``, and the average with them."""
    nn.utils.clip_grad_norm_(model.parameters(), training.clip)
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            group["lr"] = training.lr * training.rate(step)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
    keep = min(training.ema, (step + 1) / (step + 10))
    with torch.no_grad():  # else the average becomes part of an ever longer graph
        torch._foreach_lerp_(list(average.parameters()), list(model.parameters()), 1 - keep)


def drop_rows_after(path: Path, step: int) -> None:
    """Keep only the rows of a curve up to ``step``."""
    if path.exists():
        lines = path.read_text().splitlines(keepends=True)
        kept = lines[:1] + [line for line in lines[1:] if int(line.split(",", 1)[0]) <= step]
        with atomic_path(path) as temporary:
            temporary.write_text("".join(kept))


def append_row(path: Path, row: dict) -> None:
    """Append a row to a CSV file, writing the header first if the file is new."""
    new = not path.exists()
    with path.open("a", newline="") as file:
        writer = csv.DictWriter(file, row)
        if new:
            writer.writeheader()
        writer.writerow(row)


def ship_snapshot(folder: Path, step: int, name: str, checkpoints: Path | None = None, **meta) -> None:
    """Make a checkpoint of the averaged weights that a training had at ``step``.

    Parameters
    ----------
    folder : Path
        Of ``train_mdm``.
    step : int
        One at which it saved.
    name : str
        Of the checkpoint.
    checkpoints : Path, optional
        Where it goes; ``data/checkpoints`` by default.
    **meta
        Added to the sidecar, such as validation results.
    """
    folder = Path(folder)
    saved = sorted(int(path.stem.removeprefix("average_")) for path in folder.glob("average_*.safetensors"))
    if step not in saved:
        raise ValueError(f"step={step}, but {folder} has snapshots at {saved}")
    plan = read_json(folder / "config.json")
    model = MDM(MDMConfig(**plan["config"]))
    load_weights(model, read_tensors(folder / f"average_{step:07d}.safetensors"), str(folder))
    with (folder / "curve.csv").open() as file:
        row = next(row for row in csv.DictReader(file) if int(row["step"]) == step)
    losses = {key: float(value) for key, value in row.items() if key.startswith("nats_")}
    extra = {"step": step, "examples": int(row["examples"]), "held_out": losses, **meta}
    save_checkpoint(name, model, "mdm", plan["config"], checkpoints, training=plan["training"], **extra)
