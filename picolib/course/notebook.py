"""The notes of one rank: what a call of the learner's function sent, received, waited for and all-reduced.

`observe` puts them here. Also what becomes of messages and results in a tampered case, and what is refused at once: a
loop that would go on for ever.
"""

from __future__ import annotations

import ctypes
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist

from picolib.launch.memory import Range, range_of

SMALL = 256  # elements of a message whose contents are kept
MANY = 200  # messages of one call after which its loop is taken for one without end; right answers send a dozen
MANY_COLLECTIVES = 1000  # the same for collectives, which are counted from the last note on
TAMPERED = 64.0  # is added to every number of every message of a tampered case


@dataclass
class Pending:
    """A receive or an asynchronous collective under way: its entry, and the tensors nobody may use before wait()."""

    entry: list
    tensors: list[torch.Tensor]
    ranges: list[Range]


class Notebook:
    """What one call of the learner's function did on this rank, in order.

    Entries are lists: ["send", peer, bytes, id, contents, owner, checksum], the same with "recv" (its checksum is
    None until the message has arrived), ["wait", id], ["collective", name, elements, owner, id or None, contents,
    dtype], ["early", id, place]: the tensor of that message or collective was used before wait(), ["store", method]:
    the ranks' meeting place was used as a way for numbers, ["graph", name]: the collective that follows was given a
    tensor that autograd has computed, and tells autograd nothing, and ["note", label]. owner is None for the learner's
    own calls, else the name of the picolib collective that made them. A collective's contents and dtype are those of
    what the rank gave to it.
    """

    def __init__(self) -> None:
        self.entries: list[list] = []
        self.ids: dict[int, int] = {}  # of a handle that `handles` keeps alive -> the number of its entry
        self.next_id = 0
        # Kept until waited for: gloo drops a message whose handle is dropped, its receiver would wait for ever, and the
        # fault to speak of is that nobody waited for the send. (A handle keeps its tensors alive, so no longer.)
        self.handles: dict[int, Any] = {}
        self.pending: dict[int, Pending] = {}
        self.tamper = ""  # what is changed when it arrives or is over: "messages", "all-reduces"
        self.reduced = 0  # all-reduces that are over, in a tampered case
        self.since_note = 0  # collectives since the last note

    def clear(self) -> list[list]:
        """Everything noted so far; the next call starts anew."""
        entries, self.entries = self.entries, []
        self.pending.clear()
        self.reduced = self.since_note = 0
        return entries

    def message(self, kind: str, tensor: torch.Tensor, peer: int, work: Any, whose: str | None) -> None:
        """A send or a receive has been started; `work` is its handle, whose the picolib collective that it is of."""
        contents, check = None, None
        if kind == "send" and whose is None:
            contents, check = _contents(tensor), checksum(tensor)
        nbytes = tensor.numel() * tensor.element_size()
        self._started([kind, peer, nbytes, self.next_id, contents, whose, check], work)
        if kind == "recv" and whose is None:
            self._until_waited([tensor])

    def refuse_without_end(self, kind: str) -> None:
        """A loop that sends for ever would go on until the time is up, and then could not be told from waiting."""
        sent = sum(e[0] == "send" and e[5] is None for e in self.entries)
        if kind == "send" and sent >= MANY:
            raise RuntimeError(f"rank {dist.get_rank()} has sent {sent} messages in one call, and is still sending")

    def refuse_collectives_without_end(self) -> None:
        """The same for a loop of collectives. A note of the code around (a step, a pass) begins the count anew."""
        self.since_note += 1
        if self.since_note > MANY_COLLECTIVES:
            made = f"rank {dist.get_rank()} has made {MANY_COLLECTIVES} collectives in one call"
            raise RuntimeError(f"{made}, and is still making more")

    def collective(
        self,
        name: str,
        tensors: Sequence[torch.Tensor],
        owner_name: str | None,
        work: Any,
        given: Sequence = (None, ""),
    ) -> None:
        """A collective has been started; `work` is what says that it is over, None where that is not to be seen.

        given: contents and dtype of what the rank gave to it, looked at before.
        """
        handle = None if work is None else self.next_id
        if torch.is_grad_enabled() and any(t.grad_fn is not None for t in tensors):
            self.entries.append(["graph", name, None, None, None, None, None])
        self._started(["collective", name, sum(t.numel() for t in tensors), owner_name, handle, *given], work)
        if work is not None:
            self._until_waited(tensors)

    def _started(self, entry: list, work: Any) -> None:
        self.entries.append(entry)
        if work is not None:
            self.ids[id(work)] = self.next_id
            self.handles[self.next_id] = work
        self.next_id += 1

    def _until_waited(self, tensors: Sequence[torch.Tensor]) -> None:
        self.pending[self.next_id - 1] = Pending(self.entries[-1], list(tensors), [range_of(t) for t in tensors])

    def waited(self, work: Any) -> None:
        """`work` has been waited for."""
        id_ = self.ids.get(id(work))
        if id_ is None:
            return
        self.entries.append(["wait", id_])
        self.handles.pop(id_, None)
        over = self.pending.pop(id_, None)
        if over is not None and over.entry[0] == "recv":
            over.entry[6] = checksum(over.tensors[0])
            if over.entry[1] < 0:
                over.entry[1] = work._source_rank()
            if self.tamper == "messages":
                over.tensors[0].detach().add_(TAMPERED)
        elif over is not None and self._is_reduction(*over.entry[1:4]):
            for tensor in over.tensors:
                self.reduction_over(tensor)

    @staticmethod
    def _is_reduction(name: str, _: int, owner_name: str | None) -> bool:
        """Whether a collective leaves a sum, or what may be added up to one, in the tensors that it has noted.

        torch's give their output first; of picolib's it is known for the all-reduce alone.
        """
        torchs = ("reduce", "reduce_scatter", "reduce_scatter_tensor", "all_to_all", "all_to_all_single")
        return name == "all_reduce" or (name in torchs and owner_name is None)

    def reduction_over(self, tensor: torch.Tensor) -> None:
        """Change a result of an all-reduce, a reduce-scatter, ... in a tampered case: each number by a factor.

        The factors are the same on all ranks.

        Neighbours and successive all-reduces get different factors, so that a sum divided by a count does not come
        out right again. Zeros stay zeros: a loop that ends when nobody has anything must end here, too.
        """
        if self.tamper == "all-reduces" and tensor.dtype != torch.bool:
            factors = 2 + (torch.arange(tensor.numel()) + self.reduced) % 3
            tensor.detach().mul_(factors.view(tensor.shape).to(tensor.dtype))
        self.reduced += 1

    def used(self, tensor: torch.Tensor, place: str) -> None:
        """A tensor has been used in the learner's line `place` (see `picolib.launch.places`): too early?"""
        place_of = range_of(tensor)
        for id_, pending in self.pending.items():
            known = any(e[0] == "early" and e[1] == id_ for e in self.entries)
            if not known and any(place_of.overlaps(one) for one in pending.ranges):
                self.entries.append(["early", id_, place])


def given_to(name: str, tensors: Sequence[Any]) -> tuple[list[float] | None, str]:
    """Contents and dtype of what a rank gives to an all-reduce; nothing of other collectives."""
    if name != "all_reduce" or not tensors:
        return None, ""
    return _contents(tensors[0]), str(tensors[0].dtype).removeprefix("torch.")


def _contents(tensor: torch.Tensor) -> list[float] | None:
    return tensor.detach().double().flatten().tolist() if tensor.numel() <= SMALL else None


def checksum(tensor: torch.Tensor) -> int:
    """Of a tensor's bytes: the same on both ends of a message."""
    flat = tensor.detach().cpu().contiguous()
    return zlib.crc32(ctypes.string_at(flat.data_ptr(), flat.numel() * flat.element_size()))
