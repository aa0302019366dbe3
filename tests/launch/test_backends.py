"""Which backend is chosen, and messages through host memory."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist

import picolib
from picolib.launch import staging
from picolib.launch.backends import choose


def test_a_gpu_for_each_rank_means_nccl_and_fewer_mean_gloo_with_a_line_that_says_so():
    assert choose("auto", "cuda", 4, gpus=4)[:2] == ("cpu:gloo,cuda:nccl", 4)
    assert choose("auto", "cuda", 4, gpus=1) == (
        "gloo",
        1,
        "4 ranks share 1 GPU: messages go through host memory (gloo)",
    )
    assert choose("auto", "cpu", 4, gpus=4) == ("gloo", 0, "")


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("mpi", "cpu", 2), "backend must be"),
        (("auto", "tpu", 2), "device must be"),
        (("nccl", "cpu", 2), "connects GPUs only"),
        (("auto", "cuda", 2, 0), "there is none here"),
        (("nccl", "cuda", 2, 1), "needs a GPU for each of the 2 ranks, here are 1"),
    ],
)
def test_what_cannot_work_is_refused_in_a_sentence(arguments, sentence):
    with pytest.raises(ValueError, match=sentence):
        choose(*arguments)


def test_staged_messages_arrive_in_the_tensor_that_was_given():
    def exchange():
        staging.install(lambda tensor: tensor.dtype == torch.float64)  # stands for "is on a GPU"
        rank, other = dist.get_rank(), 1 - dist.get_rank()
        mine, theirs = torch.full((3,), float(rank), dtype=torch.float64), torch.empty(3, dtype=torch.float64)
        sent = dist.isend(mine, other)
        dist.recv(theirs, other)
        sent.wait()
        later = torch.empty(6, dtype=torch.float64)[::2]  # a view with gaps
        received = dist.irecv(later, other)
        dist.send(mine + 10, other) if rank == 0 else None
        dist.isend(mine + 10, other).wait() if rank == 1 else None
        received.wait()
        return theirs.tolist(), later.tolist()

    assert list(picolib.run(exchange, 2, checked=False)) == [
        ([1.0] * 3, [11.0] * 3),
        ([0.0] * 3, [10.0] * 3),
    ]


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.gpu
def test_ranks_that_share_a_gpu_exchange_cuda_tensors():
    def exchange():
        x = torch.full((4,), float(dist.get_rank() + 1), device="cuda")
        if dist.get_rank() == 0:
            dist.send(x, 1)
        elif dist.get_rank() == 1:
            dist.recv(x, 0)
        dist.all_reduce(x)
        return x.tolist()

    world_size = torch.cuda.device_count() + 1
    run = picolib.run(exchange, world_size, device="cuda")
    expected = sum(range(1, world_size + 1)) - 1.0
    assert list(run) == [[expected] * 4] * world_size


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two CUDA devices")
@pytest.mark.gpu
def test_ranks_with_a_gpu_each_use_nccl():
    def backend():
        x = torch.ones(2, device="cuda")
        dist.all_reduce(x)
        return x.tolist(), "nccl" in dist.get_backend_config()

    assert picolib.run(backend, 2, device="cuda")[0] == ([2.0, 2.0], True)
