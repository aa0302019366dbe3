"""Right programs run through under the board, however slow, lopsided or unusual they are."""

import threading
import time

import pytest
import torch
import torch.distributed as dist

import picolib
from tests.launch.both import BOTH, calls


def right(fn, world_size, *args):
    """The run's results; anything that the board flags would raise."""
    return list(picolib.run(fn, world_size, *args, timeout=40))


@pytest.mark.parametrize("api", BOTH)
def test_a_rank_that_computes_or_sleeps_while_the_others_wait(api):
    def program():
        d, rank, x = calls(api), dist.get_rank(), torch.ones(4)
        if rank == 0:
            end, a = time.monotonic() + 2, torch.ones(200, 200)
            while time.monotonic() < end:
                a = a @ a * 0
        d.all_reduce(x)
        if rank == 1:
            time.sleep(2)
            d.send(x, 2)
        elif rank == 2:
            d.recv(x, 1)
        d.barrier()
        return x.sum().item()

    assert right(program, 3) == [12.0] * 3


@pytest.mark.parametrize("api", BOTH)
def test_a_long_transfer_to_a_slow_receiver(api):
    def program():
        if dist.get_rank() == 0:
            calls(api).send(torch.ones(20_000_000), 1)
            return 0.0
        time.sleep(2.5)
        x = torch.empty(20_000_000)
        calls(api).recv(x, 0)
        return x[-1].item()

    assert right(program, 2) == [0.0, 1.0]


def test_ranks_that_have_matched_but_one_process_is_stopped():
    def program():
        import os
        import signal
        import subprocess

        if dist.get_rank() == 0:  # stands still in the middle of its transfer, as under a debugger or a swap storm
            wake = f"sleep 0.1; kill -STOP {os.getpid()}; sleep 2; kill -CONT {os.getpid()}"
            subprocess.Popen(["sh", "-c", wake])
            signal.siginterrupt(signal.SIGCONT, False)
            end = time.monotonic() + 0.5
            while time.monotonic() < end:
                pass
        x = torch.ones(1000)
        for _ in range(200):
            dist.all_reduce(x)
            x.fill_(1)
        return x.sum().item()

    assert right(program, 2) == [1000.0] * 2


@pytest.mark.parametrize("api", BOTH)
def test_ranks_that_reach_the_same_collective_from_different_lines(api):
    def program():
        d, x, y = calls(api), torch.ones(4), torch.ones(4)
        for step in range(4):
            if (dist.get_rank() + step) % 2:
                d.all_reduce(x)
            else:
                d.all_reduce(x)
        if dist.get_rank() == 0:
            d.all_reduce(y)
            d.all_reduce(x)
        else:
            for t in (y, x):
                d.all_reduce(t)
        return y[0].item()

    assert right(program, 2) == [2.0] * 2


@pytest.mark.parametrize("api", BOTH)
def test_handles_in_flight_while_the_rank_computes(api):
    def program():
        d, rank, size = calls(api), dist.get_rank(), dist.get_world_size()
        x, y = torch.full((1000,), float(rank)), torch.empty(1000)
        handle = d.all_reduce(torch.ones(1000), async_op=True)
        sent, got = d.isend(x, (rank + 1) % size), d.irecv(y, (rank - 1) % size)
        time.sleep(1.5)
        for h in (got, sent, handle):
            h.wait()
        return y[0].item()

    assert right(program, 3) == [2.0, 0.0, 1.0]


@pytest.mark.parametrize("api", BOTH)
def test_a_chunked_ring_in_place_on_views(api):
    def program():
        d, rank, size = calls(api), dist.get_rank(), dist.get_world_size()
        x = torch.full((size * 5,), 10.0**rank)
        chunks = list(x.chunk(size))
        buffer = torch.empty(5)
        for step in range(size - 1):
            handle = d.isend(chunks[(rank - step) % size], (rank + 1) % size)
            d.recv(buffer, (rank - 1) % size)
            chunks[(rank - step - 1) % size].add_(buffer)
            handle.wait()
        for step in range(size - 1):
            handle = d.isend(chunks[(rank + 1 - step) % size], (rank + 1) % size)
            d.recv(chunks[(rank - step) % size], (rank - 1) % size)
            handle.wait()
        return x.tolist()

    assert right(program, 4) == [[1111.0] * 20] * 4


def test_a_second_thread_that_answers_later():
    def program():
        rank, x, group = dist.get_rank(), torch.ones(4), dist.new_group([0, 1])

        def work():
            time.sleep(1.5)
            dist.all_reduce(x.clone(), group=group)
            if rank == 1:
                dist.send(x * 3, 0)

        thread = threading.Thread(target=work)
        thread.start()
        if rank == 0:
            dist.recv(x, 1)
        thread.join()
        return x[0].item()

    assert right(program, 2) == [3.0, 1.0]


def test_a_receive_from_anyone_whose_message_comes_late():
    def program():
        rank, x = dist.get_rank(), torch.zeros(1)
        if rank == 0:
            return sum(dist.recv(x) for _ in range(3))
        if rank == 2:
            dist.send(x, 0)
            time.sleep(1.5)
        dist.send(x, 0)
        return 0

    assert right(program, 3) == [5, 0, 0]


def test_messages_of_another_size_after_one_taken_as_anybodys():
    def job():
        rank, n = dist.get_rank(), dist.get_world_size()
        right, left = (rank + 1) % n, (rank - 1) % n
        for size, dtype in ((3, torch.float64), (5, torch.float32), (2, torch.int64)):
            arrived = torch.empty(size, dtype=dtype)
            sending = dist.isend(torch.full((size,), rank, dtype=dtype), right)
            dist.recv(arrived)  # without a source: whose k-th message this was can't be told from the calls
            sending.wait()
            sending = dist.isend(torch.full((size + 1,), rank, dtype=dtype), right)
            dist.recv(arrived := torch.empty(size + 1, dtype=dtype), left)
            sending.wait()
        return arrived.tolist()

    assert list(picolib.run(job, 3)) == [[2] * 3, [0] * 3, [1] * 3]


def test_waits_with_a_time_out_of_their_own():
    def program():
        from datetime import timedelta

        rank = dist.get_rank()
        x = torch.zeros(1)
        if rank == 0:
            handle = dist.irecv(x, 1)
            try:
                handle.wait(timedelta(seconds=1.5))
            except RuntimeError:
                return "timed out"
        else:
            time.sleep(2.5)
        return "through"

    assert right(program, 2) == ["timed out", "through"]


def test_objects_batches_and_groups():
    def program():
        rank, size = dist.get_rank(), dist.get_world_size()
        objects = [None] * size
        dist.all_gather_object(objects, "x" * (1 + 100 * rank))
        dist.broadcast_object_list([rank], src=0)
        dist.gather_object(rank, objects if rank == 0 else None)
        dist.scatter_object_list([None], list(range(size)) if rank == 0 else None)
        group = dist.new_group([0, 2])
        if rank in (0, 2):
            dist.all_reduce(torch.ones(rank // 2 + 1).sum(), group=group)
        x, y = torch.ones(4), torch.empty(4)
        pair = [dist.P2POp(dist.isend, x, (rank + 1) % size), dist.P2POp(dist.irecv, y, (rank - 1) % size)]
        for handle in dist.batch_isend_irecv(pair):
            handle.wait()
        dist.all_to_all([torch.empty(2) for _ in range(size)], [torch.ones(2) for _ in range(size)])
        dist.all_to_all_single(torch.empty(2 * size), torch.ones(2 * size))
        dist.reduce_scatter(torch.empty(2), [torch.ones(2) for _ in range(size)])
        dist.all_reduce(torch.ones(3, 2).t())
        return y.sum().item()

    assert right(program, 3) == [4.0] * 3


def test_torch_ddp_and_fsdp2_train_under_the_board():
    def program():
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import fully_shard

        def train(wrap):
            torch.manual_seed(0)
            model = wrap(torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.ReLU(), torch.nn.Linear(8, 1)))
            optimizer = torch.optim.SGD(model.parameters(), 0.1)
            for step in range(3):
                if step == dist.get_rank():
                    time.sleep(1.2)
                optimizer.zero_grad()
                loss = model(torch.ones(4, 8)).square().mean()
                loss.backward()
                optimizer.step()
            return round(loss.item(), 4)

        mesh = init_device_mesh("cpu", (dist.get_world_size(),))
        ddp = train(torch.nn.parallel.DistributedDataParallel)
        fsdp = train(lambda model: fully_shard(model, mesh=mesh))
        return ddp == fsdp

    assert right(program, 2) == [True, True]


def test_workers_of_a_data_loader():
    def program():
        loader = torch.utils.data.DataLoader(torch.arange(8.0), batch_size=4, num_workers=1)
        total = sum(batch.sum() for batch in loader)
        dist.all_reduce(total)
        return total.item()

    assert right(program, 2) == [56.0] * 2
