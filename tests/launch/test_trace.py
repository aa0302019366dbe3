"""The trace counts exactly what was sent, and shows when."""

import json
import time

import pytest
import torch
import torch.distributed as dist

import picolib
from picolib.launch.trace import Event, Recorder, Trace


def exchange():
    rank, size = dist.get_rank(), dist.get_world_size()
    x, y = torch.ones(10), torch.empty(10)
    handle = dist.isend(x, (rank + 1) % size)
    dist.recv(y, (rank - 1) % size)
    handle.wait()
    if rank == 0:
        dist.send(torch.ones(3, dtype=torch.float64), 2)
    elif rank == 2:
        dist.recv(torch.empty(3, dtype=torch.float64), 0)
    dist.all_reduce(x)
    dist.all_reduce(x)
    dist.barrier()


@pytest.mark.parametrize("checked", [True, False])
def test_counters_are_exact_with_and_without_the_board(checked):
    trace = picolib.run(exchange, 3, checked=checked).trace
    assert trace.matrix == [[0, 40, 24], [0, 0, 40], [40, 0, 0]]
    assert trace.bytes_sent == [64, 40, 40] and trace.messages_sent == [2, 1, 1]
    assert trace.calls == [{"all_reduce": 2, "barrier": 1}] * 3
    assert trace.events == []


def test_native_collectives_are_recorded_with_their_payload_and_no_bytes_on_the_wire():
    trace = picolib.run(exchange, 3, trace=True).trace
    assert trace.native[0]["all_reduce"] == (2, 80)
    collectives = [e for e in trace.events if e.kind == "collective"]
    assert len(collectives) == 9 and all(e.bytes is None for e in collectives)


def test_events_tell_who_sent_to_whom_and_when():
    trace = picolib.run(exchange, 3, trace=True).trace
    sends = [(e.rank, e.peer, e.bytes) for e in trace.events if e.kind == "send"]
    receives = [(e.rank, e.peer, e.bytes) for e in trace.events if e.kind == "recv"]
    assert sorted(sends) == [(0, 1, 40), (0, 2, 24), (1, 2, 40), (2, 0, 40)]
    assert sorted(receives) == sorted((peer, rank, n) for rank, peer, n in sends)
    assert all(0 <= e.start <= e.end for e in trace.events)
    assert trace.events == sorted(trace.events, key=lambda e: e.start)


def test_the_trace_opens_in_perfetto(tmp_path):
    recorder = Recorder(0, 2, events=True)
    recorder.event("send", 1.0, peer=1, nbytes=8, label="send", call="all_reduce[ring]", note={"chunk": 1})
    other = Recorder(1, 2, events=True)
    other.event("recv", 1.5, peer=0, nbytes=8, label="recv", call="all_reduce[ring]")
    Trace(2, [recorder.report(), other.report()]).save(tmp_path / "trace.json")
    events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    slices = [e for e in events if e["ph"] == "X"]
    assert [(s["pid"], s["name"]) for s in slices] == [(0, "send"), (1, "recv")]
    assert slices[0]["args"] == {"peer": 1, "bytes": 8, "call": "all_reduce[ring]", "chunk": 1}
    assert {e["ph"] for e in events} == {"M", "X", "s", "f"}
    assert all(e["ts"] >= 0 for e in slices)


def test_a_rank_without_a_report_counts_as_silent():
    trace = Trace(2, [None, Recorder(1, 2).report()])
    assert trace.bytes_sent == [0, 0] and trace.calls == [{}, {}]


def test_times_start_with_the_first_event():
    events = [[0, "send", 1, 4, "send", 100.0, 101.0, None, None]]
    report = {**Recorder(0, 1).report(), "events": events}
    assert Trace(1, [report]).events == [Event(0, "send", 1, 4, "send", 0.0, 1.0, None, None)]


def library_exchange():
    from picolib import comm

    x = torch.ones(6)
    comm.all_reduce(x, algorithm="ring")
    return x.sum().item()


def test_a_collective_of_picolib_shows_the_messages_that_it_is_made_of():
    pytest.importorskip("picolib.comm")
    run = picolib.run(library_exchange, 3, trace=True)
    assert list(run) == [18.0] * 3
    sends = [e for e in run.trace.events if e.kind == "send"]
    assert len(sends) == sum(run.trace.messages_sent) and {e.call for e in sends} == {"all_reduce[ring]"}
    assert sum(e.bytes for e in sends) == sum(run.trace.bytes_sent) == 3 * 4 * 2 * 6 * 2 // 3
    assert run.trace.calls == [{"all_reduce": 1}] * 3


def waits(trace, rank):
    return [(e.label, e.peer) for e in trace.events if e.rank == rank and e.kind == "wait"]


def longest_wait(trace, rank):
    return max((e.end - e.start for e in trace.events if e.rank == rank and e.kind == "wait"), default=0.0)


@pytest.mark.parametrize("checked", [True, False])
def test_a_rank_that_blocks_says_how_long_in_torchs_calls(checked):
    def program():
        x, y, rank = torch.ones(4), torch.empty(4), dist.get_rank()
        dist.all_reduce(x)
        handle = dist.all_reduce(x, async_op=True)
        handle.wait()
        if rank == 0:
            dist.recv(y, 1)
        else:
            time.sleep(0.4)
            dist.isend(x, 0).wait()

    trace = picolib.run(program, 2, trace=True, checked=checked).trace
    both = [("all_reduce", None), ("all_reduce", None)]
    assert waits(trace, 0) == [*both, ("recv", None)] and waits(trace, 1) == [*both, ("send", None)]
    assert longest_wait(trace, 0) > 0.35
    assert waits(picolib.run(program, 2, checked=checked).trace, 0) == []


@pytest.mark.parametrize("checked", [True, False])
def test_a_rank_that_blocks_says_how_long_in_picolibs_calls(checked):
    def program():
        from picolib import comm

        x, y, rank = torch.ones(4), torch.empty(4), dist.get_rank()
        comm.all_reduce(x, algorithm="ring")
        handle = comm.all_reduce(x, async_op=True, algorithm="ring")
        if rank == 0:
            time.sleep(0.4)
        handle.wait()
        comm.all_reduce(x, algorithm="native")
        if rank == 0:
            comm.recv(y, 1)
        else:
            comm.send(x, 0)

    trace = picolib.run(program, 2, trace=True, checked=checked).trace
    calls = [("all_reduce[ring]", None), ("all_reduce[ring]", None), ("all_reduce", None)]
    assert waits(trace, 0) == [*calls, ("recv", None)] and waits(trace, 1) == [*calls, ("send", None)]
    assert longest_wait(trace, 1) > 0.35


def test_exposed_time_of_an_asynchronous_collective_is_what_its_rank_waits():
    def program():
        from picolib import comm

        handle = comm.all_reduce(torch.ones(4), async_op=True)
        with picolib.mark("backward"):
            time.sleep(0.5)
        handle.wait()

    from picolib.course.figures.timeline import exposed

    trace = picolib.run(program, 2, trace=True).trace
    assert sum(e.kind == "mark" and e.label == "backward" for e in trace.events) == 2
    for rank in range(2):
        mine = [e for e in trace.events if e.rank == rank]
        whole = next(e for e in mine if e.kind == "collective")
        assert whole.end - whole.start > 0.5 > sum(end - start for start, end in exposed(mine))


def test_marks_nest_decorate_survive_exceptions_and_do_nothing_where_nothing_is_traced():
    def program():
        @picolib.mark("inner")
        def inner():
            raise ValueError

        try:
            with picolib.mark("outer"):
                inner()
        except ValueError:
            pass

    trace = picolib.run(program, 1, trace=True).trace
    assert [(e.kind, e.label) for e in trace.events] == [("mark", "outer"), ("mark", "inner")]
    assert picolib.run(program, 1).trace.events == []
    program()
    with pytest.raises(TypeError, match=r"label must be a text such as \"backward\", got 3"), picolib.mark(3):
        pass
