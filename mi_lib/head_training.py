"""Training and scoring of the MI head on probed labels."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from mi_lib.ground_truth import check_estimator
from mi_lib.head import HeadConfig, MIHead, head_loss
from mi_lib.labels import Labels, split_lengths
from mi_lib.masked import MaskedModel, require
from mi_lib.processes import ALONE, Processes


@dataclass(frozen=True)
class HeadTraining:
    """How a head is trained; the paper states 10 epochs (§5.1) and the squared error (§4.2)."""

    estimator: str = "entropy"
    epochs: int = 10
    boards_per_batch: int = 32
    lr: float = 2e-3
    weight_decay: float = 0.01
    warmup: float = 0.05  # share of the steps, then the rate falls along a cosine to zero
    seed: int = 0

    def __post_init__(self):
        check_estimator(self.estimator)
        require(self.epochs >= 1, "epochs", self.epochs, "at least 1")
        require(self.boards_per_batch >= 1, "boards_per_batch", self.boards_per_batch, "at least 1")
        require(self.lr > 0, "lr", self.lr, "above 0")
        require(0 <= self.warmup < 1, "warmup", self.warmup, "a share below 1")


@dataclass(frozen=True)
class Pairs:
    """Training pairs of some boards, as rows of one matrix of hidden states.

    Attributes
    ----------
    hidden : Tensor of shape (P, D), float16
        Hidden states of the masked positions.
    i, j : LongTensor of shape (N,)
        Rows of ``hidden``: the probed source, and another masked position.
    board : LongTensor of shape (N,)
        Ascending.
    target : Tensor of shape (N,)
        Directional MI in nats.
    """

    hidden: Tensor
    i: Tensor
    j: Tensor
    board: Tensor
    target: Tensor


@torch.inference_mode()
def gather_pairs(
    model: MaskedModel,
    labels: Labels,
    estimator: str,
    batch_size: int = 64,
    progress: Callable[[int], None] = lambda boards: None,
) -> Pairs:
    """Run the frozen model once over the labelled boards and list every (source, other masked position) pair.

    Parameters
    ----------
    model : MaskedModel
    labels : Labels
    estimator : {"entropy", "mixture", "kl"}
    batch_size : int
    progress : callable
        Called with the number of boards just run.
    """
    check_estimator(estimator)
    parts = [
        gather_equal(model, part, boards, estimator, batch_size, progress) for boards, part in split_lengths(labels)
    ]
    start = np.cumsum([0] + [len(part.hidden) for part in parts])
    i, j = (
        torch.cat([getattr(p, name) + int(s) for p, s in zip(parts, start[:-1], strict=True)]) for name in ("i", "j")
    )
    board, order = torch.cat([part.board for part in parts]).sort(stable=True)
    target = torch.cat([part.target for part in parts])
    return Pairs(torch.cat([part.hidden for part in parts]).clone(), i[order], j[order], board, target[order])


def gather_equal(
    model: MaskedModel, labels: Labels, boards: Tensor, estimator: str, batch_size: int, progress: Callable[[int], None]
) -> Pairs:
    """``gather_pairs`` for sequences of one length, numbered ``boards`` (ascending)."""
    tokens = labels.tokens.long()
    masked = tokens == model.mask_id
    hidden = []
    for chunk, keep in zip(tokens.split(batch_size), masked.split(batch_size), strict=True):
        hidden.append(model(chunk).hidden[keep].half())
        progress(len(chunk))
    position = torch.full(masked.shape, -1)
    position[masked] = torch.arange(int(masked.sum()))
    other = masked[labels.owner].clone()
    other[torch.arange(len(labels.owner)), labels.source] = False
    r, j = other.nonzero(as_tuple=True)
    owner = labels.owner[r]
    return Pairs(
        hidden=torch.cat(hidden),
        i=position[owner, labels.source[r]],
        j=position[owner, j],
        board=boards[owner],
        target=getattr(labels, estimator)[r, j],
    )


def train_head(
    pairs: Pairs,
    config: HeadConfig,
    training: HeadTraining = HeadTraining(),
    report: Callable[[dict], None] = lambda row: None,
    processes: Processes = ALONE,
) -> MIHead:
    """Fit a head to directional MI, which is not clamped: the error's minimum is the symmetric mean.

    Parameters
    ----------
    pairs : Pairs
    config : HeadConfig
    training : HeadTraining
    report : callable
        Called after each epoch with ``epoch`` and the mean training ``loss`` in nats squared.
    processes : Processes
        They share the pairs of each step; the head is that of one process.

    Returns
    -------
    MIHead
        On the CPU, in evaluation mode.
    """
    device = processes.device
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(training.seed)
        head = MIHead(config).to(device)
    start_at_mean(head, pairs.target)
    decay = [p for p in head.parameters() if p.dim() == 2]
    rest = [p for p in head.parameters() if p.dim() != 2]
    optimizer = torch.optim.AdamW(
        [{"params": decay, "weight_decay": training.weight_decay}, {"params": rest, "weight_decay": 0.0}],
        lr=training.lr,
        fused=True,
    )
    n_boards = int(pairs.board.max()) + 1
    start = torch.searchsorted(pairs.board, torch.arange(n_boards + 1))  # pairs of board b: start[b] to start[b + 1]
    per_epoch = -(-n_boards // training.boards_per_batch)
    total = training.epochs * per_epoch
    warmup = training.warmup if training.warmup * total != 1 else 0.0  # OneCycleLR divides by zero at a single step
    schedule = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, training.lr, total_steps=total, pct_start=warmup, cycle_momentum=False
    )
    for epoch in range(training.epochs):
        rng = np.random.default_rng([training.seed, epoch])
        losses = []
        for boards in np.array_split(rng.permutation(n_boards), per_epoch):
            pick = torch.cat([torch.arange(start[b], start[b + 1]) for b in boards])
            part = pick[processes.share(len(pick))]
            loss = torch.zeros(())
            if len(part):
                rows, inverse = torch.cat([pairs.i[part], pairs.j[part]]).unique(return_inverse=True)
                i, j = inverse.to(device).chunk(2)
                loss = head_loss(head, pairs.hidden[rows].to(device).float(), i, j, pairs.target[part].to(device))
                loss = loss * (len(part) / len(pick))  # the shares add up to the mean over the step's pairs
                loss.backward()
            processes.sum_gradients(head)
            nn.utils.clip_grad_norm_(head.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
            schedule.step()
            losses.append(processes.sum(loss.item()))
        report({"epoch": epoch + 1, "loss": float(np.mean(losses))})
    return head.cpu().eval().requires_grad_(False)


@torch.no_grad()
def start_at_mean(head: MIHead, target: Tensor) -> None:
    """Set the output bias so that the untrained head predicts about the mean of ``target`` (nats).

    PyTorch's zero bias means softplus(0) = 0.69 nats, a hundred times the MI of most pairs: the steps of a short
    training would go into getting down from there.
    """
    mean = target.mean(dtype=torch.float64).clamp(min=1e-4)
    head.out.bias.fill_(torch.special.expm1(mean).log())
