"""Inside a rank: who uses the tensor of a receive or of an asynchronous collective before it was waited for?

Whether such a mistake shows in the values is a matter of luck: the message may already be there. So every function of
torch that the learner calls is looked at: none of its arguments may lie in memory that is still being written.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from picolib.course import perform
from picolib.course.notebook import Notebook
from picolib.launch.places import find_place

# Functions that look at a tensor's shape or make another view of its memory: they read no number.
_NAMES = """__get__ __len__ __hash__ __repr__ __format__ __getitem__ __iter__ size numel nelement dim ndimension stride
    storage_offset data_ptr element_size untyped_storage chunk split tensor_split view view_as reshape reshape_as narrow
    select unbind flatten unflatten ravel squeeze unsqueeze t transpose permute expand expand_as unfold detach
    empty_like zeros_like ones_like rand_like randn_like full_like new_empty new_zeros new_ones new_full new_tensor
    get_device requires_grad_ register_hook"""
HARMLESS = frozenset(_NAMES.split())
HOOKS = frozenset({"register_hook", "register_post_accumulate_grad_hook"})


class Watch(TorchFunctionMode):
    """Context manager around a call of the learner's function; tells the notebook of each early use."""

    def __init__(self, notebook: Notebook) -> None:
        super().__init__()
        self.notebook = notebook

    def __torch_function__(self, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        kwargs = kwargs or {}
        name = getattr(func, "__name__", "")
        if name in HOOKS and len(args) == 2:
            args = args[0], self._watched(args[1])
        if self.notebook.pending and name not in HARMLESS and not name.startswith("is_") and not _inside_picolib():
            for tensor in _tensors((args, *kwargs.values())):
                self.notebook.used(tensor, find_place().text)
        return func(*args, **kwargs)

    def _watched(self, hook: Callable) -> Callable:
        """A backward pass switches this mode off: a hook that runs in it switches it on again for itself."""

        def watched(*args: Any, **kwargs: Any) -> Any:
            with self:
                return hook(*args, **kwargs)

        return watched


def _tensors(value: Any) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from _tensors(item)


def _inside_picolib() -> bool:
    """Whether it is one of picolib's own algorithms that works on its tensor."""
    frame = sys._getframe(2)
    while frame is not None and frame.f_globals.get("__name__", "").startswith("torch."):
        frame = frame.f_back  # type: ignore[assignment]
    name = frame.f_globals.get("__name__", "") if frame is not None else ""
    return name.startswith("picolib.") and name != perform.__name__
