"""The verb of ``mi`` that trains a small ESM-C: ``train esmc``."""

from pathlib import Path
from typing import Annotated

import typer
from tqdm import tqdm
from typer import Option

from mi_lib.cli_training import Overwrite, Threads, check_name, given, train, use_threads


@train.command()
def esmc(
    folder: Annotated[Path, Option(help="Where the training lives; one that is there goes on.")],
    proteins: Annotated[str, Option(help="Training set: training, or a FASTA file.")] = "training",
    held_out: Annotated[str, Option(help="Proteins of the curve: held_out, or a FASTA file.")] = "held_out",
    n_held_out: Annotated[int, Option(min=1, help="How many of them.")] = 200,
    steps: Annotated[int | None, Option(help="Optimiser steps.")] = None,
    residues: Annotated[int | None, Option(help="Residues a step.")] = None,
    lr: Annotated[float | None, Option(help="Peak learning rate.")] = None,
    warmup: Annotated[int | None, Option(help="Steps of linear warm-up.")] = None,
    decay: Annotated[float | None, Option(help="Last share of the steps, in which the rate falls to zero.")] = None,
    weight_decay: Annotated[float | None, Option(help="AdamW's.")] = None,
    clip: Annotated[float | None, Option(help="Largest gradient norm.")] = None,
    ema: Annotated[float | None, Option(help="Decay of the averaged weights.")] = None,
    seed: Annotated[int | None, Option(help="Decides batches, masks and initial weights.")] = None,
    optimizer: Annotated[str | None, Option(help="adamw or muon.")] = None,
    width: Annotated[int | None, Option(help="Width of the model.")] = None,
    n_heads: Annotated[int | None, Option(help="Attention heads.")] = None,
    n_layers: Annotated[int | None, Option(help="Transformer blocks.")] = None,
    save_every: Annotated[int, Option(min=1, help="Steps between two savings.")] = 500,
    name: Annotated[str | None, Option(help="Store the result as a checkpoint of this name.")] = None,
    overwrite: Overwrite = False,
    threads: Threads = None,
):
    """Train a small ESM-C on proteins; interrupted and started again, it goes on from its last saving.

    Options that are not given keep the defaults of mi_lib.esmc_training.ESMCTraining and mi_lib.esmc.ESMCConfig.
    """
    from mi_lib.esmc import ESMCConfig
    from mi_lib.esmc_training import ESMCTraining, ship_esmc, train_esmc
    from mi_lib.protein_scores import sample
    from mi_lib.proteins import load_proteins

    training = ESMCTraining(
        **given(steps=steps, residues=residues, lr=lr, warmup=warmup, decay=decay, weight_decay=weight_decay),
        **given(clip=clip, ema=ema, seed=seed, optimizer=optimizer),
    )
    config = ESMCConfig(**given(width=width, n_heads=n_heads, n_layers=n_layers))
    if name is not None:
        check_name(name, overwrite)
    data, curve = load_proteins(proteins), sample(load_proteins(held_out), n_held_out)
    use_threads(threads)
    with tqdm(total=training.steps, unit="step", mininterval=5) as bar:

        def report(row: dict) -> None:
            bar.update(row["step"] - bar.n)
            bar.set_postfix(loss=f"{row['loss']:.3f}", perplexity=f"{row['perplexity_15']:.2f}")

        train_esmc(folder, data, curve, config, training, save_every, report)
    if name is not None:
        ship_esmc(folder, training.steps, name, data=proteins, n_proteins=len(data), n_held_out=len(curve))
        typer.echo(f"wrote checkpoint {name}")
