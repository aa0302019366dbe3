"""Functions and values on their way to the ranks and back: by value, once, with large tensors beside the pickle."""

from __future__ import annotations

import io
import mmap
import os
import pickle
import tempfile
import types
from collections.abc import Callable
from typing import Any

import cloudpickle
import torch

from picolib.launch import wire


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
    """The call `fn(*args)`, serialised."""
    return dumps((fn, args))
