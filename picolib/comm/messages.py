"""send, recv, isend and irecv, as torch.distributed has them, for any tensor and also to oneself."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
import torch.distributed as dist

from picolib.comm import engine
from picolib.comm.groups import FIRST_RESERVED_TAG, Group, is_member, peer_rank, resolve, warn_not_member
from picolib.comm.p2p import Handle
from picolib.comm.slow import link_kind


class Request:
    """What isend and irecv return: a message under way, and what is left to do when it is here."""

    def __init__(self, handle: Handle, at_the_end: Callable[[], Any] | None = None) -> None:
        self._handle, self._at_the_end = handle, at_the_end

    def wait(self, timeout: object = None) -> bool:
        """Block until the tensor has been sent, or holds the message. Waiting again returns at once."""
        engine.wait_for(self._handle)
        if self._at_the_end is not None:
            self._at_the_end()
            self._at_the_end = None
        return True

    def is_completed(self) -> bool:
        """Whether `wait()` would return at once, as far as can be seen (gloo never says so of a send)."""
        return self._handle.has_arrived() and self.wait()


class ToMyself:
    """A message from a rank to itself: a copy, taken when it is sent and put in place when it is received."""

    def __init__(self, group: Group, tag: int, tensor: torch.Tensor | None = None) -> None:
        self._group, self._tag, self._tensor = group, tag, tensor

    def wait(self, timeout: object = None) -> bool:
        """Put the message in its place; RuntimeError when it was not sent, since nobody else could do it."""
        if self._tensor is not None and not self._group.mailbox[self._tag]:
            me = self._group.ranks[self._group.rank]
            raise RuntimeError(f"Rank {me} waits for a message from itself (tag {self._tag}) that it has not sent.")
        if self._tensor is not None:
            self._tensor.copy_(self._group.mailbox[self._tag].popleft())
            self._tensor = None
        return True

    def is_completed(self) -> bool:
        """Whether the message has been sent, and is therefore here."""
        return self._tensor is None or (bool(self._group.mailbox[self._tag]) and self.wait())


def isend(
    tensor: torch.Tensor,
    dst: int | None = None,
    group: dist.ProcessGroup | None = None,
    tag: int = 0,
    group_dst: int | None = None,
) -> Request | ToMyself | None:
    """Start to send `tensor` to global rank `dst` (or place `group_dst` of the group); return a handle.

    Wait for the handle before the tensor is changed. Unlike torch's, non-contiguous tensors and those on a device
    that the backend cannot send from are copied first, and a message to oneself is a local copy.

    Raises:
        ValueError: the peer is not in the group, or the tag belongs to picolib's collectives.
    """
    if not is_member(group):
        return warn_not_member("isend")
    request = _start_send(tensor, dst, group, tag, group_dst)
    _hand_out(request)
    return request


def irecv(
    tensor: torch.Tensor,
    src: int | None = None,
    group: dist.ProcessGroup | None = None,
    tag: int = 0,
    group_src: int | None = None,
) -> Request | ToMyself | None:
    """Start to receive into `tensor` from global rank `src` (or place `group_src` of the group); return a handle.

    The tensor's contents are undefined until the handle was waited for. See `isend` for what may be received into.
    """
    if not is_member(group):
        return warn_not_member("irecv")
    request = _start_recv(tensor, src, group, tag, group_src)
    _hand_out(request)
    return request


def send(
    tensor: torch.Tensor,
    dst: int | None = None,
    group: dist.ProcessGroup | None = None,
    tag: int = 0,
    group_dst: int | None = None,
) -> None:
    """Send `tensor` to global rank `dst` (or place `group_dst` of the group) and wait until it has been sent."""
    if not is_member(group):
        return warn_not_member("send")
    _start_send(tensor, dst, group, tag, group_dst).wait()


def recv(
    tensor: torch.Tensor,
    src: int | None = None,
    group: dist.ProcessGroup | None = None,
    tag: int = 0,
    group_src: int | None = None,
) -> int:
    """Receive into `tensor` from global rank `src` (or place `group_src` of the group), or from whoever sends first.

    Returns:
        The sender's global rank; -1, as in torch, on a rank that is not in the group.
    """
    if not is_member(group):
        warn_not_member("recv")
        return -1
    process_group, members = resolve(group)
    if src is None and group_src is None:
        return _recv_from_anyone(tensor, process_group, members, tag)
    _start_recv(tensor, src, group, tag, group_src).wait()
    return members.ranks[group_src] if src is None else src


class P2POp(NamedTuple):
    """One message for `batch_isend_irecv`: `op` is `isend` or `irecv`, `peer` a global rank."""

    op: Callable[..., Any]
    tensor: torch.Tensor
    peer: int | None = None
    group: dist.ProcessGroup | None = None
    tag: int = 0
    group_peer: int | None = None


def batch_isend_irecv(p2p_op_list: list[P2POp]) -> list[Any]:
    """Start several messages; return their handles. Receives are started first, so that nobody waits for them."""
    for position, op in enumerate(p2p_op_list):
        if op.op not in (isend, irecv):
            raise ValueError(f"P2POp number {position} must have op comm.isend or comm.irecv, got {op.op!r}.")
    requests: dict[int, Any] = {}
    for position, op in sorted(enumerate(p2p_op_list), key=lambda item: item[1].op is isend):
        requests[position] = op.op(op.tensor, op.peer, op.group, op.tag, op.group_peer)
    return [requests[position] for position in range(len(p2p_op_list))]


def _start_send(tensor: torch.Tensor, dst: Any, group: Any, tag: int, group_dst: Any) -> Request | ToMyself:
    process_group, members = resolve(group)
    to = peer_rank(members, dst, group_dst, "dst")
    _check(tensor, tag)
    if to == members.rank:
        members.mailbox[tag].append(tensor.detach().clone())
        return ToMyself(members, tag)
    payload = tensor.detach().contiguous()
    payload = payload if members.carries(process_group, payload.device) else payload.cpu()
    return Request(link_kind()(process_group, members, tag, payload.device).post_send(payload, to))


def _start_recv(tensor: torch.Tensor, src: Any, group: Any, tag: int, group_src: Any) -> Request | ToMyself:
    process_group, members = resolve(group)
    source = peer_rank(members, src, group_src, "src")
    _check(tensor, tag)
    target = tensor.detach()
    if source == members.rank:
        return ToMyself(members, tag, target)
    buffer = target if target.is_contiguous() else torch.empty_like(target, memory_format=torch.contiguous_format)
    buffer = buffer if members.carries(process_group, buffer.device) else torch.empty_like(buffer, device="cpu")
    handle = link_kind()(process_group, members, tag, buffer.device, polled=True).post_recv(buffer, source)
    return Request(handle, None if buffer is target else lambda: target.copy_(buffer))


def _recv_from_anyone(tensor: torch.Tensor, process_group: Any, members: Group, tag: int) -> int:
    _check(tensor, tag)
    buffer = torch.empty_like(tensor, device="cpu", memory_format=torch.contiguous_format)
    sender = link_kind()(process_group, members, tag, buffer.device).recv_from_anyone(buffer)
    tensor.detach().copy_(buffer)
    return members.ranks[sender]


def _hand_out(request: Request | ToMyself) -> None:
    """The caller has a handle now, and must wait for it: the monitor watches that."""
    message = request._handle.message if isinstance(request, Request) else None
    if message is not None:
        message.handle_created(request)


def _check(tensor: Any, tag: Any) -> None:
    if not isinstance(tensor, torch.Tensor):
        raise TypeError(f"tensor must be a torch.Tensor, got {type(tensor).__name__}.")
    if not isinstance(tag, int) or not 0 <= tag < FIRST_RESERVED_TAG:
        raise ValueError(f"tag must be from 0 to {FIRST_RESERVED_TAG - 1} (picolib uses those above), got {tag!r}.")
