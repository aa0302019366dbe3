"""Differentiable collectives: values, and gradients by a check that perturbs one rank at a time."""

from __future__ import annotations

import re
from functools import partial

import pytest
import torch
import torch.distributed as dist

from picolib import comm
from picolib.comm import functional
from picolib.comm.gradcheck import spmd_gradcheck

WORLDS = [1, 2, 3, 4]

OWN = {"replicated_input": False, "replicated_output": False}
FROM_REPLICATED = {"replicated_input": True, "replicated_output": False}
TO_REPLICATED = {"replicated_input": False, "replicated_output": True}
BOTH_REPLICATED = {"replicated_input": True, "replicated_output": True}

# What each function's gradient is defined over. Under every other definition the check must reject it.
DEFINITIONS = {
    "all_reduce": OWN,
    "all_gather": OWN,
    "reduce_scatter": OWN,
    "all_to_all": OWN,
    "copy_to_group": FROM_REPLICATED,
    "reduce_from_group": TO_REPLICATED,
    "gather_from_group": TO_REPLICATED,
    "scatter_to_group": FROM_REPLICATED,
}


def _random(*shape: int, seed: int = 0, replicated: bool = False) -> torch.Tensor:
    """Values that differ by rank, unless replicated."""
    generator = torch.Generator().manual_seed(seed if replicated else 100 * (dist.get_rank() + 1) + seed)
    return torch.randn(*shape, generator=generator, dtype=torch.float64)


def _rejects(function, inputs, **definition) -> str:
    """The sentence with which the check rejects the function."""
    try:
        spmd_gradcheck(function, inputs, **definition)
    except AssertionError as error:
        return str(error)
    pytest.fail(f"accepted under {definition}")


# --- Values ---------------------------------------------------------------------------------------------------------


def _values():
    rank, size = dist.get_rank(), dist.get_world_size()
    everybody = [torch.full((size, 2), float(r)) + torch.arange(2 * size).view(size, 2) for r in range(size)]
    own, total = everybody[rank], sum(everybody)
    assert torch.equal(functional.all_reduce(own), total)
    assert torch.equal(functional.all_gather(own, 1), torch.cat(everybody, 1))
    assert torch.equal(functional.reduce_scatter(own, 0), total[rank : rank + 1])
    assert torch.equal(functional.all_to_all(own), torch.cat([t[rank : rank + 1] for t in everybody]))
    assert torch.equal(functional.copy_to_group(own), own)
    assert torch.equal(functional.reduce_from_group(own), total)
    assert torch.equal(functional.gather_from_group(own, -1), torch.cat(everybody, -1))
    assert torch.equal(functional.scatter_to_group(own, 0), own[rank : rank + 1])
    assert torch.equal(own, everybody[rank]), "an input was changed"


@pytest.mark.parametrize("world_size", WORLDS)
def test_forward_values_are_the_collectives(run_ranks, world_size):
    run_ranks(_values, world_size)


def _uneven_values():
    rank, size = dist.get_rank(), dist.get_world_size()
    for length in (1, 5, 6):
        full = torch.arange(3.0 * length).view(3, length)
        pieces = list(full.chunk(size, 1)) + [full[:, :0]] * size
        for gather in (functional.all_gather, functional.gather_from_group):
            assert torch.equal(gather(pieces[rank], 1, full_size=length), full)
        assert torch.equal(functional.scatter_to_group(full, 1), pieces[rank])
        assert torch.equal(functional.reduce_scatter(full, 1), size * pieces[rank])


@pytest.mark.parametrize("world_size", [2, 4, 5])
def test_pieces_that_do_not_divide_are_those_of_torch_chunk(run_ranks, world_size):
    run_ranks(_uneven_values, world_size)


def test_chunk_lengths_are_those_of_torch_chunk():
    for length in range(20):
        for parts in range(1, 8):
            expected = [len(piece) for piece in torch.empty(length).chunk(parts)]
            lengths = functional.chunk_lengths(length, parts)
            assert lengths == (expected + [0] * parts)[:parts]


# --- Gradients: the right definition passes, every other is rejected ------------------------------------------------


def _right_gradients():
    size = dist.get_world_size()
    for name, definition in DEFINITIONS.items():
        inputs = _random(size, replicated=definition["replicated_input"])
        spmd_gradcheck(getattr(functional, name), inputs, **definition)


@pytest.mark.parametrize("world_size", WORLDS)
def test_every_gradient_is_right(run_ranks, world_size):
    run_ranks(_right_gradients, world_size)


def _every_dim():
    size = dist.get_world_size()
    for dim in (0, 1, -1):
        shape = [1, 2, 1]
        for name in ("all_gather", "gather_from_group"):
            spmd_gradcheck(partial(getattr(functional, name), dim=dim), _random(*shape), **DEFINITIONS[name])
        shape[dim] = size + 1  # does not divide: the last rank has nothing
        for name in ("reduce_scatter", "scatter_to_group"):
            inputs = _random(*shape, replicated=DEFINITIONS[name]["replicated_input"])
            spmd_gradcheck(partial(getattr(functional, name), dim=dim), inputs, **DEFINITIONS[name])


@pytest.mark.parametrize("world_size", [3])
def test_gradients_are_right_on_every_dim_and_for_pieces_that_do_not_divide(run_ranks, world_size):
    run_ranks(_every_dim, world_size)


def _uneven_gathers():
    own = functional.chunk_lengths(5, dist.get_world_size())[dist.get_rank()]
    for name in ("all_gather", "gather_from_group"):
        spmd_gradcheck(partial(getattr(functional, name), dim=1, full_size=5), _random(1, own), **DEFINITIONS[name])


@pytest.mark.parametrize("world_size", [2, 4])
def test_gathers_of_uneven_pieces_have_right_gradients(run_ranks, world_size):
    run_ranks(_uneven_gathers, world_size)


def _every_wrong_definition():
    size = dist.get_world_size()
    for name, right in DEFINITIONS.items():
        for wrong in (OWN, FROM_REPLICATED, TO_REPLICATED):
            if wrong != right:
                inputs = _random(size, replicated=wrong["replicated_input"])
                _rejects(getattr(functional, name), inputs, **wrong)


@pytest.mark.parametrize("world_size", [2])
def test_no_gradient_passes_under_a_definition_that_is_not_its_own(run_ranks, world_size):
    run_ranks(_every_wrong_definition, world_size)


def _pair(forward, backward):
    """A function with the forward of one map and a backward that somebody might think is right."""
    return lambda tensor: functional._Linear.apply(tensor, forward, backward)


def _swapped_pairs():
    n, f = dist.get_world_size(), functional
    own, replicated = _random(n), _random(n, replicated=True)

    for wrong in (f.copy_to_group, lambda g: f.all_reduce(g) / n):  # forgot to sum; averages
        _rejects(_pair(f.all_reduce, wrong), own, **OWN)
    for wrong in (f.scatter_to_group, lambda g: f.reduce_scatter(g) / n):
        _rejects(_pair(f.all_gather, wrong), own, **OWN)
    for wrong in (lambda g: f.all_gather(g) / n, lambda g: torch.cat([g] * n)):
        _rejects(_pair(f.reduce_scatter, wrong), own, **OWN)
    _rejects(_pair(f.all_to_all, f.copy_to_group), own, **OWN)
    for wrong in (lambda g: g.clone(), lambda g: f.all_reduce(g) / n):
        _rejects(_pair(f.copy_to_group, wrong), replicated, **FROM_REPLICATED)
    for wrong in (f.all_reduce, lambda g: g / n):
        _rejects(_pair(f.reduce_from_group, wrong), own, **TO_REPLICATED)
    for wrong in (f.reduce_scatter, lambda g: f.scatter_to_group(g) / n):
        _rejects(_pair(f.gather_from_group, wrong), own, **TO_REPLICATED)
    for wrong in (lambda g: torch.cat([g] * n), lambda g: f.all_gather(g) / n):
        _rejects(_pair(f.scatter_to_group, wrong), replicated, **FROM_REPLICATED)


@pytest.mark.parametrize("world_size", [2])
def test_wrong_backwards_are_rejected(run_ranks, world_size):
    run_ranks(_swapped_pairs, world_size)


def _sentences():
    n = dist.get_world_size()
    doubled = _rejects(functional.all_reduce, _random(2), **TO_REPLICATED)
    halved = _rejects(lambda x: functional.all_reduce(x) / n + x.detach(), _random(2, replicated=True), **OWN)
    own_output = _rejects(functional.copy_to_group, _random(2), **TO_REPLICATED)
    other_shape = _rejects(lambda x: x[: dist.get_rank()], _random(2), **TO_REPLICATED)
    with pytest.raises(ValueError, match="must be float64, got .'torch.float32'."):
        spmd_gradcheck(functional.all_reduce, torch.ones(2))
    return doubled, halved, own_output, other_shape


def test_a_rejection_names_rank_element_and_factor_and_is_the_same_on_all_ranks(run_ranks):
    results = run_ranks(_sentences, 2)
    assert results[0] == results[1]
    doubled, halved, own_output, other_shape = results[0]
    assert re.match(r"rank 0: input 0 at \(\d,\) has gradient .*Every gradient is 2x too big", doubled)
    assert "the loss changes by" in halved
    assert own_output == "rank 0: output should be the same on all ranks, but is not."
    assert other_shape == "rank 0: output should be the same on all ranks, but ranks hold [0, 1] elements."


# --- In use ---------------------------------------------------------------------------------------------------------


def _sub_groups():
    for ranks in ([1, 3], [2, 0], [2]):
        group = dist.new_group(ranks)
        if dist.get_rank() not in ranks:
            continue
        for name, definition in DEFINITIONS.items():
            inputs = _random(len(ranks), replicated=definition["replicated_input"])
            spmd_gradcheck(partial(getattr(functional, name), group=group), inputs, group=group, **definition)


def test_gradients_are_right_in_sub_groups(run_ranks):
    run_ranks(_sub_groups, 4)


def _used_twice():
    n, f = dist.get_world_size(), functional
    spmd_gradcheck(lambda x: f.all_reduce(x) * f.all_reduce(x * x) + x, _random(2), **OWN)
    spmd_gradcheck(lambda x: f.reduce_scatter(f.all_gather(x) ** 2) * x, _random(2), **OWN)
    spmd_gradcheck(lambda x, y: f.all_to_all(f.all_to_all(x) * y), [_random(n), _random(n, seed=1)], **OWN)

    weights = [_random(2, 1), _random(1, 2, seed=1)]  # each rank's share of a two-layer network

    def tensor_parallel(x):  # replicated in, replicated out; every rank's weights are constants here
        hidden = torch.tanh(f.copy_to_group(x) @ weights[0])
        return f.reduce_from_group(hidden @ weights[1])

    spmd_gradcheck(lambda x: tensor_parallel(tensor_parallel(x)), _random(1, 2, replicated=True), **BOTH_REPLICATED)


@pytest.mark.parametrize("world_size", [1, 3])
def test_functions_may_be_used_several_times_in_one_graph(run_ranks, world_size):
    run_ranks(_used_twice, world_size)


def _exchanges():
    rank, size = dist.get_rank(), dist.get_world_size()
    heads, sequence = 2 * size, 3
    own = torch.arange(heads * sequence).view(1, heads, sequence).double() + 1000 * rank
    swapped = functional.all_to_all(own, 1, 2)
    assert swapped.shape == (1, 2, sequence * size)
    assert torch.equal(swapped[..., :sequence] % 1000, own[:, 2 * rank : 2 * rank + 2] % 1000)
    assert torch.equal(functional.all_to_all(swapped, 2, 1), own)
    spmd_gradcheck(lambda x: functional.all_to_all(x, 1, 2) ** 2, _random(1, size, 1), **OWN)

    rows = [j + 1 for j in range(size)]  # rank r sends j + 1 rows to rank j, and so receives r + 1 from each
    uneven = partial(functional.all_to_all, split_dim=1, input_split_sizes=rows, output_split_sizes=[rank + 1] * size)
    assert uneven(_random(2, sum(rows))).shape == (2, size * (rank + 1))
    spmd_gradcheck(uneven, _random(1, sum(rows)), **OWN)

    nothing = partial(functional.all_to_all, input_split_sizes=[2] + [0] * (size - 1))
    arriving = [2] * size if rank == 0 else [0] * size
    spmd_gradcheck(partial(nothing, output_split_sizes=arriving), _random(2, 1), **OWN)


@pytest.mark.parametrize("world_size", [1, 2, 3])
def test_all_to_all_takes_sizes_and_two_dims(run_ranks, world_size):
    run_ranks(_exchanges, world_size)


def _second_derivatives():
    n, f = dist.get_world_size(), functional

    def slope(x):
        (gradient,) = torch.autograd.grad((f.all_reduce(x) ** 3).sum(), x, create_graph=True)
        return gradient

    x = _random(2).requires_grad_()
    total = f.all_reduce(x.detach())
    (second,) = torch.autograd.grad(slope(x).sum(), x)
    assert torch.allclose(slope(x), 3 * n * total**2)
    assert torch.allclose(second, 6 * n * n * total)


def test_second_derivatives_are_right(run_ranks):
    run_ranks(_second_derivatives, 2)


def _beside_asynchronous_work():
    n = dist.get_world_size()
    flying = [torch.full((1000,), float(i)) for i in range(3)]
    works = [comm.all_reduce(tensor, async_op=True) for tensor in flying]
    x = torch.ones(5, requires_grad=True)
    functional.all_reduce(x).sum().backward()
    for i, work in enumerate(works):
        work.wait()
        assert torch.equal(flying[i], torch.full((1000,), float(n * i)))
    assert torch.equal(x.grad, torch.full((5,), float(n)))


def test_gradients_are_right_while_asynchronous_work_is_in_flight(run_ranks):
    run_ranks(_beside_asynchronous_work, 3)


def _odd_tensors():
    n = dist.get_world_size()
    strided = torch.arange(12.0).view(3, 4).t().requires_grad_()
    functional.all_reduce(strided).sum().backward()  # the incoming gradient is an expanded, strided one
    assert torch.equal(strided.grad, torch.full((4, 3), float(n)))
    for dtype in (torch.bfloat16, torch.float16, torch.float32):
        x = torch.ones(2, dtype=dtype, requires_grad=True)
        functional.all_gather(x).sum().backward()
        assert x.grad.dtype == dtype and torch.equal(x.grad, torch.full((2,), n, dtype=dtype))
    with torch.no_grad():
        assert not functional.all_reduce(torch.ones(2, requires_grad=True)).requires_grad
    with pytest.raises(ValueError, match="full_size=9 over 2 ranks leaves . rows for rank ., but its tensor has 3"):
        functional.all_gather(torch.ones(3, 2), 0, full_size=9)


def test_strided_tensors_and_half_precision_work_and_wrong_sizes_are_refused(run_ranks):
    run_ranks(_odd_tensors, 2)
