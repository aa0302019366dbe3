"""Putting this rank's calls on the board, and comparing them with what others have put there.

Each rank posts what it is about to do and then looks at its neighbours' posts for the same call.
Whoever comes last sees a difference, without any extra message and before data are mixed.
"""

from __future__ import annotations

import json
import struct
import weakref
from collections.abc import Callable
from typing import Any, NamedTuple

import torch.distributed as dist

from picolib.launch import compare
from picolib.launch.board import ANY_RANK, COLLECTIVE, DIRECT, ENTRY_SIZE, RECV, SEND, TALLIED, Board, Layout
from picolib.launch.places import Place
from picolib.launch.reader import Reader
from picolib.launch.slot import NO_TEXT, U64, Entry, Text, text_hash
from picolib.launch.waiting import Threads
from picolib.launch.writer import Writer

_GLANCE = struct.Struct("<QQQ")  # the first fields of an entry


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
    signature: int
    stack: int
    tally: int  # where the messages of a collective are counted


class Lane:
    """A channel of this rank: where it stands in the memory, and how many posts it has had."""

    __slots__ = ("index", "kind", "counter", "ring", "entry_size", "length", "count", "previous")

    def __init__(self, layout: Layout, rank: int, kind: int, index: int) -> None:
        self.index, self.kind, self.count = index, kind, 0
        self.counter, self.ring, self.entry_size, self.length = layout.lane(rank, kind, index)
        self.previous = (0, -1)  # address of the last call's tensor, and that call's number


class Announcer:
    """One rank's hand on the board."""

    def __init__(self, board: Board, rank: int, issued: Callable[[], int]) -> None:
        self.rank = rank
        self.writer = Writer(board, rank)
        self.memory = board.memory
        self.threads = Threads(self.writer, issued)
        self.readers = [Reader(board, r) for r in range(board.world_size)]
        self.lanes: dict[tuple, Lane | None] = {}
        self.peer_lanes: dict[tuple, Lane] = {}
        self.signatures: dict[Any, Text] = {}
        self.signatures_lap = 0  # of the board's texts: on a new lap they must all be written anew
        self.groups: weakref.WeakKeyDictionary = weakref.WeakKeyDictionary()

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
        if self.signatures_lap != self.writer.text_lap or len(self.signatures) > 4096:
            self.signatures.clear()
            self.signatures_lap = self.writer.text_lap
        known = self.signatures.get(key)
        if known is None:
            known = self.signatures[key] = self.writer.text(json.dumps(fields()))
        return known

    def _lane(self, kind: int, group: Group, peer: int = 0, tag: int = 0) -> Lane | None:
        key = (kind, group.key, peer, tag)
        if key not in self.lanes:
            index = self.writer.open_channel(kind, group.key, peer, tag, group.text)
            self.lanes[key] = None if index is None else Lane(self.writer.layout, self.rank, kind, index)
        return self.lanes[key]

    def _peer_lane(self, peer: int, kind: int, group: int, other: int = 0, tag: int = 0) -> Lane | None:
        key = (peer, kind, group, other, tag)
        lane = self.peer_lanes.get(key)
        if lane is None:
            channel = self.readers[peer].find(kind, group, other, tag)
            if channel is not None:
                lane = self.peer_lanes[key] = Lane(self.writer.layout, peer, kind, channel.index)
        return lane

    def post(
        self, kind: int, group: Group, peer: int, tag: int, signature: Text, place: Place, nbytes: int,
        detail: str = "", tallied: bool = False,
    ) -> Post | None:  # fmt: skip
        """Post the next call of a channel; None when the board is full."""
        flags = (TALLIED if tallied else 0) | (DIRECT if place.direct else 0)
        with self.threads.lock:
            lane = self._lane(kind, group, peer, tag)
            if lane is None:
                return None
            number, writer = lane.count, self.writer
            details = writer.text(detail) if detail else NO_TEXT
            writer.post(lane, number, signature, place.stack, writer.text(place.text), details, flags, nbytes)
            lane.count = number + 1
        tally = lane.ring + number % lane.length * lane.entry_size + ENTRY_SIZE
        return Post(kind, lane.index, number, signature.hash, place.stack, tally)

    def compare_collective(self, group: Group, post: Post, pairwise: bool, address: int) -> None:
        """Raise MismatchError when a neighbour's post for the same number tells of another call."""
        mine = self.lanes[(COLLECTIVE, group.key, 0, 0)]
        for peer in group.members if pairwise else group.neighbours:
            lane = None if peer == self.rank else self._peer_lane(peer, COLLECTIVE, group.key)
            seen = lane and glance(self.memory, lane, post.number)
            if not seen:
                continue
            signature, stack = seen
            if signature != post.signature:
                self.fail(compare.collective_mismatch(self.readers, group, post.number, self.rank, peer))
            if pairwise:
                self._compare_splits(group, post, peer)
            if stack != post.stack and mine.previous[1] == post.number - 1 and mine.previous[0] != address:
                self._compare_order(group, post, peer)
        mine.previous = (address, post.number)

    def _compare_splits(self, group: Group, post: Post, peer: int) -> None:
        mine, theirs = (self._entry(rank, group, post.number) for rank in (self.rank, peer))
        text = theirs and compare.splits_mismatch(self.readers, group, self.rank, mine, peer, theirs)
        if text:
            self.fail(text)

    def _compare_order(self, group: Group, post: Post, peer: int) -> None:
        """Two calls in a row that stand crosswise on two ranks have changed places."""
        numbers = (post.number - 1, post.number)
        mine, theirs = ([self._entry(rank, group, n) for n in numbers] for rank in (self.rank, peer))
        if not all(entry and entry.flags & DIRECT for entry in (*mine, *theirs)):
            return
        crosswise = mine[0].stack == theirs[1].stack and mine[1].stack == theirs[0].stack
        if crosswise and mine[0].stack != mine[1].stack and mine[0].signature == mine[1].signature:
            self.fail(compare.swapped(self.readers, group, self.rank, mine, peer, theirs))

    def _entry(self, rank: int, group: Group, number: int) -> Entry | None:
        channel = self.readers[rank].find(COLLECTIVE, group.key)
        return self.readers[rank].entry(channel, number) if channel is not None else None

    def compare_message(self, kind: int, group: Group, peer: int, tag: int, post: Post) -> None:
        """Raise MismatchError when the other end's k-th message under this tag has another size or dtype."""
        other = SEND if kind == RECV else RECV
        lane = self._peer_lane(peer, other, group.key, self.rank, tag)
        seen = lane and glance(self.memory, lane, post.number)
        if not seen or seen[0] == post.signature:
            return
        receiver = self.rank if kind == RECV else peer
        if self._peer_lane(receiver, RECV, group.key, ANY_RANK, tag):
            return  # it may have taken some of these messages as anybody's, so whose k-th is whose is not known
        here, there = self.readers[self.rank], self.readers[peer]
        mine = here.entry(here.channel(kind, post.channel), post.number)
        theirs = there.entry(there.channel(other, lane.index), post.number)
        ends = ((self.rank, mine), (peer, theirs)) if kind == SEND else ((peer, theirs), (self.rank, mine))
        text = mine and theirs and compare.message_mismatch(self.readers, *ends, post.number)
        if text:
            self.fail(text)

    def fail(self, text: str) -> None:
        """Leave the explanation on the board and raise it."""
        from picolib.launch.errors import MismatchError

        self.writer.complain(text)
        raise MismatchError(text)


def glance(memory: Any, lane: Lane, number: int) -> tuple[int, int] | None:
    """Signature and stack (hashes) of post `number`; None when it isn't there, or no longer."""
    if U64.unpack_from(memory, lane.counter)[0] <= number:
        return None
    where = lane.ring + number % lane.length * lane.entry_size
    found, signature, stack = _GLANCE.unpack_from(memory, where)
    return (signature, stack) if found == number + 1 == U64.unpack_from(memory, where)[0] else None
