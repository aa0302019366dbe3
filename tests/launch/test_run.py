"""run(): functions go to fresh ranks, results come back."""

from __future__ import annotations

import functools
import os
import time

import numpy
import pytest
import torch
import torch.distributed as dist

import picolib
from picolib.launch import wire

FACTOR = 3


def test_each_rank_returns_its_own_value_and_run_is_a_sequence_of_them():
    run = picolib.run(lambda: dist.get_rank() * 10, 3)
    assert list(run) == [0, 10, 20] and len(run) == 3 and run[-1] == 20 and run[1:] == [10, 20]


def test_ranks_share_a_process_group():
    def summed():
        x = torch.full((2,), float(dist.get_rank()))
        dist.all_reduce(x)
        return x

    for value in picolib.run(summed, 4):
        assert torch.equal(value, torch.full((2,), 6.0))


def test_a_single_rank_works():
    assert picolib.run(dist.get_world_size, 1)[0] == 1


def test_arguments_are_passed_and_keywords_go_through_partial():
    assert list(picolib.run(functools.partial(lambda a, b, c: (a, b, c), c=3), 2, 1, 2)) == [(1, 2, 3)] * 2


def test_a_function_arrives_in_its_newest_version():
    global FACTOR
    times = lambda x: x * FACTOR  # noqa: E731
    assert picolib.run(times, 1, 2)[0] == 6
    FACTOR = 5
    assert picolib.run(times, 1, 2)[0] == 10


def test_methods_classes_and_recursive_closures_travel_by_value():
    class Counter:
        def __init__(self, start):
            self.start = start

        def up_to(self, n):
            return self.start if n == 0 else 1 + self.up_to(n - 1)

    assert picolib.run(Counter(10).up_to, 2, 3)[1] == 13


def test_an_instance_that_comes_back_is_of_the_class_that_was_sent():
    class Point:
        x = 1

    assert isinstance(picolib.run(lambda: Point(), 1)[0], Point)


def test_what_a_rank_changes_stays_in_the_rank():
    kept = []
    picolib.run(lambda: kept.append(1), 2)
    assert kept == []
    assert list(picolib.run(lambda: len(kept), 2)) == [0, 0]


@pytest.mark.parametrize(
    "tensor",
    [
        torch.arange(6).reshape(2, 3).T,
        torch.ones(3, dtype=torch.bfloat16),
        torch.tensor(True),
        torch.empty(0, 4),
        torch.tensor([1 + 2j, 3j]).conj(),
        torch.ones(2, requires_grad=True),
    ],
    ids=["strided", "bfloat16", "scalar", "empty", "conjugate", "leaf"],
)
def test_tensors_of_every_kind_travel_both_ways(tensor):
    (back,) = picolib.run(lambda x: x, 1, tensor)
    assert torch.equal(back, tensor) and back.dtype == tensor.dtype and back.requires_grad == tensor.requires_grad


def test_a_tensor_that_was_sent_can_be_changed_in_a_rank_without_changing_it_elsewhere():
    x = torch.zeros(1000)

    def change():
        x.add_(dist.get_rank() + 1)
        dist.barrier()
        return float(x[0])

    assert list(picolib.run(change, 3)) == [1.0, 2.0, 3.0] and float(x[0]) == 0


def test_200_megabytes_come_back():
    (back,) = picolib.run(lambda: torch.ones(50_000_000), 1)
    assert back.nbytes == 200_000_000 and back[-1] == 1


def test_modules_keep_tied_parameters():
    model = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Linear(2, 2))
    model[1].weight = model[0].weight
    (back,) = picolib.run(lambda: model, 1)
    assert back[1].weight is back[0].weight


def test_run_tells_seconds_memory_and_traffic():
    def work():
        if dist.get_rank() == 0:
            time.sleep(0.2)
            dist.send(torch.ones(10), 1)
        else:
            big = torch.ones(5_000_000)
            dist.recv(big[:10], 0)

    run = picolib.run(work, 2)
    assert 0.1 < run.seconds < 10  # counted from when the kernel has heard that all ranks are ready
    assert run.peak_memory[1] > 19_000_000
    assert run.trace.bytes_sent == [40, 0] and run.trace.matrix[0][1] == 40


def test_unchecked_runs_work_and_count_too():
    def work():
        dist.send(torch.ones(4), 1) if dist.get_rank() == 0 else dist.recv(torch.ones(4), 0)

    assert picolib.run(work, 2, checked=False).trace.bytes_sent == [16, 0]


def test_ranks_are_new_processes_every_time():
    assert len({*picolib.run(os.getpid, 2), *picolib.run(os.getpid, 2), os.getpid()}) == 5


def test_ranks_use_the_cores_between_them_unless_the_learner_says_otherwise(monkeypatch):
    from picolib.launch.threads import usable_cores

    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.delenv("MKL_NUM_THREADS", raising=False)
    assert picolib.run(torch.get_num_threads, 1)[0] == usable_cores()
    assert picolib.run(torch.get_num_threads, usable_cores() + 1)[0] == 1
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    assert picolib.run(torch.get_num_threads, 2)[0] == 3


def test_dataloader_workers_are_allowed():
    def load():
        data = torch.utils.data.TensorDataset(torch.arange(10.0))
        return sum(float(batch[0].sum()) for batch in torch.utils.data.DataLoader(data, batch_size=2, num_workers=2))

    assert list(picolib.run(load, 2)) == [45.0, 45.0]


def test_plain_results_hold_tensors_and_numbers_and_refuse_the_rest_by_name():
    value = {"a": (1, 2.5, "x"), 3: [None, True, b"bytes", torch.ones(2, dtype=torch.float16)]}
    (back,) = picolib.run(lambda: value, 1, results="plain")
    assert back["a"] == (1, 2.5, "x") and back[3][:3] == [None, True, b"bytes"] and torch.equal(back[3][3], value[3][3])
    with pytest.raises(picolib.RankError, match="a set cannot be returned here"):
        picolib.run(lambda: {1}, 1, results="plain")


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: torch.eye(2).to_sparse(), "a sparse tensor cannot be returned here; a dense tensor with values"),
        (lambda: [torch.eye(2).to_sparse_csr()], "a sparse tensor cannot be returned here"),
        (lambda: torch.empty(2, device="meta"), "a meta tensor (it has a shape but no values) cannot be returned"),
        (lambda: torch.nested.nested_tensor([torch.ones(1), torch.ones(2)]), "a nested tensor cannot be returned"),
        (lambda: torch.quantize_per_tensor(torch.ones(2), 0.1, 0, torch.quint8), "a quantized tensor cannot be"),
        (lambda: torch.nn.UninitializedParameter(), "a UninitializedParameter (torch.float32, torch.strided) cannot"),
        (lambda: numpy.complex64(1), "a complex64 cannot be returned here"),
        (lambda: numpy.zeros(1, [("a", "i4")]), "a ndarray cannot be returned here"),
    ],
)
def test_plain_results_name_the_kind_of_tensor_that_they_refuse(make, words):
    with pytest.raises(TypeError) as error:
        wire.encode_plain(make())
    assert words in str(error.value)


def test_a_plain_result_that_is_refused_names_its_rank():
    def work():
        return torch.eye(2).to_sparse() if dist.get_rank() == 1 else torch.eye(2)

    with pytest.raises(picolib.RankError, match="rank 1 failed with TypeError: a sparse tensor cannot be returned"):
        picolib.run(work, 2, results="plain")


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ((None, 2), "fn must be a function, got NoneType: pass `train`, not `train()`"),
        ((2, print), "fn and world_size have changed places"),
        ((print, 0), "world_size must be at least 1, got 0"),
        ((print, 2.0), "world_size must be a whole number, got 2.0"),
        ((print, True), "world_size must be a whole number, got True"),
        ((print, 10**6), "start fewer ranks or free some memory"),
    ],
)
def test_a_wrong_argument_is_one_sentence(arguments, sentence):
    with pytest.raises((TypeError, ValueError)) as error:
        picolib.run(*arguments)
    assert sentence in str(error.value)


@pytest.mark.parametrize("name", ["timeout", "max_seconds"])
def test_a_time_limit_that_is_no_number_is_one_sentence(name):
    for value in ("3", True, [1]):
        with pytest.raises(TypeError) as error:
            picolib.run(print, 2, **{name: value})
        assert str(error.value) == f"{name} must be a number of seconds, got {value!r}"
    with pytest.raises(TypeError, match="timeout must be a number of seconds, got None"):
        picolib.run(print, 2, timeout=None)
    with pytest.raises(ValueError, match=f"{name} must be more than 0 seconds, got nan"):
        picolib.run(print, 2, **{name: float("nan")})


def test_a_run_inside_a_rank_is_refused():
    with pytest.raises(picolib.RankError, match="cannot be called inside a rank"):
        picolib.run(lambda: picolib.run(print, 2), 1)


def test_runs_from_two_threads_take_turns():
    from concurrent.futures import ThreadPoolExecutor

    with ThreadPoolExecutor(2) as pool:
        runs = list(pool.map(lambda k: list(picolib.run(lambda: k, 2)), range(4)))
    assert runs == [[k, k] for k in range(4)]


def test_a_keyword_that_run_does_not_know_is_refused_with_the_way_to_hand_it_to_the_function():
    def train(lr):
        return lr

    with pytest.raises(
        TypeError, match=r"run has no option lr=0\.1; .*`train` travels as functools\.partial\(train, lr="
    ):
        picolib.run(train, 2, lr=0.1)
    assert list(picolib.run(functools.partial(train, lr=0.1), 2)) == [0.1, 0.1]
