"""Your tensor parallelism under picolib's layers.

`f_and_g` (5.1) stands where a tensor enters a cut layer and where its summands leave: in every column- and row-parallel
layer, and in the embedding. `my_heads` (5.3) says which rows of q, k, v and which columns of o a rank of the Llama
gets. `vocab_loss` (5.4) is the cross-entropy. (5.2 has whole weights, and a GeLU: no layer of the Llama is one.)
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

import picolib
from picolib.comm import functional
from picolib.course.stack.parts import Parts, is_the_world, wrong
from picolib.parallel import tensor as library

Map = Callable[..., torch.Tensor]


def install(parts: Parts) -> None:
    """Let the layers of `picolib.parallel.tensor` call yours, where yours can do what is asked for."""
    pair = _Pair(parts)
    functional.copy_to_group = pair.instead_of(functional.copy_to_group, 0)
    functional.reduce_from_group = pair.instead_of(functional.reduce_from_group, 1)
    loss = _loss(parts, library.vocab_parallel_cross_entropy)
    for home in (library.loss, library, picolib):
        home.vocab_parallel_cross_entropy = loss  # type: ignore[attr-defined]
    library.llama._cut_block = _cut_block(parts, library.llama._cut_block)


class _Pair:
    """Your f and g, made at their first use."""

    def __init__(self, parts: Parts) -> None:
        self.parts = parts
        self.made: tuple[Map, Map] | None = None

    def instead_of(self, librarys: Map, which: int) -> Map:
        def enter_or_leave(tensor: torch.Tensor, *, group: Any = None, algorithm: str = "auto") -> torch.Tensor:
            fits = algorithm == "auto" and is_the_world(group) and dist.get_world_size() > 1
            yours = self._get(which) if fits and self.parts.wanted("f_and_g") else None
            if yours is None:
                return librarys(tensor, group=group, algorithm=algorithm)
            result = yours(tensor)
            if not isinstance(result, torch.Tensor) or result.shape != tensor.shape:
                raise wrong("f_and_g", f"gave {'fg'[which]}(x) another shape than x has")
            return result

        return enter_or_leave

    def _get(self, which: int) -> Map:
        if self.made is None:
            made = self.parts["f_and_g"]()
            if not isinstance(made, (tuple, list)) or len(made) != 2 or not all(map(callable, made)):
                raise wrong("f_and_g", "did not return two functions")
            self.made = tuple(made)
            self.parts.calls["f_and_g"] = 0  # counted are its two functions
        self.parts.calls["f_and_g"] += 1
        return self.made[which]


def _loss(parts: Parts, librarys: Map) -> Map:
    def vocab_parallel_cross_entropy(
        logits: torch.Tensor,
        target: torch.Tensor,
        *,
        group: Any = None,
        reduction: str = "mean",
        ignore_index: int = -100,
        label_smoothing: float = 0.0,
    ) -> torch.Tensor:
        n = dist.get_world_size()
        plain = reduction in ("mean", "sum") and not label_smoothing and is_the_world(group) and n > 1
        known = target.numel() and bool(
            ((target >= 0) & (target < n * logits.shape[-1]) & (target != ignore_index)).all()
        )
        yours = parts.wanted("vocab_loss") if plain and known else None
        if yours is None:
            options = {"reduction": reduction, "ignore_index": ignore_index, "label_smoothing": label_smoothing}
            return librarys(logits, target, group=group, **options)
        wide = logits.to(torch.promote_types(logits.dtype, torch.float32))
        loss = yours(wide.flatten(0, -2), target.flatten(), functional.reduce_from_group)
        if not isinstance(loss, torch.Tensor) or loss.numel() != 1:
            raise wrong("vocab_loss", "did not return one number, the mean")
        return loss.reshape(()) * (1 if reduction == "mean" else target.numel())

    return vocab_parallel_cross_entropy


def _cut_block(parts: Parts, librarys: Callable[..., None]) -> Callable[..., None]:
    """The library cuts, and keeps the records; the numbers of an attention block are those that you have chosen."""

    def cut_block(block: nn.Module, cut_over: dict[str, Any], row: str, group: Any, *options: Any) -> None:
        yours = None
        if row == "o_proj" and not block.o_proj.weight.is_meta and dist.get_world_size(group) > 1:
            yours = parts.wanted("my_heads")
        chosen = _my_heads(yours, block, group) if yours else []
        librarys(block, cut_over, row, group, *options)
        for name, numbers in zip(("q_proj", "k_proj", "v_proj", "o_proj"), chosen, strict=bool(yours)):
            weight = getattr(block, name).weight
            if weight.shape != numbers.shape:
                got, right = list(numbers.shape), list(weight.shape)
                raise wrong("my_heads", f"gave a part of {name} of shape {got}, where {right} is right")
            weight.data.copy_(numbers)

    return cut_block


def _my_heads(yours: Any, block: nn.Module, group: Any) -> list[torch.Tensor]:
    """This rank's parts of q, k, v and o, from the fused weight that the exercise has."""
    whole = [getattr(block, name).weight.detach() for name in ("q_proj", "k_proj", "v_proj", "o_proj")]
    heads, kv_heads = len(whole[0]) // block.head_dim, len(whole[1]) // block.head_dim
    n = dist.get_world_size(group)
    qkv, o = yours(torch.cat(whole[:3]), whole[3], heads, kv_heads, dist.get_rank(group), n)
    own, own_kv = len(whole[0]) // n, max(len(whole[1]) // n, block.head_dim)
    if len(qkv) != own + 2 * own_kv:
        raise wrong("my_heads", f"gave {len(qkv)} rows of qkv, where {own + 2 * own_kv} are right")
    return [*qkv.split([own, own_kv, own_kv]), o]
