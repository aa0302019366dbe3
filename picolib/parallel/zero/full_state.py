"""The sharded optimizer's state as one process would have it, and back."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist


def full_state(optimizer: Any) -> dict[str, Any]:
    """Gather every piece of state from its owner. What has a piece's shape is put together; the rest is alike."""
    mine = [
        (piece.position, piece.start, piece.stop, optimizer.inner.state[piece.shard])
        for bucket in optimizer.buckets
        for piece in bucket.pieces
    ]
    everyones: list[Any] = [None] * optimizer.size
    dist.all_gather_object(everyones, mine, group=optimizer.process_group)
    state: dict[int, dict[str, Any]] = {}
    for position, start, stop, values in (piece for pieces in everyones for piece in pieces if piece[3]):
        whole = state.setdefault(position, {})
        for name, value in values.items():
            _put(whole, name, value, optimizer.parameters[position].shape, start, stop)
    return {"state": dict(sorted(state.items())), "param_groups": _numbered(optimizer.param_groups)}


def _put(whole: dict[str, Any], name: str, value: Any, shape: torch.Size, start: int, stop: int) -> None:
    if not isinstance(value, torch.Tensor) or value.shape != (stop - start,):
        whole[name] = value
        return
    if name not in whole:
        whole[name] = value.new_empty(shape)
    whole[name].view(-1)[start:stop] = value


def _numbered(groups: list[dict[str, Any]]) -> list[dict[str, Any]]:
    numbered, first = [], 0
    for group in groups:
        numbered.append({**group, "params": list(range(first, first + len(group["params"])))})
        first += len(group["params"])
    return numbered


def take_from_full_state(optimizer: Any, state_dict: dict[str, Any]) -> None:
    """Each piece takes elements `start` to `stop` of its parameter's state.

    Raises:
        ValueError: the parameter groups have other lengths.
    """
    theirs, ours = (
        [len(g["params"]) for g in groups] for groups in (state_dict["param_groups"], optimizer.param_groups)
    )
    if theirs != ours:
        raise ValueError(f"state_dict must have parameter groups of {ours} parameters, got {theirs}.")
    for group, saved in zip(optimizer.param_groups, state_dict["param_groups"], strict=True):
        group.update({name: value for name, value in saved.items() if name != "params"})
    counts = _counts(optimizer, state_dict["state"])
    for bucket in optimizer.buckets:
        for piece in bucket.pieces:
            shape, saved = optimizer.parameters[piece.position].shape, state_dict["state"].get(piece.position, {})
            cut = {name: _cut(value, shape, piece, name in counts) for name, value in saved.items()}
            optimizer.inner.state[piece.shard] = cut


def _counts(optimizer: Any, state: dict[int, dict[str, Any]]) -> set[str]:
    """What is one number for a whole parameter, such as the count of steps: a scalar parameter alone can't tell."""
    of_larger = [values for position, values in state.items() if optimizer.parameters[position].dim()]
    named = [pair for values in of_larger for pair in values.items()]
    return {"step"} | {name for name, value in named if isinstance(value, torch.Tensor) and not value.dim()}


def _cut(value: Any, shape: torch.Size, piece: Any, is_count: bool) -> Any:
    if not isinstance(value, torch.Tensor):
        return value
    per_element = value.shape == shape and not is_count
    return (value.flatten()[piece.start : piece.stop] if per_element else value).clone()
