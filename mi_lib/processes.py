"""The processes that ``accelerate launch`` or ``torchrun`` started for one piece of work, and which of them this is."""

import os
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from mi_lib.masked import MaskedModel, MaskedOutput, require


@dataclass(frozen=True)
class Processes:
    """This process among those that share the work; alone on the CPU by default.

    Attributes
    ----------
    rank, count : int
        This is process ``rank`` of ``count``; process 0 alone writes what all share.
    device : torch.device
        Where this process runs its model.
    accelerator : accelerate.Accelerator or None
        What they talk through; None if ``count`` is 1.
    """

    rank: int = 0
    count: int = 1
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))
    accelerator: object | None = None

    @property
    def is_main(self) -> bool:
        """Whether this is the process that writes files and shows progress."""
        return self.rank == 0

    def share(self, n: int) -> slice:
        """This process's part of ``n`` rows: parts are disjoint, cover all rows, and differ by one row at most."""
        return slice(self.rank * n // self.count, (self.rank + 1) * n // self.count)

    def place(self, model: MaskedModel) -> MaskedModel:
        """``model`` on this process's device, for callers whose tokens are on the CPU; itself if that is the CPU."""
        return model if self.device.type == "cpu" else Placed(model.to(self.device), self)

    def divide(self, model: MaskedModel) -> MaskedModel:
        """As ``place``, but each process runs its share of a batch's rows and all get the logits of the whole batch.

        A loss of these logits is the whole batch's in every process; gradients flow through the own rows only, so that
        their sum over the processes (``sum_gradients``) is the gradient of that loss.
        """
        return self.place(model) if self.count == 1 else Placed(model.to(self.device), self, divided=True)

    def gather(self, part: Tensor, n: int) -> Tensor:
        """All ``n`` rows, of which this process has ``share(n)``; only the own ones carry a gradient."""
        rows = self.share(n)
        whole = part.new_zeros(n, *part.shape[1:])
        whole[rows] = part.detach()
        whole = self.accelerator.reduce(whole, "sum")
        return torch.cat([whole[: rows.start], part, whole[rows.stop :]])

    def sum_gradients(self, module: nn.Module) -> None:
        """Replace the gradients of ``module`` by their sum over the processes."""
        if self.count == 1:
            return
        parameters = [p for p in module.parameters() if p.requires_grad]
        for p in parameters:
            if p.grad is None:  # this process had no rows
                p.grad = torch.zeros_like(p)
        summed = self.accelerator.reduce(torch.cat([p.grad.flatten() for p in parameters]), "sum")
        for p, grad in zip(parameters, summed.split([p.numel() for p in parameters]), strict=True):
            p.grad.copy_(grad.view_as(p))

    def sum(self, value: float) -> float:
        """The sum of a number over the processes."""
        if self.count == 1:
            return value
        return self.accelerator.reduce(torch.tensor(value, device=self.device), "sum").item()

    def wait(self) -> None:
        """Go on when all processes have come here."""
        if self.count > 1:
            self.accelerator.wait_for_everyone()

    def leave(self) -> None:
        """Take leave of the others, before this process ends."""
        if self.count > 1:
            self.accelerator.state.destroy_process_group()


ALONE = Processes()


@dataclass(frozen=True)
class Placed:
    """A masked model on a process's device: tokens come from the CPU and outputs go back there.

    Where the rows are divided, ``hidden`` is None: losses do not read it.
    """

    model: MaskedModel
    processes: Processes
    divided: bool = False

    @property
    def mask_id(self) -> int:
        return self.model.mask_id

    @property
    def vocab(self) -> Tensor:
        return self.model.vocab.cpu()

    @property
    def config(self):
        return self.model.config

    def __call__(self, tokens: Tensor) -> MaskedOutput:
        team = self.processes
        if not self.divided:
            out = self.model(tokens.to(team.device))
            return MaskedOutput(out.logits.to(tokens.device), out.hidden.to(tokens.device))
        out = self.model(tokens[team.share(len(tokens))].to(team.device))
        return MaskedOutput(team.gather(out.logits, len(tokens)).to(tokens.device), None)


def launched() -> Processes:
    """The processes of ``accelerate launch`` or ``torchrun`` if this is one of them, else ``ALONE``.

    Raises
    ------
    ValueError
        If several processes were launched that cannot talk to each other.
    """
    if not {"ACCELERATE_MIXED_PRECISION", "LOCAL_RANK"} & os.environ.keys():  # both launchers set one of them
        return ALONE
    try:
        from accelerate import Accelerator
    except ModuleNotFoundError as error:
        reason = f"several processes need the package accelerate ({error})"
        raise ImportError(f"{reason}: pip install 'mi-lib[models]'") from None
    cpu = not torch.accelerator.is_available()
    accelerator = Accelerator(cpu=cpu, mixed_precision="no")  # trainings say themselves what runs in bfloat16
    count, started = accelerator.num_processes, int(os.environ.get("WORLD_SIZE", "1"))
    expected = f"the {started} that were launched; set ACCELERATE_USE_CPU=true to run them on CPUs"
    require(count == started, "processes", count, expected)
    device = torch.device("cpu") if accelerator.device.type == "cpu" else accelerator.device  # not "cpu:0"
    return Processes(accelerator.process_index, count, device, accelerator if count > 1 else None)
