"""What the code of an answer shows by itself."""

from picolib.course.catalogue import by_id
from picolib.course.exercise import Case
from picolib.course.records import Attempt
from picolib.course.remarks import remark


def said(code: str, exercise: str = "3.3", told: str = "") -> str:
    return remark(Attempt(by_id(exercise), Case("digits", ((),), None), code=code), told)


def test_an_operation_other_than_the_sum_is_remarked_upon():
    assert "the smallest of the ranks' numbers" in said("dist.all_reduce(x, op=dist.ReduceOp.MIN)")
    assert "the largest of the ranks' numbers" in said("dist.all_reduce(x, dist.ReduceOp.MAX)")
    assert said("dist.all_reduce(x, op=dist.ReduceOp.SUM)") == ""


def test_an_operation_that_the_exercise_needs_is_not():
    assert said("dist.all_reduce(steps, op=dist.ReduceOp.MAX)", exercise="3.7") == ""
    assert "MIN" in said("dist.all_reduce(steps, op=dist.ReduceOp.MIN)", exercise="3.7")


def test_what_has_been_told_is_not_said_again():
    assert said("dist.all_reduce(x, op=dist.ReduceOp.MIN)", told="that is the smallest over the ranks") == ""


def test_a_receive_that_does_not_say_from_whom_is_remarked_upon():
    assert "`dist.recv(arrived)` takes the first message that comes" in said("dist.recv(arrived)", exercise="2.6")
    for code in ("dist.recv(arrived, 1)", "dist.recv(arrived, src=1)", "dist.irecv(arrived, **options)"):
        assert said(code, exercise="2.6") == ""
