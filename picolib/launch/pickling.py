"""Functions and values on their way to the ranks and back: by value, once, with large tensors beside the pickle."""

from __future__ import annotations

import importlib
import io
import mmap
import os
import pickle
import sys
import tempfile
import types
import warnings
from collections.abc import Callable
from typing import Any

import cloudpickle
import torch

from picolib.launch import culprits, wire

# cloudpickle would send a file's content in its place, which is not what the learner means.
_OF_THIS_PROCESS = (io.TextIOWrapper, io.BufferedReader, io.BufferedWriter, io.BufferedRandom, io.FileIO)


class _Pickler(cloudpickle.Pickler):
    """Plain CPU tensors travel as raw buffers outside the pickle; everything else as cloudpickle does it."""

    def reducer_override(self, obj: Any) -> Any:
        if type(obj) is torch.Tensor and obj.layout is torch.strided and not obj.is_quantized and not obj.is_meta:
            name = str(obj.dtype).removeprefix("torch.")
            buffer = pickle.PickleBuffer(wire.tensor_bytes(obj))
            return _rebuild, (buffer, name, tuple(obj.shape), obj.requires_grad and obj.is_leaf)
        if type(obj) is types.CodeType:  # cloudpickle drops the file name, and with it the cell in tracebacks
            make, fields = self.dispatch_table[types.CodeType](obj)[:2]
            return _rebuild_code, (make, fields, obj.co_filename)
        if isinstance(obj, types.ModuleType) and sys.modules.get(obj.__name__) is obj is not sys.modules["__main__"]:
            return importlib.import_module, (obj.__name__,)  # also torch's config modules, of a class of their own
        notebook = not isinstance(obj, (type, types.FunctionType)) and culprits.package(obj) in culprits.OF_THE_NOTEBOOK
        if notebook or (isinstance(obj, _OF_THIS_PROCESS) and obj not in (sys.stdin, sys.stdout, sys.stderr)):
            raise pickle.PicklingError(f"a {type(obj).__name__} belongs to this process")
        return super().reducer_override(obj)


def _rebuild_code(make: Any, fields: tuple[Any, ...], filename: str) -> types.CodeType:
    return make(*fields).replace(co_filename=filename)


def _rebuild(buffer: Any, dtype: str, shape: tuple[int, ...], requires_grad: bool) -> torch.Tensor:
    return wire.tensor_from(buffer, dtype, shape).requires_grad_(requires_grad)


def dumps(value: Any) -> list[Any]:
    """`value` as pieces of bytes (see `wire.pack`)."""
    buffers: list[pickle.PickleBuffer] = []
    stream = io.BytesIO()
    _Pickler(stream, protocol=5, buffer_callback=buffers.append).dump(value)
    return wire.pack(stream.getvalue(), [buffer.raw() for buffer in buffers])


def to_bytes(value: Any) -> bytes:
    """`value` as one pickle, tensors inside; cloudpickle's own would forget in which file or cell a function stands."""
    stream = io.BytesIO()
    _Pickler(stream, protocol=5).dump(value)
    return stream.getvalue()


def loads(packed: memoryview) -> Any:
    """The inverse of `dumps`; tensors live inside `packed` when it is writable."""
    head, buffers = wire.unpack(packed)
    return pickle.loads(head, buffers=buffers)


def to_file(pieces: list[Any]) -> Any:
    """An open file without a name that holds the pieces: all ranks read the one copy."""
    if hasattr(os, "memfd_create"):
        file = os.fdopen(os.memfd_create("picolib", os.MFD_CLOEXEC), "w+b")
    else:
        file = tempfile.TemporaryFile()  # noqa: SIM115
    for piece in pieces:
        file.write(piece)
    file.flush()
    return file


def from_file(descriptor: int) -> memoryview:
    """The content of such a file: read where it is, copied page by page only where a rank writes to it."""
    size = os.fstat(descriptor).st_size
    return memoryview(mmap.mmap(descriptor, size, access=mmap.ACCESS_COPY))


def call_of(fn: Callable[..., Any], args: tuple[Any, ...]) -> list[Any]:
    """The call `fn(*args)`, serialised.

    Raises:
        TypeError: something in it cannot be sent; the sentence names it.
    """
    try:
        pieces = dumps((fn, args))
    except Exception as error:
        raise TypeError(_reason(fn, args) or f"this call cannot be sent to ranks: {error}") from None
    if size_of(pieces) >= culprits.LARGE:
        _warn_of_large(fn)
    return pieces


def _reason(fn: Callable[..., Any], args: tuple[Any, ...]) -> str | None:
    try:
        return culprits.explain(fn, args, can_travel)
    except RecursionError:  # nested so deeply that even looking into it fails
        return None


def _warn_of_large(fn: Callable[..., Any]) -> None:
    for name, size, user in culprits.large(fn, lambda value: size_of(dumps(value))):
        text = f"`{name}` ({size / 1e6:,.0f} MB), used by `{user}`, is sent to the ranks; load it inside if you can"
        warnings.warn(text, UserWarning, stacklevel=4)


def can_travel(value: Any) -> bool:
    """Whether `value` can be serialised."""
    try:
        dumps(value)
        return True
    except Exception:
        return False


def size_of(pieces: list[Any]) -> int:
    """Bytes of what `dumps` made."""
    return sum(len(piece) for piece in pieces)
