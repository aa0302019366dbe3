"""What exercise 5.4 is judged by: the logits of all ranks, the right loss, and the losses that known mistakes give."""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F

from picolib.course.words import times

WORDS = {4: 7, 3: 5, 2: 9}  # ranks: words of one rank

LOCAL = (
    "Each rank has subtracted the maximum of its own words. Sums of exponentials can be added up when all ranks "
    "subtract the same: all-reduce the maximum first, with op=dist.ReduceOp.MAX."
)
CLAMPED = (
    "Ranks that do not own a target add a logit all the same: clamp (or a remainder) gives them some column of theirs. "
    "Where the target is not among a rank's words its summand is 0."
)
BORDER = "A target is this rank's where first <= target < first + V/t."
UNSUMMED = "The target's logit is known to its owner alone, the others have 0: it needs the sum over the ranks as well."
UNSHIFTED = "The maximum is subtracted from the sum of exponentials, but not from the target's logit."


class Whole:
    """The logits of all ranks, for what is right and for what else could have come out."""

    def __init__(self, attempt: Any, number: int) -> None:
        self.n, self.each = attempt.world_size, WORDS[attempt.world_size]
        parts = [inputs[0][number][0] for inputs in attempt.case.inputs]
        _, self.targets, self.scale = attempt.case.inputs[0][0][number]
        self.logits = torch.cat(parts, 1).requires_grad_()
        self.loss = F.cross_entropy(self.logits, self.targets)
        self.loss.backward(torch.tensor(self.scale, dtype=self.loss.dtype))
        self.parts = torch.stack(parts)  # [ranks, tokens, V/t]
        self.largest = self.parts.amax(2)  # [ranks, tokens]
        self.place = (
            self.targets - torch.arange(self.n).unsqueeze(1) * self.each
        )  # [ranks, tokens]: among a rank's words

    def gradient(self, rank: int) -> torch.Tensor:
        """Of this rank's logits."""
        return self.logits.grad.chunk(self.n, 1)[rank]  # type: ignore[union-attr]

    def found(self, column: torch.Tensor, mask: torch.Tensor, shift: torch.Tensor) -> torch.Tensor:
        """[ranks, tokens]: what each rank takes for the target's logit, shifted; zero outside the mask."""
        looked_up = self.parts.gather(2, column.unsqueeze(2)).squeeze(2) - shift
        return torch.where(mask, looked_up, 0.0)

    def guesses(self, rank: int) -> list[tuple[torch.Tensor, str]]:
        """Losses that come of known mistakes, and what to say."""
        top, own, place = self.largest.amax(0), self.largest, self.place
        sums = lambda shift: (self.parts - shift.unsqueeze(-1)).exp().sum(2)  # noqa: E731
        of_each, shifted_by_own = sums(top.expand_as(own)), sums(own).sum(0).log()
        total, all_of = of_each.sum(0).log(), torch.ones_like(place, dtype=torch.bool)
        each, tokens = self.each, torch.arange(len(self.targets))
        clamped, mine = place.clamp(0, each - 1), (place >= 0) & (place < each)
        known = self.found(clamped, mine, top)
        right, raw = known.sum(0), (self.found(clamped, mine, top) + mine * top).sum(0)
        lookup = lambda mask, column=clamped: self.found(column, mask, top).sum(0)  # noqa: E731
        targets = self.targets.expand_as(place)
        pairs = [
            (shifted_by_own - self.found(clamped, mine, own).sum(0), LOCAL),
            (shifted_by_own + own[rank] - self.found(clamped, mine, own).sum(0), LOCAL),
            (shifted_by_own + own[rank] - raw, LOCAL),
            (total - lookup(all_of), CLAMPED),
            (total - self.found(clamped, all_of, top)[rank], CLAMPED),
            (total - lookup(all_of, targets % each), CLAMPED),
            (total - lookup(place >= 0), f"Ranks before the owner count the target as well. {BORDER}"),
            (total - lookup(place < each), f"Ranks behind the owner count the target as well. {BORDER}"),
            (total - lookup((place >= 0) & (place <= each)), f"The rank before counts a first word as well. {BORDER}"),
            (total - lookup((place > 0) & (place < each)), f"A rank's first word is counted by nobody. {BORDER}"),
            (
                total - lookup(targets < each, targets.clamp(max=each - 1)),
                f"Each rank takes its words for the first. {BORDER}",
            ),
            (of_each[rank].log() - right, "The sum of exponentials is over this rank's words alone."),
            (total - known[rank], UNSUMMED),
            (of_each[rank].log() - known[rank], "Both sums are over this rank's words alone: g adds them up."),
            (total - right - top, "The maximum is subtracted once too often."),
            (total - raw, UNSHIFTED),
            (
                of_each.log().sum(0) - right,
                "Logarithms are added up over the ranks: add up the exponentials, then take one logarithm.",
            ),
            (
                total - self.parts[self.targets % self.n, tokens, self.targets // self.n] + top,
                "Words lie in blocks, rank r has those from r * V/t on: yours are dealt out in turn.",
            ),
            (total + right, "The target's logit is added, where log Σ exp - target is right."),
            (-right, "The logarithm of the sum of exponentials is missing."),
            (total - math.log(each) - right, "Exponentials are averaged, where they are added up."),
        ]
        loss, of_tokens = self.loss.detach(), F.cross_entropy(self.logits.detach(), self.targets, reduction="none")
        return [(losses.mean(), text) for losses, text in pairs] + [
            (loss * len(self.targets), "That is the sum over the tokens: their mean is asked for."),
            (
                of_tokens[mine[rank]].mean(),
                "That is the mean over the tokens whose target is among this rank's words: all tokens count.",
            ),
            (loss * self.n, f"It is exactly {times(self.n)} too big."),
            (-loss, "The sign is turned round."),
        ]
