"""One call of a collective, on its way from the arguments to the engine."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from picolib.comm import auto, engine
from picolib.comm.groups import resolve
from picolib.comm.p2p import Link
from picolib.comm.slow import SlowLink, link_kind
from picolib.launch import monitor
from picolib.launch.clock import Clock


class Call:
    """Checks, the choice of the algorithm, staging of tensors, and the start.

    Every complaint comes before the first message, and depends only on what the ranks have in common.
    """

    __slots__ = ("name", "process_group", "members", "async_op", "algorithm", "moves_back")

    def __init__(self, name: str, group: Any, async_op: bool) -> None:
        self.name, self.async_op = name, async_op
        self.process_group, self.members = resolve(group)
        self.algorithm = ""
        self.moves_back: list[tuple[torch.Tensor, torch.Tensor]] = []

    def complain(self, problem: str) -> None:
        """Raise a ValueError of one sentence."""
        raise ValueError(f"{self.name}: {problem}.")

    def check_tensors(self, tensors: Sequence[Any], argument: str) -> None:
        """All are tensors of one dtype and on one device."""
        for tensor in tensors:
            if not isinstance(tensor, torch.Tensor):
                raise TypeError(f"{self.name}: {argument} must be a torch.Tensor, got {type(tensor).__name__}.")
            if tensor.dtype != tensors[0].dtype or tensor.device != tensors[0].device:
                self.complain(
                    f"{argument} must all have one dtype and device, got {tensors[0].dtype} on {tensors[0].device} "
                    f"and {tensor.dtype} on {tensor.device}"
                )

    def check_list(self, tensors: Any, argument: str) -> None:
        """A list with one tensor for each rank."""
        if not isinstance(tensors, (list, tuple)) or len(tensors) != self.members.size:
            count = f"{len(tensors)} tensors" if isinstance(tensors, (list, tuple)) else type(tensors).__name__
            self.complain(f"{argument} must be a list of {self.members.size} tensors, one per rank, got {count}")

    def check_distinct(self, outputs: Sequence[torch.Tensor], argument: str) -> None:
        """No two outputs start at the same place, as in [t] * n, where all would end as the last one written."""
        starts = [t.data_ptr() for t in outputs if t.numel()]
        if len(set(starts)) < len(starts):
            self.complain(f"the output tensors in {argument} share memory (was it made as [t] * {len(outputs)}?)")

    def choose(self, algorithm: str, device: torch.device, nbytes: int, fixed: str | None = None) -> str:
        """Settle the algorithm. `fixed` is the one that a collective with per-rank sizes has."""
        if algorithm == "auto":
            backend = self.members.backend(self.process_group, device)
            on_gloo = backend is None or backend.name() == "gloo"
            kind = auto.SAME_AS.get(self.name, self.name)
            algorithm = fixed or auto.choose(kind, nbytes, self.members.size, self.async_op) if on_gloo else "native"
        elif algorithm not in (known := auto.algorithms(self.name)):
            self.complain(f"algorithm must be one of {', '.join(['auto', *known])}, got {algorithm!r}")
        self.algorithm = algorithm
        return algorithm

    def reads(self, tensor: torch.Tensor) -> torch.Tensor:
        """A tensor as a contiguous vector that the backend can send; a copy only where it must be."""
        flat = tensor if is_plain_vector(tensor) else tensor.detach().contiguous().view(-1)
        return flat if self.members.carries(self.process_group, flat.device) else flat.cpu()

    def writes(self, tensor: torch.Tensor, and_reads: bool = False) -> torch.Tensor:
        """A contiguous vector that stands for a tensor: its own memory, else a buffer that is copied back."""
        carried = self.members.carries(self.process_group, tensor.device)
        if carried and is_plain_vector(tensor):
            return tensor
        target = tensor.detach()
        if carried and target.is_contiguous():
            return target.view(-1)
        buffer = torch.empty(target.shape, dtype=target.dtype, device=target.device if carried else "cpu")
        if and_reads:
            buffer.copy_(target)
        self.moves_back.append((target, buffer))
        return buffer.view(-1)

    def start(
        self,
        tensors: Sequence[torch.Tensor],
        *arguments: Any,
        op: Any = None,
        label: str | None = None,
        root: int | None = None,
        strict_shapes: bool = True,
        splits: Any = None,
        run: Any = None,
    ) -> engine.Work | None:
        """Announce the call, then run the algorithm on its arguments: to the end, or up to its first wait.

        tensors: this rank's, whose shapes and dtypes are compared with the other ranks'. arguments: of the algorithm,
        behind its link. root: a place in the group. op, label, strict_shapes, splits: see `monitor.collective`.
        `run` stands in for the algorithm that was chosen: a variant of it, see `fused`.
        """
        members, async_op = self.members, self.async_op
        if members.in_flight and not async_op:
            members.in_flight[-1].wait()  # calls on one group take effect in their order
        call = monitor.collective(
            self.name,
            self.process_group,
            tensors,
            op=op,
            root=None if root is None else members.ranks[root],
            algorithm=self.algorithm,
            label=label,
            async_op=async_op,
            strict_shapes=strict_shapes,
            splits=splits,
        )
        link, clock = self._link(tensors, call)
        run = run or auto.ALGORITHMS[auto.SAME_AS.get(self.name, self.name)][self.algorithm]
        steps = run(link, *arguments)
        if self.moves_back:
            steps = self._then_move_back(steps)
        if async_op:
            work = engine.Work(steps, members, call, clock)
            call.handle_created(work)
            return work
        with call:
            engine.run(steps)
        return None

    def _link(self, tensors: Sequence[torch.Tensor], call: Any) -> tuple[Link, Clock | None]:
        """What the algorithm sends through; in slow motion, also the clock of a collective in the background."""
        polled = self.async_op or engine.works_in_flight() > 0
        carried = bool(tensors) and self.members.carries(self.process_group, tensors[0].device)
        device = tensors[0].device if carried else torch.device("cpu")
        link = link_kind()(self.process_group, self.members, self.members.next_tag(), device, call, polled)
        clock = link.in_background() if self.async_op and isinstance(link, SlowLink) else None
        if clock is not None:
            call.now = clock.now
        return link, clock

    def _then_move_back(self, steps: engine.Steps) -> engine.Steps:
        yield from steps
        for target, buffer in self.moves_back:
            target.copy_(buffer)


def is_plain_vector(tensor: torch.Tensor) -> bool:
    """Whether a tensor is already what algorithms work on: every operation saved counts for short messages."""
    return tensor.dim() == 1 and not tensor.requires_grad and tensor.is_contiguous()
