"""The verbs of ``mi`` that train: ``train sudoku``, ``label`` and ``train-head``."""

import re
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer
from tqdm import tqdm
from typer import Option

from mi_lib.parameters import ESTIMATORS

Checkpoint = Annotated[str, Option(help="Name of a shipped MDM checkpoint.")]
Threads = Annotated[int | None, Option(min=1, help="CPU threads; PyTorch's choice by default.")]
Overwrite = Annotated[bool, Option("--overwrite", help="Replace a checkpoint of this name.")]
Folder = Annotated[Path | None, Option(help="Folder of the label shards; in the cache by default.")]

train = typer.Typer(no_args_is_help=True, help="Train a masked diffusion model.")


def given(**values) -> dict:
    """The options that were given; the others keep the defaults of the library."""
    return {name: value for name, value in values.items() if value is not None}


def use_threads(threads: int | None) -> None:
    """Limit PyTorch's threads, if a limit was given."""
    if threads is not None:
        import torch

        torch.set_num_threads(threads)


def check_name(name: str, overwrite: bool) -> None:
    """Refuse a checkpoint name that is no plain word, or that is taken."""
    from mi_lib.artifacts import checkpoint_names

    if not re.fullmatch(r"[A-Za-z0-9_-]+", name):
        raise ValueError(f"name={name!r}, expected letters, digits, '_' and '-'")
    if name in checkpoint_names() and not overwrite:
        raise ValueError(f"checkpoint {name!r} exists; choose another --name, or --overwrite it")


@train.command()
def sudoku(
    folder: Annotated[Path, Option(help="Where the training lives; one that is there goes on.")],
    steps: Annotated[int | None, Option(help="Optimiser steps.")] = None,
    batch_size: Annotated[int | None, Option(help="Grids a step.")] = None,
    lr: Annotated[float | None, Option(help="Peak learning rate.")] = None,
    warmup: Annotated[int | None, Option(help="Steps of linear warm-up.")] = None,
    decay: Annotated[float | None, Option(help="Last share of the steps, in which the rate falls to zero.")] = None,
    weight_decay: Annotated[float | None, Option(help="AdamW's.")] = None,
    clip: Annotated[float | None, Option(help="Largest gradient norm.")] = None,
    ema: Annotated[float | None, Option(help="Decay of the averaged weights.")] = None,
    n_grids: Annotated[int | None, Option(help="Training grids.")] = None,
    seed: Annotated[int | None, Option(help="Decides grids, masks and initial weights.")] = None,
    schedule: Annotated[str | None, Option(help="Masking schedule: linear or cosine.")] = None,
    optimizer: Annotated[str | None, Option(help="adamw or muon.")] = None,
    position: Annotated[str, Option(help="Position embeddings: units (row, column, box) or learned.")] = "units",
    save_every: Annotated[int, Option(min=1, help="Steps between two savings.")] = 500,
    name: Annotated[str | None, Option(help="Store the result as a checkpoint of this name.")] = None,
    overwrite: Overwrite = False,
    threads: Threads = None,
):
    """Train a Sudoku MDM; interrupted and started again, it goes on from its last saving.

    Options that are not given keep the defaults of mi_lib.train.MDMTraining.
    """
    import pandas as pd

    from mi_lib.artifacts import save_checkpoint
    from mi_lib.mdm import MDMConfig
    from mi_lib.train import MDMTraining, train_mdm

    training = MDMTraining(
        **given(steps=steps, batch_size=batch_size, lr=lr, warmup=warmup, decay=decay, weight_decay=weight_decay),
        **given(clip=clip, ema=ema, n_grids=n_grids, seed=seed, schedule=schedule, optimizer=optimizer),
    )
    config = MDMConfig(position=position)
    if name is not None:
        check_name(name, overwrite)
    use_threads(threads)
    with tqdm(total=training.steps, unit="step") as bar:

        def report(row: dict) -> None:
            bar.update(row["step"] - bar.n)
            bar.set_postfix(loss=f"{row['loss']:.3f}")

        model = train_mdm(folder, config, training, save_every, report)
    if name is not None:
        metrics = pd.read_csv(folder / "curve.csv").iloc[-1].to_dict()
        save_checkpoint(name, model, "mdm", asdict(config), training=asdict(training), metrics=metrics)
        typer.echo(f"wrote checkpoint {name}")


def label(
    checkpoint: Checkpoint = "sudoku_paper",
    folder: Folder = None,
    n_boards: Annotated[int | None, Option(help="Boards to probe.")] = None,
    rows: Annotated[int | None, Option(help="Probed cells a board; 0 probes all.")] = None,
    tail: Annotated[float | None, Option(help="Values less probable than this are not probed.")] = None,
    seed: Annotated[int | None, Option(help="Decides the boards.")] = None,
    shard_size: Annotated[int | None, Option(help="Boards a file.")] = None,
    rank: Annotated[int, Option(min=0, help="Which of several processes this is.")] = 0,
    n_ranks: Annotated[int, Option(min=1, help="How many processes share the work.")] = 1,
    threads: Threads = None,
):
    """Probe boards for MI labels, shard by shard; shards that are there are kept."""
    from mi_lib.artifacts import CACHE, read_sidecar
    from mi_lib.checkpoints import load_mdm
    from mi_lib.labels import Labelling, make_labels

    if rank >= n_ranks:
        raise ValueError(f"rank={rank}, expected less than n_ranks={n_ranks}")
    sha256 = read_sidecar(checkpoint, "mdm")["sha256"]
    labelling = Labelling(sha256, **given(n_boards=n_boards, rows=rows, tail=tail, seed=seed, shard_size=shard_size))
    model, folder = load_mdm(checkpoint), folder or CACHE / "labels" / checkpoint
    use_threads(threads)
    mine = range(rank, labelling.n_shards, n_ranks)
    total = sum(min(labelling.shard_size, labelling.n_boards - s * labelling.shard_size) for s in mine)
    with tqdm(total=total, unit="board", delay=1) as bar:
        make_labels(folder, model, labelling, progress=bar.update, rank=rank, n_ranks=n_ranks)
    typer.echo(f"labels are in {folder}")


def train_head(
    checkpoint: Checkpoint = "sudoku_paper",
    labels: Folder = None,
    n_boards: Annotated[int | None, Option(min=1, help="Use only the first of them.")] = None,
    estimator: Annotated[str, Option(help=f"One of {', '.join(ESTIMATORS)}.")] = "entropy",
    epochs: Annotated[int | None, Option(help="Passes over the labels.")] = None,
    boards_per_batch: Annotated[int | None, Option(help="Boards a step.")] = None,
    lr: Annotated[float | None, Option(help="Peak learning rate.")] = None,
    weight_decay: Annotated[float | None, Option(help="AdamW's, on matrices.")] = None,
    warmup: Annotated[float | None, Option(help="Share of the steps.")] = None,
    seed: Annotated[int | None, Option(help="Decides initial weights and order.")] = None,
    name: Annotated[str | None, Option(help="Name of the head; CHECKPOINT_head_ESTIMATOR by default.")] = None,
    overwrite: Overwrite = False,
    threads: Threads = None,
):
    """Train an MI head on labels and store it beside the checkpoints."""
    from mi_lib.artifacts import CACHE, save_checkpoint
    from mi_lib.checkpoints import load_mdm
    from mi_lib.head import HeadConfig
    from mi_lib.head_training import HeadTraining, gather_pairs
    from mi_lib.head_training import train_head as fit
    from mi_lib.labels import read_labels

    optional = given(epochs=epochs, boards_per_batch=boards_per_batch, lr=lr, weight_decay=weight_decay)
    training = HeadTraining(estimator, **optional, **given(warmup=warmup, seed=seed))
    name = name or f"{checkpoint}_head_{estimator}"
    model = load_mdm(checkpoint)
    check_name(name, overwrite)
    use_threads(threads)
    probed = read_labels(labels or CACHE / "labels" / checkpoint, n_boards)
    with tqdm(total=len(probed.tokens), unit="board", desc="hidden states") as bar:
        pairs = gather_pairs(model, probed, estimator, progress=bar.update)
    config, curve = HeadConfig(width=model.config.width), []
    with tqdm(total=training.epochs, unit="epoch") as bar:

        def report(row: dict) -> None:
            curve.append(row)
            bar.update()
            bar.set_postfix(loss=f"{row['loss']:.5f}")

        head = fit(pairs, config, training, report)
    facts = {"model": checkpoint, "n_boards": len(probed.tokens), "training": asdict(training), "curve": curve}
    save_checkpoint(name, head, "head", asdict(config), **facts)
    typer.echo(f"wrote checkpoint {name}")
