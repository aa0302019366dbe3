"""Ranks' notes are held against each other, and messages against what is made of them."""

import dataclasses

import cloudpickle
import pytest
import torch
import torch.distributed as dist

from picolib.course import crosscheck
from picolib.course.catalogue import by_id, exercises
from picolib.course.check import examine, failed_text
from picolib.course.trial import attempt

from .wrong_answers import lesson02a, lesson02b

cloudpickle.register_pickle_by_value(lesson02a)
cloudpickle.register_pickle_by_value(lesson02b)


def tried(exercise="2.3", fn=lesson02a.on_views, size=4):
    asked = by_id(exercise)
    return attempt(asked, fn, asked.cases(size, 0)[:1])[0]


def test_both_ends_of_a_right_answer_s_messages_agree():
    one = tried()
    assert crosscheck.disagreement(one) is None
    assert [len(record.receives) for record in one.ranks] == [3] * 4


@pytest.mark.parametrize(
    "place, says",
    [(2, "2 bytes in all|25 bytes in all"), (6, "do not fit together")],
)
def test_one_end_that_tells_something_else_is_found_out(place, says):
    one = tried()
    one.ranks[2].sends[0][place] += 1
    text = crosscheck.disagreement(one)
    assert "rank 2" in text and any(word in text for word in says.split("|"))


def test_a_receive_from_anybody_is_noted_with_its_sender():
    def from_anybody(x):
        rank, n = dist.get_rank(), dist.get_world_size()
        y = x.clone()
        if n > 1:
            request = dist.isend(x, (rank + 1) % n)
            dist.recv(y)
            request.wait()
        return y

    one = tried("2.1", from_anybody)
    assert not one.error and [record.receives[0][1] for record in one.ranks] == [3, 0, 1, 2]
    assert crosscheck.disagreement(one) is None


def test_a_tampered_case_shares_no_memory_with_the_case_it_copies():
    for exercise in exercises().values():
        cases = list(exercise.cases(exercise.sizes[0], 0))
        for case in crosscheck.tampered(exercise, cases):
            pointers = {t.data_ptr() for args in case.inputs for t in args if isinstance(t, torch.Tensor)}
            others = {t.data_ptr() for c in cases for args in c.inputs for t in args if isinstance(t, torch.Tensor)}
            assert case.tampered and not pointers & others


def test_what_each_exercise_sends_is_tampered_with_once():
    sending = {e.id for e in exercises().values() if e.traffic}
    found = {e.id for e in exercises().values() if crosscheck.tampered(e, list(e.cases(e.sizes[0], 0)))}
    assert found == sending


def test_a_rank_that_uses_only_its_own_numbers_for_its_own_part_is_not_blamed():
    case = by_id("2.12").cases(3, 0)[1]
    one = tried("2.12", lesson02b.bruck, 3)
    one.case = dataclasses.replace(case, tampered=True)
    for rank, record in enumerate(one.ranks):
        blocks = [piece + (64.0 if block != rank else 0.0) for block, piece in enumerate(case.expected[rank].chunk(3))]
        record.output = torch.cat(blocks)
    assert crosscheck.unused(one) is None
    one.ranks[1].output = case.expected[1]
    assert "rank 1 does not need the messages" in crosscheck.unused(one)


def test_a_view_of_a_buffer_may_be_made_before_wait_but_not_read():
    def makes_a_view(x):
        rank, n = dist.get_rank(), dist.get_world_size()
        y = torch.empty_like(x)
        if n == 1:
            return x.clone()
        receiving, sending = dist.irecv(y, (rank - 1) % n), dist.isend(x, (rank + 1) % n)
        half = y[: len(y) // 2].view(-1)
        assert half.numel() == len(y) // 2 and half.is_contiguous()
        receiving.wait()
        sending.wait()
        return y

    verdict = examine(by_id("2.1"), makes_a_view)
    assert verdict.passed, failed_text(verdict)
