"""The one loss rule: the sum of the token losses, divided by the valid tokens of the whole global batch.

A rank knows only its own tokens. So the loss is a *sum* here, and whoever knows the whole batch counts and divides,
once. (A mean of the ranks' means is another number whenever they hold different numbers of valid tokens.)
"""

import torch
import torch.nn.functional as F

IGNORE = -100  # a target that asks for nothing: padding, or a prompt


def sum_of_token_losses(logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """Cross-entropy summed over all targets that are not -100: logits [..., vocab], targets [...] -> a scalar (nats).

    At least float32, whatever the logits are. No valid target at all gives 0, with zero gradients.
    """
    logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
    return F.cross_entropy(logits.flatten(0, -2), targets.flatten(), ignore_index=IGNORE, reduction="sum")


def count_valid_tokens(targets: torch.Tensor) -> torch.Tensor:
    """How many targets are not -100, as an int64 scalar tensor that `all_reduce` can add up over ranks."""
    return (targets != IGNORE).sum()
