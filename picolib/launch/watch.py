"""The kernel's look at the board: is anybody waiting for something that can never come?

A rank is *blocked* when every thread of it that could start some communication waits in a call. Such
a wait is *open* when the other end has not posted its part; once it has, the transfer may take as long
as it likes. A set of ranks is deadlocked when all of them are blocked, and each can only be freed by a
rank that is in the set or has returned. A rank that computes or sleeps is never in the set, and nobody
who waits for it is.

The board is read without locks, but a blocked rank cannot write: when the same ranks are in the same
waits before and after everything else was read, the picture in between is right, and since nobody in a
deadlocked set can ever move, it stays right. It is reported when it has stood for a moment.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterable
from typing import NamedTuple

from picolib.launch.board import ANY_RANK, CALL_SEND, COLLECTIVE, OPAQUE, RECV, RETURNED, RUNNING, SEND, Board
from picolib.launch.reader import Reader
from picolib.launch.slot import Channel, Entry, Wait

STABLE_SECONDS = 0.6  # a deadlock is reported when it has stood this long
COMPLAINT_SECONDS = 1.0  # a mismatch that its rank has noted but not raised


class Verdict(NamedTuple):
    """What the board explains.

    kind: "deadlock", "mismatch" or "misuse".
    rank: the (first) rank that it is about.
    seconds: for a deadlock, how long ago the last of its ranks got stuck.
    """

    kind: str
    text: str
    rank: int | None = None
    seconds: float = 0.0


class Blocked(NamedTuple):
    """One thread's wait, with what it is about, and the ranks that could end it (all of them must, or any)."""

    rank: int
    wait: Wait
    channel: Channel | None
    entry: Entry | None
    missing: tuple[int, ...]
    any_of: bool = False


class Picture(NamedTuple):
    """All ranks at one moment. `blocked` holds the ranks of which every thread waits for something open."""

    states: list[int]
    waits: dict[int, list[Wait]]
    blocked: dict[int, list[Blocked]]


class Watcher:
    """Polled by the launcher while a run goes on."""

    def __init__(self, board: Board, world_size: int) -> None:
        self.board = board
        self.world_size = world_size
        self.readers = [Reader(board, rank) for rank in range(world_size)]
        self.suspect: tuple[frozenset[tuple[int, int]], float] = (frozenset(), 0.0)
        self.complaint_since: float | None = None

    def progress(self) -> int:
        """Grows whenever any rank posts a call or stops waiting."""
        return self.board.progress()

    def poll(self) -> Verdict | None:
        """What has gone wrong for good, if anything; cheap enough for ten times a second."""
        return self._complaint(time.monotonic()) or self._deadlock(time.monotonic())

    def final(self, reason: str = "") -> Verdict | None:
        """After a failure: what the board knows that explains it better than `reason`."""
        for rank, reader in enumerate(self.readers):
            text = reader.complaint()
            if text:
                return self._mismatch(text, rank)
        return None

    def _mismatch(self, text: str, rank: int) -> Verdict:
        from picolib.launch.wording import relabel

        return Verdict("mismatch", relabel(text), rank)

    def _complaint(self, now: float) -> Verdict | None:
        """A rank that finds a mistake raises it; only when that was swallowed does it come out here."""
        verdict = self.final()
        if verdict is None:
            return None
        self.complaint_since = self.complaint_since or now
        return verdict if now - self.complaint_since > COMPLAINT_SECONDS else None

    def _deadlock(self, now: float) -> Verdict | None:
        picture = self.picture()
        stuck = deadlocked(picture)
        fingerprint = frozenset((rank, wait.id) for rank in stuck for wait in picture.waits[rank])
        if not fingerprint:
            self.suspect = (frozenset(), now)
            return None
        if fingerprint != self.suspect[0]:
            self.suspect = (fingerprint, now)
            return None
        if now - self.suspect[1] < STABLE_SECONDS:
            return None
        from picolib.launch.explain import explain

        stuck_since = max(wait.since for rank in stuck for wait in picture.waits[rank])
        return Verdict("deadlock", explain(self.readers, picture, stuck), min(stuck), now - stuck_since)

    def picture(self) -> Picture:
        """Read the board; ranks that moved meanwhile count as running."""
        before = [self._idle(reader) for reader in self.readers]
        states = [reader.header()[0] for reader in self.readers]
        waits = {rank: list(idle) for rank, idle in enumerate(before) if idle}
        found = {rank: self._open(rank, waits[rank]) for rank in waits}
        still = {rank for rank in waits if self._idle(self.readers[rank]) == before[rank]}
        blocked = {rank: b for rank, b in found.items() if b is not None and rank in still}
        return Picture(states, {rank: w for rank, w in waits.items() if rank in still}, blocked)

    def _idle(self, reader: Reader) -> tuple[Wait, ...]:
        """The rank's waits, if it is running and nothing in it but waits; else nothing."""
        state, free, _ = reader.header()
        return tuple(reader.waits()) if state == RUNNING and free <= 0 else ()

    def _open(self, rank: int, waits: Iterable[Wait]) -> list[Blocked] | None:
        """The rank's waits, or None when one of them is (or may be) served already."""
        found = []
        for wait in waits:
            if wait.kind == OPAQUE:
                behind = self._behind(rank, wait)
                if not behind:
                    return None
                found.append(Blocked(rank, wait, None, None, behind))
                continue
            channel = self.readers[rank].channel(_channel_kind(wait), wait.channel)
            missing = self._missing(rank, wait, channel)
            if not missing:
                return None
            entry = self.readers[rank].entry(channel, wait.number)
            found.append(Blocked(rank, wait, channel, entry, missing, channel.peer == ANY_RANK))
        return found

    def _behind(self, rank: int, wait: Wait) -> tuple[int, ...]:
        """Ranks that have certainly not started as many of torch's own collectives."""
        issued = [(r, reader.issued()) for r, reader in enumerate(self.readers) if r != rank]
        return tuple(r for r, count in issued if count is not None and count < wait.number)

    def _missing(self, rank: int, wait: Wait, channel: Channel) -> tuple[int, ...]:
        """Ranks whose part is not on the board. Where that can't be known, the wait counts as served."""
        if wait.kind == COLLECTIVE:
            return tuple(r for r in self._members(rank, channel) if r != rank and self._lacks_call(r, channel, wait))
        if wait.kind in (SEND, RECV):
            return self._missing_message(rank, wait, channel)
        peer = self.readers[wait.peer]
        their_channel = peer.find(COLLECTIVE, channel.group)
        if peer.count(their_channel) <= wait.number:
            return () if their_channel is None and peer.overflow() else (wait.peer,)
        their_kind = CALL_SEND if wait.kind != CALL_SEND else CALL_SEND + 1
        posted = peer.tally(their_channel, wait.number, their_kind, rank)
        return (wait.peer,) if posted is not None and posted <= wait.index else ()

    def _lacks_call(self, rank: int, channel: Channel, wait: Wait) -> bool:
        reader = self.readers[rank]
        theirs = reader.find(COLLECTIVE, channel.group)
        return reader.count(theirs) <= wait.number and not (theirs is None and reader.overflow())

    def _missing_message(self, rank: int, wait: Wait, channel: Channel) -> tuple[int, ...]:
        if channel.peer == ANY_RANK:
            return self._missing_from_anyone(rank, channel)
        peer = self.readers[channel.peer]
        theirs = peer.find(RECV if wait.kind == SEND else SEND, channel.group, rank, channel.tag)
        posted = peer.count(theirs)
        if wait.kind == SEND:
            posted += peer.count(peer.find(RECV, channel.group, ANY_RANK, channel.tag))
        elif self.readers[rank].find(RECV, channel.group, ANY_RANK, channel.tag) is not None:
            return ()  # some of the peer's messages went to a receive from anyone: not countable
        unknown = theirs is None and peer.overflow()
        return () if posted > wait.number or unknown else (channel.peer,)

    def _missing_from_anyone(self, rank: int, channel: Channel) -> tuple[int, ...]:
        """Served when more has been sent to this rank than it has asked for before."""
        members = [r for r in self._members(rank, channel) if r != rank]
        if any(self.readers[r].overflow() for r in members):
            return ()
        sent = sum(self._count(r, SEND, channel, rank) for r in members)
        asked = sum(self._count(rank, RECV, channel, r) for r in [*members, ANY_RANK])
        return () if sent >= asked else tuple(members)

    def _count(self, rank: int, kind: int, like: Channel, peer: int) -> int:
        return self.readers[rank].count(self.readers[rank].find(kind, like.group, peer, like.tag))

    def _members(self, rank: int, channel: Channel) -> list[int]:
        return members_of(self.readers[rank], channel)


def members_of(reader: Reader, channel: Channel) -> list[int]:
    """Global ranks of a channel's group (nobody when the text is lost)."""
    return group_of(reader, channel)[1]


def group_of(reader: Reader, channel: Channel) -> tuple[str, list[int]]:
    """Name and global ranks of a channel's group."""
    text = reader.text(channel.members)
    name, *members = json.loads(text) if text else ("",)
    return name, members


def _channel_kind(wait: Wait) -> int:
    return wait.kind if wait.kind in (SEND, RECV) else COLLECTIVE


def deadlocked(picture: Picture) -> set[int]:
    """The largest set of blocked ranks that nobody outside can free."""
    gone = {rank for rank, state in enumerate(picture.states) if state == RETURNED}
    stuck = set(picture.blocked)
    while True:
        hopeless = stuck | gone
        free = {rank for rank in stuck if not all(_never_ends(b, hopeless) for b in picture.blocked[rank])}
        if not free:
            return stuck
        stuck -= free


def _never_ends(blocked: Blocked, hopeless: set[int]) -> bool:
    return (all if blocked.any_of else any)(rank in hopeless for rank in blocked.missing)
