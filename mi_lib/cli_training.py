"""The verbs of ``mi`` that train: ``train sudoku``, ``label`` and ``train-head``."""

import re
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Annotated

import typer
from tqdm import tqdm
from typer import Option

from mi_lib.parameters import ESTIMATORS

Checkpoint = Annotated[str, Option(help="Name of a shipped MDM checkpoint.")]
AnyModel = Annotated[str, Option(help="A shipped MDM or ESM-C, esmc_300m or esmc_600m, or the file of an ESM-C.")]
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


def states_of(model, source: str):
    """The function that draws states to label for a model of this kind."""
    from mi_lib.labels import sudoku_states
    from mi_lib.masked import require
    from mi_lib.mdm import MDM

    if isinstance(model, MDM):
        require(source == "training", "source", source, "none: a Sudoku model draws its grids")
        return sudoku_states
    from mi_lib.protein_labels import protein_states
    from mi_lib.proteins import load_proteins

    return partial(protein_states, proteins=load_proteins(source))


def head_config(model):
    """Sizes of the head for a model: the paper's for Sudoku, and its share of the width for ESM-C."""
    from mi_lib.head import HeadConfig
    from mi_lib.mdm import MDM

    width = model.config.width
    return HeadConfig(width) if isinstance(model, MDM) else HeadConfig(width, round(0.4 * width))


def weights_sha256(checkpoint: str, model) -> str:
    """SHA-256 that says which weights labels belong to: that of a shipped file, else of the weights themselves."""
    import hashlib

    from mi_lib import artifacts

    if checkpoint in artifacts.checkpoint_names():
        return artifacts.read_json(artifacts.CHECKPOINTS / f"{checkpoint}.json")["sha256"]
    digest = hashlib.sha256()
    for name, tensor in sorted(model.state_dict().items()):
        digest.update(name.encode() + tensor.contiguous().numpy().tobytes())
    return digest.hexdigest()


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
    precision: Annotated[str | None, Option(help="bf16 (mixed) or float32.")] = None,
    position: Annotated[str, Option(help="Position embeddings: units (row, column, box) or learned.")] = "units",
    width: Annotated[int | None, Option(help="Width of the model.")] = None,
    n_layers: Annotated[int | None, Option(help="Transformer blocks.")] = None,
    n_heads: Annotated[int | None, Option(help="Attention heads.")] = None,
    feed_forward: Annotated[int | None, Option(help="Inner width of a block's MLP.")] = None,
    head_width: Annotated[int | None, Option(help="Inner width of the output layers.")] = None,
    save_every: Annotated[int, Option(min=1, help="Steps between two savings.")] = 500,
    name: Annotated[str | None, Option(help="Store the result as a checkpoint of this name.")] = None,
    overwrite: Overwrite = False,
    threads: Threads = None,
):
    """Train a Sudoku MDM; interrupted and started again, it goes on from its last saving.

    Under `accelerate launch` the processes share each batch; the result is that of one process. Options that are not
    given keep the defaults of mi_lib.train.MDMTraining and mi_lib.mdm.MDMConfig.
    """
    import pandas as pd

    from mi_lib.artifacts import save_checkpoint
    from mi_lib.mdm import MDMConfig
    from mi_lib.processes import launched
    from mi_lib.train import MDMTraining, train_mdm

    training = MDMTraining(
        **given(steps=steps, batch_size=batch_size, lr=lr, warmup=warmup, decay=decay, weight_decay=weight_decay),
        **given(clip=clip, ema=ema, n_grids=n_grids, seed=seed, schedule=schedule, optimizer=optimizer),
        **given(precision=precision),
    )
    sizes = given(width=width, n_layers=n_layers, n_heads=n_heads, feed_forward=feed_forward, head_width=head_width)
    config = MDMConfig(position=position, **sizes)
    if name is not None:
        check_name(name, overwrite)
    use_threads(threads)
    processes = launched()
    with tqdm(total=training.steps, unit="step", disable=not processes.is_main) as bar:

        def report(row: dict) -> None:
            bar.update(row["step"] - bar.n)
            bar.set_postfix(loss=f"{row['loss']:.3f}")

        model = train_mdm(folder, config, training, save_every, report, processes)
    processes.leave()
    if name is not None and processes.is_main:
        metrics = pd.read_csv(folder / "curve.csv").iloc[-1].to_dict()
        save_checkpoint(name, model, "mdm", asdict(config), training=asdict(training), metrics=metrics)
        typer.echo(f"wrote checkpoint {name}")


def label(
    checkpoint: AnyModel = "sudoku_paper",
    folder: Folder = None,
    n_boards: Annotated[int | None, Option(help="Boards to probe.")] = None,
    rows: Annotated[int | None, Option(help="Probed cells a board; 0 probes all.")] = None,
    tail: Annotated[float | None, Option(help="Values less probable than this are not probed.")] = None,
    seed: Annotated[int | None, Option(help="Decides the boards.")] = None,
    source: Annotated[str, Option(help="Proteins to mask: training, held_out, or a FASTA file.")] = "training",
    shard_size: Annotated[int | None, Option(help="Boards a file.")] = None,
    rank: Annotated[int | None, Option(min=0, help="Which of several processes this is; the launcher's.")] = None,
    n_ranks: Annotated[int | None, Option(min=1, help="How many processes share the work; the launcher's.")] = None,
    threads: Threads = None,
):
    """Probe boards or proteins for MI labels, shard by shard; shards that are there are kept.

    Under `accelerate launch` each process makes its share of the shards, on its own device.
    """
    from mi_lib.artifacts import CACHE
    from mi_lib.checkpoints import load_model
    from mi_lib.labels import Labelling, make_labels
    from mi_lib.processes import launched

    if rank is not None and rank >= (n_ranks or 1):
        raise ValueError(f"rank={rank}, expected less than n_ranks={n_ranks or 1}")
    model = load_model(checkpoint)
    states, sha256 = states_of(model, source), weights_sha256(checkpoint, model)
    sizes = given(n_boards=n_boards, rows=rows, tail=tail, seed=seed, shard_size=shard_size)
    labelling = Labelling(sha256, source=source, **sizes)
    folder = folder or CACHE / "labels" / Path(checkpoint).stem
    use_threads(threads)
    processes = launched()
    if rank is None and n_ranks is None:
        rank, n_ranks = processes.rank, processes.count
    rank, n_ranks, model = rank or 0, n_ranks or 1, processes.place(model)
    mine = range(rank, labelling.n_shards, n_ranks)
    total = sum(min(labelling.shard_size, labelling.n_boards - s * labelling.shard_size) for s in mine)
    with tqdm(total=total, unit="board", delay=1, disable=not processes.is_main) as bar:
        make_labels(folder, model, labelling, states, bar.update, rank, n_ranks)
    processes.leave()
    share = "" if n_ranks == 1 else f" (share {rank + 1} of {n_ranks})"
    typer.echo(f"labels{share} are in {folder}")


def train_head(
    checkpoint: AnyModel = "sudoku_paper",
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
    """Train an MI head on labels and store it beside the checkpoints.

    Under `accelerate launch` the processes share the pairs of each step; the head is that of one process.
    """
    from mi_lib.artifacts import CACHE, read_json, save_checkpoint
    from mi_lib.checkpoints import load_model
    from mi_lib.head_training import HeadTraining, gather_pairs
    from mi_lib.head_training import train_head as fit
    from mi_lib.labels import read_labels
    from mi_lib.processes import launched

    optional = given(epochs=epochs, boards_per_batch=boards_per_batch, lr=lr, weight_decay=weight_decay)
    training = HeadTraining(estimator, **optional, **given(warmup=warmup, seed=seed))
    name = name or f"{Path(checkpoint).stem}_head_{estimator}"
    model = load_model(checkpoint)
    check_name(name, overwrite)
    use_threads(threads)
    folder = labels or CACHE / "labels" / Path(checkpoint).stem
    probed = read_labels(folder, n_boards)
    config, curve, processes = head_config(model), [], launched()
    with tqdm(total=len(probed.tokens), unit="board", desc="hidden states", disable=not processes.is_main) as bar:
        pairs = gather_pairs(processes.place(model), probed, estimator, progress=bar.update)
    with tqdm(total=training.epochs, unit="epoch", disable=not processes.is_main) as bar:

        def report(row: dict) -> None:
            curve.append(row)
            bar.update()
            bar.set_postfix(loss=f"{row['loss']:.5f}")

        head = fit(pairs, config, training, report, processes)
    processes.leave()
    if not processes.is_main:
        return
    facts = {"model": checkpoint, "n_boards": len(probed.tokens), "labels": read_json(folder / "labels.json")}
    facts |= {"training": asdict(training), "curve": curve}
    save_checkpoint(name, head, "head", asdict(config), **facts)
    typer.echo(f"wrote checkpoint {name}")
