"""`run(..., use="mine")`: what has been built and saved stands in the library's place, and the numbers stay right."""

import sys

import cloudpickle
import pytest
import torch
import torch.distributed as dist
from torch import nn

import picolib
from picolib.course.stack import PARTS
from tests.course.stacks import save

cloudpickle.register_pickle_by_value(sys.modules[__name__])


class Net(nn.Module):
    """A frozen parameter, a tied one, a buffer that changes, and sizes that no number of ranks divides."""

    def __init__(self):
        super().__init__()
        self.first, self.second, self.tied = nn.Linear(5, 7), nn.Linear(7, 7, bias=False), nn.Linear(7, 7, bias=False)
        self.tied.weight = self.second.weight
        self.frozen = nn.Parameter(torch.ones(3), requires_grad=False)
        self.register_buffer("seen", torch.zeros(2))

    def forward(self, x):
        return self.tied(torch.tanh(self.second(self.first(x)))) * self.frozen.sum()


def steps(factor=None, accumulate=1):
    torch.manual_seed(dist.get_rank())  # replicas must be made alike
    net = Net().double()
    net.seen += dist.get_rank()
    model = picolib.DistributedDataParallel(net, bucket_cap_mb=1e-4, gradient_divide_factor=factor)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for step in range(3):
        for part in range(accumulate):
            x = torch.linspace(-1, 1 + dist.get_rank() + step + part, 10, dtype=torch.double).view(2, 5)
            model(x).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    return {name: value.clone() for name, value in net.state_dict().items()}, type(model).__name__


@pytest.mark.parametrize(
    "names",
    [
        ("ring_all_reduce",),
        ("recursive_doubling",),
        ("wrap",),
        ("average_in_buckets",),
        ("overlap", "ring_all_reduce"),
        tuple(PARTS),
    ],
)
@pytest.mark.parametrize("ranks, factor, accumulate", [(4, None, 1), (3, 1, 3)])
def test_a_model_trains_on_your_parts_as_on_the_librarys(workspace, names, ranks, factor, accumulate):
    save(workspace, *names)
    right = picolib.run(steps, ranks, factor, accumulate)
    mine = picolib.run(steps, ranks, factor, accumulate, use="mine")
    for (one, _), (other, kind) in zip(right, mine, strict=True):
        assert all(torch.allclose(one[name], other[name], rtol=1e-12, atol=1e-12) for name in one)
        collectives_alone = set(names) <= {"ring_all_reduce", "recursive_doubling"}
        assert kind == ("DistributedDataParallel" if collectives_alone else "MyDataParallel")
    assert "Yours in this run" in mine.stdout[0] and not any(mine.stdout[1:])


def zero_steps(optimizer_class, options):
    torch.manual_seed(dist.get_rank())
    net = nn.Sequential(nn.Linear(5, 7), nn.Tanh(), nn.Linear(7, 3)).double()
    optimizer = picolib.ZeroRedundancyOptimizer(net.parameters(), optimizer_class, **options)
    schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)
    for step in range(4):
        optimizer.zero_grad()
        net(torch.full((2, 5), 1.0 + dist.get_rank() + step, dtype=torch.double)).square().mean().backward()
        optimizer.step()
        schedule.step()
    return torch.cat([p.detach().flatten() for p in net.parameters()]), type(optimizer).__name__


@pytest.mark.parametrize(
    "optimizer_class, options",
    [(torch.optim.AdamW, {"lr": 0.01, "betas": (0.9, 0.95)}), (torch.optim.SGD, {"lr": 0.01, "momentum": 0.9})],
)
def test_your_zero_steps_as_the_librarys_with_any_element_wise_optimizer(workspace, optimizer_class, options):
    save(workspace, "zero1_step")
    right = picolib.run(zero_steps, 3, optimizer_class, options)
    mine = picolib.run(zero_steps, 3, optimizer_class, options, use="mine")
    for (one, _), (other, kind) in zip(right, mine, strict=True):
        assert torch.allclose(one, other, rtol=1e-12, atol=1e-12) and kind == "MyZeroOptimizer"
    assert "zero1_step (4.1) 4 times" in mine.stdout[0]
    stage_2 = picolib.run(zero_steps, 3, optimizer_class, {**options, "stage": 2}, use="mine")
    assert stage_2[0][1] == "ZeroRedundancyOptimizer"


def clipped_zero():
    optimizer = picolib.ZeroRedundancyOptimizer(nn.Linear(2, 2).parameters(), torch.optim.SGD, lr=0.1)
    optimizer.clip_grad_norm_(1.0)


def test_your_zero_step_says_that_nothing_can_be_clipped_before_it(workspace):
    save(workspace, "zero1_step")
    with pytest.raises(picolib.RankError, match="averages inside its step, so nothing can be clipped"):
        picolib.run(clipped_zero, 2, use="mine")


def reduced(values, op, async_op):
    tensor = torch.tensor([[v * 10 ** dist.get_rank() for v in values]])
    handle = dist.all_reduce(tensor, op, async_op=async_op)
    if async_op:
        handle.wait()
    return tensor.tolist()


def test_what_the_exercises_leave_open_is_done_for_them(workspace):
    save(workspace, "ring_all_reduce")
    run = lambda *arguments: picolib.run(reduced, 3, *arguments, use="mine")
    for values, op, async_op, right in [
        ([1, 2], dist.ReduceOp.SUM, False, [[111, 222]]),
        ([1.5], dist.ReduceOp.AVG, True, [[55.5]]),
        ([3, 1], dist.ReduceOp.MAX, False, [[300, 100]]),
        ([], dist.ReduceOp.SUM, False, [[]]),
    ]:
        found = run(values, op, async_op)
        assert list(found) == [right] * 3
        assert ("ring_all_reduce (2.4) once" in found.stdout[0]) == (op != dist.ReduceOp.MAX and bool(values))


def sent_around(numbers, src, values):
    tensor = torch.tensor(values) if dist.get_rank() == src else torch.zeros(len(values), dtype=numbers)
    tensor = tensor.to(numbers)
    dist.broadcast(tensor, src)
    total, pieces = tensor * 10 ** dist.get_rank(), torch.arange(dist.get_world_size() * 2) + dist.get_rank()
    picolib.comm.all_reduce(total)
    part, whole = torch.empty(2, dtype=pieces.dtype), torch.empty_like(pieces)
    dist.reduce_scatter_tensor(part, pieces)
    picolib.comm.all_gather_into_tensor(whole, part)
    return tensor.tolist(), total.tolist(), whole.tolist()


def test_a_copy_that_runs_inside_another_part_is_not_called_idle(workspace):
    save(workspace, "ring_reduce_scatter", "ring_all_reduce", "recursive_doubling")
    said = picolib.run(reduced, 3, [1.5], dist.ReduceOp.SUM, False, use="mine").stdout[0]
    assert "2.3 is inside 2.4." in said and "Not called: 2.6." in said


def test_it_is_told_that_wrap_copies_where_another_averages_and_what_has_no_place(workspace):
    save(workspace, "wrap", "overlap")
    both = picolib.run(steps, 2, use="mine").stdout[0]
    (workspace / "mine" / "overlap.py").unlink()
    alone = picolib.run(steps, 2, use="mine").stdout[0]
    assert "wrap finds every parameter frozen, so it only copies; overlap averages." in both
    assert "only copies" not in alone and "3.2 or 3.5, have no place in a run" in alone


@pytest.mark.parametrize("numbers, src", [(torch.float32, 0), (torch.int64, 0), (torch.float64, 1)])
def test_the_stretch_exercises_have_their_places_too(workspace, numbers, src):
    save(workspace, "pipelined_broadcast", "bruck_all_gather", "ring_reduce_scatter", "halving_doubling")
    for values in ([1.0, 2.0, 3.0], [4.0] * 16):
        found = picolib.run(sent_around, 3, numbers, src, values, use="mine")
        assert list(found) == [(values, [111 * v for v in values], [3, 6, 9, 12, 15, 18])] * 3
        used = found.stdout[0].partition("Not called")[0]
        assert ("pipelined_broadcast (2.10) once" in used) == (src == 0)
        assert "ring_reduce_scatter (2.3) once" in used and "bruck_all_gather (2.12) once" in used
    found = picolib.run(reduced, 4, [1], dist.ReduceOp.SUM, False, use="mine")
    assert list(found) == [[[1111]]] * 4 and "halving_doubling (2.11) once" in found.stdout[0]


def in_a_pair():
    pair = dist.new_group([1, 2])
    tensor = torch.tensor([10.0 ** dist.get_rank()])
    if dist.get_rank() > 0:
        dist.all_reduce(tensor, group=pair)
    return tensor.item()


def test_groups_that_are_not_the_world_are_the_librarys(workspace):
    save(workspace, "ring_all_reduce")
    found = picolib.run(in_a_pair, 3, use="mine")
    assert list(found) == [1.0, 110.0, 110.0]
    assert "nothing. Not called: 2.4. The rest" in found.stdout[0]


def test_without_anything_of_yours_it_says_so(workspace):
    assert "nothing here is yours yet" in picolib.run(in_a_pair, 3, use="mine").stdout[0]


def test_outside_a_workspace_everything_is_the_librarys(nowhere):
    assert "nothing here is yours yet" in picolib.run(in_a_pair, 3, use="mine").stdout[0]


def test_a_fault_in_a_saved_part_is_shown_with_its_line(workspace):
    save(workspace, "wrap")
    path = workspace / "mine" / "wrap.py"
    path.write_text("def wrap(module, group):\n    return undefined_name\n", encoding="utf-8")
    with pytest.raises(picolib.RankError, match=r"(?s)undefined_name.*wrap\.py"):
        picolib.run(steps, 2, use="mine")
    path.write_text("def wrap(module, group)\n", encoding="utf-8")
    with pytest.raises(picolib.RankError, match=r"mine/wrap\.py \(check\(wrap\) writes it anew\) is no Python"):
        picolib.run(steps, 2, use="mine")
    path.write_text("def wrapped(module, group): pass\n", encoding="utf-8")
    with pytest.raises(picolib.RankError, match=r"no longer defines wrap"):
        picolib.run(steps, 2, use="mine")


def test_an_overlap_that_gives_nothing_to_wait_with_is_told_so(workspace):
    save(workspace, "overlap")
    (workspace / "mine" / "overlap.py").write_text("def overlap(buckets):\n    pass\n", encoding="utf-8")
    with pytest.raises(picolib.RankError, match=r"overlap \(3\.4\) did not return a function"):
        picolib.run(steps, 2, use="mine")


def test_another_use_is_refused():
    with pytest.raises(ValueError, match=r"got 'theirs'"):
        picolib.run(steps, 2, use="theirs")
