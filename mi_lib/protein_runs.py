"""Proteins made by a method, kept in the cache; the sets they are compared with; budgets at equal passes."""

import hashlib
from collections.abc import Callable, Iterable
from pathlib import Path

import numpy as np
import pandas as pd
import torch

from mi_lib import checkpoints
from mi_lib.artifacts import CACHE, atomic_path, checkpoint_names, read_sidecar, read_tensors, write_tensors
from mi_lib.distributions import embed
from mi_lib.generation import Unigram, draw_lengths, fill, generate, masked_nll, masks
from mi_lib.masked import require
from mi_lib.policies import TopK
from mi_lib.proteins import load_proteins
from mi_lib.results import Progress, counting, read_result
from mi_lib.runs import match_passes
from mi_lib.sequence_scores import kmer_matrix
from mi_lib.solving import Method

TARGET_PASSES = (15.3, 10.0)  # the paper's MI-guided rows: methods are compared at equal passes
NAIVE = {15.3: 5, 10.0: 8}  # k of TopK that comes closest: mean of ceil(L / k) over lengths 50-100 is 15.4 and 9.8
HEADS = ("entropy", "mixture", "zero")
OTHERS, UNIFORM, SHUFFLED, UNIGRAM = "other references", "references of uniform lengths", "shuffled", "unigram"


def model_hash(model: str) -> str:
    """SHA-256 of a shipped ESM-C; the name of one that comes from elsewhere."""
    return read_sidecar(model, "esmc")["sha256"] if model in checkpoint_names("esmc") else str(model)


def model_hashes(models: Iterable[str]) -> dict[str, str]:
    """``model_hash`` of models and SHA-256 of their heads: the provenance of a table."""
    hashes = {model: model_hash(model) for model in models}
    heads = {name: read_sidecar(name, "head") for name in checkpoint_names("head")}
    return hashes | {name: meta["sha256"] for name, meta in heads.items() if meta["model"] in hashes}


def file_part(model: str) -> str:
    """What stands for a model's weights in the name of a file of the cache."""
    name = model_hash(model)
    return name[:12] if name.isalnum() and len(name) == 64 else f"{Path(name).stem}-{text_hash([name])}"


def run_key(model: str, method: Method) -> str:
    """What decides a method's outcome, as a file name: weights of model and head, the method's parameters."""
    parts = [file_part(model)]
    if method.head in ("entropy", "mixture"):
        parts.append(read_sidecar(f"{model}_head_{method.head}", "head")["sha256"][:12])
    return "-".join([*parts, method.label]).replace(" ", "_")


def runnable(model: str, methods: Iterable[Method]) -> tuple[tuple[Method, ...], tuple[str, ...]]:
    """The methods that need no head or whose head exists, and the names of the heads that are missing."""
    known, ready, missing = checkpoint_names("head"), [], []
    for method in methods:
        head = f"{model}_head_{method.head}"
        if method.head in (None, "zero") or head in known:
            ready.append(method)
        else:
            missing.append(head)
    return tuple(ready), tuple(dict.fromkeys(missing))


def text_hash(sequences: Iterable[str]) -> str:
    """Twelve hex digits that stand for a list of sequences."""
    return hashlib.sha256("\n".join(sequences).encode()).hexdigest()[:12]


def from_cache(name: str, make: Callable[[], pd.DataFrame]) -> pd.DataFrame:
    """The table of that name under ``CACHE/runs``, made if it is not there."""
    path = CACHE / "runs" / f"{name}.csv"
    if not path.exists():
        frame = make()
        with atomic_path(path) as temporary:
            frame.to_csv(temporary, index=False)
    return pd.read_csv(path, keep_default_na=False, na_values=[""])  # a protein may be spelled NA


def generated(model: str, method: Method, seed: int, n: int, progress: Progress) -> pd.DataFrame:
    """``n`` proteins by one method, as of ``generate``, from the cache if the same weights made them."""

    def make() -> pd.DataFrame:
        step = counting(progress, f"{model} {method.label}, seed {seed}", n)
        return generate(checkpoints.load_model(model), method.policy(model), draw_lengths(n, seed), seed, progress=step)

    return from_cache(f"{run_key(model, method)}-proteins-{seed}-{n}", make)


def generated_table(model: str, methods: Iterable[Method], seeds: Iterable[int], n: int, progress: Progress):
    """Proteins of several methods and seeds: model, method, parameters, seed, and the columns of ``generate``.

    Raises
    ------
    ValueError
        If a head is missing, before anything is generated.
    """
    methods, frames = list(methods), []
    _, missing = runnable(model, methods)
    require(not missing, "model", model, f"one with the heads {missing} (`mi label` and `mi train-head` make them)")
    for seed in seeds:
        for method in methods:
            frame = generated(model, method, seed, n, progress)
            frames.append(labelled(frame, model, method.name, method.parameters, seed))
    return pd.concat(frames, ignore_index=True)


def labelled(frame: pd.DataFrame, model: str, method: str, parameters: str, seed: int) -> pd.DataFrame:
    """The frame with the columns that name a row of Table 2 in front."""
    names = pd.DataFrame({"model": model, "method": method, "parameters": parameters, "seed": seed}, index=frame.index)
    return pd.concat([names, frame], axis=1)


def filled(
    model: str, method: Method, sequences: list[str], share: float, seed: int, draws: int, progress: Progress
) -> pd.DataFrame:
    """Conditional samples, as of ``fill``, with ``nll`` (nats a residue under the model); from the cache if it can."""

    def make() -> pd.DataFrame:
        step = counting(progress, f"{model} {method.label}, {share:.0%} masked", len(sequences))
        loaded = checkpoints.load_model(model)
        frame = fill(loaded, method.policy(model), sequences, share, seed, progress=step)
        return frame.assign(nll=scored(loaded, frame["sequence"].tolist(), share, seed, draws))

    return from_cache(f"{run_key(model, method)}-fill-{text_hash(sequences)}-{share}-{seed}-{draws}", make)


def scored(model, sequences: list[str], share: float, seed: int, draws: int) -> np.ndarray:
    """``masked_nll`` of the residues that ``fill`` would mask."""
    return masked_nll(model, sequences, masks(map(len, sequences), share, seed), seed, draws)


def embedded(model: str, sequences: list[str], progress: Progress = lambda *_: None) -> np.ndarray:
    """``embed`` by the named model, from the cache if it can, (n, D)."""
    path = CACHE / "embeddings" / f"{file_part(model)}-{text_hash(sequences)}.safetensors"
    if not path.exists():
        points = embed(
            checkpoints.load_model(model), sequences, progress=counting(progress, f"{model}: embed", len(sequences))
        )
        write_tensors(path, {"points": torch.from_numpy(points)})
    return read_tensors(path)["points"].numpy()


def reference_split(reference: str, n: int, smallest: int = 15, seed: int = 0) -> tuple[list[str], list[str]]:
    """``n`` reference proteins (half of all, if fewer than 2 n), and all others.

    Raises
    ------
    ValueError
        If half of them are fewer than ``smallest``, the number of clusters.
    """
    sequences = load_proteins(reference).sequences
    size = min(n, len(sequences) // 2)
    expected = f"a set of at least {2 * smallest} proteins: {smallest} clusters, and as many for the floor"
    require(size >= smallest, "reference", f"{reference} ({len(sequences)} proteins)", expected)
    order = np.random.default_rng(seed).permutation(len(sequences))
    return [sequences[k] for k in order[:size]], [sequences[k] for k in order[size:]]


def nearest_lengths(sequences: list[str], lengths: Iterable[int]) -> list[str]:
    """A sequence for each length, the closest of those not taken yet."""
    left, chosen = np.array([float(len(s)) for s in sequences]), []
    for length in lengths:
        chosen.append(int(np.abs(left - length).argmin()))
        left[chosen[-1]] = np.inf
    require(np.isinf(left).sum() == len(chosen), "sequences", len(sequences), "as many as lengths")
    return [sequences[k] for k in chosen]


def control_sets(reference: list[str], others: list[str], n: int, seeds: Iterable[int]) -> dict[str, list[list[str]]]:
    """The floor and the ceilings: sets of ``n`` proteins, as many as there are seeds where chance makes them.

    Returns
    -------
    dict
        ``OTHERS``: real proteins that the reference lacks. ``UNIFORM``: of those, the closest to the methods' lengths.
        ``SHUFFLED``: the first, each in random order. ``UNIGRAM``: residues drawn at the reference's frequencies.
    """
    frequency = np.asarray(kmer_matrix(reference, 1).sum(0)).ravel()
    floor, size = others[:n], min(n, len(others))
    return {
        OTHERS: [floor],
        UNIFORM: [nearest_lengths(others, draw_lengths(size, seed)) for seed in seeds],
        SHUFFLED: [
            ["".join(np.random.default_rng([seed, k]).permutation(list(s))) for k, s in enumerate(floor)]
            for seed in seeds
        ],
        UNIGRAM: [
            generate(Unigram(frequency), TopK(int(max(lengths))), lengths, seed)["sequence"].tolist()
            for seed in seeds
            for lengths in [draw_lengths(n, seed)]
        ],
    }


def matched_methods(model: str) -> dict[float, tuple[Method, ...]]:
    """Each method at the parameter that gives each of ``TARGET_PASSES`` on the recorded grid (``protein_gammas``).

    Returns
    -------
    dict
        From passes to methods: MI with the entropy head, the mixture head, MI of zero, EB, the threshold rule, Naive.

    Raises
    ------
    ValueError
        If the model has no recorded grid, or a method's grid does not reach the passes.
    """
    frame = read_result("protein_gammas")
    frame = frame[frame["model"] == model]
    require(len(frame) > 0, "model", model, "one with recorded gammas (`mi record protein_gammas`)")
    matched = {}
    for target in TARGET_PASSES:
        found = match_passes(frame, target, digits=4)
        methods = [Method("MI", gamma=found[h], lam=1.0, head=h) for h in HEADS if h in found]
        methods += [Method("EB", gamma=found["EB"])] if "EB" in found else []
        methods += [Method("Threshold", tau=found["Threshold"])] if "Threshold" in found else []
        matched[target] = (*methods, Method("Naive", k=NAIVE[target]))
    return matched


def added_methods(model: str) -> tuple[Method, ...]:
    """The rows that Table 2 gets beside the paper's: every method at equal passes, and single positions at random."""
    matched = (method for methods in matched_methods(model).values() for method in methods)
    return (Method("Random"), *dict.fromkeys(matched))
