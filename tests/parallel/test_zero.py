"""ZeroRedundancyOptimizer against one process and against PyTorch's: parameters, state, bytes, memory."""

from __future__ import annotations

from functools import partial

import pytest
import torch
import torch.distributed as dist
from torch import nn

import picolib
from picolib.parallel.zero import zero_1_step
from tests.parallel.zoo import Plain, TiedAndFrozen, UsedInAnotherOrder, build, data

STEPS, BATCH = 5, 13
SMALL = 40 / (1 << 20)
OPTIMIZERS = {
    "SGD": (torch.optim.SGD, {"lr": 0.1, "momentum": 0.9}),
    "AdamW": (torch.optim.AdamW, {"lr": 0.01, "weight_decay": 0.1}),
    "RMSprop": (torch.optim.RMSprop, {"lr": 0.01}),
}


def train(model, optimizer, rank, size, accumulation=1) -> list[dict[str, torch.Tensor]]:
    """The parameters after each step; the ranks' shares of the batch differ in length, and some are empty."""
    history = []
    for step in range(STEPS):
        optimizer.zero_grad()
        for micro in range(accumulation):
            x, y = (t.tensor_split(accumulation)[micro].tensor_split(size)[rank] for t in data(BATCH, seed=step))
            ((model(x) - y).square().sum() / BATCH).backward()
        optimizer.step()
        history.append({name: p.detach().clone() for name, p in model.named_parameters()})
    return history


def on_a_rank(kind, name, stage, accumulation, **options):
    optimizer_class, settings = OPTIMIZERS[name]
    model = build(kind, seed=100 + dist.get_rank())
    optimizer = picolib.ZeroRedundancyOptimizer(
        model.parameters(),
        optimizer_class,
        stage=stage,
        gradient_divide_factor=1,
        **{"bucket_cap_mb": SMALL, **settings, **options},
    )
    history = train(model, optimizer, dist.get_rank(), dist.get_world_size(), accumulation)
    held = sum(t.numel() for state in optimizer.inner.state.values() for t in state.values() if t.dim())
    return history, optimizer.state_dict(), held


def alone(kind, name, accumulation):
    optimizer_class, settings = OPTIMIZERS[name]
    model = build(kind, seed=100)
    optimizer = optimizer_class(model.parameters(), **settings)
    return train(model, optimizer, 0, 1, accumulation), optimizer.state_dict()


def assert_equal_to_one_process(kind, name, stage, world_size, accumulation=1) -> None:
    right, right_state = alone(kind, name, accumulation)
    for history, state, _ in picolib.run(partial(on_a_rank, kind, name, stage, accumulation), world_size):
        for step, (found, wanted) in enumerate(zip(history, right, strict=True)):
            for key in wanted:
                assert torch.allclose(found[key], wanted[key], rtol=1e-10, atol=1e-12), (step, key)
        assert_same_state(state, right_state)


def assert_same_state(found: dict, right: dict) -> None:
    assert [g["params"] for g in found["param_groups"]] == [g["params"] for g in right["param_groups"]]
    for position, wanted in right["state"].items():
        for name, value in wanted.items():
            if isinstance(value, torch.Tensor) and value.numel():
                assert torch.allclose(found["state"][position][name], value, rtol=1e-9, atol=1e-12), (position, name)


@pytest.mark.parametrize("stage", [1, 2])
@pytest.mark.parametrize("name", ["SGD", "AdamW"])
@pytest.mark.parametrize("world_size", [1, 2, 3, 4, 5])
def test_parameters_and_state_equal_the_one_process_optimizer(world_size, name, stage):
    assert_equal_to_one_process(Plain, name, stage, world_size)


@pytest.mark.parametrize("stage", [1, 2])
@pytest.mark.parametrize("kind", [TiedAndFrozen, UsedInAnotherOrder])
def test_tied_frozen_and_shuffled_parameters_with_accumulation(kind, stage):
    assert_equal_to_one_process(kind, "RMSprop", stage, 3, accumulation=2)


def test_every_rank_holds_its_part_of_the_state_and_no_more():
    total = sum(p.numel() for p in build(Plain, 0).parameters())
    held = [held for _, _, held in picolib.run(partial(on_a_rank, Plain, "AdamW", 1, 1, bucket_cap_mb=25), 4)]
    assert sum(held) == 2 * total
    assert max(held) == 2 * -(-total // 4)


def test_with_more_ranks_than_numbers_some_hold_nothing():
    assert_equal_to_one_process(UsedInAnotherOrder, "AdamW", 1, 5)


def with_groups_and_a_schedule(distributed: bool):
    model = build(Plain, 100)
    first, *rest = model.parameters()
    groups = [{"params": [first], "lr": 0.2, "weight_decay": 0.0}, {"params": rest}]
    rank, size = (dist.get_rank(), dist.get_world_size()) if distributed else (0, 1)
    if distributed:
        optimizer = picolib.ZeroRedundancyOptimizer(
            groups, torch.optim.AdamW, gradient_divide_factor=1, lr=0.1, weight_decay=0.3
        )
    else:
        optimizer = torch.optim.AdamW(groups, lr=0.1, weight_decay=0.3)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=1, gamma=0.5)
    for step in range(3):
        optimizer.zero_grad()
        x, y = (t.tensor_split(size)[rank] for t in data(BATCH, seed=step))
        ((model(x) - y).square().sum() / BATCH).backward()
        optimizer.step()
        scheduler.step()
    return [p.detach() for p in model.parameters()], optimizer.param_groups[1]["lr"]


def test_parameter_groups_and_schedulers():
    right, rate = with_groups_and_a_schedule(False)
    for found, found_rate in picolib.run(with_groups_and_a_schedule, 3, True):
        assert found_rate == rate
        for one, two in zip(found, right, strict=True):
            assert torch.allclose(one, two, rtol=1e-10, atol=1e-12)


def clipped(stage: int, max_norm: float):
    model = build(Plain, 100)
    optimizer = picolib.ZeroRedundancyOptimizer(
        model.parameters(), torch.optim.SGD, stage=stage, gradient_divide_factor=1, lr=1.0, bucket_cap_mb=SMALL
    )
    x, y = (t.tensor_split(dist.get_world_size())[dist.get_rank()] for t in data(BATCH))
    (model(x) - y).square().sum().backward()
    norm = optimizer.clip_grad_norm_(max_norm)
    optimizer.step()
    return norm, [p.detach() for p in model.parameters()]


@pytest.mark.parametrize("max_norm", [0.5, 1e6])
@pytest.mark.parametrize("stage", [1, 2])
def test_clipping_by_the_norm_of_all_parts(stage, max_norm):
    model, (x, y) = build(Plain, 100), data(BATCH)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    (model(x) - y).square().sum().backward()
    right = nn.utils.clip_grad_norm_(model.parameters(), max_norm)
    optimizer.step()
    for norm, parameters in picolib.run(clipped, 3, stage, max_norm):
        assert torch.allclose(norm, right, rtol=1e-12)
        for one, two in zip(parameters, model.parameters(), strict=True):
            assert torch.allclose(one, two, rtol=1e-10, atol=1e-12)


def beside_pytorch(stage, name):
    """PyTorch's ZeroRedundancyOptimizer under its DDP, and ours on the plain module: the same parameters."""
    from torch.distributed.optim import ZeroRedundancyOptimizer

    rank = dist.get_rank()
    theirs, ours = nn.parallel.DistributedDataParallel(build(Plain, 1)), build(Plain, 1)
    optimizer_class, settings = OPTIMIZERS[name]
    two = ZeroRedundancyOptimizer(theirs.parameters(), optimizer_class, **settings)
    one = picolib.ZeroRedundancyOptimizer(ours.parameters(), optimizer_class, stage=stage, **settings)
    for step in range(STEPS):
        x, y = (t.tensor_split(3)[rank] for t in data(12, seed=step))
        for model, optimizer in ((theirs, two), (ours, one)):
            optimizer.zero_grad()
            (model(x) - y).square().mean().backward()
            optimizer.step()
    pairs = zip(ours.parameters(), theirs.parameters(), strict=True)
    return max(float((a - b).abs().max()) for a, b in pairs if a.numel())


@pytest.mark.parametrize(("stage", "name"), [(1, "SGD"), (1, "AdamW"), (2, "AdamW")])
def test_the_same_as_pytorchs(stage, name):
    assert max(picolib.run(beside_pytorch, 3, stage, name)) < 1e-14


def in_float32(stage: int | None):
    """One process goes through the ranks' batches one after the other."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3))
    if stage is None:
        ranks, optimizer = [0, 1], torch.optim.SGD(model.parameters(), lr=0.1)
    else:
        zero = partial(picolib.ZeroRedundancyOptimizer, stage=stage, bucket_cap_mb=SMALL)
        ranks, optimizer = [dist.get_rank()], zero(model.parameters(), torch.optim.SGD, lr=0.1)
    x = torch.randn(8, 6, generator=torch.Generator().manual_seed(1))
    for _ in range(5):
        optimizer.zero_grad()
        for rank in ranks:
            (model(x.tensor_split(2)[rank]).square().mean() / len(ranks)).backward()
        optimizer.step()
    return [p.detach() for p in model.parameters()]


@pytest.mark.parametrize("stage", [1, 2])
def test_on_two_ranks_in_float32_every_bit_is_that_of_accumulating_the_ranks_batches(stage):
    alone = picolib.run(in_float32, 1, None)[0]
    for found in picolib.run(in_float32, 2, stage):
        assert all(torch.equal(one, two) for one, two in zip(found, alone, strict=True))


def construct(optimizer_class, wrapped: bool = False, **options):
    model = build(Plain, 0)
    if wrapped:
        model = picolib.DistributedDataParallel(model)
    picolib.ZeroRedundancyOptimizer(model.parameters(), optimizer_class, **options)


@pytest.mark.parametrize(
    ("fn", "words"),
    [
        (partial(construct, torch.optim.LBFGS), "LBFGS is not"),
        (partial(construct, torch.optim.Adafactor), "Adafactor is not"),
        (partial(construct, torch.optim.SparseAdam), "SparseAdam is not"),
        (partial(construct, torch.optim.SGD, stage=3), "stage must be 1 or 2 (3 is picolib.fully_shard), got 3"),
        (partial(construct, torch.optim.SGD, wrapped=True), "DistributedDataParallel reduces its gradients already"),
        (partial(construct, torch.optim.SGD, learning_rate=1), "defaults do not fit SGD"),
        (partial(construct, torch.optim.SGD, algorithm="rign"), "algorithm must be one of auto, naive, ring"),
    ],
)
def test_wrong_arguments_are_one_sentence(fn, words):
    with pytest.raises(picolib.RankError, match="ValueError") as error:
        picolib.run(fn, 2)
    assert words in str(error.value)


class Lion(torch.optim.Optimizer):
    """Chen et al. 2023: element-wise, so it may be shared out though nobody here has heard of it."""

    def __init__(self, params, lr=0.1):
        super().__init__(params, {"lr": lr})

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for p in (p for p in group["params"] if p.grad is not None):
                momentum = self.state[p].setdefault("momentum", torch.zeros_like(p))
                p -= group["lr"] * (0.9 * momentum + 0.1 * p.grad).sign()
                momentum.mul_(0.99).add_(p.grad, alpha=0.01)


def test_an_optimizer_of_ones_own_works_when_it_is_element_wise(monkeypatch):
    monkeypatch.setitem(OPTIMIZERS, "Lion", (Lion, {"lr": 0.01}))
    right, _ = alone(Plain, "Lion", 1)

    def fn():
        OPTIMIZERS["Lion"] = (Lion, {"lr": 0.01})
        return on_a_rank(Plain, "Lion", 1, 1)[0]

    for history in picolib.run(fn, 3):
        assert all(torch.allclose(history[-1][key], right[-1][key], rtol=1e-10, atol=1e-12) for key in right[-1])


def by_hand():
    parameters, rank = torch.arange(8.0, dtype=torch.float64), dist.get_rank()
    zero_1_step(parameters, torch.full((8,), float(rank)).double(), lambda p, g: p.sub_(g))
    return parameters


def test_zero_1_by_hand():
    for found in picolib.run(by_hand, 4):
        assert torch.equal(found, torch.arange(8.0, dtype=torch.float64) - 1.5)
