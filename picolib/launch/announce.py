"""Putting this rank's calls on the board, and comparing them with what others have put there.

Each rank posts what it is about to do and then looks at its neighbours' posts for the same call.
Whoever comes last sees a difference, without any extra message and before data are mixed.
"""

from __future__ import annotations

import json
import weakref
from collections.abc import Callable
from typing import Any, NamedTuple

import torch.distributed as dist

from picolib.launch import compare
from picolib.launch.board import COLLECTIVE, DIRECT, RECV, SEND, TALLIED, Board
from picolib.launch.places import Place
from picolib.launch.reader import Reader
from picolib.launch.slot import NO_TEXT, Channel, Text, text_hash
from picolib.launch.waiting import Threads
from picolib.launch.writer import Writer


class Group(NamedTuple):
    """What the board knows of a process group: its key, and the global ranks of its members."""

    key: int
    members: list[int]
    text: Text
    neighbours: list[int]
    name: str


class Post(NamedTuple):
    """Where on the board a call of this rank stands."""

    kind: int
    channel: int
    number: int


class Announcer:
    """One rank's hand on the board."""

    def __init__(self, board: Board, rank: int, issued: Callable[[], int]) -> None:
        self.rank = rank
        self.writer = Writer(board, rank)
        self.threads = Threads(self.writer, issued)
        self.readers = [Reader(board, r) for r in range(board.world_size)]
        self.channels: dict[tuple, int | None] = {}
        self.counts: dict[tuple, int] = {}
        self.peer_channels: dict[tuple, Channel] = {}
        self.signatures: dict[Any, str] = {}
        self.groups: weakref.WeakKeyDictionary = weakref.WeakKeyDictionary()
        self.previous: dict[int, tuple[int, int]] = {}  # group key -> address, number of its last tensor

    def group(self, group: Any) -> Group:
        """The board's view of a process group (None: the world)."""
        group = dist.group.WORLD if group is None else group
        known = self.groups.get(group)
        if known is None:
            members = dist.get_process_group_ranks(group)
            name = "world" if group is dist.group.WORLD else group.group_name
            known = self.groups[group] = self.named_group(name, members)
        return known

    def named_group(self, name: str, members: list[int]) -> Group:
        """A conversation of `members` under a name that all of them use."""
        text = json.dumps([name, *members])
        place = members.index(self.rank) if self.rank in members else 0
        neighbours = {members[place - 1], members[(place + 1) % len(members)]} - {self.rank}
        key = text_hash(f"{name}|{text}".encode())
        return Group(key, members, self.writer.text(text), sorted(neighbours), name)

    def signature(self, key: Any, fields: Callable[[], dict[str, Any]]) -> Text:
        """The text that stands for a call; equal texts, equal calls. `fields()` is asked once for each `key`."""
        text = self.signatures.get(key)
        if text is None:
            if len(self.signatures) > 4096:
                self.signatures.clear()
            text = self.signatures[key] = json.dumps(fields())
        return self.writer.text(text)

    def _channel(self, kind: int, group: Group, peer: int, tag: int) -> int | None:
        key = (kind, group.key, peer, tag)
        if key not in self.channels:
            self.channels[key] = self.writer.open_channel(kind, group.key, peer, tag, group.text)
            self.counts[key] = 0
        return self.channels[key]

    def collective(
        self, group: Group, signature: Text, place: Place, *, detail: str = "", tallied: bool = False, nbytes: int = 0
    ) -> Post | None:
        """Post the group's next collective; None when the board is full."""
        key = (COLLECTIVE, group.key, 0, 0)
        flags = (TALLIED if tallied else 0) | (DIRECT if place.direct else 0)
        with self.threads.lock:
            channel = self._channel(COLLECTIVE, group, 0, 0)
            if channel is None:
                return None
            number = self.counts[key]
            self.writer.post(
                COLLECTIVE, channel, number, signature, stack=place.stack, place=self.writer.text(place.text),
                detail=self.writer.text(detail) if detail else NO_TEXT, flags=flags, nbytes=nbytes,
            )  # fmt: skip
            self.counts[key] = number + 1
        return Post(COLLECTIVE, channel, number)

    def compare_collective(self, group: Group, post: Post, pairwise: bool, address: int) -> None:
        """Raise MismatchError when a neighbour's post for the same number tells of another call."""
        peers = group.members if pairwise else group.neighbours
        mine = self._own_entry(post)
        for peer in peers:
            channel = None if peer == self.rank else self._peer_channel(peer, COLLECTIVE, group.key, 0, 0)
            if channel is None or self.readers[peer].count(channel) <= post.number:
                continue
            theirs = self.readers[peer].entry(channel, post.number)
            if theirs is None:
                continue
            if theirs.signature.hash != mine.signature.hash:
                self.fail(compare.collective_mismatch(self.readers, group, post.number, self.rank, peer))
            if pairwise:
                self._fail_if(compare.splits_mismatch(self.readers, group, self.rank, mine, peer, theirs))
            self._compare_order(group, post, mine, peer, channel, theirs, address)
        self.previous[group.key] = (address, post.number)

    def _compare_order(
        self, group: Group, post: Post, mine: Any, peer: int, channel: Channel, theirs: Any, address: int
    ) -> None:
        """Two calls in a row that stand crosswise on two ranks have changed places."""
        before_address, before_number = self.previous.get(group.key, (0, -1))
        if theirs.stack == mine.stack or before_number != post.number - 1 or before_address == address:
            return
        my_last, their_last = self._own_entry(post, -1), self.readers[peer].entry(channel, post.number - 1)
        if my_last is None or their_last is None or not (mine.flags & DIRECT and theirs.flags & DIRECT):
            return
        crosswise = mine.stack == their_last.stack and my_last.stack == theirs.stack
        if crosswise and my_last.stack != mine.stack and my_last.signature.hash == mine.signature.hash:
            self.fail(compare.swapped(self.readers, group, self.rank, (my_last, mine), peer, (their_last, theirs)))

    def _own_entry(self, post: Post, step: int = 0) -> Any:
        reader = self.readers[self.rank]
        return reader.entry(reader.channel(post.kind, post.channel), post.number + step)

    def _peer_channel(self, peer: int, kind: int, group: int, other: int, tag: int) -> Channel | None:
        key = (peer, kind, group, other, tag)
        channel = self.peer_channels.get(key)
        if channel is None:
            channel = self.readers[peer].find(kind, group, other, tag)
            if channel is not None:
                self.peer_channels[key] = channel
        return channel

    def message(
        self, kind: int, group: Group, peer: int, tag: int, signature: Text, place: Place, nbytes: int
    ) -> Post | None:
        """Post this rank's next message to (SEND) or from (RECV) `peer`; None when the board is full."""
        key = (kind, group.key, peer, tag)
        with self.threads.lock:
            channel = self._channel(kind, group, peer, tag)
            if channel is None:
                return None
            number = self.counts[key]
            where = self.writer.text(place.text)
            self.writer.post(kind, channel, number, signature, stack=place.stack, place=where, nbytes=nbytes)
            self.counts[key] = number + 1
        return Post(kind, channel, number)

    def compare_message(self, kind: int, group: Group, peer: int, tag: int, post: Post) -> None:
        """Raise MismatchError when the other end's k-th message under this tag has another size or dtype."""
        other = SEND if kind == RECV else RECV
        channel = self._peer_channel(peer, other, group.key, self.rank, tag)
        if channel is None or self.readers[peer].count(channel) <= post.number:
            return
        theirs, mine = self.readers[peer].entry(channel, post.number), self._own_entry(post)
        if theirs is None or theirs.signature.hash == mine.signature.hash:
            return
        ends = ((self.rank, mine), (peer, theirs)) if kind == SEND else ((peer, theirs), (self.rank, mine))
        self._fail_if(compare.message_mismatch(self.readers, *ends, post.number))

    def _fail_if(self, text: str | None) -> None:
        if text:
            self.fail(text)

    def fail(self, text: str) -> None:
        """Leave the explanation on the board and raise it."""
        from picolib.launch.errors import MismatchError

        self.writer.complain(text)
        raise MismatchError(text)
