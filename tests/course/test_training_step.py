"""Pictures of data parallelism: a step from its trace, bucket sizes by formula, scaling."""

import pytest
import torch
import torch.distributed as dist
from torch import nn

import picolib
from picolib.course.figures import bucket_plan, scaling, training_step
from picolib.course.figures.axes import Scale
from picolib.course.figures.bucket_plan import MIB, Model, gradients_of, plan
from picolib.course.figures.scaling import efficiency
from picolib.course.figures.training_step import _room, exposed_seconds, steps_of
from picolib.course.widgets import bucket_explorer
from picolib.launch.trace import Event, Recorder, Trace


def two_steps() -> Trace:
    """One rank, two steps: the second computes for 3 s, with an all-reduce of which 1 s is waited for after it."""
    recorder = Recorder(0, 1, events=True)
    mark = lambda label, start, end: (0, "mark", None, None, label, start, end, None, None)
    recorder.events = [
        mark("step", 0.0, 2.0),
        mark("step", 10.0, 14.0),
        mark("forward", 10.0, 11.0),
        mark("backward", 11.0, 13.0),
        (0, "collective", None, None, "all_reduce[direct] bucket 0", 12.0, 14.0, "all_reduce[direct] bucket 0", None),
        (0, "wait", None, None, "all_reduce[direct] bucket 0", 13.0, 14.0, None, None),
        (0, "wait", None, None, "barrier", 14.0, 20.0, None, None),
    ]
    return Trace(1, [recorder.report()])


def test_a_step_is_cut_out_of_the_trace_and_only_waits_are_exposed():
    (step,) = steps_of(two_steps(), -1)
    assert step.seconds == 4 and step.exposed == [(3.0, 4.0)]
    assert [(m.label, m.start, m.end) for m in step.marks] == [("forward", 0, 1), ("backward", 1, 3)]
    assert [(c.start, c.end) for c in step.collectives] == [(2.0, 4.0)]
    assert exposed_seconds(two_steps(), 1) == [1.0]


def test_without_a_number_it_is_the_quickest_step():
    assert steps_of(two_steps())[0].seconds == 2 and exposed_seconds(two_steps()) == [0.0]


def test_the_picture_of_a_step_names_its_spans_and_its_buckets():
    svg = training_step(two_steps(), number=1).svg()
    assert all(word in svg for word in ("forward", "backward", "bucket 0", "1 s exposed", "4 s in all"))


@pytest.mark.parametrize(
    "red, room", [([(0.0, 4.0)], (4.0, 10.0)), ([(0.5, 9.0)], (9.0, 10.0)), ([(0.0, 10.0)], (0.0, 0.0))]
)
def test_the_name_of_a_span_never_stands_on_red(red, room):
    mark = Event(0, "mark", None, None, "backward", 0.0, 10.0)
    assert _room(Scale(0, 10, 0, 100), mark, red)[0] == room


def test_a_picture_of_some_ranks_says_of_how_many():
    run = picolib.run(a_step, 3, trace=True)
    assert "ranks 0 and 1 of 3" in training_step(run.trace).svg()
    assert "of 3" not in training_step(run.trace, ranks=(0, 1, 2)).svg()


def a_step():
    with picolib.mark("step"):
        dist.all_reduce(torch.ones(1))


def test_a_run_without_steps_says_how_to_mark_them():
    with pytest.raises(ValueError, match=r"number=2: there are 2 steps.*picolib.mark"):
        training_step(two_steps(), number=2)


def test_too_small_pays_latency_too_large_hides_nothing():
    exposed = {cap: plan(gradients_of(Model()), cap * MIB, 5e-5, 0.5e-9, 8).exposed for cap in (0.5, 4, 64)}
    assert exposed[4] < exposed[0.5] / 5 and exposed[4] < exposed[64] / 5


def test_one_bucket_begins_when_the_backward_pass_ends_and_costs_its_bill():
    whole = plan([(1.0, 1000)] * 4, 1e9, alpha=0.25, beta=0.001, ranks=2)
    assert whole.backward == 4 and [b.start for b in whole.buckets] == [4]
    assert whole.exposed == pytest.approx(2 * 0.25 + 4000 * 0.001)


def test_buckets_share_a_wire_and_never_start_before_their_gradients():
    found = plan([(1.0, 1000)] * 6, 1, alpha=1.0, beta=0.0, ranks=2)
    assert [b.ready for b in found.buckets] == [1, 2, 3, 4, 5, 6]
    assert [(b.start, b.end) for b in found.buckets] == [(1, 3), (3, 5), (5, 7), (7, 9), (9, 11), (11, 13)]


@pytest.mark.parametrize("cap_mb", [0.001, 0.004, 1.0])
def test_the_formula_s_buckets_are_those_of_a_run_and_all_but_the_last_start_during_backward(cap_mb):
    sizes = [200, 300, 500, 100, 700, 400]
    run = picolib.run(one_backward, 2, sizes, cap_mb, trace=True)
    expected = plan([(1.0, 4 * size) for size in sizes], cap_mb * MIB, 1e-5, 1e-9, 2).buckets
    events = [e for e in run.trace.events if e.rank == 0]
    (backward,) = [e for e in events if e.label == "backward"]
    collectives = [e for e in events if e.kind == "collective" and "bucket" in e.label and e.start > backward.start]
    assert [e.label.split()[-1] for e in collectives] == [str(number) for number in range(len(expected))]
    sent = [
        sum(e.bytes for e in events if e.kind == "send" and e.call == c.call and e.start >= c.start)
        for c in collectives
    ]
    assert sent == [bucket.nbytes for bucket in expected]  # 2(N-1)/N of them on 2 ranks
    last_gradient = max(e.start for e in events if e.label == "last gradient")
    assert all(e.start < last_gradient for e in collectives[:-1])


def one_backward(sizes, cap_mb):
    """A backward pass that is marked, and so is the moment when its last gradient is there."""
    model = nn.ParameterList([torch.zeros(size) for size in sizes])
    module = SumOfAll(model)
    ddp = picolib.DistributedDataParallel(module, bucket_cap_mb=cap_mb)
    ddp(torch.ones(1)).backward()
    dist.barrier()
    model[0].register_hook(lambda gradient: mark_now("last gradient"))
    output = ddp(torch.ones(1))
    with picolib.mark("backward"):
        output.backward()


class SumOfAll(nn.Module):
    """The sum of all parameters: the backward pass comes to the last one first."""

    def __init__(self, parameters):
        super().__init__()
        self.values = parameters

    def forward(self, x):
        total = x.sum()
        for parameter in self.values:
            total = total * 1 + parameter.sum()
        return total


def mark_now(label):
    with picolib.mark(label):
        pass


def shown(explorer):
    return explorer.panel.children[-1].value


def test_the_widget_s_question_is_answered_by_its_slider():
    explorer = bucket_explorer()
    cap, latency, *_ = explorer.panel.children[1].children
    best = {}
    for alpha in (5e-5, 5e-4):
        latency.value = alpha
        found = {}
        for _, value in cap.options:
            cap.value = value
            assert f"{value:g} MB" in shown(explorer)
            found[value] = plan(gradients_of(Model()), value * MIB, alpha, 0.5e-9, 8).exposed
        best[alpha] = min(found, key=found.get)
    assert best == {5e-5: 2, 5e-4: 16}  # more latency, larger buckets


def test_the_static_picture_shows_too_small_right_and_too_large():
    assert "0.5 MB: 128 buckets" in bucket_explorer().picture.alt and "64 MB: 1 bucket," in bucket_plan([64]).alt


def test_efficiency_is_relative_to_the_smallest_run():
    assert efficiency({2: 100.0, 4: 150.0}) == {2: 1.0, 4: 0.75}
    svg = scaling({"strong": {1: 10.0, 4: 20.0}}, cores=2).svg()
    assert (
        "ideal" in svg and "cores: 2" in svg and "cores" not in scaling({"strong": {1: 10.0, 2: 20.0}}, cores=2).svg()
    )
    with pytest.raises(ValueError, match="at least two numbers of ranks"):
        scaling({"weak": {1: 3.0}})
