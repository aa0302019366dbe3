"""Slow-motion links: messages take what their links say, results stay the same, and nothing else changes.

Times are compared as stamps: a rank's clock goes by what was due. `together` makes it blind for real time, so
that a busy machine changes no stamp; the real time is only compared downwards.
"""

from __future__ import annotations

import functools
import time

import pytest
import torch
import torch.distributed as dist

import picolib
from picolib import Link, Links, comm
from picolib.comm.auto import ALGORITHMS
from picolib.launch.errors import DeadlockError, RankError
from picolib.plan import links as formulas

ONE = Links(1, 4, intra=(1e-3, 1e6))
TWO = Links(2, 4, intra=(1e-3, 1e6), inter=(5e-3, 2e5))
EXACT = 1e-7


def together(lead):
    """All ranks' clocks show the same time now, and no real work moves them any more; returns that time.

    lead: seconds, longer than two messages take.
    """
    from picolib.launch import clock, monitor, pretending, queues

    clock.LATE_SECONDS = clock.FREE_WORK_SECONDS = queues.FORGET_SECONDS = 1000.0
    latest = torch.tensor([monitor.now() + 0.01], dtype=torch.float64)
    comm.all_reduce(latest, dist.ReduceOp.MAX, algorithm="ring")
    moment = torch.tensor([monitor.now() + 0.01], dtype=torch.float64)
    comm.all_reduce(moment, dist.ReduceOp.MAX, algorithm="ring")
    left = moment.item() + lead - monitor.now()
    picolib.pretend(left / pretending._factor, label="together")
    return monitor.now()


def timed(program, lead):
    """In a rank: `program()`, and how long it took by this rank's clock and, from the common start, in real time."""
    from picolib.launch import monitor

    start = together(lead)
    value = program()
    return value, monitor.now() - start, time.monotonic() - start


def measured(program, links, lead=0.3, **options):
    """The values of all ranks, and their times by their clocks; no rank is ever ahead of its clock."""
    run = picolib.run(timed, links.world_size, program, lead, links=links, trace=True, **options)
    for _, planned, real in run:
        assert real >= planned - EXACT
    return [value for value, _, _ in run], [planned for _, planned, _ in run], run


def test_all_ranks_start_at_the_same_moment():
    """Also where some of them were ready later than others."""

    def start():
        from picolib.launch import network

        return network.current.clock.due

    assert len(set(picolib.run(start, 4, links=ONE))) == 1


def test_a_rank_in_slow_motion_has_one_thread():
    assert list(picolib.run(torch.get_num_threads, 1, links=Links(1, 1))) == [1]


def test_a_rank_that_is_never_ready_is_not_waited_for_in_vain(tmp_path, monkeypatch):
    from picolib.launch import network

    monkeypatch.setattr(network, "READY_SECONDS", 0.05)
    alone = network.Network(str(tmp_path / "links"), ONE, rank=1)
    begun = time.monotonic()
    assert begun <= alone.common_start() <= time.monotonic()
    alone.close()


def reduce_with(algorithm, length):
    vector = torch.arange(length, dtype=torch.float64) + dist.get_rank()
    comm.all_reduce(vector, algorithm=algorithm)
    return vector


@pytest.mark.parametrize(
    ("algorithm", "links", "seconds"),
    [
        ("ring", ONE, formulas.ring_all_reduce(ONE, 6400)),
        ("ring", TWO, formulas.ring_all_reduce(TWO, 6400)),
        ("tree", ONE, formulas.tree_all_reduce(ONE, 6400)),
        ("tree", Links(1, 7, intra=(2e-3, 4e5)), formulas.tree_all_reduce(Links(1, 7, intra=(2e-3, 4e5)), 6400)),
    ],
)
def test_an_all_reduce_takes_what_the_formula_says_and_gives_the_same(algorithm, links, seconds):
    values, planned, run = measured(functools.partial(reduce_with, algorithm, 800), links)
    assert max(planned) == pytest.approx(seconds, abs=EXACT)
    plain = picolib.run(reduce_with, links.world_size, algorithm, 800)
    assert all(torch.equal(a, b) for a, b in zip(values, plain, strict=True))
    events = [e for e in run.trace.events if e.label == f"all_reduce[{algorithm}]" and e.kind == "collective"]
    last = [e for e in events if e.start == max(e.start for e in events)]
    assert max(e.end - e.start for e in last) == pytest.approx(seconds, abs=EXACT)


@pytest.mark.parametrize("links", [TWO, Links(4, 2, intra=(1e-3, 1e6), inter=(5e-3, 2e5)), ONE])
def test_a_hierarchical_all_reduce_goes_by_the_nodes_of_its_links(links):
    values, planned, _ = measured(functools.partial(reduce_with, "hierarchical", 800), links)
    assert max(planned) >= formulas.hierarchical_all_reduce(links, 6400) - EXACT  # in which order they queue is chance
    n = links.world_size
    assert all(torch.equal(v, n * torch.arange(800, dtype=torch.float64) + n * (n - 1) / 2) for v in values)


@pytest.mark.parametrize("name", [name for name in ALGORITHMS if name != "barrier"])
def test_every_algorithm_gives_the_same_with_links(name):
    def call(algorithm):
        rank, n = dist.get_rank(), dist.get_world_size()
        one, all_ = torch.arange(3.0) + 10 * rank, torch.arange(3.0 * n) + 10 * rank
        into, each = torch.zeros(3 * n), torch.zeros(3)
        calls = {
            "all_reduce": lambda: comm.all_reduce(one, algorithm=algorithm),
            "broadcast": lambda: comm.broadcast(one, 1, algorithm=algorithm),
            "reduce": lambda: comm.reduce(one, 1, algorithm=algorithm),
            "all_gather": lambda: comm.all_gather_into_tensor(into, one, algorithm=algorithm),
            "reduce_scatter": lambda: comm.reduce_scatter_tensor(each, all_, algorithm=algorithm),
            "all_to_all": lambda: comm.all_to_all_single(into, all_, algorithm=algorithm),
            "gather": lambda: comm.gather(one, list(into.view(n, 3)) if rank == 1 else None, 1, algorithm=algorithm),
            "scatter": lambda: comm.scatter(each, list(all_.view(n, 3)) if rank == 1 else None, 1, algorithm=algorithm),
        }
        calls[name]()
        return torch.cat([one, into, each])

    def all_of_them():
        return [call(algorithm) for algorithm in comm.algorithms(name) if algorithm != "native"]

    slow = picolib.run(all_of_them, 4, links=Links(2, 2, intra=(1e-4, 1e8), inter=(2e-4, 1e7)))
    assert all(torch.equal(a, b) for s, p in zip(slow, picolib.run(all_of_them, 4), strict=True)
               for a, b in zip(s, p, strict=True))  # fmt: skip


def send_along(pairs, nbytes, api=comm):
    """Each (source, target) sends a message, all at the same time."""
    rank, handles = dist.get_rank(), []
    for tag, (source, target) in enumerate(pairs):
        if rank == target:
            handles.append(api.irecv(torch.empty(nbytes, dtype=torch.uint8), source, tag=tag))
        if rank == source:
            handles.append(api.isend(torch.zeros(nbytes, dtype=torch.uint8), target, tag=tag))
    for handle in handles:
        handle.wait()


@pytest.mark.parametrize(
    ("pairs", "transfers", "latency"),
    [
        ([(0, 4)], 1, 5e-3),
        ([(0, 4), (1, 5)], 2, 5e-3),  # one uplink for both
        ([(0, 4), (1, 5), (2, 6)], 3, 5e-3),
        ([(0, 4), (4, 0)], 1, 5e-3),  # two directions, two queues
        ([(0, 1), (2, 3)], 1, 1e-3),  # ports of their own
        ([(0, 1), (1, 0)], 1, 1e-3),
        ([(0, 1), (0, 2)], 2, 1e-3),  # one port to send
        ([(0, 2), (1, 2)], 2, 1e-3),  # one port to receive
        ([(0, 1), (0, 4)], None, None),  # port and uplink are different things
    ],
)
def test_messages_queue_where_they_share_a_link(pairs, transfers, latency):
    _, planned, _ = measured(functools.partial(send_along, pairs, 10_000), TWO)
    if transfers is None:
        assert max(planned) == pytest.approx(5e-3 + 10_000 / 2e5, abs=EXACT)
        return
    bandwidth = 2e5 if latency == 5e-3 else 1e6
    assert max(planned) == pytest.approx(latency + transfers * 10_000 / bandwidth, abs=EXACT)


def test_three_nodes_share_the_downlink_of_the_one_they_send_to():
    links = Links(3, 1, inter=(1e-3, 1e6))
    _, planned, _ = measured(functools.partial(send_along, [(0, 2), (1, 2)], 10_000), links)
    assert max(planned) == pytest.approx(1e-3 + 2 * 0.01, abs=EXACT)


def pipeline(micro_batches, overlapped):
    """Each rank is a stage; what it has computed for one micro-batch goes to the next stage."""
    rank, last = dist.get_rank(), dist.get_world_size() - 1
    x, sent = torch.zeros(500, dtype=torch.float64), []
    for _ in range(micro_batches):
        if rank > 0:
            comm.recv(x, rank - 1)
        picolib.pretend(0.03)
        if rank < last:
            message = x + 1
            sent.append(comm.isend(message, rank + 1))
            if not overlapped:
                sent.pop().wait()
    for handle in sent:
        handle.wait()
    return x[0].item()


@pytest.mark.parametrize("overlapped", [True, False])
def test_a_pipeline_fills_and_drains(overlapped):
    values, planned, _ = measured(functools.partial(pipeline, 5, overlapped), ONE)
    seconds = formulas.pipeline(4, 5, compute=0.03, message=ONE.intra.seconds(4000), overlapped=overlapped)
    assert max(planned) == pytest.approx(seconds, abs=EXACT)
    assert values == [0.0, 1.0, 2.0, 3.0]


@pytest.mark.parametrize("compute", [0.05, 0.1, 0.2])
def test_an_asynchronous_all_reduce_goes_on_beside_pretended_compute(compute):
    def program():
        vector = torch.full((2000,), float(dist.get_rank()), dtype=torch.float64)
        work = comm.all_reduce(vector, algorithm="ring", async_op=True)
        picolib.pretend(compute)
        work.wait()
        return vector[0].item()

    links = Links(1, 4, intra=(1e-3, 4000 / 0.015))  # 6 steps of 16 ms
    values, planned, run = measured(program, links)
    assert values == [6.0] * 4
    assert max(planned) == pytest.approx(max(compute, 0.096), abs=EXACT)
    waits = [e for e in run.trace.events if e.kind == "wait" and e.rank == 0][2:]  # after the two of `together`
    assert sum(e.end - e.start for e in waits) == pytest.approx(max(0.0, 0.096 - compute), abs=EXACT)


def test_several_collectives_beside_compute_share_the_links():
    def program():
        vectors = [torch.ones(500, dtype=torch.float64) for _ in range(3)]
        works = [comm.all_reduce(v, algorithm="ring", async_op=True) for v in vectors]
        for work in works:
            picolib.pretend(0.01)
            work.wait()
        return [v[0].item() for v in vectors]

    values, planned, _ = measured(program, ONE)
    assert values == [[4.0] * 3] * 4
    assert formulas.ring_all_reduce(ONE, 4000) <= max(planned) + EXACT
    assert max(planned) <= 3 * formulas.ring_all_reduce(ONE, 4000) + 0.03 + EXACT


def test_steps_that_take_longer_than_a_hint_is_trusted():
    def program():
        group = dist.new_group([0, 1])
        vectors = [torch.full((3,), 1.0 + dist.get_rank()) for _ in range(3)]
        works = [comm.all_reduce(v, algorithm="ring", async_op=True, group=g)
                 for v, g in zip(vectors, [None, None, group], strict=True)]  # fmt: skip
        for work in works:
            work.wait()
        return [v.tolist() for v in vectors]

    values, planned, _ = measured(program, Links(1, 2, intra=(0.7, 1e9)), lead=2.0)
    assert values == [[[3.0] * 3] * 3] * 2
    assert planned == pytest.approx([1.4, 1.4], abs=1e-5)


def test_a_synchronous_collective_beside_an_asynchronous_one():
    def program():
        one, other = torch.ones(500), torch.ones(500)
        group = dist.new_group([0, 1, 2, 3])
        work = comm.all_reduce(one, algorithm="ring", async_op=True)
        comm.all_reduce(other, algorithm="ring", group=group)
        work.wait()
        return one[0].item(), other[0].item()

    values, _, _ = measured(program, ONE)
    assert values == [(4.0, 4.0)] * 4


def test_a_message_is_not_there_before_it_arrives():
    def program():
        x, rank = torch.ones(100_000, dtype=torch.uint8), dist.get_rank()
        handle = comm.isend(x, 1) if rank == 0 else comm.irecv(x.zero_(), 0)
        seen = [handle.is_completed()]
        while rank == 1 and not handle.is_completed():
            time.sleep(0.001)
        handle.wait()
        return seen, x[0].item(), handle.is_completed()

    values, planned, _ = measured(program, Links(1, 2, intra=(1e-3, 1e6)))
    assert values == [([False], 1, True)] * 2
    assert max(planned) == pytest.approx(0.101, abs=EXACT)


# Plain torch.distributed.


@pytest.mark.parametrize("api", ["torch", "picolib"])
def test_tags_come_out_of_order_and_keep_their_times(api):
    def program():
        from picolib.launch import monitor

        calls, rank, start = dist if api == "torch" else comm, dist.get_rank(), monitor.now()
        a, b = torch.ones(1000, dtype=torch.uint8), torch.ones(50_000, dtype=torch.uint8)
        if rank == 0:
            handles = [calls.isend(a, 1, tag=1), calls.isend(b, 1, tag=2)]
        else:
            handles = [calls.irecv(b.zero_(), 0, tag=2), calls.irecv(a.zero_(), 0, tag=1)][::-1]
        times = []
        for handle in handles:
            handle.wait()
            times.append(monitor.now() - start)
        return times, int(a.sum() + b.sum())

    values, _, _ = measured(program, Links(1, 2, intra=(1e-3, 1e6)))
    for times, total in values:
        assert times == pytest.approx([0.002, 0.052], abs=EXACT)
        assert total == 51_000


@pytest.mark.parametrize("api", ["torch", "picolib"])
def test_every_way_to_send_is_slowed(api):
    def program():
        calls, rank = dist if api == "torch" else comm, dist.get_rank()
        x, y = torch.full((9000,), rank, dtype=torch.uint8), torch.empty(9000, dtype=torch.uint8)
        if rank == 0:
            calls.send(x, 1)
        else:
            calls.recv(y, 0)
        ops = [calls.P2POp(calls.isend, x, 1 - rank), calls.P2POp(calls.irecv, y, 1 - rank)]
        for handle in calls.batch_isend_irecv(ops):
            handle.wait()
        return y[0].item()

    values, planned, run = measured(program, Links(1, 2, intra=(1e-3, 1e6)))
    assert values == [1, 0]
    assert planned == pytest.approx([0.02, 0.02], abs=EXACT)
    own = [e for e in run.trace.events if e.kind in ("send", "recv") and e.call is None]
    assert len(own) == 6
    assert [e.end - e.start for e in own] == pytest.approx([0.01] * 6, abs=EXACT)


@pytest.mark.parametrize("api", ["torch", "picolib"])
def test_a_receive_from_anyone_takes_the_time_of_its_sender(api):
    def program():
        calls, rank = dist if api == "torch" else comm, dist.get_rank()
        x = torch.full((9000,), rank, dtype=torch.uint8)
        if rank == 0:
            return sorted([calls.recv(x), calls.recv(x)])
        picolib.pretend(0.03 * (rank - 1))
        calls.send(x, 0)
        return []

    values, planned, _ = measured(program, Links(1, 3, intra=(1e-3, 1e6)))
    assert values[0] == [1, 2]
    assert planned[0] == pytest.approx(0.04, abs=EXACT)


def test_sub_groups_and_messages_to_oneself():
    def program():
        rank = dist.get_rank()
        groups = [dist.new_group(ranks) for ranks in ([0, 2], [1, 3])]
        x, mine = torch.full((1000,), float(rank)), torch.empty(3)
        comm.all_reduce(x, group=groups[rank % 2], algorithm="ring")
        comm.isend(torch.ones(3), rank)
        comm.recv(mine, rank)
        if rank in (0, 2):
            peer = 2 - rank
            (comm.send if rank == 0 else comm.recv)(x, peer, group=groups[0])
        return x[0].item(), mine.sum().item()

    values, _, _ = measured(program, Links(2, 2, intra=(1e-4, 1e8), inter=(1e-3, 1e7)))
    assert values == [(2.0, 3.0), (4.0, 3.0), (2.0, 3.0), (4.0, 3.0)]


def test_a_send_ends_when_its_receiver_has_asked_for_it():
    def program():
        x = torch.ones(9000, dtype=torch.uint8)
        if dist.get_rank() == 0:
            comm.send(x, 1)
        else:
            picolib.pretend(0.2)
            comm.recv(x, 0)

    _, planned, _ = measured(program, Links(1, 2, intra=(1e-3, 1e6)))
    assert planned == pytest.approx([0.2, 0.2], abs=EXACT)


@pytest.mark.parametrize(
    ("name", "call"),
    [
        ("all_reduce", lambda: dist.all_reduce(torch.ones(2))),
        ("barrier", lambda: dist.barrier()),
        ("all_gather", lambda: dist.all_gather_object([None] * 2, 1)),
        ("all_reduce", lambda: comm.all_reduce(torch.ones(2), algorithm="native")),
    ],
)
def test_torchs_own_collectives_are_refused(name, call):
    with pytest.raises(RankError, match=f"{name}: torch's own collectives do not cross .* call picolib.comm.{name}"):
        picolib.run(call, 2, links=Links(1, 2))


# pretend, slow


def test_pretend_is_in_the_trace_and_stretched_on_a_slow_rank():
    def program():
        picolib.pretend(0.02, label="layer")

    for links in (None, Links(1, 3)):
        run = picolib.run(program, 3, slow={1: 2.5}, links=links, trace=True)
        events = [e for e in run.trace.events if e.kind == "compute"]
        assert sorted((e.rank, e.label) for e in events) == [(0, "layer"), (1, "layer"), (2, "layer")]
        lengths = {e.rank: e.end - e.start for e in events}
        assert [lengths[rank] for rank in range(3)] == pytest.approx([0.02, 0.05, 0.02], abs=EXACT)
        assert "layer" in run.trace.timeline().svg()
        assert any(e["cat"] == "compute" for e in run.trace.to_chrome()["traceEvents"] if e["ph"] == "X")


def test_pretend_takes_its_time_also_outside_of_ranks():
    start = time.monotonic()
    picolib.pretend(0.02)
    assert time.monotonic() - start >= 0.02


def test_everybody_waits_for_the_slow_rank():
    def program():
        picolib.pretend(0.04)
        comm.all_reduce(torch.ones(1, dtype=torch.float64), algorithm="one_shot")

    _, planned, _ = measured(program, ONE, slow={3: 2})
    assert planned == pytest.approx([0.08 + 1e-3 + 8e-6] * 3 + [0.08 + 1e-3 + 3 * 8e-6], abs=1e-4)


@pytest.mark.parametrize(
    ("arguments", "kind", "text"),
    [
        ({"seconds": "1"}, TypeError, "seconds must be a number, got '1'"),
        ({"seconds": -1}, ValueError, "seconds must be 0 or more and finite, got -1"),
        ({"seconds": float("nan")}, ValueError, "seconds must be 0 or more and finite, got nan"),
    ],
)
def test_wrong_arguments_of_pretend(arguments, kind, text):
    with pytest.raises(kind) as caught:
        picolib.pretend(**arguments)
    assert str(caught.value) == text


@pytest.mark.parametrize(
    ("make", "kind", "text"),
    [
        (lambda: Links(0, 4), ValueError, "nodes must be a whole number of at least 1, got 0"),
        (lambda: Links(1, 2.5), ValueError, "per_node must be a whole number of at least 1, got 2.5"),
        (lambda: Links(2, 2), ValueError, "inter must be given with 2 nodes"),
        (lambda: Links(1, 2, intra=3), TypeError, "intra must be a picolib.Link or"),
        (lambda: Links(1, 2, intra=(-1, 1)), ValueError, "latency must be 0 seconds or more, got -1"),
        (lambda: Links(1, 2, intra=(0, 0)), ValueError, "bandwidth must be more than 0 bytes per second, got 0"),
        (lambda: Links(1, 2, intra=("1", 1)), TypeError, "latency must be a number"),
        (lambda: Links(1, 2).slowed(0), ValueError, "factor must be more than 0 and finite, got 0"),
        (lambda: picolib.run(print, 3, links=TWO), ValueError, "2 nodes of 4 ranks are 8, and world_size is 3"),
        (lambda: picolib.run(print, 3, links=(1, 3)), TypeError, "links must be a picolib.Links"),
        (lambda: picolib.run(print, 8, links=TWO, device="cuda"), ValueError, "links need ranks on processors"),
        (lambda: picolib.run(print, 2, slow={2: 1}), ValueError, "slow must name ranks from 0 to 1, got rank 2"),
        (lambda: picolib.run(print, 2, slow={1: 0}), ValueError, "slow\\[1\\] must be more than 0 and finite, got 0"),
        (lambda: picolib.run(print, 2, slow=[1, 2]), TypeError, "slow must be a dict from ranks to factors"),
    ],
)
def test_wrong_arguments_are_refused_in_one_sentence(make, kind, text):
    with pytest.raises(kind, match=text) as caught:
        make()
    assert "\n" not in str(caught.value)


def test_links_in_slow_motion():
    fast = Links(2, 4, Link.NVLINK4, Link.ETHERNET_100G)
    slow = fast.slowed(1000)
    assert slow.inter.seconds(1e6) == pytest.approx(1000 * fast.inter.seconds(1e6))
    assert Links(*slow.plain()) == slow


# Failures, and runs that end


def test_a_slow_message_is_no_deadlock_and_counts_as_progress():
    def program():
        x = torch.zeros(10, dtype=torch.uint8)
        (comm.send if dist.get_rank() == 0 else comm.recv)(x, 1 - dist.get_rank())
        (dist.send if dist.get_rank() == 0 else dist.recv)(x, 1 - dist.get_rank())
        picolib.pretend(2.5)

    run = picolib.run(program, 2, links=Links(1, 2, intra=(2.5, 1e6)), timeout=2.0)
    assert run.seconds >= 7  # three times 2.5 s, less what one rank started after the other


@pytest.mark.parametrize("api", ["torch", "picolib"])
def test_a_slow_message_from_anyone_is_no_deadlock(api):
    def program():
        calls, x = dist if api == "torch" else comm, torch.zeros(3)
        return calls.recv(x) if dist.get_rank() == 0 else calls.send(x, 0)

    assert list(picolib.run(program, 2, links=Links(1, 2, intra=(1.5, 1e6)))) == [1, None]


@pytest.mark.parametrize("api", ["torch", "picolib"])
def test_deadlocks_are_still_found(api):
    def program():
        (dist if api == "torch" else comm).recv(torch.zeros(2), 1 - dist.get_rank())

    with pytest.raises(DeadlockError):
        picolib.run(program, 2, links=Links(1, 2))


def test_a_rank_that_waits_for_one_that_has_returned():
    def program():
        if dist.get_rank() == 0:
            comm.recv(torch.zeros(2), 1)
        else:
            picolib.pretend(0.2)

    with pytest.raises(DeadlockError):
        picolib.run(program, 2, links=Links(1, 2))


def test_a_rank_that_dies_while_its_message_is_under_way():
    def program():
        import os

        x = torch.zeros(10)
        if dist.get_rank() == 0:
            comm.isend(x, 1)
            time.sleep(0.3)
            os._exit(3)
        comm.recv(x, 0)
        comm.all_reduce(x)

    with pytest.raises(RankError, match="rank 0"):
        picolib.run(program, 2, links=Links(1, 2, intra=(0.5, 1e6)))


def test_without_the_board_and_without_a_trace():
    run = picolib.run(reduce_with, 4, "ring", 100, links=ONE, checked=False)
    assert all(torch.equal(value, 4 * torch.arange(100, dtype=torch.float64) + 6) for value in run)


def test_a_run_without_links_goes_the_direct_way():
    def program():
        from picolib.comm.p2p import Link as Direct
        from picolib.comm.slow import link_kind
        from picolib.launch import monitor, network

        return link_kind() is Direct, network.current is None, monitor.observer().recorder.now is time.monotonic

    assert list(picolib.run(program, 2)) == [(True, True, True)] * 2


def test_spawned_ranks(script):
    result = script(
        """
        import torch, torch.distributed as dist, picolib
        from picolib import comm

        def program():
            x = torch.ones(1000, dtype=torch.float64)
            comm.all_reduce(x, algorithm="ring")
            return x[0].item()

        if __name__ == "__main__":
            links = picolib.Links(1, 2, intra=(0.05, 1e6))
            for given in (links, None, links):
                run = picolib.run(program, 2, links=given, trace=True)
                events = [e for e in run.trace.events if e.kind == "collective"]
                print(list(run), given is None or min(e.end - e.start for e in events) >= 0.1)
        """,
        PICOLIB_START="spawn",
    )
    assert result.stdout.count("[2.0, 2.0] True") == 3, result.stderr


# Queues


def test_the_examples_in_the_docstrings():
    import doctest

    from picolib.launch import links, queues

    assert doctest.testmod(queues).failed == 0
    assert doctest.testmod(links).failed == 0


def test_a_queue_with_too_many_gaps_forgets_the_first():
    from picolib.launch.queues import BOOKINGS, joined

    gaps = [(float(2 * i), float(2 * i + 1)) for i in range(BOOKINGS + 2)]
    assert joined(gaps) == [(0.0, 5.0), *gaps[3:]]


def test_the_lock_of_a_process_that_dies_is_given_back(tmp_path):
    import multiprocessing
    import os

    from picolib.launch.network import Network

    def die_inside(path):
        from picolib.launch.queues import _Locked

        _Locked(Network(path, ONE, 1).file).__enter__()
        os._exit(0)

    path = str(tmp_path / "links")
    network = Network(path, ONE, 0)
    process = multiprocessing.get_context("fork").Process(target=die_inside, args=(path,))
    process.start()
    process.join(20)
    now = time.monotonic()
    assert network.queues.book((0, 5), now, 0.5) == now + 0.5
    assert network.queues.book((0, 5), now, 0.5) == now + 1.0
    assert network.queues.book((1, 5), now, 0.5) == now + 1.5
    assert network.queues.book((1, 6), now, 0.0) == now  # nothing to carry
    assert network.queues.book((1, 6), now, 0.75) == now + 1.25  # behind the third one
    network.close()


def test_notes_come_out_of_order_and_the_oldest_are_lost_first():
    from picolib.launch.notes import NOTES, Notes

    memory = bytearray(Notes.bytes(2))
    mine, theirs = Notes(memory, 0, 0, 2), Notes(memory, 0, 1, 2)
    for number in range(NOTES + 2):
        mine.leave(1, 7, number, number / 2)
    assert [theirs.find(0, 7, number) for number in (0, 1, 2, NOTES + 1)] == [None, None, 1.0, (NOTES + 1) / 2]
    mine.leave(1, 2**63, 0, 5.0)
    assert theirs.find(0, 2**63, 0) == 5.0
    assert theirs.find(0, 2**63, 0) is None  # only once
    assert mine.find(1, 7, 2) is None
