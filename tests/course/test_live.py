"""What lives while a function runs, and whose functions it calls."""

import threading

import torch
from torch import nn

from picolib.course.exercises.borrowed import calls_into
from picolib.course.exercises.live import Live

SIZE = 80_000  # bytes of 10,000 numbers in float64


def numbers() -> torch.Tensor:
    return torch.ones(10_000, dtype=torch.float64)


def test_a_tensor_counts_from_the_operation_that_makes_it_until_it_is_gone():
    with Live([]) as live:
        kept = numbers()
        assert live.now == SIZE
        kept.view(100, 100).t()
        assert live.now == SIZE  # views share its memory
        kept + 1
        assert (live.now, live.most) == (SIZE, 2 * SIZE)
        del kept
        assert live.now == 0


def test_what_autograd_keeps_lives_and_what_was_there_before_does_not_count():
    weight = numbers().requires_grad_()
    with Live([weight]) as live:
        output = (weight.exp() * weight).sum()
        assert live.now == SIZE + output.nbytes  # exp keeps what it has put out
        output.backward()
        assert live.now == SIZE + output.nbytes  # now it is the gradient


def test_python_objects_count_as_well():
    with Live([]) as live:
        before = live.objects()
        kept = numbers().numpy().tobytes()
        assert live.objects() - before >= len(kept)
    assert live.most_objects >= len(kept)


def test_products_are_counted_by_weight_however_they_are_written():
    first, second = nn.Linear(4, 4), nn.Linear(4, 4)
    x = torch.ones(2, 4)
    with Live([], [first.weight, second.weight]) as live:
        y = second(torch.nn.functional.linear(first(x), first.weight))
        (y @ second.weight.detach().t()).sum().backward()
    assert live.products == {0: 2 + 1, 1: 2 + 2}  # forward, and for the gradient of what requires one


def test_calls_are_named_as_they_are_called():
    with calls_into("torch.optim", "torch.nn.utils") as called:
        optimizer = torch.optim.SGD([nn.Parameter(torch.ones(1))], lr=1.0)
        torch.nn.utils.clip_grad_norm_([], 1.0)
    assert optimizer is not None and called[0] == "torch.optim.SGD" and "torch.nn.utils.clip_grad_norm_" in called


def test_calls_in_a_new_thread_are_seen_and_an_import_is_no_call():
    with calls_into("colorsys", "sched") as called:
        import colorsys
        import sched  # noqa: F401

        thread = threading.Thread(target=colorsys.rgb_to_hsv, args=(0.1, 0.2, 0.3))
        thread.start()
        thread.join()
    assert called == ["colorsys.rgb_to_hsv"]


def test_new_gradients_are_made_as_they_should_and_those_added_to_in_place_are_none():
    first, second = numbers().requires_grad_(), numbers().requires_grad_()
    first.grad, second.grad = numbers(), numbers()
    with Live([first, first.grad, second, second.grad]) as live:
        first.grad += 1
        second.grad = second.grad + 1
        assert live.not_its_own([first.grad, second.grad, second.grad.view(-1)]) == live.now == SIZE
