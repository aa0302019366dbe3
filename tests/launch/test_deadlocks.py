"""Deadlocks end within seconds, with the words that a beginner needs: ranks, call, peer, shape, line.

Each case runs with plain `torch.distributed` and, where it uses what both have, with `picolib.comm`.
"""

import inspect
import time

import pytest
import torch
import torch.distributed as dist

import picolib
from picolib.launch.errors import DeadlockError, MismatchError
from picolib.launch.watch import Watcher
from tests.launch.both import BOTH, calls


@pytest.fixture
def explained(monkeypatch):
    """A function that runs something that hangs and returns the explanation, which must come in time."""
    verdicts = []
    poll = Watcher.poll

    def recording_poll(self):
        verdict = poll(self)
        verdicts.extend([verdict] if verdict else [])
        return verdict

    monkeypatch.setattr(Watcher, "poll", recording_poll)

    def explanation(fn, world_size, *args, error=DeadlockError):
        with pytest.raises(error) as caught:
            picolib.run(fn, world_size, *args, timeout=30)
        assert all(verdict.seconds < 3 for verdict in verdicts), "the feature: within 3 s of the last progress"
        return str(caught.value)

    return explanation


def line_of(fn, text):
    """The line number in this file on which `text` stands in `fn`, as an explanation gives it."""
    lines, start = inspect.getsourcelines(fn)
    (number,) = [start + i for i, line in enumerate(lines) if text in line]
    return f"test_deadlocks.py, line {number}"


def receive_from_the_receiver(api):
    d, rank, size = calls(api), dist.get_rank(), dist.get_world_size()
    request = d.isend(torch.ones(4), (rank + 1) % size)
    d.recv(torch.empty(4), (rank + 1) % size)
    request.wait()


@pytest.mark.parametrize("api", BOTH)
def test_all_receive_from_whom_they_send_to(explained, api):
    text = explained(receive_from_the_receiver, 3, api)
    assert "rank 0 has sent to rank 1, which waits for rank 2." in text and "receives first" not in text
    assert "whoever sends to the right receives from the left" in text


def receive_first(api):
    d, rank, size = calls(api), dist.get_rank(), dist.get_world_size()
    buffer = torch.empty(4)
    d.recv(buffer, (rank - 1) % size)
    d.send(torch.ones(4), (rank + 1) % size)


@pytest.mark.parametrize("api", BOTH)
def test_all_receive_first_around_a_ring(explained, api):
    text = explained(receive_first, 4, api)
    assert "ranks 0-3 wait for each other in a circle (0 waits for 3, 3 for 2, 2 for 1 and 1 for 0)" in text
    assert "rank 0 waits in recv from rank 3 (float32 [4])" in text
    assert line_of(receive_first, "d.recv(buffer") in text and "d.recv(buffer, (rank - 1) % size)" in text
    assert "receives first" in text and "isend" in text


def send_first(api):
    d, peer = calls(api), 1 - dist.get_rank()
    d.send(torch.ones(1000, 1000), peer)
    d.recv(torch.empty(1000, 1000), peer)


@pytest.mark.parametrize("api", BOTH)
def test_both_send_large_tensors_first(explained, api):
    text = explained(send_first, 2, api)
    assert "rank 0 waits in send to rank 1 (float32 [1000, 1000])" in text
    assert "a send ends only when its receiver takes the message" in text
    assert line_of(send_first, "d.send(") in text


def peer_returns(api):
    if dist.get_rank() == 0:
        calls(api).recv(torch.empty(3, dtype=torch.int64), 1)


@pytest.mark.parametrize("api", BOTH)
def test_the_peer_has_returned(explained, api):
    text = explained(peer_returns, 2, api)
    assert "rank 0 waits for rank 1, which will never answer" in text
    assert "recv from rank 1 (int64 [3])" in text and "rank 1 has returned: it has not sent to rank 0" in text


def uneven_batches(api):
    for _ in range(3 if dist.get_rank() == 1 else 4):
        calls(api).all_reduce(torch.ones(5))


@pytest.mark.parametrize("api", BOTH)
def test_three_batches_on_one_rank_and_four_on_the_others(explained, api):
    text = explained(uneven_batches, 3, api)
    assert "all_reduce" in text and "float32 [5]" in text and "call number 4 of the world group" in text
    assert "rank 1 has returned" in text and "only 3 calls" in text
    assert line_of(uneven_batches, ".all_reduce(") in text and "uneven batches" in text


def branch(api):
    if dist.get_rank() == 0:
        calls(api).broadcast(torch.ones(2), 0)
    calls(api).barrier()


@pytest.mark.parametrize("api", BOTH)
def test_a_collective_inside_a_branch_meets_another_collective(explained, api):
    text = explained(branch, 3, api, error=MismatchError)
    assert "broadcast" in text and "barrier" in text and "rank 0: broadcast" in text
    assert "call number 1 of the world group" in text


def only_rank_0(api):
    if dist.get_rank() == 0:
        calls(api).all_reduce(torch.ones(2))


@pytest.mark.parametrize("api", BOTH)
def test_a_collective_on_rank_0_only(explained, api):
    text = explained(only_rank_0, 3, api)
    assert "rank 0 waits for" in text and "has returned: it never reached this all_reduce" in text
    assert "if rank ==" in text


def skipped_barrier(api):
    if dist.get_rank() != 2:
        calls(api).barrier()


@pytest.mark.parametrize("api", BOTH)
def test_a_rank_skips_a_barrier(explained, api):
    text = explained(skipped_barrier, 4, api)
    assert (
        "barrier" in text
        and "call number 1 of the world" in text
        and "rank 2 has returned: it never reached this barrier" in text
    )


def wrong_tag(api):
    d = calls(api)
    if dist.get_rank() == 0:
        d.send(torch.ones(4), 1, tag=3)
    else:
        d.recv(torch.empty(4), 0, tag=5)


@pytest.mark.parametrize("api", BOTH)
def test_a_wrong_tag_is_named(explained, api):
    text = explained(wrong_tag, 2, api)
    assert "rank 0 waits in send to rank 1 (float32 [4], tag 3)" in text
    assert "sent one under tag 3, but rank 1 uses tag 5" in text and "same tag" in text


def crossed_groups(api):
    d = calls(api)
    first, second = dist.new_group([0, 1]), dist.new_group([0, 1])
    for group in (first, second) if dist.get_rank() == 0 else (second, first):
        d.all_reduce(torch.ones(2), group=group)


@pytest.mark.parametrize("api", BOTH)
def test_two_groups_used_in_opposite_orders(explained, api):
    text = explained(crossed_groups, 2, api)
    assert "new_group number 1" in text and "new_group number 2" in text and "same order" in text


def nobody_receives(api):
    if dist.get_rank() == 0:
        handle = calls(api).isend(torch.ones(6), 1)
        handle.wait()


@pytest.mark.parametrize("api", BOTH)
def test_an_isend_whose_receive_never_comes(explained, api):
    text = explained(nobody_receives, 2, api)
    assert "wait() of isend to rank 1 (float32 [6])" in text
    assert "never called a matching recv" in text
    assert line_of(nobody_receives, ".wait()") in text and line_of(nobody_receives, ".isend(") in text


def group_in_a_branch():
    if dist.get_rank() < 2:
        dist.new_group([0, 1, 2])


def test_new_group_inside_a_branch(explained):
    text = explained(group_in_a_branch, 4)
    assert "new_group([0, 1, 2])" in text and "rank 2 has returned" in text and "every rank" in text


def computing_outsider(api):
    rank = dist.get_rank()
    if rank == 2:
        time.sleep(4)
    else:
        calls(api).recv(torch.empty(1), 1 - rank)


@pytest.mark.parametrize("api", BOTH)
def test_a_rank_that_still_computes_does_not_hide_the_deadlock_of_others(explained, api):
    text = explained(computing_outsider, 3, api)
    assert "ranks 0 and 1 wait for each other" in text and "rank 2" not in text


def any_source():
    if dist.get_rank() == 0:
        for _ in range(3):
            dist.recv(torch.empty(1))
    else:
        dist.send(torch.ones(1), 0)


def test_a_receive_from_anyone_when_all_have_returned(explained):
    text = explained(any_source, 3)
    assert "rank 0 waits in recv from any rank" in text and "ranks 1 and 2" in text


def in_threads():
    import threading

    def work():
        dist.recv(torch.empty(1), 1 - dist.get_rank())

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()


def test_a_deadlock_in_threads_that_the_main_threads_join(explained):
    text = explained(in_threads, 2)
    assert "recv from rank 1" in text and line_of(in_threads, "dist.recv") in text


def uneven_ddp():
    import torch.nn.parallel

    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 1))
    dist.barrier()
    for _ in range(3 - dist.get_rank()):
        model(torch.ones(2, 4)).sum().backward()


def test_uneven_batches_inside_torchs_own_ddp(explained):
    text = explained(uneven_ddp, 2)
    assert "rank 0 waits in torch's own code" in text and "rank 1 has returned" in text
    assert line_of(uneven_ddp, ".backward()") in text


def many_ranks():
    dist.recv(torch.empty(1), (dist.get_rank() - 1) % dist.get_world_size())


def test_an_explanation_for_many_ranks_stays_short(explained):
    text = explained(many_ranks, 12)
    assert "ranks 0-11" in text and "... and 4 more like these" in text and len(text.splitlines()) < 30
