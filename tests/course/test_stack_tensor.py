"""Tensor parallelism in a run with `use="mine"`: your f, g, heads and loss do the work, the numbers stay right."""

import sys

import cloudpickle
import pytest
import torch
import torch.distributed as dist

import picolib
from picolib.model import LlamaForCausalLM, TextBatches, encode, init_weights, load_text
from picolib.parallel import tensor
from picolib.train.__main__ import LLAMA
from tests.course.stacks import save

cloudpickle.register_pickle_by_value(sys.modules[__name__])
OWN = ("f_and_g", "my_heads", "vocab_loss")


def train(group=None, **options):
    torch.set_num_threads(1)
    model = init_weights(LlamaForCausalLM(LLAMA), seed=0, std=0.1).double()
    tensor.parallelize(model, group, **options)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    batches, losses = TextBatches(encode(load_text()), batch_size=4, sequence_length=16), []
    for step in range(4):
        inputs, targets = batches(step, 0, 1)  # the same on all ranks
        optimizer.zero_grad()
        loss = picolib.vocab_parallel_cross_entropy(model(inputs), targets, group=group)
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    return {**picolib.full_state_dict(model), "losses": torch.stack(losses)}


def equal(right, mine):
    for one, other in zip(right, mine, strict=True):
        assert one.keys() == other.keys()
        for name in one:
            torch.testing.assert_close(other[name], one[name], rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("ranks", [2, 4])  # of the two key-value heads each has one, or two share one
@pytest.mark.parametrize(
    "names", [("f_and_g",), ("my_heads",), ("vocab_loss",), (*OWN, "ring_all_reduce", "recursive_doubling")]
)
def test_a_llama_that_is_cut_trains_on_your_parts_as_on_the_librarys(workspace, names, ranks):
    save(workspace, *names)
    mine = picolib.run(train, ranks, use="mine")
    equal(picolib.run(train, ranks), mine)
    yours, _, missing = mine.stdout[0].partition("Not yours yet")
    loss_is_mine = "vocab_loss" in names
    for name, said in {
        # a layer has two of each; the embedding a g, the output layer an f; your loss a g
        "f_and_g": f"f_and_g (5.1) {4 * (4 * 2 + 2 + loss_is_mine)} times",
        "my_heads": "my_heads (5.3) twice",
        "vocab_loss": "vocab_loss (5.4) 4 times",
    }.items():
        assert (said in yours) == (name in names) and (f"{name} (" in missing) == (name not in names)


def with_sequences():
    return train(sequence_parallel=True)


def losses_of_other_kinds():
    n, rank = dist.get_world_size(), dist.get_rank()
    logits = torch.linspace(-3, 3, 5 * 8, dtype=torch.double).view(5, 8).sin()
    targets = torch.tensor([0, 7, -100, 3, 1])
    found = {}
    kinds = {"sum": {"reduction": "sum"}, "none": {"reduction": "none"}, "smooth": {"label_smoothing": 0.1}}
    for kind, options in {**kinds, "ignored": {}}.items():
        part = logits.chunk(n, dim=1)[rank].clone().requires_grad_()
        rows = slice(None) if kind == "ignored" else [0, 1, 3, 4]
        loss = picolib.vocab_parallel_cross_entropy(part[rows], targets[rows], **options)
        loss.sum().backward()
        found |= {kind: loss.detach(), f"gradient, {kind}": part.grad}
    return found


def in_a_pair():
    pair = dist.new_group([1, 2])
    if dist.get_rank() in (1, 2):
        return train(group=pair)
    return {"losses": torch.zeros(1)}


@pytest.mark.parametrize("program, ranks", [(with_sequences, 2), (losses_of_other_kinds, 2), (in_a_pair, 3)])
def test_what_the_exercises_do_not_cover_is_the_librarys(workspace, program, ranks):
    save(workspace, *OWN)
    equal(picolib.run(program, ranks), picolib.run(program, ranks, use="mine"))


FAULTS = {
    "f_and_g": [
        ("return None", r"f_and_g \(5\.1\) did not return two functions\. check\(f_and_g\) writes"),
        ("return (lambda x: x.sum(), lambda x: x)", r"gave f\(x\) another shape than x has"),
    ],
    "my_heads": [
        ("return qkv, o", r"my_heads \(5\.3\) gave 192 rows of qkv, where 96 are right"),
        ("return qkv[:96], o", r"gave a part of o_proj of shape \[96, 96\], where \[96, 48\] is right"),
    ],
    "vocab_loss": [("return logits", r"vocab_loss \(5\.4\) did not return one number, the mean")],
}
ARGUMENTS = {"f_and_g": "", "my_heads": "qkv, o, heads, kv_heads, rank, ranks", "vocab_loss": "logits, targets, g"}


@pytest.mark.parametrize("name, body, said", [(name, *fault) for name, faults in FAULTS.items() for fault in faults])
def test_a_part_that_was_spoilt_by_hand_is_told_so(workspace, name, body, said):
    save(workspace, name)
    (workspace / "mine" / f"{name}.py").write_text(f"def {name}({ARGUMENTS[name]}):\n    {body}\n")
    with pytest.raises(picolib.RankError, match=said):
        picolib.run(train, 2, use="mine")
