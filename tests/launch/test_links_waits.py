"""With slow-motion links, everything that a rank waits for is an event of kind "wait"."""

import sys

import cloudpickle
import torch

import picolib
from picolib import comm

cloudpickle.register_pickle_by_value(sys.modules[__name__])

LINK = picolib.Link(latency=1e-3, bandwidth=50e6)


def three_gathers():
    works, part = [], torch.ones(50_000)
    outputs = [torch.empty(4 * 50_000) for _ in range(3)]
    for output in outputs:
        works.append(comm.all_gather_into_tensor(output, part, async_op=True, algorithm="direct"))
    for work in works:
        work.wait()


def test_a_collective_that_another_ones_wait_has_ended_is_waited_for_until_its_own_time():
    trace = picolib.run(three_gathers, 4, trace=True, links=picolib.Links(1, 4, LINK, LINK)).trace
    for rank in range(4):
        events = [event for event in trace.events if event.rank == rank]
        ends = {kind: max(e.end for e in events if e.kind == kind) for kind in ("wait", "collective")}
        assert ends["wait"] >= ends["collective"] - 1e-4
