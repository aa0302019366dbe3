"""What an exercise can see of a rank besides its messages: notes of its own, and which strategy communicated."""

import sys

import cloudpickle
import torch
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


def test_outside_a_check_a_note_goes_nowhere():
    observe.note("nobody listens")
    observe.forget()
