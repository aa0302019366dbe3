"""Parameters that got no gradient in a step, on some ranks or on all: every strategy does what one process does."""

from __future__ import annotations

from functools import partial

import pytest
import torch
import torch.distributed as dist
from torch import nn

import picolib
from picolib.parallel.full_state import full_state_dict
from picolib.parallel.missing import nobody_had, write_gradient
from tests.parallel.steps import SMALL, sharded
from tests.parallel.zoo import Branches, build, data

STEPS, BATCH = 4, 12


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.complex64])
def test_a_sum_of_no_gradients_is_told_from_one_of_zeros(dtype):
    zero, opposite = torch.tensor([-0.0, 3.0], dtype=dtype), torch.tensor([0.0, -3.0], dtype=dtype)

    def total(*gradients):
        added = torch.full((len(gradients), 2), -0.0, dtype=dtype)
        for gradient, row in zip(gradients, added, strict=True):
            write_gradient(gradient, row)
        return added[0] + added[1] + added[2]

    assert nobody_had(total(None, None, None))
    assert not nobody_had(total(None, zero, None)) and not nobody_had(total(zero, None, zero))
    assert torch.equal(total(None, zero, opposite), torch.zeros(2, dtype=dtype))
    assert not nobody_had(total(None, zero, opposite)) and not nobody_had(total(None, zero, opposite)[1:])
    assert torch.equal(total(None, opposite, None), opposite)


def test_gradients_may_have_another_dtype_than_what_travels():
    for dtype in (torch.bfloat16, torch.float64):
        out = torch.empty(3)
        write_gradient(torch.tensor([1.5, -0.0, -2.0], dtype=dtype), out)
        assert out.tolist() == [1.5, 0.0, -2.0] and not torch.signbit(out[1])


# Which branch a rank takes in a step.
USES = {
    "nobody takes the right one": lambda step, rank: "left",
    "one rank takes the left one": lambda step, rank: "left" if rank == 0 else "right",
    "all take turns": lambda step, rank: ["left", "right"][step % 2],
    "each rank takes turns": lambda step, rank: ["left", "right", "left"][(step + rank) % 3],
}


def loss(model, which: str, step: int, rank: int, size: int) -> torch.Tensor:
    x, y = (t.tensor_split(size)[rank] for t in data(BATCH, step))
    return (model(x, which) - y).square().sum() / BATCH


def alone(use: str, size: int) -> dict[str, torch.Tensor]:
    """AdamW with a large decay: a parameter that nobody used must not shrink."""
    model = build(Branches, 0)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1, weight_decay=1.0)
    for step in range(STEPS):
        optimizer.zero_grad()
        sum(loss(model, USES[use](step, rank), step, rank, size) for rank in range(size)).backward()
        optimizer.step()
    return {name: p.detach() for name, p in model.named_parameters()}


def zero(stage: int, model: nn.Module, **options):
    settings = {"stage": stage, "gradient_divide_factor": 1, "bucket_cap_mb": SMALL, **options}
    return model, picolib.ZeroRedundancyOptimizer(
        model.parameters(), torch.optim.AdamW, lr=0.1, weight_decay=1.0, **settings
    )


def fsdp(by_layer: bool, model: nn.Module, **options):
    model = (sharded if by_layer else picolib.fully_shard)(model, **options)
    model.set_gradient_divide_factor(1)
    return model, torch.optim.AdamW(model.parameters(), lr=0.1, weight_decay=1.0)


STRATEGIES = {
    "ZeRO-1": partial(zero, 1), "ZeRO-2": partial(zero, 2), "one unit": partial(fsdp, False),
    "a unit each": partial(fsdp, True),
}  # fmt: skip


def trained(strategy: str, use: str, **options) -> dict[str, torch.Tensor]:
    rank, size = dist.get_rank(), dist.get_world_size()
    model, optimizer = STRATEGIES[strategy](build(Branches, 0), **options)
    for step in range(STEPS):
        optimizer.zero_grad()
        loss(model, USES[use](step, rank), step, rank, size).backward()
        optimizer.step()
    return full_state_dict(model)


def assert_as_alone(strategy: str, use: str, size: int, **options) -> None:
    right = alone(use, size)
    for found in picolib.run(partial(trained, strategy, use, **options), size):
        for name, wanted in right.items():
            assert torch.allclose(found[name], wanted, rtol=1e-10, atol=1e-12), name


SAME_ON_ALL = ["nobody takes the right one", "all take turns"]


@pytest.mark.parametrize(
    ("strategy", "use"),
    [(strategy, use) for strategy in list(STRATEGIES)[:3] for use in USES]
    + [("a unit each", use) for use in SAME_ON_ALL],
)
def test_parameters_are_those_of_one_process(strategy, use):
    assert_as_alone(strategy, use, 3)


@pytest.mark.parametrize("algorithm", ["naive", "ring", "native"])
def test_whatever_the_algorithm(algorithm):
    assert_as_alone("ZeRO-1", "each rank takes turns", 3, algorithm=algorithm)
    assert_as_alone("one unit", "each rank takes turns", 3, algorithm=algorithm)


class Skips(nn.Module):
    """Three layers, one of which a rank may leave out."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.third = (nn.Linear(5, 5) for _ in range(3))

    def forward(self, x, skip: str = ""):
        for name in ("first", "second", "third"):
            x = x if name == skip else torch.tanh(getattr(self, name)(x))
        return x


def skipping(skip: str, steps: int, trains: bool) -> torch.Tensor:
    """In the last step rank 1 leaves a layer out."""
    model = sharded(build(Skips, 0))
    for step in range(steps):
        with torch.set_grad_enabled(trains):
            out = model(data(4)[0], skip if step == steps - 1 and dist.get_rank() == 1 else "")
        if trains:
            out.sum().backward()
    return out.detach()


@pytest.mark.parametrize("skip", ["first", "second", "third"])
@pytest.mark.parametrize(("steps", "trains"), [(1, True), (2, True), (1, False)], ids=str)
def test_a_unit_that_one_rank_leaves_out_is_named_at_once(skip, steps, trains):
    with pytest.raises((picolib.MismatchError, picolib.DeadlockError)) as error:
        picolib.run(skipping, 2, skip, steps, trains)
    assert f"{skip} unshard" in str(error.value)


@pytest.mark.parametrize("skip", ["first", "second", "third"])
def test_a_unit_that_was_fetched_in_advance_may_be_left_out(skip):
    """Without gradients, after a step that used it: its all-gather was under way, and nobody waits for more."""
    model, x = build(Skips, 0), data(4)[0]
    for found, right in zip(picolib.run(skipping, 2, skip, 2, False), (model(x), model(x, skip)), strict=True):
        assert torch.allclose(found, right, rtol=1e-12)


def without_a_backward_pass(stage):
    """Rank 1 has no batch left in the second step."""
    model, optimizer = zero(stage, build(Branches, 0))
    for step in range(2):
        optimizer.zero_grad()
        if step == 0 or dist.get_rank() == 0:
            loss(model, "left", step, dist.get_rank(), 2).backward()
        norm = optimizer.clip_grad_norm_(1e9)
        optimizer.step()
    return norm, [p.detach() for p in model.parameters()]


@pytest.mark.parametrize("stage", [1, 2])
def test_a_rank_may_have_no_gradient_at_all(stage):
    model = build(Branches, 0)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1, weight_decay=1.0)
    for step in range(2):
        optimizer.zero_grad()
        sum(loss(model, "left", step, rank, 2) for rank in ([0, 1], [0])[step]).backward()
        right = nn.utils.clip_grad_norm_(model.parameters(), 1e9)
        optimizer.step()
    for norm, found in picolib.run(without_a_backward_pass, 2, stage):
        assert torch.allclose(norm, right, rtol=1e-12)
        assert all(torch.allclose(a, b, rtol=1e-10) for a, b in zip(found, model.parameters(), strict=True))


def saved_when_one_branch_was_never_used(stage: int):
    model, optimizer = zero(stage, build(Branches, 0))
    loss(model, "left", 0, dist.get_rank(), 2).backward()
    optimizer.step()
    return optimizer.state_dict()


@pytest.mark.parametrize("stage", [1, 2])
def test_what_was_never_stepped_has_no_state_in_a_full_state(stage):
    model = build(Branches, 0)
    used = {i for i, (name, _) in enumerate(model.named_parameters()) if name.split(".")[0] not in ("right", "never")}
    for state in picolib.run(saved_when_one_branch_was_never_used, 2, stage):
        assert set(state["state"]) == used
        torch.optim.AdamW(model.parameters()).load_state_dict(state)
