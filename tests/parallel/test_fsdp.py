"""fully_shard against the one-process model and against PyTorch's: gradients, parameters, bytes, memory, errors."""

from __future__ import annotations

import contextlib
import time
from functools import partial

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.utils.checkpoint import checkpoint

import picolib
from picolib.launch import monitor
from picolib.parallel.fsdp import NaiveFullyShard
from picolib.parallel.full_state import full_state_dict, load_full_state_dict
from tests.parallel.zoo import Branches, Plain, TiedAndFrozen, UsedInAnotherOrder, WithRunningStatistics, build, data

STEPS, BATCH = 5, 13


def sharded(model: nn.Module, **options) -> nn.Module:
    """Every layer that has no inner one, then the root."""
    for layer in list(model.children()):
        picolib.fully_shard(layer, **options)
    return picolib.fully_shard(model, **options)


def train(model, optimizer, rank, size, accumulation=1, no_sync=None, record=None):
    history = []
    for step in range(STEPS):
        optimizer.zero_grad()
        for micro in range(accumulation):
            x, y = (t.tensor_split(accumulation)[micro].tensor_split(size)[rank] for t in data(BATCH, seed=step))
            local = no_sync is not None and micro < accumulation - 1
            with no_sync() if local else contextlib.nullcontext():
                ((model(x) - y).square().sum() / BATCH).backward()
        optimizer.step()
        history.append(record(model))
    return history


OPTIMIZERS = {
    "SGD": partial(torch.optim.SGD, lr=0.1),
    "AdamW": partial(torch.optim.AdamW, lr=0.01, weight_decay=0.1),
}


def on_a_rank(kind, name, accumulation=1, deferred=False, by_layer=True, **options):
    rank, size = dist.get_rank(), dist.get_world_size()
    model = build(kind, seed=100 + rank)
    model = sharded(model, **options) if by_layer else picolib.fully_shard(model, **options)
    model.set_gradient_divide_factor(1)
    optimizer = OPTIMIZERS[name](model.parameters())
    no_sync = model.no_sync if deferred else None
    return train(model, optimizer, rank, size, accumulation, no_sync, full_state_dict)


def plain_state(model):
    return {name: p.detach().clone() for name, p in model.state_dict().items()}


def assert_equal_to_one_process(kind, name, world_size, accumulation=1, **options):
    model = build(kind, seed=100)
    right = train(model, OPTIMIZERS[name](model.parameters()), 0, 1, accumulation, None, plain_state)
    for history in picolib.run(partial(on_a_rank, kind, name, accumulation, **options), world_size):
        for step, (found, wanted) in enumerate(zip(history, right, strict=True)):
            assert found.keys() == wanted.keys()
            for key in wanted:
                assert torch.allclose(found[key], wanted[key], rtol=1e-10, atol=1e-12), (step, key)


@pytest.mark.parametrize(("world_size", "name"), [(1, "SGD"), (2, "AdamW"), (3, "SGD"), (4, "AdamW"), (5, "SGD")])
def test_parameters_equal_the_one_process_model(world_size, name):
    assert_equal_to_one_process(Plain, name, world_size)


@pytest.mark.parametrize(
    "options",
    [{"by_layer": False}, {"reshard_after_forward": False}, {"algorithm": "ring"}],
    ids=lambda options: next(iter(options)),
)
def test_every_option_gives_the_same_numbers(options):
    assert_equal_to_one_process(UsedInAnotherOrder, "SGD", 3, **options)


@pytest.mark.parametrize("deferred", [False, True])
def test_accumulation_with_and_without_deferred_reduction(deferred):
    assert_equal_to_one_process(Plain, "SGD", 3, accumulation=2, deferred=deferred)


def test_tied_and_frozen_parameters_in_one_unit():
    assert_equal_to_one_process(TiedAndFrozen, "SGD", 3, by_layer=False)


def test_a_tie_across_units_is_an_error_that_names_it():
    with pytest.raises(picolib.RankError, match="tied to a parameter that fully_shard has put into another unit"):
        picolib.run(partial(on_a_rank, TiedAndFrozen, "SGD"), 2)


def in_a_mesh(shape):
    names = ("dp_replicate", "dp_shard")[-len(shape) :]
    mesh = init_device_mesh("cpu", shape, mesh_dim_names=names)
    return on_a_rank(Plain, "SGD", mesh=mesh)


@pytest.mark.parametrize("shape", [(4,), (2, 2), (2, 1), (1, 3)])
def test_hybrid_sharding_on_a_mesh(shape):
    model = build(Plain, seed=100)
    right = train(model, OPTIMIZERS["SGD"](model.parameters()), 0, 1, 1, None, plain_state)
    for history in picolib.run(in_a_mesh, shape[0] * (shape[1] if len(shape) > 1 else 1), shape):
        for key in right[-1]:
            assert torch.allclose(history[-1][key], right[-1][key], rtol=1e-10, atol=1e-12), key


def in_float32():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3))
    parallel = dist.is_initialized() and dist.get_world_size() > 1
    if parallel:
        model = sharded(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    x = torch.randn(8, 6, generator=torch.Generator().manual_seed(1))
    for _ in range(5):
        optimizer.zero_grad()
        for rank in [dist.get_rank()] if parallel else [0, 1]:
            (model(x.tensor_split(2)[rank]).square().mean() / (1 if parallel else 2)).backward()
        optimizer.step()
    return full_state_dict(model)


def test_on_two_ranks_in_float32_every_bit_is_that_of_accumulating_the_ranks_batches():
    alone = picolib.run(in_float32, 1)[0]
    for found in picolib.run(in_float32, 2):
        assert all(torch.equal(found[name], alone[name]) for name in alone)


def stack() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(*(nn.Linear(24, 24, bias=False) for _ in range(4))).double()


NBYTES = 4 * 24 * 24 * 8


def steps(count: int, by_layer: bool, reshard: bool) -> None:
    model = stack()
    model = sharded(model, reshard_after_forward=reshard) if by_layer else picolib.fully_shard(model)
    for _ in range(count):
        model.zero_grad()
        model(torch.ones(2, 24, dtype=torch.float64)).sum().backward()


@pytest.mark.parametrize(
    ("by_layer", "reshard", "collectives"), [(True, True, 3), (True, False, 2), (False, True, 2)], ids=str
)
@pytest.mark.parametrize("world_size", [2, 4])
def test_bytes_of_a_step(world_size, by_layer, reshard, collectives):
    """3(N-1)/N of the parameters; 2(N-1)/N where they are kept after forward, as the root's own always are."""
    first, more = (picolib.run(steps, world_size, n, by_layer, reshard).trace for n in (1, 3))
    sent = [b - a for a, b in zip(first.bytes_sent, more.bytes_sent, strict=True)]
    assert sent == [2 * collectives * NBYTES * (world_size - 1) // world_size] * world_size


def memory_held() -> tuple[int, int, int]:
    """Bytes of whole parameters: before a step, at most inside a layer's forward, and after the step."""
    model = sharded(stack())
    units = [layer.__dict__["_picolib_unit"] for layer in model]
    whole = lambda: sum(p.full.data.untyped_storage().nbytes() for unit in units for p in unit.parameters)
    seen = []
    for layer in model:
        layer.register_forward_hook(lambda *_: seen.append(whole()), prepend=True)
    before = whole()
    for _ in range(2):
        model(torch.ones(2, 24, dtype=torch.float64)).sum().backward()
    return before, max(seen), whole()


def test_only_the_computing_layer_is_whole():
    for before, most, after in picolib.run(memory_held, 2):
        assert (before, most, after) == (0, NBYTES // 4, 0)


def local_numbers():
    model = sharded(stack())
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.ones(2, 24, dtype=torch.float64)).sum().backward()
    optimizer.step()
    parameters = sum(p.numel() for p in model.parameters())
    gradients = sum(p.grad.numel() for p in model.parameters())
    state = sum(t.numel() for s in optimizer.state.values() for t in s.values() if t.dim())
    return parameters, gradients, state


def test_a_rank_holds_its_part_of_parameters_gradients_and_state():
    part = 4 * 24 * 24 // 4
    assert list(picolib.run(local_numbers, 4)) == [(part, part, 2 * part)] * 4


def prefetched():
    model, x = sharded(stack()), torch.ones(2, 24, dtype=torch.float64)
    for number, layer in enumerate(model):
        mark = lambda *_, number=number: monitor.mark(f"computed {number}", time.monotonic())
        layer.register_forward_hook(mark, prepend=True)
    for _ in range(2):
        model(x).sum().backward()


def test_the_next_layer_is_gathered_while_one_computes():
    trace = picolib.run(prefetched, 2, trace=True).trace
    events = [e for e in trace.events if e.rank == 0 and e.kind == "collective"]
    gathers = [e for e in events if "unshard" in e.label][-8:]  # of the second step
    names = [e.label.split()[-2] for e in gathers]
    assert names == ["0", "1", "2", "3", "3", "2", "1", "0"]
    computed = [e.start for e in trace.events if e.rank == 0 and e.kind == "mark"][-4:]
    assert all(gather.start < before for gather, before in zip(gathers[1:4], computed[:3], strict=True))


def beside_pytorch():
    from torch.distributed.fsdp import fully_shard

    rank, ours, theirs = dist.get_rank(), build(UsedInAnotherOrder, 1), build(UsedInAnotherOrder, 1)
    sharded(ours)
    for layer in theirs.children():
        fully_shard(layer, mesh=init_device_mesh("cpu", (3,)))
    fully_shard(theirs, mesh=init_device_mesh("cpu", (3,)))
    optimizers = [torch.optim.AdamW(model.parameters(), lr=0.05) for model in (ours, theirs)]
    for step in range(3):
        x, y = (t.tensor_split(3)[rank] for t in data(12, seed=step))
        for model, optimizer in zip((ours, theirs), optimizers, strict=True):
            optimizer.zero_grad()
            (model(x) - y).square().mean().backward()
            optimizer.step()
    pairs = list(zip(ours.parameters(), theirs.parameters(), strict=True))
    same_layout = all(a.shape == b.to_local().shape for a, b in pairs)
    return same_layout, max([float((a - b.to_local()).abs().max()) for a, b in pairs if a.numel()])


def test_the_same_numbers_and_the_same_shards_as_pytorchs_fully_shard():
    for same_layout, differ in picolib.run(beside_pytorch, 3):
        assert same_layout and differ < 1e-14


class Policy:
    """The fields of torch's MixedPrecisionPolicy."""

    param_dtype, reduce_dtype, output_dtype = torch.bfloat16, torch.float32, torch.float32


def in_mixed_precision():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(16, 16), nn.Tanh(), nn.Linear(16, 4))
    seen = []
    model[0].register_forward_hook(lambda m, args, out: seen.append((m.weight.dtype, args[0].dtype, out.dtype)))
    picolib.fully_shard(model, mp_policy=Policy)
    out = model(torch.ones(2, 16))
    out.sum().backward()
    grads = {(p.dtype, p.grad.dtype) for p in model.parameters()}
    return seen, out.dtype, grads


def test_mixed_precision_computes_in_bfloat16_and_keeps_float32():
    seen, out, grads = picolib.run(in_mixed_precision, 2)[0]
    assert seen == [(torch.bfloat16,) * 3]
    assert out == torch.float32
    assert grads == {(torch.float32, torch.float32)}


def with_checkpoints(reentrant: bool):
    model = build(UsedInAnotherOrder, 100 + dist.get_rank())
    layers = [model.first, model.middle, model.last]
    model.forward = lambda x: _checkpointed(layers, x, reentrant)
    sharded(model)
    model.set_gradient_divide_factor(1)
    x, y = (t.tensor_split(3)[dist.get_rank()] for t in data(12))
    x.requires_grad_(True)
    ((model(x) - y).square().sum() / 12).backward()
    return [p.grad for p in model.parameters()]


def _checkpointed(layers, x, reentrant):
    for layer in layers[:-1]:
        x = checkpoint(lambda x, layer=layer: torch.tanh(layer(x)), x, use_reentrant=reentrant)
    return layers[-1](x)


@pytest.mark.parametrize("reentrant", [False, True])
def test_checkpointed_layers(reentrant):
    model, (x, y) = build(UsedInAnotherOrder, 100), data(12)
    ((model(x) - y).square().sum() / 12).backward()
    run = picolib.run(with_checkpoints, 3, reentrant)
    for position, parameter in enumerate(model.parameters()):
        found = torch.cat([run[rank][position] for rank in range(3)])
        assert torch.allclose(found, parameter.grad, rtol=1e-12, atol=1e-14)


def evaluated_between():
    model = sharded(build(Plain, 100))
    model.set_gradient_divide_factor(1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    x, y = (t.tensor_split(2)[dist.get_rank()] for t in data(12))
    outputs = []
    for _ in range(2):
        optimizer.zero_grad()
        ((model(x) - y).square().sum() / 12).backward()
        optimizer.step()
        with torch.no_grad():
            outputs.append(model(x))
        model(x)  # a graph that nobody goes back through
    return outputs


def test_forward_passes_without_backward_see_the_newest_parameters():
    model, (x, y) = build(Plain, 100), data(12)
    optimizer, right = torch.optim.SGD(model.parameters(), lr=0.1), []
    for _ in range(2):
        optimizer.zero_grad()
        ((model(x) - y).square().sum() / 12).backward()
        optimizer.step()
        right.append(model(x).detach())
    run = picolib.run(evaluated_between, 2)
    for step in range(2):
        assert torch.allclose(torch.cat([run[rank][step] for rank in range(2)]), right[step], rtol=1e-10)


def with_a_branch(which: list[str]):
    model = sharded(build(Branches, 0))
    model.set_gradient_divide_factor(1)
    x, y = (t.tensor_split(2)[dist.get_rank()] for t in data(12))
    ((model(x, which[dist.get_rank()]) - y).square().sum() / 12).backward()
    return {name: None if p.grad is None else p.grad for name, p in model.named_parameters()}


def test_a_module_that_no_rank_uses_is_left_alone():
    model, (x, y) = build(Branches, 0), data(12)
    ((model(x) - y).square().sum() / 12).backward()
    run = picolib.run(with_a_branch, 2, ["left", "left"])
    for name, parameter in model.named_parameters():
        parts = [run[rank][name] for rank in range(2)]
        assert (parts[0] is None) == (parameter.grad is None)
        assert parameter.grad is None or torch.allclose(torch.cat(parts), parameter.grad, rtol=1e-12)


def test_a_module_that_one_rank_does_not_use_is_named():
    with pytest.raises(picolib.RunError) as error:
        picolib.run(with_a_branch, 2, ["left", "right"])
    assert "left unshard" in str(error.value) and "right unshard" in str(error.value)


def saved_and_loaded(kind):
    model = sharded(build(kind, 3)) if kind is not TiedAndFrozen else picolib.fully_shard(build(kind, 3))
    load_full_state_dict(model, build(kind, 9).state_dict())
    return full_state_dict(model)


@pytest.mark.parametrize("kind", [Plain, TiedAndFrozen, WithRunningStatistics])
def test_a_full_state_goes_in_and_comes_out(kind):
    right = build(kind, 9).state_dict()
    for found in picolib.run(saved_and_loaded, 3, kind):
        assert found.keys() == right.keys()
        assert all(torch.equal(found[name], right[name]) for name in right)


def built_too_early():
    model = build(Plain, 0)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    sharded(model)
    x, y = data(4)
    (model(x) - y).square().sum().backward()
    optimizer.step()


def test_an_optimizer_from_before_sharding_is_told_so():
    with pytest.raises(picolib.RankError, match="build the optimizer after sharding"):
        picolib.run(built_too_early, 2)


def construct(make, **options):
    picolib.fully_shard(make(), **options)


@pytest.mark.parametrize(
    ("fn", "words"),
    [
        (partial(construct, lambda: 3), "module must be a torch.nn.Module, got int"),
        (partial(construct, lambda: nn.Linear(2, 2, device="meta")), "weight is on the meta device"),
        (partial(construct, lambda: sharded(build(Plain, 0))), "module is sharded already"),
        (partial(construct, lambda: picolib.DistributedDataParallel(build(Plain, 0))), "reduces its gradients already"),
        (partial(construct, lambda: nn.Linear(2, 2), offload_policy=3), "offload_policy must be None, got 3"),
        (partial(construct, lambda: nn.Linear(2, 2), algorithm="rign"), "algorithm must be one of auto, naive, ring"),
    ],
)
def test_a_wrong_argument_is_one_sentence(fn, words):
    with pytest.raises(picolib.RankError, match="ValueError") as error:
        picolib.run(fn, 2)
    assert words in str(error.value)


def naive():
    rank, model = dist.get_rank(), build(Plain, 1)
    fsdp = NaiveFullyShard(model)
    x, y = (t.tensor_split(3)[rank] for t in data(12))
    fsdp.backward(lambda: (model(x) - y).square().mean())
    return [shard.grad for shard in fsdp.shards]


def test_the_naive_version_gives_each_rank_its_part_of_the_mean():
    model, (x, y) = build(Plain, 1), data(12)
    (model(x) - y).square().mean().backward()
    run = picolib.run(naive, 3)
    for position, parameter in enumerate(model.parameters()):
        found = torch.cat([run[rank][position] for rank in range(3)])[: parameter.numel()]
        assert torch.allclose(found, parameter.grad.flatten(), rtol=1e-12)


def clipped(max_norm: float, norm_type: float):
    model = sharded(build(UsedInAnotherOrder, 100))
    model.set_gradient_divide_factor(1)
    x, y = (t.tensor_split(5)[dist.get_rank()] for t in data(12))
    (model(x) - y).square().sum().backward()
    norm = picolib.clip_grad_norm_(model, max_norm, norm_type)
    return norm, [p.grad for p in model.parameters()]


@pytest.mark.parametrize(("max_norm", "norm_type"), [(0.5, 2.0), (1e6, 2.0), (0.5, float("inf")), (0.5, 1.0)])
def test_clipping_counts_every_element_once(max_norm, norm_type):
    model, (x, y) = build(UsedInAnotherOrder, 100), data(12)
    (model(x) - y).square().sum().backward()
    right = nn.utils.clip_grad_norm_(model.parameters(), max_norm, norm_type)
    run = picolib.run(clipped, 5, max_norm, norm_type)
    for position, parameter in enumerate(model.parameters()):
        parts = torch.cat([grads[position] for _, grads in run])
        assert torch.allclose(parts.view(parameter.shape), parameter.grad, rtol=1e-10)
    assert all(torch.allclose(norm, right.double(), rtol=1e-12) for norm, _ in run)


def test_shards_without_their_module_are_not_clipped():
    def fn():
        picolib.clip_grad_norm_(sharded(build(Plain, 0)).parameters(), 1.0)

    with pytest.raises(picolib.RankError, match="give the module that it belongs to"):
        picolib.run(fn, 2)
