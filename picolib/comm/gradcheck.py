"""A gradient check for code that runs on several ranks (SPMD: one program, many data).

torch.autograd.gradcheck looks at one process. It perturbs a rank's input and looks at that rank's output alone, so
it rejects right backwards (an all-reduce's input changes everybody's output) and accepts wrong ones. Here the
numbers perturbed are the variables of the whole program, and what is differentiated is its whole result.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
import torch.distributed as dist

from picolib.comm import api
from picolib.comm.groups import resolve

Function = Callable[..., torch.Tensor]


def spmd_gradcheck(
    function: Function,
    inputs: torch.Tensor | Sequence[torch.Tensor],
    *,
    replicated_input: bool = False,
    replicated_output: bool = False,
    group: dist.ProcessGroup | None = None,
    eps: float = 1e-5,
    tolerance: float = 1e-6,
    seed: int = 0,
) -> None:
    """Compare the gradients of `function(*inputs)` with central differences; every rank of `group` calls this.

    The differentiated number is the sum over ranks of `(weight * output).sum()`, with random weights of each
    rank's own. One element of one rank's input is moved at a time, while all ranks recompute.

    * `replicated_output`: all ranks compute the same output and loss, which counts once (the four functions of
      `picolib.comm.functional` that assume this). Weights are then the same everywhere, and rank 0's number counts.
    * `replicated_input`: the input is one tensor that all ranks hold, so an element moves on all ranks at once.

    `inputs` are float64 tensors, of any shape on each rank; `function` returns one tensor. Raises AssertionError on
    every rank alike, in a sentence that names the first rank and element whose gradient is wrong.
    """
    _, members = resolve(group)
    inputs = [inputs] if isinstance(inputs, torch.Tensor) else list(inputs)
    if any(tensor.dtype != torch.float64 for tensor in inputs):
        raise ValueError(f"inputs must be float64, got {[str(tensor.dtype) for tensor in inputs]}.")
    variables = [tensor.detach().clone().requires_grad_() for tensor in inputs]

    output = function(*variables)
    weight = _weights(output, seed if replicated_output else seed + 1 + members.rank)
    faults = [_replication_fault("output", output, group)] if replicated_output else []
    if replicated_input:
        faults += [_replication_fault(f"input {i}", tensor, group) for i, tensor in enumerate(inputs)]
    gradients = torch.autograd.grad(output, variables, weight, allow_unused=True, materialize_grads=True)
    analytic = torch.cat([gradient.reshape(-1) for gradient in gradients])

    def loss(*tensors: torch.Tensor) -> torch.Tensor:
        counts = members.rank == 0 or not replicated_output
        return (weight * function(*tensors)).sum() if counts else 0 * function(*tensors).sum()

    numeric = _central_differences(loss, inputs, replicated_input, eps, group)
    faults.append(_gradient_fault(analytic, numeric, inputs, tolerance, members.size))
    _raise_on_all_ranks_alike(faults, group)


def _weights(output: torch.Tensor, seed: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.rand(output.shape, generator=generator, dtype=output.dtype) + 0.5


def _central_differences(loss, inputs, replicated: bool, eps: float, group) -> torch.Tensor:
    """d(sum of all ranks' losses) / d(each element of this rank's inputs), flat.

    Ranks take turns to be the one that moves an element; of a replicated input, all move the same one.
    """
    _, members = resolve(group)
    elements = sum(tensor.numel() for tensor in inputs)
    turns = [elements] if replicated else _gathered(torch.tensor([elements]), group).tolist()
    differences = []
    for turn, count in enumerate(turns):
        moves = replicated or turn == members.rank
        for element in range(count):
            up = loss(*_moved(inputs, element, eps if moves else 0.0))
            down = loss(*_moved(inputs, element, -eps if moves else 0.0))
            differences.append((up - down).detach() / (2 * eps))
    summed = torch.stack(differences) if differences else torch.empty(0, dtype=torch.float64)
    api.all_reduce(summed, group=group)
    first = 0 if replicated else sum(turns[: members.rank])
    return summed[first : first + elements]


def _moved(inputs: Sequence[torch.Tensor], element: int, distance: float) -> list[torch.Tensor]:
    """Copies of the inputs, seen as one long vector, of which one element is moved."""
    copies = [tensor.detach().clone() for tensor in inputs]
    for copy in copies:
        if 0 <= element < copy.numel() and distance:
            copy[torch.unravel_index(torch.tensor(element), copy.shape)] += distance
        element -= copy.numel()
    return copies


def _gradient_fault(analytic, numeric, inputs, tolerance: float, size: int) -> str:
    """What is wrong with the worst element; an empty text when the gradients agree."""
    error = (analytic - numeric).abs()
    if error.numel() == 0 or error.max() <= tolerance * (1 + numeric.abs().max()):
        return ""
    index, element = 0, int(error.argmax())
    got, right = float(analytic[element]), float(numeric[element])
    while element >= inputs[index].numel():
        element -= inputs[index].numel()
        index += 1
    place = tuple(int(i) for i in torch.unravel_index(torch.tensor(element), inputs[index].shape))
    text = (
        f"input {index} at {place} has gradient {got:.6g}, but the loss changes by {right:.6g} for each unit it moves."
    )
    if size > 1 and torch.allclose(analytic, size * numeric, rtol=1e-4):
        text += f" Every gradient is {size}x too big: was it summed over the group once too often?"
    elif size > 1 and torch.allclose(size * analytic, numeric, rtol=1e-4):
        text += f" Every gradient is {size}x too small: was it averaged where it should be summed?"
    return text


def _replication_fault(name: str, tensor: torch.Tensor, group) -> str:
    """What is wrong; an empty text when a tensor is the same on all ranks."""
    numel = _gathered(torch.tensor([tensor.numel()]), group)
    if bool((numel != numel[0]).any()):
        return f"{name} should be the same on all ranks, but ranks hold {numel.tolist()} elements."
    everywhere = _gathered(tensor.detach().reshape(-1), group).view(len(numel), -1)
    same = torch.allclose(everywhere, everywhere[:1].expand_as(everywhere), rtol=1e-9, atol=1e-12)
    return "" if same else f"{name} should be the same on all ranks, but is not."


def _gathered(vector: torch.Tensor, group) -> torch.Tensor:
    _, members = resolve(group)
    out = vector.new_empty(members.size * vector.numel())
    api.all_gather_into_tensor(out, vector.contiguous(), group=group)
    return out


def _raise_on_all_ranks_alike(faults: Sequence[str], group) -> None:
    """Texts travel as numbers, padded to one length, so that every rank reports the first faulty rank's."""
    _, members = resolve(group)
    text = next((fault for fault in faults if fault), "")[:400].encode()
    padded = torch.tensor(list(text.ljust(400, b"\0")), dtype=torch.uint8)
    for rank, row in enumerate(_gathered(padded, group).view(members.size, -1)):
        told = bytes(row.tolist()).rstrip(b"\0").decode(errors="replace")
        if told:
            raise AssertionError(f"rank {rank}: {told}")
