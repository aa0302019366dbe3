"""A deadlock in words: who waits for whom, in which call, on which line, why nobody answers, what to try."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from picolib.launch import wording
from picolib.launch.board import CALL_RECV, CALL_SEND, COLLECTIVE, OPAQUE, RECV, RETURNED, SEND
from picolib.launch.reader import Reader
from picolib.launch.slot import Channel

_SHOWN = 8  # more ranks than this are summed up


def explain(readers: Sequence[Reader], picture: Any, stuck: set[int]) -> str:
    """The whole explanation of a deadlock among the ranks `stuck`."""
    story = _Story(readers, picture, stuck)
    parts = [story.headline(), *story.waits(), "", "Why nobody answers:", *story.reasons()]
    advice = story.advice()
    return "\n".join(parts + (["", f"What to try: {advice}"] if advice else []))


class _Story:
    def __init__(self, readers: Sequence[Reader], picture: Any, stuck: set[int]) -> None:
        self.readers, self.picture, self.stuck = readers, picture, sorted(stuck)
        self.gone = {rank for rank, state in enumerate(picture.states) if state == RETURNED}
        self.blocked = [b for rank in self.stuck for b in picture.blocked[rank]]

    def headline(self) -> str:
        """Who is stuck, in a sentence."""
        who = wording.ranks(self.stuck)
        missing = {rank for b in self.blocked for rank in b.missing}
        if missing and missing <= self.gone:
            verb = "waits" if len(self.stuck) == 1 else "wait"
            return f"Deadlock: {who} {verb} for {wording.ranks(missing)}, which will never answer."
        if len(self.stuck) == 1:
            return f"Deadlock: {who} waits for something that can never come."
        circle = self.circle()
        if circle:
            first, *rest = circle
            steps = [f"{first} waits for {rest[0]}"] + [
                f"{a} for {b}" for a, b in zip(rest, [*rest[1:], first], strict=True)
            ]
            return f"Deadlock: {who} wait for each other in a circle ({wording.listed(steps)})."
        return f"Deadlock: {who} wait for each other, and none of them can go on."

    def circle(self) -> list[int]:
        """The stuck ranks in the order in which each waits for the next, if they are few and that is all of them."""
        waits_for = {b.rank: b.missing[0] for b in self.blocked if len(b.missing) == 1}
        if len(waits_for) != len(self.blocked) or not 2 <= len(self.stuck) <= _SHOWN:
            return []
        order = [self.stuck[0]]
        while waits_for.get(order[-1]) not in (*order, None):
            order.append(waits_for[order[-1]])
        return order if len(order) == len(self.stuck) and waits_for.get(order[-1]) == order[0] else []

    def waits(self) -> list[str]:
        """Each blocked thread: its call and its line. Ranks that wait alike in one collective share a line."""
        alike: dict[tuple, list[Any]] = {}
        for b in self.blocked:
            key = (self.call(b), self.line(b)) if b.wait.kind in (COLLECTIVE, OPAQUE) else (b.rank, b.wait.id)
            alike.setdefault(key, []).append(b)
        lines = []
        for same in list(alike.values())[:_SHOWN]:
            verb = "waits" if len(same) == 1 else "wait"
            lines.append(f"  {wording.ranks({b.rank for b in same})} {verb} in {self.call(same[0])}")
            lines += [f"      {line}" for line in (self.line(same[0]), self.made_at(same[0])) if line]
        return lines + ([f"  ... and {len(alike) - _SHOWN} more like these"] if len(alike) > _SHOWN else [])

    def call(self, b: Any) -> str:
        """What a thread waits in: "recv from rank 3 (float32 [4], tag 5)", "all_reduce of float32 [4], ..."."""
        if b.wait.kind == OPAQUE:
            return f"torch's own code, for collective number {b.wait.number} that torch started in the world group"
        described = wording.fields(self.readers[b.rank], b.entry)
        if b.wait.kind == COLLECTIVE:
            return f"{wording.call(described)}, call number {b.wait.number + 1} of {self.group(b)}"
        if b.wait.kind in (CALL_SEND, CALL_RECV):
            way = "to send to" if b.wait.kind == CALL_SEND else "for a message from"
            number = f"call number {b.wait.number + 1} of {self.group(b)}"
            return f"{wording.call(described)}, {number}, {way} rank {b.wait.peer}"
        return self.message(b, described)

    def message(self, b: Any, described: dict[str, Any]) -> str:
        """A plain send or receive."""
        name = "send" if b.wait.kind == SEND else "recv"
        made, waited = self.entry_place(b), b.wait.place
        if b.entry is not None and made != waited:
            name = f"wait() of i{name}"
        peer = "any rank" if b.any_of else f"rank {b.channel.peer}"
        inside = [wording.tensors(described)] + ([f"tag {b.channel.tag}"] if b.channel.tag else [])
        if b.wait.number:
            inside.append(f"the {wording.ordinal(b.wait.number + 1)} such message")
        members = self.members(b.rank, b.channel)
        if members != list(range(len(self.readers))):
            inside.append(f"group {members}")
        return f"{name} {'to' if b.wait.kind == SEND else 'from'} {peer} ({', '.join(i for i in inside if i)})"

    def entry_place(self, b: Any) -> Any:
        return b.entry.place if b.entry is not None else b.wait.place

    def line(self, b: Any) -> str:
        """The line on which the thread is blocked."""
        return wording.place(self.readers[b.rank], b.wait.place)

    def made_at(self, b: Any) -> str:
        """Where the handle that it waits for was made, if that is another line."""
        if self.entry_place(b) == b.wait.place:
            return ""
        made = wording.place(self.readers[b.rank], self.entry_place(b))
        return f"started at {made}" if made else ""

    def members(self, rank: int, channel: Channel) -> list[int]:
        from picolib.launch.watch import members_of

        return members_of(self.readers[rank], channel)

    def group(self, b: Any) -> str:
        from picolib.launch.watch import group_of

        return wording.group(*group_of(self.readers[b.rank], b.channel))

    def reasons(self) -> list[str]:
        """For each rank that is waited for: why it does not come."""
        astray = self.astray()
        if self.all_alike(RECV) and astray:
            return [f"  {line}." for line in astray[:_SHOWN]]
        if self.all_alike(RECV):
            return ["  each of them receives first; the sends that would answer come later, and are never reached."]
        if self.all_alike(SEND):
            return ["  a send ends only when its receiver takes the message, and each of them sends first."]
        found: dict[str, None] = {}
        for b in self.blocked:
            if b.any_of:
                found[f"  nobody sends to rank {b.rank} in {self.group(b)} under tag {b.channel.tag}."] = None
                continue
            for rank in b.missing:
                if rank in self.gone or rank in self.stuck:
                    found[self.reason(b, rank)] = None
        more = len(found) - _SHOWN
        return list(found)[:_SHOWN] + ([f"  ... and {more} more reasons like these"] if more > 0 else [])

    def astray(self) -> list[str]:
        """Messages on their way to a stuck rank that waits for one from somebody else."""
        lines = []
        for b in (b for b in self.blocked if b.wait.kind == RECV and not b.any_of):
            for rank in set(self.stuck) - {b.rank, b.missing[0]}:
                for channel in self.readers[rank].all_channels():
                    if channel.kind == SEND and channel.peer == b.rank and self.unmatched(channel, rank, b.rank):
                        lines.append(f"rank {rank} has sent to rank {b.rank}, which waits for rank {b.missing[0]}")
        return lines

    def all_alike(self, kind: int) -> bool:
        """Whether all wait in the same kind of message for one of themselves, and nothing else explains it."""
        return len(self.stuck) > 1 and all(
            b.wait.kind == kind and not b.any_of and b.missing[0] in self.stuck and not self.other_tags(b, b.missing[0])
            for b in self.blocked
        )

    def reason(self, b: Any, rank: int) -> str:
        """Why `rank` does not do its part of what `b` waits for."""
        lacks = self.lacks(b, rank)
        if rank in self.gone:
            return f"  rank {rank} has returned: it {lacks}.{self.other_tags(b, rank)}"
        theirs = self.picture.blocked[rank][0]
        where = self.short(theirs)
        return f"  rank {rank} {lacks}: it still waits in {where}.{self.other_tags(b, rank)}"

    def lacks(self, b: Any, rank: int) -> str:
        """What `rank` has not done."""
        if b.wait.kind == OPAQUE:
            return f"has started only {self.readers[rank].issued()} of them"
        if b.wait.kind == SEND:
            return f"never called a matching recv for rank {b.rank}'s message{self.how_manyth(b)}"
        if b.wait.kind == RECV:
            return f"has not sent to rank {b.rank}{self.how_manyth(b)}"
        done = self.readers[rank].count(self.readers[rank].find(COLLECTIVE, b.channel.group))
        name = wording.fields(self.readers[b.rank], b.entry).get("name", "the call")
        if done > b.wait.number:
            return f"is in the same {name}, but not as far"
        calls = "no call" if done == 0 else f"only {done} call{'s' if done > 1 else ''}"
        return f"never reached this {name} ({calls} in {self.group(b)} so far)"

    def how_manyth(self, b: Any) -> str:
        parts = [f"the {wording.ordinal(b.wait.number + 1)} message"] if b.wait.number else []
        parts += [f"tag {b.channel.tag}"] if b.channel.tag else []
        return f" ({', '.join(parts)})" if parts else ""

    def short(self, b: Any) -> str:
        """A wait in few words, for the middle of a sentence."""
        if b.wait.kind == OPAQUE:
            return "torch's own code"
        name = wording.fields(self.readers[b.rank], b.entry).get("name", "a call")
        if b.wait.kind == COLLECTIVE:
            return f"{name}, call number {b.wait.number + 1} of {self.group(b)}"
        if b.wait.kind in (CALL_SEND, CALL_RECV):
            return f"{name}, for rank {b.wait.peer}"
        verb, way = ("send", "to") if b.wait.kind == SEND else ("recv", "from")
        return f"{verb} {way} {'any rank' if b.any_of else f'rank {b.channel.peer}'}"

    def other_tags(self, b: Any, rank: int) -> str:
        """A message between the two that lies under another tag or in another group."""
        if b.wait.kind not in (SEND, RECV) or b.any_of:
            return ""
        kind = RECV if b.wait.kind == SEND else SEND
        for channel in self.readers[rank].all_channels():
            if channel.kind != kind or channel.peer != b.rank or not self.unmatched(channel, rank, b.rank):
                continue
            verb = "sent one" if kind == SEND else "waits for one"
            if channel.group != b.channel.group:
                return f" It {verb} in another group ({self.members(rank, channel)})."
            if channel.tag != b.channel.tag:
                return f" It {verb} under tag {channel.tag}, but rank {b.rank} uses tag {b.channel.tag}."
        return ""

    def unmatched(self, channel: Channel, rank: int, other: int) -> bool:
        """Whether a channel of `rank` to or from `other` holds more than `other` has for it."""
        theirs = self.readers[other].find(RECV if channel.kind == SEND else SEND, channel.group, rank, channel.tag)
        return self.readers[rank].count(channel) > self.readers[other].count(theirs)

    def advice(self) -> str:
        """What usually helps in a picture like this."""
        kinds = {b.wait.kind for b in self.blocked}
        names = {wording.fields(self.readers[b.rank], b.entry).get("name") for b in self.blocked}
        if any(self.other_tags(b, rank) for b in self.blocked for rank in b.missing):
            return "use the same tag and the same group on both sides of a message."
        if "new_group" in names:
            return "call new_group on every rank, for every group and in the same order, not inside a branch."
        if kinds & {COLLECTIVE, CALL_SEND, CALL_RECV, OPAQUE}:
            return self.collective_advice()
        if kinds == {RECV} and self.astray():
            return ("receive from the rank that sends to you: in a ring, whoever sends to the right "
                    "receives from the left.")  # fmt: skip
        if kinds == {RECV} and len(self.stuck) > 1:
            return ("let some ranks send before they receive (for example every even rank), "
                    "or start the sends with isend, then recv, then wait() for them.")  # fmt: skip
        if kinds == {SEND} and len(self.stuck) > 1:
            return ("a send ends only when the other side receives: start it with isend, then recv, then wait(); "
                    "or let every other rank receive first.")  # fmt: skip
        return "give every send one recv on the other side (and every recv one send), on all paths through the code."

    def collective_advice(self) -> str:
        groups = {b.channel.group for b in self.blocked if b.wait.kind not in (SEND, RECV, OPAQUE)}
        if len(groups) > 1:
            return "let all ranks enter the groups in the same order."
        if any(rank in self.gone for b in self.blocked for rank in b.missing):
            return ("all ranks of the group must make the call: look for a collective inside `if rank == ...`, "
                    "and for loops that run more often on some ranks (uneven batches).")  # fmt: skip
        return "let every rank of the group reach this call: look for a branch, or a message that has no other side."
