"""Your clip (4.2) in the place of `picolib.clip_grad_norm_`, for models whose gradients are shared out."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist

import picolib
from picolib.course.stack.parts import Parts, wrong
from picolib.parallel import clip as librarys
from picolib.parallel.clip import distinct_parameters

TRAINER = "picolib.train.trainer"  # has a name of its own for it, once it is imported


def install(parts: Parts) -> None:
    """Whoever calls `clip_grad_norm_` gets yours, where it can do what is asked for."""
    yours = _clip(parts, librarys.clip_grad_norm_)
    for home in (librarys, picolib, sys.modules.get(TRAINER)):
        if home is not None:
            home.clip_grad_norm_ = yours  # type: ignore[attr-defined]


def _clip(parts: Parts, librarys_clip: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    @torch.no_grad()
    def clip_grad_norm_(given: Any, max_norm: float, norm_type: float = 2.0, *, groups: Any = ()) -> torch.Tensor:
        given = [given] if isinstance(given, (torch.nn.Module, torch.Tensor)) else list(given)
        holders = distinct_parameters(given) if norm_type == 2 and not groups and max_norm >= 0 else {}
        sharing = [group for group in holders if group]
        one_group = len(sharing) == 1 and len(sharing[0]) == 1 and dist.get_world_size(sharing[0][0]) > 1
        yours = parts.wanted("clip") if one_group else None
        if yours is None:
            return librarys_clip(given, max_norm, norm_type, groups=groups)
        shards, replicated = (_gradients(holders.get(sharers, [])) for sharers in (sharing[0], ()))
        norm = yours(list(shards.values()), list(replicated.values()), float(max_norm), sharing[0][0])
        if not isinstance(norm, (int, float)) and not (isinstance(norm, torch.Tensor) and norm.numel() == 1):
            raise wrong("clip", "did not return the norm")
        for parameter, gradient in (shards | replicated).items():
            parameter.grad.copy_(gradient)
        return torch.as_tensor(norm, dtype=torch.float64).reshape(())

    return clip_grad_norm_


def _gradients(parameters: list[torch.Tensor]) -> dict[torch.Tensor, torch.Tensor]:
    """parameter -> its gradient in float64, as the exercise has them; none that is missing or empty."""
    return {p: p.grad.double() for p in parameters if p.grad is not None and p.grad.numel()}
