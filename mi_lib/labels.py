"""MI labels for training a head: states to probe, and row-probed shards that survive interruption."""

from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from mi_lib.artifacts import read_json, read_tensors, write_json, write_tensors
from mi_lib.ground_truth import ESTIMATORS, probe_rows
from mi_lib.masked import MaskedModel, require
from mi_lib.mdm import forward_process
from mi_lib.policies import MIGuided, no_mi
from mi_lib.samplers import decode
from mi_lib.sudoku import generate_grids, generate_puzzles

LABEL_SEED = 20_262_000  # never a seed of training grids or of puzzle sets
PAD = 255  # stands in ``Labels.tokens`` after the end of a sequence that is shorter than others; -1 where int32


@dataclass(frozen=True)
class Labelling:
    """What a folder of labels holds; a shard depends on this and its number alone."""

    model_sha256: str
    n_boards: int = 20_000
    rows: int = 6  # probed source positions a board: more boards beat more rows
    tail: float = 1e-3  # halves the passes
    seed: int = 0
    shard_size: int = 250
    source: str = "training"  # of the sequences that are masked; Sudoku draws its own

    def __post_init__(self):
        require(self.n_boards >= 1, "n_boards", self.n_boards, "at least 1")
        require(self.rows >= 0, "rows", self.rows, "at least 1, or 0 for all masked positions")
        require(self.shard_size >= 1, "shard_size", self.shard_size, "at least 1")
        require(0 <= self.tail < 1, "tail", self.tail, "a probability below 1")

    @property
    def n_shards(self) -> int:
        return -(-self.n_boards // self.shard_size)


@dataclass(frozen=True)
class Labels:
    """Probed rows of many boards.

    Attributes
    ----------
    tokens : Tensor of shape (N, L), uint8
        Or int32, if there are ids of 255 and above.
    owner : LongTensor of shape (R,)
        The board of each probed row.
    source : LongTensor of shape (R,)
        Its source position.
    entropy, mixture, kl : Tensor of shape (R, L), float32
        Directional MI in nats, not clamped; zero at observed positions and after the end.
    """

    tokens: Tensor
    owner: Tensor
    source: Tensor
    entropy: Tensor
    mixture: Tensor
    kl: Tensor


def sudoku_states(model: MaskedModel, n: int, seed: int) -> Tensor:
    """Boards to probe: half uniformly masked grids, half states that a sampler visits.

    The first half are fresh grids with a uniform number of masked cells, 2 to 81. The second half come from decoding
    fresh puzzles with the budget rule (``MIGuided`` without MI, gamma 0.6): three random steps of each decode.

    Parameters
    ----------
    model : MaskedModel
    n : int
    seed : int

    Returns
    -------
    LongTensor of shape (n, 81), each board with at least two masked cells
    """
    rng = np.random.default_rng([LABEL_SEED, seed])
    half = n - n // 2
    grids = torch.from_numpy(generate_grids(half, int(rng.integers(2**62)))).long()
    rate = torch.from_numpy(rng.integers(2, 82, size=half) / 81)
    generator = torch.Generator().manual_seed(int(rng.integers(2**62)))
    uniform = forward_process(grids, rate, model.mask_id, generator)
    if n == half:
        return uniform
    puzzles, _ = generate_puzzles(-(-(n - half) // 3), int(rng.integers(2**62)))
    decoded = decode(model, torch.from_numpy(puzzles).long(), MIGuided(no_mi, gamma=0.6))
    last = decoded.step.amax(-1)  # (P,)
    at = torch.from_numpy(rng.random((3, len(puzzles))) * (last.numpy() + 1)).long()  # (3, P)
    hidden = decoded.step[None] >= at[..., None]  # not written yet at that step
    visited = torch.where(hidden, model.mask_id, decoded.tokens[None]).flatten(0, 1)
    visited = visited[(visited == model.mask_id).sum(-1) >= 2]
    missing = max(0, n - half - len(visited))  # decodes whose last step wrote a single cell
    return torch.cat([uniform, visited[: n - half], uniform[:missing]])


def choose_rows(masked: Tensor, rows: int, seed: int) -> tuple[Tensor, Tensor]:
    """Up to ``rows`` random masked positions of each board (all if 0): ``owner`` and ``source``, both (R,)."""
    generator = torch.Generator().manual_seed(seed)
    rank = torch.rand(masked.shape, generator=generator).where(masked, 2.0).argsort(-1).argsort(-1)
    return (masked & (rank < (rows or masked.shape[1]))).nonzero(as_tuple=True)


def make_labels(
    folder: Path,
    model: MaskedModel,
    labelling: Labelling,
    states: Callable[[MaskedModel, int, int], Tensor] = sudoku_states,
    progress: Callable[[int], None] = lambda boards: None,
    rank: int = 0,
    n_ranks: int = 1,
) -> None:
    """Probe boards shard by shard into ``folder``; what is there already is kept.

    Parameters
    ----------
    folder : Path
    model : MaskedModel
        In float32.
    labelling : Labelling
    states : callable
        ``states(model, n, seed)`` draws boards.
    progress : callable
        Called with the number of boards just finished.
    rank, n_ranks : int
        This process makes every ``n_ranks``-th shard; shards do not depend on either.

    Raises
    ------
    ValueError
        If ``folder`` holds labels made otherwise, or ``rank`` is out of range.
    """
    require(0 <= rank < n_ranks, "rank", rank, f"0 to n_ranks - 1, with n_ranks={n_ranks}")
    folder = Path(folder)
    plan = asdict(labelling) | {"n_boards": None}  # a folder may grow
    sidecar = folder / "labels.json"
    if sidecar.exists():
        held = read_json(sidecar)
        for key in plan:
            if held.get(key) != plan[key]:
                raise ValueError(
                    f"{folder} holds labels with {key}={held.get(key)!r}, not {plan[key]!r}; use another folder"
                )
    else:
        write_json(sidecar, plan)
    for shard in range(rank, labelling.n_shards, n_ranks):
        n = min(labelling.shard_size, labelling.n_boards - shard * labelling.shard_size)
        path = folder / f"shard_{shard:05d}.safetensors"
        if not path.exists():
            seed = 1_000_003 * labelling.seed + shard
            tokens = states(model, labelling.shard_size, seed)
            owner, source = choose_rows(tokens == model.mask_id, labelling.rows, seed)
            mi = probe_rows(model, tokens, owner, source, tail=labelling.tail)
            dtype = torch.uint8 if int(tokens.max()) < PAD else torch.int32
            write_tensors(
                path,
                {"tokens": tokens.to(dtype), "owner": owner.int(), "source": source.to(torch.int16)}
                | {name: mi.of(name) for name in ESTIMATORS},
            )
        progress(n)


def read_labels(folder: Path, n_boards: int | None = None) -> Labels:
    """All shards of a folder, or the first ``n_boards`` boards, as one set of labels.

    Raises
    ------
    ValueError
        If there are no shards, fewer boards than asked for, or a shard is damaged (the message names it).
    """
    require(n_boards is None or n_boards >= 1, "n_boards", n_boards, "at least 1")
    paths = sorted(Path(folder).glob("shard_*.safetensors"))
    if not paths:
        raise ValueError(f"{folder} holds no label shards; `mi label` makes them")
    parts, boards = [], 0
    for path in paths:
        if n_boards is not None and boards >= n_boards:
            break
        part = read_tensors(path)
        part["owner"] = part["owner"].long() + boards
        part["source"] = part["source"].long()
        boards += len(part["tokens"])
        parts.append(part)
    if n_boards is not None and boards < n_boards:
        raise ValueError(f"n_boards={n_boards}, but {folder} holds {boards}")
    width = max(part["tokens"].shape[1] for part in parts)
    wide = any(part["tokens"].dtype != torch.uint8 for part in parts)
    for part in parts:
        missing = width - part["tokens"].shape[1]  # shards may hold sequences of other lengths
        tokens = part["tokens"].int() if wide else part["tokens"]
        part["tokens"] = F.pad(tokens, (0, missing), value=-1 if wide else PAD)
        part |= {name: F.pad(part[name], (0, missing)) for name in ESTIMATORS}
    labels = {name: torch.cat([part[name] for part in parts]) for name in parts[0]}
    if n_boards is not None:
        keep = labels["owner"] < n_boards
        labels = {k: v[:n_boards] if k == "tokens" else v[keep] for k, v in labels.items()}
    return Labels(**labels)


@dataclass(frozen=True)
class LabellingCost:
    """What a set of labels costs; see ``labelling_cost``.

    Attributes
    ----------
    passes : int
        Forward passes of the model, one a sequence.
    flops : float
        Floating-point operations: two a parameter and token.
    seconds : float
        Wall time on all devices together.
    """

    passes: int
    flops: float
    seconds: float


def labelling_cost(
    n: int,
    tokens: int,
    parameters: int,
    values: int,
    rows: int = 6,
    probed: float = 1.0,
    devices: int = 1,
    flops_per_second: float | None = None,
    seconds_per_pass: float | None = None,
) -> LabellingCost:
    """Cost of labelling ``n`` sequences: ``n (1 + rows * values * probed)`` passes, divided among devices.

    Parameters
    ----------
    n : int
    tokens : int
        Of a sequence, the model's special tokens included.
    parameters : int
        Of the model.
    values : int
        Size of the vocabulary.
    rows : int
        Probed source positions of a sequence.
    probed : float
        Share of the values that are probed: those with a probability of at least ``tail``.
    devices : int
        Shards are independent: the time is inverse to it.
    flops_per_second : float, optional
        Throughput of a device on this model; or
    seconds_per_pass : float, optional
        the measured time of a pass. Exactly one of the two.
    """
    require(0 <= probed <= 1, "probed", probed, "a share")
    require(devices >= 1, "devices", devices, "at least 1")
    known = (flops_per_second is None) + (seconds_per_pass is None)
    require(known == 1, "flops_per_second, seconds_per_pass", (flops_per_second, seconds_per_pass), "one of the two")
    passes = round(n * (1 + rows * values * probed))
    flops = 2.0 * parameters * tokens * passes
    seconds = flops / flops_per_second if seconds_per_pass is None else passes * seconds_per_pass
    return LabellingCost(passes, flops, seconds / devices)


def split_lengths(labels: Labels) -> list[tuple[Tensor, Labels]]:
    """Labels of sequences of one length each, without padding: the numbers of the boards (n,), and their labels."""
    length = (labels.tokens != (PAD if labels.tokens.dtype == torch.uint8 else -1)).sum(-1)
    parts = []
    for L in length.unique().tolist():
        boards = (length == L).nonzero().flatten()
        number = torch.full((len(length),), -1)
        number[boards] = torch.arange(len(boards))
        rows = number[labels.owner] >= 0
        values = {name: getattr(labels, name)[rows, :L] for name in ESTIMATORS}
        owner, source = number[labels.owner[rows]], labels.source[rows]
        parts.append((boards, Labels(labels.tokens[boards, :L], owner, source, **values)))
    return parts
