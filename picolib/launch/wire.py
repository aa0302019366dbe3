"""Bytes between the kernel, the fork server and the ranks: packed buffers, frames, and values without pickle."""

from __future__ import annotations

import json
import struct
from collections.abc import Iterable, Sequence
from typing import Any

GARBLED = b"?"  # the letter of a frame that makes no sense, and of nothing that comes after it
ALIGNMENT = 64  # tensors are rebuilt in place, without a copy, so their bytes must start on a cache line
FRAME = struct.Struct("<cQ")  # one letter that says what follows, and its length in bytes


def pack(head: bytes, buffers: Sequence[Any]) -> list[Any]:
    """`head` and large buffers as pieces to be written one after the other; `unpack` takes the whole back."""
    views = [memoryview(head), *(memoryview(buffer).cast("B") for buffer in buffers)]
    table = struct.pack(f"<I{len(views)}Q", len(views), *(view.nbytes for view in views))
    pieces: list[Any] = []
    for piece in (table, *views):
        pieces += [piece, bytes(-len(piece) % ALIGNMENT)]
    return pieces


def unpack(packed: memoryview) -> tuple[memoryview, list[memoryview]]:
    """The head and the buffers of what `pack` made, as views into `packed`."""
    (count,) = struct.unpack_from("<I", packed)
    sizes = struct.unpack_from(f"<{count}Q", packed, 4)
    position = _aligned(4 + 8 * count)
    views = []
    for size in sizes:
        views.append(packed[position : position + size])
        position = _aligned(position + size)
    return views[0], views[1:]


def _aligned(position: int) -> int:
    return position + -position % ALIGNMENT


def send_frame(connection: Any, kind: bytes, pieces: Iterable[Any]) -> None:
    """Send one frame over a blocking socket."""
    pieces = list(pieces)
    connection.sendall(FRAME.pack(kind, sum(len(piece) for piece in pieces)))
    for piece in pieces:
        if len(piece):
            connection.sendall(piece)


class GarbledError(ValueError):
    """Bytes that are no frame: somebody else has written into the connection."""


class FrameReader:
    """Collects the frames that arrive on a non-blocking socket, piece by piece."""

    def __init__(self) -> None:
        self._header = bytearray(FRAME.size)
        self._kind = b""
        self._target: memoryview = memoryview(self._header)
        self._filled = 0

    def read(self, connection: Any) -> tuple[bytes, memoryview] | None:
        """The next complete frame, or None when more bytes must come first.

        Raises:
            EOFError: the other side has closed.
            BlockingIOError: nothing to read now.
            GarbledError: what comes is no frame.
        """
        while True:
            count = connection.recv_into(self._target[self._filled :]) if len(self._target) else 0
            if len(self._target) and count == 0:
                raise EOFError
            self._filled += count
            if self._filled < len(self._target):
                continue
            body, kind = self._target, self._kind
            self._filled = 0
            if kind:
                self._kind, self._target = b"", memoryview(self._header)
                return kind, body
            self._kind, size = FRAME.unpack(body)
            try:
                self._target = memoryview(bytearray(size if self._kind.isalpha() else -1))
            except (ValueError, OverflowError, MemoryError):
                raise GarbledError(f"no frame: {bytes(body)!r}") from None


def encode_plain(value: Any) -> list[Any]:
    """Numbers, strings, bytes, None, lists, tuples, dicts, tensors and arrays as packed bytes, without pickle.

    Raises:
        TypeError: the value holds something else; the message names its type.
    """
    buffers: list[Any] = []
    tree = _plain(value, buffers)
    return pack(json.dumps(tree).encode(), buffers)


def decode_plain(packed: memoryview) -> Any:
    """The inverse of `encode_plain`."""
    head, buffers = unpack(packed)
    return _restored(json.loads(bytes(head)), buffers)


def _plain(value: Any, buffers: list[Any]) -> Any:
    import numpy
    import torch

    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, list):
        return [_plain(item, buffers) for item in value]
    if isinstance(value, tuple):
        return {"tuple": [_plain(item, buffers) for item in value]}
    if isinstance(value, dict):
        return {"dict": [[_plain(key, buffers), _plain(item, buffers)] for key, item in value.items()]}
    if isinstance(value, (bytes, bytearray)):
        buffers.append(value)
        return {"bytes": len(buffers) - 1}
    if isinstance(value, torch.Tensor):
        buffers.append(_plain_bytes(value))
        return {"tensor": [str(value.dtype).removeprefix("torch."), list(value.shape), len(buffers) - 1]}
    if isinstance(value, numpy.generic) and isinstance(value.item(), (bool, int, float, str, bytes)):
        return _plain(value.item(), buffers)
    if isinstance(value, numpy.ndarray) and not value.dtype.hasobject and value.dtype.names is None:
        buffers.append(numpy.ascontiguousarray(value).reshape(-1).view("uint8"))
        return {"array": [value.dtype.str, list(value.shape), len(buffers) - 1]}
    raise TypeError(f"a {type(value).__name__} cannot be returned here; return numbers, strings, lists or tensors")


def _plain_bytes(tensor: Any) -> Any:
    reason = _why_not_plain(tensor)
    if reason:
        raise TypeError(f"{reason} cannot be returned here; a dense tensor with values of its own is asked for")
    try:
        return tensor_bytes(tensor)
    except Exception as error:  # a subclass, or a kind of tensor that only some operations know
        what = f"a {type(tensor).__name__} ({tensor.dtype}, {tensor.layout})"
        raise TypeError(f"{what} cannot be returned here; return a plain dense tensor: {error}") from None


def _why_not_plain(tensor: Any) -> str:
    """What is odd about a tensor, as the start of a sentence; empty when it is dense, with values."""
    import torch

    if tensor.is_nested:
        return "a nested tensor"
    if tensor.layout is not torch.strided:
        return f"a {'sparse' if 'sparse' in str(tensor.layout) else str(tensor.layout)} tensor"
    if tensor.is_meta:
        return "a meta tensor (it has a shape but no values)"
    return "a quantized tensor" if tensor.is_quantized else ""


def _restored(tree: Any, buffers: list[memoryview]) -> Any:
    import numpy

    if isinstance(tree, list):
        return [_restored(item, buffers) for item in tree]
    if not isinstance(tree, dict):
        return tree
    ((kind, content),) = tree.items()
    if kind == "tuple":
        return tuple(_restored(item, buffers) for item in content)
    if kind == "dict":
        return {_restored(key, buffers): _restored(item, buffers) for key, item in content}
    if kind == "bytes":
        return bytes(buffers[content])
    dtype, shape, index = content
    if kind == "tensor":
        return tensor_from(buffers[index], dtype, shape)
    return numpy.frombuffer(buffers[index], dtype=dtype).reshape(shape)


def tensor_bytes(tensor: Any) -> Any:
    """The elements of a tensor, in order, as a uint8 array (shares memory where it can)."""
    import torch

    tensor = tensor.detach().cpu().resolve_conj().resolve_neg().contiguous()
    return tensor.reshape(-1).view(torch.uint8).numpy()


def tensor_from(buffer: Any, dtype: str, shape: Sequence[int]) -> Any:
    """The tensor whose elements are `buffer`, in place when the buffer is writable."""
    import torch

    kind = getattr(torch, dtype)
    if len(buffer) == 0:
        return torch.empty(shape, dtype=kind)
    writable = buffer if not memoryview(buffer).readonly else bytearray(buffer)
    return torch.frombuffer(writable, dtype=kind).reshape(shape)
