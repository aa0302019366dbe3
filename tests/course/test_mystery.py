"""Each mystery's trace shows what its right answer says, and its picture does not say it in words."""

import functools

import pytest

from picolib.course import mystery
from picolib.course.mysteries import LAYERS, MYSTERIES, WEIGHTS
from picolib.course.mystery import Kept, without_names

BY_SITTING = {one.sitting: one for one in MYSTERIES}


@functools.cache
def trace(sitting):
    return BY_SITTING[sitting].trace()


@functools.cache
def evidence(sitting):
    one = BY_SITTING[sitting]
    return one.evidence() if isinstance(one, Kept) else without_names(trace(sitting))


def step(sitting):
    """The second step of rank 0: its collectives, its marks by name, its waits, and when its last layer is through."""
    events = [e for e in trace(sitting).events if e.rank == 0]
    whole = [e for e in events if e.kind == "mark" and e.label == "step"][1]
    inside = [e for e in events if whole.start <= e.start and e.end <= whole.end]
    marks = {e.label: e for e in inside if e.kind == "mark"}
    of = {kind: [e for e in inside if e.kind == kind] for kind in ("collective", "wait", "compute")}
    return of["collective"], marks, of["wait"], max(e.end for e in of["compute"])


def test_gradients_one_after_the_other_travel_when_backward_is_through():
    collectives, marks, waits, _ = step("01A")
    assert len(collectives) == LAYERS and all(e.start >= marks["backward"].end for e in collectives)
    assert sum(e.end - e.start for e in waits) >= 0.95 * sum(e.end - e.start for e in collectives)


def test_zero_2_keeps_parameters_whole_and_a_quarter_of_the_rest():
    ranks = evidence("01B")
    whole = ranks[0]["parameters"]
    assert ranks == [{"parameters": whole, "gradients": whole / 4, "optimizer": 2 * whole / 4}] * 4


def test_accumulation_exchanges_once_after_four_backward_passes():
    collectives, marks, _, computed = step("02A")
    events = [e for e in trace("02A").events if e.rank == 0 and e.kind == "mark"]
    assert [e.label for e in events].count("backward") == 2 * 4
    assert len(collectives) == 1 and collectives[0].start >= max(marks["backward"].end, computed)


def test_messages_of_a_ring_and_of_recursive_doubling():
    ring, doubling = trace("02B"), trace("03A")
    assert all(sent == [6000 * (dst == (src + 1) % 4) for dst in range(4)] for src, sent in enumerate(ring.matrix))
    partners = lambda src: {src ^ 1, src ^ 2, src ^ 4}
    assert all({d for d, b in enumerate(sent) if b} == partners(src) for src, sent in enumerate(doubling.matrix))


def test_a_hook_for_each_parameter_exposes_all_of_it_inside_backward():
    collectives, marks, waits, _ = step("03B")
    assert len(collectives) == LAYERS
    assert all(marks["backward"].start < e.start and e.end <= marks["backward"].end for e in collectives)
    assert sum(e.end - e.start for e in waits) >= 0.95 * sum(e.end - e.start for e in collectives)


def test_buckets_hide_all_but_the_last():
    collectives, _, waits, computed = step("04A")
    assert len(collectives) == LAYERS // 2
    assert all(e.start < computed for e in collectives[:-1]) and collectives[-1].start >= computed
    assert all(e.end >= computed for e in waits)


def test_zero_1_sends_two_halves_after_backward():
    collectives, marks, *_ = step("04B")
    assert [e.label.split("[")[0].removesuffix("_tensor") for e in collectives][0] == "reduce_scatter"
    assert "all_gather" in collectives[1].label
    assert len(collectives) == 2 and all(e.start >= marks["backward"].end for e in collectives)
    two_steps = 2 * 2 * 3 * 4 * LAYERS * WEIGHTS // 4  # two halves of (N-1)/N each
    assert all(0 <= trace("04B").bytes_sent[r] - two_steps < 100 for r in (1, 3))  # others broadcast at the start


def test_fsdp_gathers_in_forward_and_in_backward():
    collectives, marks, *_ = step("05A")
    names = [e.label for e in collectives if e.start < marks["forward"].end]
    assert len(names) >= LAYERS and all("all_gather" in name for name in names)
    assert any("reduce_scatter" in e.label for e in collectives)


def test_cut_layers_wait_for_a_sum_each_in_forward_and_in_backward():
    collectives, marks, waits, _ = step("05B")
    forward = [e for e in collectives if e.end <= marks["forward"].end]
    backward = [e for e in collectives if e.start >= marks["backward"].start]
    assert len(forward) == len(backward) == LAYERS
    assert sum(e.end - e.start for e in waits) >= 0.95 * sum(e.end - e.start for e in collectives)


@pytest.mark.parametrize("one", MYSTERIES, ids=lambda one: one.sitting)
def test_the_picture_does_not_name_it(one):
    text = one.draw(evidence(one.sitting), "A mystery").svg().lower()
    for word in ("all_reduce", "reduce_scatter", "all_gather", "bucket", "ring", "doubling", "zero", "fsdp", "ddp"):
        assert f">{word}" not in text and f"[{word}" not in text and f"{word}]" not in text


def test_a_sitting_without_a_mystery_is_said_so():
    with pytest.raises(ValueError, match="which='00': there are mysteries for 01A, 01B, 02A, 02B, 03A"):
        mystery("00")
    assert repr(mystery("04A")) == "[mystery: 04A]"
