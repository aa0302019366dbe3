"""Cross-entropy on logits whose vocabulary is cut over a group, without ever putting them together.

    loss = log Σ exp(x_v - m) + m - x_target,    m = max over v

Every rank knows its part of each. So what travels is one maximum a token, and then the sum of exponentials and the
target's logit: 3 numbers a token in place of a whole vocabulary (Shoeybi et al. 2019, section 3).
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist

from picolib import comm

REDUCTIONS = ("mean", "sum", "none")


def vocab_parallel_cross_entropy(
    logits: torch.Tensor,
    target: torch.Tensor,
    *,
    group: Any = None,
    reduction: str = "mean",
    ignore_index: int = -100,
    label_smoothing: float = 0.0,
) -> torch.Tensor:
    """What torch.nn.functional.cross_entropy gives for the whole logits; the same on every rank.

    Two all-reduces: one MAX, one SUM of two numbers a token (three with smoothing). The largest tensor has the size of
    this rank's logits.

    Args:
        logits: [..., V/t], this rank's part of the vocabulary: rank r's begins at r·V/t. -inf marks padding.
        target: [...], numbers of the whole vocabulary, the same on every rank.
        reduction: "mean" over the targets that count, "sum", or "none".
        ignore_index: targets that do not count.
        label_smoothing: the share of the target that is spread over the vocabulary.

    Raises:
        ValueError: reduction or label_smoothing makes no sense.
        IndexError: a target that is not in the vocabulary (told on CPU, as torch does).
    """
    if reduction not in REDUCTIONS:
        raise ValueError(f"reduction must be one of {', '.join(REDUCTIONS)}, got {reduction!r}.")
    if not 0 <= label_smoothing <= 1:
        raise ValueError(f"label_smoothing must be from 0 to 1, got {label_smoothing!r}.")
    refuse_outside(
        target.masked_fill(target == ignore_index, 0), logits.shape[-1] * dist.get_world_size(group), "target"
    )
    losses = _CrossEntropy.apply(logits.flatten(0, -2), target.flatten(), group, ignore_index, label_smoothing)
    if reduction == "none":
        return losses.view(target.shape)
    return losses.sum() / (target != ignore_index).sum() if reduction == "mean" else losses.sum()


def refuse_outside(numbers: torch.Tensor, vocabulary: int, argument: str) -> None:
    """IndexError for a number that no rank owns. (On a GPU to ask would mean to wait for it.)"""
    if numbers.device.type != "cpu" or not numbers.numel():
        return
    least, most = (int(number) for number in numbers.aminmax())
    if least < 0 or most >= vocabulary:
        wrong = least if least < 0 else most
        raise IndexError(f"{argument} must be numbers from 0 to {vocabulary - 1}, got {wrong}.")


class _CrossEntropy(torch.autograd.Function):
    """Losses [tokens] from logits [tokens, V/t]. Incoming gradient: replicated, as every rank has the same losses."""

    @staticmethod
    def forward(ctx, logits, target, group, ignore_index, smoothing):
        wide = logits.to(torch.promote_types(logits.dtype, torch.float32))
        first = dist.get_rank(group) * logits.shape[1]
        counts = target != ignore_index
        here = counts & (target >= first) & (target < first + logits.shape[1])
        column = (target - first).clamp(0, logits.shape[1] - 1).unsqueeze(1)

        largest = wide.amax(1)
        comm.all_reduce(largest, dist.ReduceOp.MAX, group)
        shifted = wide - largest.unsqueeze(1)
        real = torch.isfinite(shifted)
        sums = [shifted.exp().sum(1), torch.where(here, shifted.gather(1, column).squeeze(1), 0.0)]
        if smoothing:
            sums.append(torch.where(real, shifted, 0.0).sum(1))
        # One more number rides along: how many words this rank's part of the vocabulary really has.
        packed = torch.cat([torch.stack(sums).flatten(), wide.new_tensor([real[:1].sum()])])
        comm.all_reduce(packed, group=group)
        vocabulary, sums = packed[-1], packed[:-1].view(len(sums), -1)

        log_sum = sums[0].log()
        losses = log_sum - (1 - smoothing) * sums[1]
        if smoothing:
            losses = losses - smoothing * sums[2] / vocabulary
        ctx.save_for_backward((shifted - log_sum.unsqueeze(1)).exp(), here, column, counts, real, vocabulary)
        ctx.smoothing, ctx.dtype = smoothing, logits.dtype
        return torch.where(counts, losses, 0.0)

    @staticmethod
    def backward(ctx, gradient):
        """softmax - target, on this rank's part of the vocabulary: nothing is sent."""
        if torch.is_grad_enabled():  # create_graph: what follows would count as constant
            raise RuntimeError("vocab_parallel_cross_entropy can't be differentiated twice.")
        probabilities, here, column, counts, real, vocabulary = ctx.saved_tensors
        slope = probabilities.clone()
        slope.scatter_add_(1, column, -(1 - ctx.smoothing) * here.to(slope.dtype).unsqueeze(1))
        if ctx.smoothing:
            slope -= torch.where(real, ctx.smoothing / vocabulary, 0.0)
        slope *= torch.where(counts, gradient, 0.0).unsqueeze(1)
        return slope.to(ctx.dtype), None, None, None, None
