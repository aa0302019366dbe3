"""What an exercise can see of a rank besides its messages: notes of its own, and which strategy communicated."""

import sys

import cloudpickle
import pytest
import torch
import torch.distributed as dist
from torch import nn

import picolib
from picolib.course import observe

cloudpickle.register_pickle_by_value(sys.modules[__name__])


def gradients_and_collectives():
    """The order in which gradients and all-reduces come, and who is named as the sender of the messages."""
    from picolib.course import observe

    ddp = picolib.DistributedDataParallel(nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4)), bucket_cap_mb=1e-6)
    notebook = observe.install()
    for name, parameter in ddp.module.named_parameters():
        parameter.register_post_accumulate_grad_hook(lambda _, name=name: observe.note(name))
    observe.note("to be dropped")
    observe.forget()
    ddp(torch.ones(1, 4)).sum().backward()
    entries = notebook.clear()
    order = [e[1] for e in entries if e[0] in ("note", "collective")]
    return order, sorted({str(e[5]) for e in entries if e[0] in ("send", "recv")})


def test_notes_stand_in_their_place_between_collectives_and_a_strategy_is_named_whatever_called_its_hook():
    order, owners = picolib.run(gradients_and_collectives, 2)[0]
    assert owners == ["parallel.ddp"]
    notes = [entry for entry in order if "." in entry]
    assert set(notes) == {"0.weight", "0.bias", "1.weight", "1.bias"}
    assert order.index("all_reduce") < order.index(notes[-1])


def uses_the_store():
    from picolib.course import observe

    notebook = observe.install()
    dist.new_group(list(range(dist.get_world_size())))
    before = list(notebook.entries)
    dist.distributed_c10d._get_default_store().set(f"from {dist.get_rank()}", "a number")
    return [e[:2] for e in before if e[0] == "store"], [e[:2] for e in notebook.clear() if e[0] == "store"]


def test_the_store_is_noted_where_the_learner_uses_it_and_not_where_torch_makes_a_group():
    assert list(picolib.run(uses_the_store, 2)) == [([], [["store", "set"]])] * 2


def reduces(how):
    from picolib import comm
    from picolib.course import observe

    notebook = observe.install()
    x = torch.arange(4.0) + dist.get_rank()
    notebook.tamper = "all-reduces"
    if how == "torch":
        dist.all_reduce(x)
    elif how == "picolib":
        comm.all_reduce(x)
    else:
        work = (dist if how == "torch, async" else comm).all_reduce(x, async_op=True)
        work.wait()
    (entry,) = [e for e in notebook.entries if e[0] == "collective"]
    return x.tolist(), entry[5], entry[6]


@pytest.mark.parametrize("how", ["torch", "picolib", "torch, async", "picolib, async"])
def test_results_of_all_reduces_are_changed_alike_on_all_ranks_and_what_was_given_is_noted(how):
    (zero, given_0, dtype), (one, given_1, _) = picolib.run(reduces, 2, how)
    assert zero == one == [1.0 * 2, 3.0 * 3, 5.0 * 4, 7.0 * 2]
    assert (given_0, given_1, dtype) == ([0.0, 1.0, 2.0, 3.0], [1.0, 2.0, 3.0, 4.0], "float32")


def reduces_for_ever():
    from picolib.course import notebook, observe

    observe.install()
    for _ in range(2):
        observe.note("a step")
        for _ in range(notebook.MANY_COLLECTIVES - 1):
            dist.all_reduce(torch.zeros(1))
    while True:
        dist.all_reduce(torch.zeros(1))


def test_a_loop_of_collectives_without_end_is_ended_and_counted_from_the_last_note_on():
    with pytest.raises(Exception, match="has made 1000 collectives in one call"):
        picolib.run(reduces_for_ever, 1)


def list_forms():
    from picolib.course import observe

    notebook = observe.install()
    parts = [torch.zeros(3), torch.zeros(3)]
    dist.reduce_scatter(parts[0], [torch.ones(3), torch.ones(3)])
    dist.all_gather(parts, torch.ones(3))
    return [(e[1], e[2]) for e in notebook.clear() if e[0] == "collective"]


def test_tensors_in_lists_of_lists_are_counted():
    assert picolib.run(list_forms, 2)[0] == [("reduce_scatter", 3), ("all_gather", 6)]


def scattered(how):
    from picolib import comm
    from picolib.course import observe

    observe.install().tamper = "all-reduces"
    output, given = torch.zeros(3), torch.ones(6)
    if how == "torch's":
        dist.reduce_scatter_tensor(output, given)
    elif how == "torch's, later":
        dist.reduce_scatter(output, list(given.chunk(2)), async_op=True).wait()
    else:
        comm.reduce_scatter_tensor(output, given, async_op=True).wait()
    return output.tolist(), given.tolist()


@pytest.mark.parametrize("how", ["torch's", "torch's, later", "picolib's"])
def test_what_torchs_reduce_scatter_leaves_is_changed_too_and_nothing_else(how):
    changed = [2.0 * factor for factor in ((1, 1, 1) if how == "picolib's" else (2, 3, 4))]
    assert list(picolib.run(scattered, 2, how)) == [(changed, [1.0] * 6)] * 2


def by_operators():
    from picolib.course import early, observe
    from picolib.course.exercises.lesson05a_common import Largest

    notebook, name = observe.install(), dist.group.WORLD.group_name
    functional = torch.ops._c10d_functional
    with early.Watch(notebook), Largest():
        functional.wait_tensor(functional.all_reduce(torch.ones(3), "sum", name))
        dist.all_reduce(torch.ones(6))
    functional.wait_tensor(functional.all_gather_into_tensor.default(torch.ones(2), dist.get_world_size(), name))
    torch.ops.c10d._allgather_base_(torch.empty(8), torch.ones(4), dist.group.WORLD.boxed(), False, -1)
    dist.all_reduce(torch.ones(5))
    return [e[1:4] for e in notebook.clear() if e[0] == "collective"]


def test_collectives_are_seen_where_they_are_called_as_operators_and_counted_once():
    seen = [["all_reduce", 3, None], ["all_reduce", 6, None]]
    seen += [["all_gather_into_tensor", 2, None], ["all_gather_into_tensor", 8, None]]
    assert picolib.run(by_operators, 2)[0] == [*seen, ["all_reduce", 5, None]]


def waits_for_an_asynchronous_one():
    from picolib import comm
    from picolib.course import observe

    notebook = observe.install()
    comm.all_reduce(torch.ones(4), async_op=True, algorithm="ring").wait()
    return {e[5] for e in notebook.clear() if e[0] in ("send", "recv")}


def test_messages_of_a_collective_are_its_own_also_while_it_is_waited_for():
    assert list(picolib.run(waits_for_an_asynchronous_one, 3)) == [{"all_reduce"}] * 3


def test_outside_a_check_a_note_goes_nowhere():
    observe.note("nobody listens")
    observe.forget()
