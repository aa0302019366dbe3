"""Planned times do not depend on how busy the machine is: what moves a rank's clock, and what does not."""

from __future__ import annotations

import time

import pytest
import torch
import torch.distributed as dist

import picolib
from picolib import Links, comm
from picolib.launch import clock

EXACT = 1e-7


def use_processor(seconds):
    """Keep this thread's processor busy for so long."""
    end = time.thread_time() + seconds
    while time.thread_time() < end:
        pass


def test_a_clock_stands_still_but_for_real_work(monkeypatch):
    monkeypatch.setattr(clock, "LATE_SECONDS", 1000.0)
    start = time.monotonic() - 5
    quiet, working = clock.Clock(start, counts_work=False), clock.Clock(start)
    use_processor(0.02)
    assert quiet.now() == start
    assert start + 0.015 <= working.now() < start + 1
    working.reach(start - 1)
    assert working.now() >= start + 0.015
    working.reach(start + 2)
    assert working.due == start + 2


def test_sleeping_counts_where_it_is_long_and_lag_does_not(monkeypatch):
    monkeypatch.setattr(clock, "LATE_SECONDS", 0.05)
    monkeypatch.setattr(clock, "FREE_WORK_SECONDS", 1000.0)
    begun = time.monotonic()
    late, early = clock.Clock(begun - 5), clock.Clock(begun + 5)
    assert late.now() <= begun - 5 + time.monotonic() - begun
    time.sleep(0.2)
    assert late.now() >= begun - 5 + 0.15
    assert early.now() <= time.monotonic()


def test_neither_waiting_nor_the_networks_own_work_counts(monkeypatch):
    monkeypatch.setattr(clock, "LATE_SECONDS", 0.0)
    monkeypatch.setattr(clock, "FREE_WORK_SECONDS", 0.0)
    start = time.monotonic() - 5
    mine = clock.Clock(start)
    with mine.still():
        before = mine.now()
        with mine.still():
            use_processor(0.05)
        time.sleep(0.05)
        assert mine.now() == before  # also after the inner one has ended
    outside = mine.now() - start
    use_processor(0.05)
    assert mine.now() - start >= outside + 0.05
    with mine.still():
        mine.reach(start + 1)
        use_processor(0.05)
        assert mine.now() == start + 1


class Busy:
    """Stands for a collective under way whose next step takes a lot of arithmetic."""

    def poll(self, with_helper=True):
        use_processor(0.2)


def test_what_collectives_in_the_background_compute_is_not_the_ranks_work():
    def program():
        from picolib.comm.groups import resolve
        from picolib.launch import monitor

        clock.LATE_SECONDS, clock.FREE_WORK_SECONDS = 1000.0, 0.0
        in_flight = resolve(None)[1].in_flight
        in_flight.append(Busy())
        start = monitor.now()
        comm.poll()
        seconds = monitor.now() - start
        in_flight.clear()
        return seconds

    assert picolib.run(program, 1, links=Links(1, 1))[0] < 0.1


def buckets_beside_compute(sleepy):
    """In a rank: eight all-reduces, each started after compute; ranks in `sleepy` are late in reality for each."""
    from picolib.launch import monitor

    clock.LATE_SECONDS, clock.FREE_WORK_SECONDS = 0.6, 1000.0  # longer than one delay, shorter than all together
    start, works = monitor.now(), []
    for _ in range(8):
        picolib.pretend(0.03)
        time.sleep(0.12 if dist.get_rank() in sleepy else 0.0)
        works.append(comm.all_reduce(torch.ones(2000), algorithm="direct", async_op=True))
    for work in works:
        work.wait()
    return monitor.now() - start


@pytest.mark.parametrize("sleepy", [(), (2,), (0, 1, 2, 3)])
def test_a_rank_that_lags_behind_its_plan_changes_no_planned_time(sleepy):
    links = Links(1, 4, intra=(1e-3, 8e5))  # an all-reduce takes 2 · 1 ms + 2 · 3/4 · 10 ms = 17 ms
    planned = picolib.run(buckets_beside_compute, 4, sleepy, links=links)
    assert list(planned) == pytest.approx([8 * 0.03 + 0.017] * 4, abs=EXACT)
