"""Recorded results on protein models themselves: how well they predict masked residues, and their heads the MI."""

import pandas as pd

from mi_lib import checkpoints, protein_scores
from mi_lib.artifacts import CACHE
from mi_lib.labels import read_labels
from mi_lib.masked import require
from mi_lib.protein_head_scores import protein_pairs, score_proteins
from mi_lib.protein_records import named
from mi_lib.protein_runs import model_hashes
from mi_lib.proteins import load_proteins
from mi_lib.results import Progress, counting, write_result


def record_protein_scores(models: list[str], progress: Progress, n: int = 300) -> None:
    """Masked perplexity and accuracy of models and of two baselines, on held-out family members and the reference."""
    training, frames = load_proteins("training"), []
    predictors = {
        "unigram": protein_scores.Unigram(training),
        "cluster profile": protein_scores.ClusterProfile(training),
    }
    predictors |= {model: protein_scores.of_model(checkpoints.load_model(model)) for model in models}
    for name in ("held_out", "reference"):
        proteins = protein_scores.sample(load_proteins(name), n)
        for predictor, predict in predictors.items():
            if predictor == "cluster profile" and name == "reference":
                continue  # its proteins belong to no training cluster
            step = counting(progress, f"{predictor} on {name}", len(proteins) * len(protein_scores.RATES))
            rows = protein_scores.summarise(protein_scores.masked_scores(predict, proteins, progress=step))
            frames.append(named(rows, set=name, predictor=predictor))
    frame = pd.concat(frames, ignore_index=True)
    write_result("protein_scores", frame, n_proteins=n, checkpoints=model_hashes(models))


def record_protein_head_metrics(models: list[str], progress: Progress) -> None:
    """Scores of the heads of protein models on held-out, fully probed proteins, over all pairs and by mask rate."""
    frames = []
    for model in models:
        labels, loaded = read_labels(CACHE / "labels" / f"{model}_held_out"), checkpoints.load_model(model)
        for n, estimator in enumerate(("entropy", "mixture")):
            progress(f"{model}: {estimator} head", n, 2)
            head = checkpoints.load_head(f"{model}_head_{estimator}", model)
            rows = score_proteins(protein_pairs(loaded, labels, estimator, {"head": head}), ["head"])
            negative = float((getattr(labels, estimator) < 0).sum() / (getattr(labels, estimator) != 0).sum())
            frames.append(named(rows.assign(negative=negative), model=model, estimator=estimator))
    write_result("protein_head_metrics", pd.concat(frames, ignore_index=True), checkpoints=model_hashes(models))


def record_esmc_curve(models: list[str], progress: Progress) -> None:
    """The curve of each model's training, from the folder of its name in the cache."""
    frames = []
    for model in models:
        path = CACHE / "train" / model / "curve.csv"
        require(path.exists(), "model", model, f"one whose training left {path}")
        frames.append(named(pd.read_csv(path), model=model))
    write_result("esmc_curve", pd.concat(frames, ignore_index=True), checkpoints=model_hashes(models))
