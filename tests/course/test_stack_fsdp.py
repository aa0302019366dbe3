"""`fully_shard` and `clip_grad_norm_` in a run with `use="mine"`: 4.2 to 4.5 do the work, the numbers stay right."""

import contextlib
import sys

import cloudpickle
import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.utils.checkpoint import checkpoint

import picolib
from picolib.course import mine as mine_folder
from picolib.course.catalogue import by_id
from picolib.course.figures.training_step import steps_of
from picolib.course.stack import PARTS
from picolib.model import LlamaForCausalLM, TextBatches, encode, init_weights, load_text, sum_of_token_losses
from picolib.train.__main__ import LLAMA
from tests.course.stacks import HEAD, save

cloudpickle.register_pickle_by_value(sys.modules[__name__])
OWN = ("forward", "sharded_linear", "prefetched")


class Block(nn.Module):
    """Norm, bias, and widths that no number of ranks divides."""

    def __init__(self):
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(5), nn.Linear(5, 7), nn.Linear(7, 5, bias=False)

    def forward(self, x):
        return x + self.down(torch.tanh(self.up(self.norm(x))))


class Net(nn.Module):
    """An embedding that the output layer shares, a frozen layer, and a block of linear layers and nothing else."""

    def __init__(self, recomputes=False):
        super().__init__()
        self.recomputes = recomputes
        self.embed, self.head = nn.Embedding(9, 5), nn.Linear(5, 9, bias=False)
        self.head.weight = self.embed.weight
        self.layers = nn.ModuleList([Block(), Block(), nn.Sequential(nn.Linear(5, 4, bias=False), nn.Linear(4, 5))])
        self.layers[1].up.requires_grad_(False)

    def forward(self, tokens):
        x = self.embed(tokens)
        for layer in self.layers:
            x = checkpoint(layer, x, use_reentrant=False) if self.recomputes else layer(x)
        return self.head(x)


def steps(factor=None, accumulate=1, max_norm=None, recomputes=False, **options):
    torch.manual_seed(dist.get_rank())
    net = Net(recomputes).double()
    for layer in net.layers:
        picolib.fully_shard(layer, **options)
    picolib.fully_shard(net, **options)
    if factor:
        net.set_gradient_divide_factor(factor)
    optimizer, norms = torch.optim.SGD(net.parameters(), lr=0.1), []
    for step in range(3):
        optimizer.zero_grad()
        for part in range(accumulate):
            tokens = (torch.arange(8).view(2, 4) * (dist.get_rank() + 2) + step + part) % 9
            with net.no_sync() if part < accumulate - 1 else contextlib.nullcontext():
                net(tokens).square().mean().backward()
        if max_norm:
            norms.append(picolib.clip_grad_norm_(net, max_norm).item())
        optimizer.step()
        with torch.no_grad():
            norms.append(net(tokens).sum().item())
    return {**picolib.full_state_dict(net), "norms": torch.tensor(norms, dtype=torch.float64)}


def equal(right, mine, tolerance=1e-12):
    for one, other in zip(right, mine, strict=True):
        assert one.keys() == other.keys()
        for name in one:
            torch.testing.assert_close(other[name], one[name], rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize(
    "names", [("forward",), ("sharded_linear",), ("prefetched",), OWN, (*OWN, "ring_reduce_scatter"), tuple(PARTS)]
)
@pytest.mark.parametrize("ranks, factor, accumulate", [(4, None, 1), (3, 1, 3)])
def test_a_sharded_model_trains_on_your_parts_as_on_the_librarys(workspace, names, ranks, factor, accumulate):
    save(workspace, *names)
    right = picolib.run(steps, ranks, factor, accumulate)
    mine = picolib.run(steps, ranks, factor, accumulate, use="mine")
    equal(right, mine)
    said = mine.stdout[0]
    for name, exercise in (("forward", "4.3"), ("sharded_linear", "4.4"), ("prefetched", "4.5")):
        assert (f"{name} ({exercise}) " in said.partition("Not yours yet")[0]) == (name in names)
        assert (f"{name} ({exercise})" in said.partition("Not yours yet")[2]) == (name not in names)


def recomputing(**options):
    return steps(recomputes=True, **options)


def kept():
    return steps(reshard_after_forward=False)


@pytest.mark.parametrize("program", [recomputing, kept])
def test_with_checkpoints_and_with_kept_layers(workspace, program):
    save(workspace, *OWN)
    equal(picolib.run(program, 3), picolib.run(program, 3, use="mine"))


def clipping():
    return steps(max_norm=0.1)


def test_your_clip_counts_every_element_of_every_shard_once(workspace):
    save(workspace, "clip")
    mine = picolib.run(clipping, 3, use="mine")
    equal(picolib.run(clipping, 3), mine, tolerance=1e-5)  # the library divides by norm + 1e-6, as torch does
    assert "clip (4.2) 3 times" in mine.stdout[0]


def llama_losses(max_norm=None):
    torch.set_num_threads(1)
    rank, n, seen = dist.get_rank(), dist.get_world_size(), []
    model = init_weights(LlamaForCausalLM(LLAMA), seed=0, std=0.1).double()
    for layer in model.model.layers:
        picolib.fully_shard(layer)
    picolib.fully_shard(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-3)
    batches = TextBatches(encode(load_text()), batch_size=8, sequence_length=16)
    for step in range(6):
        inputs, targets = batches(step, rank, n)
        loss = sum_of_token_losses(model(inputs), targets) / targets.numel()
        optimizer.zero_grad()
        loss.backward()
        if max_norm:
            picolib.clip_grad_norm_(model, max_norm)
        optimizer.step()
        seen.append(loss.detach())
    return torch.stack(seen)


def test_the_llama_has_the_librarys_losses_on_your_fsdp(workspace):
    save(workspace, *(name for name in PARTS if PARTS[name][0] in "24"))
    right, mine = picolib.run(llama_losses, 4), picolib.run(llama_losses, 4, use="mine")
    for one, other in zip(right, mine, strict=True):
        torch.testing.assert_close(other, one, rtol=1e-9, atol=0)
    # 15 linear layers, 6 steps; three units, of which only the first forward pass knows no order
    assert "forward (4.3) 3 times, sharded_linear (4.4) 90 times, prefetched (4.5) 11 times" in mine.stdout[0]
    right, mine = picolib.run(llama_losses, 4, 0.5), picolib.run(llama_losses, 4, 0.5, use="mine")
    torch.testing.assert_close(mine[0], right[0], rtol=1e-5, atol=0)


def in_two_groups():
    mesh = dist.init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicate", "shard"))
    hybrid = steps(mesh=mesh)
    policy = dist.fsdp.MixedPrecisionPolicy(param_dtype=torch.float32)
    return {**hybrid, **{f"{name}, mixed": value for name, value in steps(mp_policy=policy).items()}}


def test_what_the_exercises_do_not_cover_is_the_librarys(workspace):
    save(workspace, *OWN)
    mine = picolib.run(in_two_groups, 4, use="mine")
    equal(picolib.run(in_two_groups, 4), mine)
    assert "Yours in this run: nothing." in mine.stdout[0]


class Slow(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(1000))

    def forward(self, x):
        picolib.pretend(0.04)
        return x * self.weight.sum()


def two_slow_steps():
    model = nn.Sequential(*(Slow() for _ in range(4)))
    for layer in model:
        picolib.fully_shard(layer)
    picolib.fully_shard(model)
    for _ in range(2):
        picolib.comm.barrier()
        with picolib.mark("step"):
            model(torch.ones(1, requires_grad=True)).sum().backward()


def test_your_prefetch_hides_gathers_behind_modules(workspace):
    links = picolib.Links(nodes=1, per_node=4, intra=(0.02, 1e9))
    waits = {}
    for name in ("forward", "prefetched"):
        save(workspace, name)
        (workspace / "mine" / "forward.py").write_text(HEAD + GATHERS_BY_COMM)
        trace = picolib.run(two_slow_steps, 4, links=links, trace=True, use="mine").trace
        forward_ends = 0.02 + 4 * 0.04 if name == "prefetched" else 4 * (0.04 + 0.04)
        waits[name] = sum(start < forward_ends - 0.001 for start, _ in steps_of(trace)[1].exposed)
    assert waits == {"forward": 4, "prefetched": 1}  # of four layers' gathers all but the first


GATHERS_BY_COMM = """
def forward(shards, layers, x):
    for shard, layer in zip(shards, layers):
        whole = shard.new_empty(dist.get_world_size() * len(shard))
        comm.all_gather_into_tensor(whole, shard)
        x = layer(whole, x)
        del whole
    return x
"""


def fails_once():
    net = Net().double()
    for layer in net.layers:
        picolib.fully_shard(layer)
    picolib.fully_shard(net)
    tokens = torch.arange(8).view(2, 4)
    net(tokens).sum().backward()
    failing = net.layers[1].register_forward_pre_hook(lambda *_: 1 / 0)
    with contextlib.suppress(ZeroDivisionError):
        net(tokens)
    failing.remove()
    net.zero_grad()
    net.layers[2](torch.ones(2, 5, dtype=torch.double))  # a part of it, alone
    net(tokens).sum().backward()
    return {name: p.grad for name, p in net.named_parameters() if p.grad is not None}


def test_a_pass_that_breaks_off_and_a_part_that_runs_alone_disturb_nothing(workspace):
    save(workspace, *OWN)
    equal(picolib.run(fails_once, 2), picolib.run(fails_once, 2, use="mine"))


FAULTS = {
    "forward": [
        ("return x", r"forward \(4\.3\) returned without calling its layer"),
        ("layers[0](shards[0], x)", r"gave a layer \d+ numbers as its whole weight, where \d+"),
        ("layers[0](torch.cat([shards[0] * 0] * 2), x)", r"part 0 is not the one of rank 0"),
    ],
    "sharded_linear": [
        ("return None", r"sharded_linear \(4\.4\) returned NoneType, where a tensor of shape \[8, 8\]"),
        ("return x", r"returned \[8, 5\], where a tensor of shape \[8, 8\] is right\. check\(sharded_linear\) writes"),
    ],
    "prefetched": [
        ("return", r"prefetched \(4\.5\) called compute 0 times for \d layers"),
        ("compute(order[-1], shards[0])", r"called compute\(\d, weight\) when layer 0 was to come"),
        ("compute(0, shards[0])", r"gave a layer \d+ numbers as its whole weight"),
        ("raise KeyError('mine')", r"(?s)KeyError.*prefetched\.py"),
    ],
    "clip": [("return None", r"clip \(4\.2\) did not return the norm")],
}
ARGUMENTS = {"forward": "shards, layers, x", "sharded_linear": "shard, x", "prefetched": "shards, order, compute",
             "clip": "shards, replicated, max_norm, group"}  # fmt: skip


@pytest.mark.parametrize("name, body, said", [(name, *fault) for name, faults in FAULTS.items() for fault in faults])
def test_a_part_that_was_spoilt_by_hand_is_told_so(workspace, name, body, said):
    save(workspace, name)
    (workspace / "mine" / f"{name}.py").write_text(f"import torch\n\ndef {name}({ARGUMENTS[name]}):\n    {body}\n")
    with pytest.raises(picolib.RankError, match=said):
        picolib.run(clipping, 2, use="mine")


def test_a_prefetch_that_waits_for_ever_is_a_deadlock_that_is_explained(workspace):
    save(workspace, "prefetched")
    body = "def prefetched(shards, order, compute):\n    dist.recv(shards[0], src=1 - dist.get_rank())\n"
    (workspace / "mine" / "prefetched.py").write_text(HEAD + body)
    with pytest.raises(picolib.DeadlockError, match=r"(?s)rank 0 waits.*recv.*prefetched\.py"):
        picolib.run(clipping, 2, use="mine")


def test_a_part_that_was_changed_after_it_had_passed_is_named(workspace):
    def wrap(module, group):
        for parameter in module.parameters():
            dist.broadcast(parameter.data, 0, group=group)

    path = mine_folder.save(by_id("3.1"), wrap)
    untouched = picolib.run(steps, 2, use="mine").stdout[0]
    path.write_text(path.read_text() + "\n# changed\n")
    changed = picolib.run(steps, 2, use="mine").stdout[0]
    assert "was changed" not in untouched
    assert "mine/wrap.py was changed after it had passed: check(wrap)" in changed
