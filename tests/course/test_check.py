"""What `check` prints, raises and bounds."""

import time

import cloudpickle
import pytest
import torch
import torch.distributed as dist

from picolib import comm
from picolib.course import check
from picolib.course.catalogue import by_id, exercises
from picolib.course.check import CheckFailed, Verdict, examine, failed_text, passed_text
from picolib.course.exercise import Case
from picolib.course.judge import Fault
from picolib.course.records import Attempt
from picolib.course.trial import attempt
from picolib.course.values import tolerance

from .wrong_answers import lesson02a

cloudpickle.register_pickle_by_value(lesson02a)


def my_share(items):
    return items[dist.get_rank() :: dist.get_world_size()]


cloudpickle.register_pickle_by_value(__import__("sys").modules[__name__])


def test_a_passed_check_prints_the_same_line_every_time(nowhere, capsys):
    for _ in range(2):
        check(lesson02a.on_views, exercise="2.3")
    first, second = capsys.readouterr().out.splitlines()
    assert first == second == (
        "Exercise 2.3 passed: values right on 1, 2, 3, 4, 5 ranks; 7,500 bytes per rank = (N-1)/N·S; "
        "N-1 = 3 messages, all to the right neighbour."
    )  # fmt: skip


def test_the_function_s_name_says_which_exercise_it_answers(nowhere, capsys):
    check(my_share)
    assert "Exercise 0.1 passed" in capsys.readouterr().out


def test_a_function_that_no_exercise_asks_for_is_refused_in_a_sentence():
    with pytest.raises(ValueError, match=r"no exercise asks for a function named 'some_name'.*my_share \(0.1\)"):
        check(type(my_share)(my_share.__code__, {}, "some_name"))
    with pytest.raises(ValueError, match="'9.9': the exercises are 0.1"):
        check(my_share, exercise="9.9")


def test_an_untouched_stub_is_not_attempted_yet(nowhere):
    def stub(x):
        raise NotImplementedError

    with pytest.raises(CheckFailed) as failure:
        check(stub, exercise="2.3")
    assert str(failure.value) == "Exercise 2.3: not attempted yet"


def test_an_exercise_that_builds_on_an_open_one_says_so(nowhere):
    def ring_reduce_scatter(x):
        raise NotImplementedError

    def all_reduce(x):
        ring_reduce_scatter(x)

    with pytest.raises(CheckFailed, match="it calls ring_reduce_scatter, exercise 2.3, which comes first"):
        check(all_reduce, exercise="2.4")


def test_a_method_of_a_stub_is_no_other_exercise(nowhere):
    """`forward` is what exercise 4.3 asks for, and what every autograd function has."""

    class Enter(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            raise NotImplementedError

    for exercise, function in (("5.1", lambda: (Enter.apply, Enter.apply)), ("4.4", lambda *_: Enter.apply(_[0]))):
        with pytest.raises(CheckFailed) as failure:
            check(function, exercise=exercise)
        assert str(failure.value) == f"Exercise {exercise}: not attempted yet"


def test_another_lessons_exercise_is_not_meant(nowhere):
    def all_reduce(x):
        bill(x)  # noqa: F821

    with pytest.raises(CheckFailed) as failure:
        check(all_reduce, exercise="2.4")
    assert "exercise 2.7" not in str(failure.value)


def test_a_notebook_shows_the_text_alone():
    error = CheckFailed("Exercise 2.3: not attempted yet")
    assert error._render_traceback_() == ["Exercise 2.3: not attempted yet"]


def test_a_deadlock_is_explained_within_three_seconds():
    examine(by_id("2.1"), lesson02a.isend_first)  # the fork server is warm
    started = time.monotonic()
    verdict = examine(by_id("2.1"), lesson02a.all_receive_first)
    assert "wait for each other" in failed_text(verdict)
    assert time.monotonic() - started < 10  # 1 s on an idle machine


def test_what_a_learner_s_function_does_to_torch_does_not_reach_the_judge():
    def patches(x):
        torch.equal = torch.allclose = lambda *args, **kwargs: True
        return x

    assert not examine(by_id("2.3"), patches).passed
    assert not torch.equal(torch.zeros(1), torch.ones(1))


def test_a_returned_object_is_described_not_unpickled():
    def returns_a_class(x):
        class Trap:
            pass

        lesson02a.isend_first(x)
        return Trap()

    assert "rank 0 returned a Trap; a tensor is asked for" in failed_text(examine(by_id("2.1"), returns_a_class))


def test_a_serialised_function_is_only_opened_by_ranks():
    verdict = examine(by_id("2.3"), cloudpickle.dumps(lesson02a.on_views))
    assert verdict.passed and "2.3 passed" in passed_text(verdict)


def test_an_error_in_a_rank_shows_the_learner_s_line():
    def crashes(x):
        return x[12345]

    text = failed_text(examine(by_id("2.1"), crashes))
    assert "IndexError" in text and "return x[12345]" in text and "picolib" not in text


def test_a_rank_finds_nobody_else_s_input(nowhere):
    def searches(x):
        import os
        import sys

        arrived = lesson02a.isend_first(x)
        wanted = arrived.view(torch.uint8).numpy().tobytes()
        frame = sys._getframe(1) if x.numel() > 8 and dist.get_world_size() > 1 else None
        while frame is not None:
            values = list(frame.f_locals.values())
            for value in values:
                if isinstance(value, (list, tuple, dict)):
                    values.extend(value.values() if isinstance(value, dict) else value)
                if isinstance(value, torch.Tensor) and value.view(torch.uint8).numpy().tobytes() == wanted:
                    raise RuntimeError("found in a frame")
                if isinstance(value, (bytes, bytearray, memoryview)) and wanted in bytes(value):
                    raise RuntimeError("found among bytes")
                if isinstance(value, str) and "picolib-inputs" in value and os.listdir(value):
                    raise RuntimeError("found in a file")
            frame = frame.f_back
        return arrived

    verdict = examine(by_id("2.1"), searches)
    assert verdict.passed, failed_text(verdict)


def test_a_message_in_a_group_is_noted_with_ranks_of_the_world(nowhere):
    def in_a_group(x):
        group = dist.new_group([1, 2])
        for send, recv in ((dist.send, dist.recv), (comm.send, comm.recv)):
            if dist.get_rank() == 1:
                send(x, 2, group=group)
            elif dist.get_rank() == 2:
                recv(torch.empty_like(x), 1, group=group)
        return x

    exercise = by_id("2.1")
    (tried,) = attempt(exercise, in_a_group, exercise.cases(3, 0)[:1])
    assert not tried.error, tried.error
    assert [[s[1] for s in record.sends] for record in tried.ranks] == [[], [2, 2], []]


def test_a_collective_of_a_group_s_backend_is_seen(nowhere):
    def by_the_backend(x):
        backend = dist.group.WORLD._get_backend(torch.device("cpu"))
        backend.allreduce([x], dist.AllreduceOptions()).wait()

    assert "torch's own all_reduce" in failed_text(examine(by_id("2.4"), by_the_backend))


def test_a_bfloat16_sum_may_round_but_never_be_n_times_too_big():
    case = next(c for c in by_id("2.4").cases(3, 0) if c.kind == "bfloat16")
    right = case.expected[0]
    assert tolerance(case, right) < 0.5 * float(right.abs().max())


@pytest.mark.parametrize("exercise", exercises().values(), ids=lambda e: e.id)
def test_inputs_are_new_with_every_seed_and_differ_by_rank(exercise):
    if exercise.id in ("0.1", "2.2", "2.7", "3.6"):
        pytest.skip("the question is the same on all ranks")
    size = exercise.sizes[0]
    one, other = ([case.inputs for case in exercise.cases(size, seed)] for seed in (1, 2))
    assert str(one) != str(other)
    if size > 1:
        assert str(one[-1][0]) != str(one[-1][1])


def test_what_no_exercise_has_thought_of_is_one_sentence_and_no_traceback():
    def takes_a_parameter_away(module, group):
        module.norm.weight = None

    def calls_with_something_odd(model, batches, lr):
        model(torch.zeros(0))

    verdict = examine(by_id("3.1"), takes_a_parameter_away)
    assert not verdict.passed and isinstance(verdict.fault.cause, KeyError)
    assert "cannot be judged, so it counts as not passed" in failed_text(verdict)
    text = failed_text(examine(by_id("3.7"), calls_with_something_odd))
    assert "model(torch.zeros(0))" in text and "picolib" not in text


def test_what_goes_wrong_after_the_function_has_returned_is_said_to():
    def changes_what_backward_needs(token_losses):
        loss = token_losses.exp()
        result = loss.sum()
        loss += 1
        return result

    text = failed_text(examine(by_id("3.2"), changes_what_backward_needs))
    assert "modified by an inplace operation" in text and "had returned by then" in text and "picolib" not in text


@pytest.mark.parametrize(("kind", "said"), [("digits", True), ("bfloat16", False)])
def test_wrong_on_3_ranks_is_said_only_where_the_same_kind_of_data_was_right_on_4(kind, said):
    exercise = by_id("3.3")
    failed = Attempt(exercise, Case(kind, ((), (), ()), None))
    verdict = Verdict(exercise, Fault("It is wrong."), failed, passed_sizes=[4], passed_kinds={"digits", "float32"})
    assert ("Right on 4 ranks, wrong on 3: It is wrong." in failed_text(verdict)) is said


def test_exercise_3_3_and_3_5_try_every_kind_of_data_on_every_number_of_ranks():
    for exercise in map(by_id, ("3.3", "3.5")):
        assert len({tuple(case.kind for case in exercise.cases(size, 1)) for size in exercise.sizes}) == 1


def test_what_torch_imports_late_is_imported_when_the_arguments_arrive_and_not_in_the_kernel():
    import pickle

    from picolib.course.trial import _Imported

    there, missing = pickle.loads(pickle.dumps([_Imported("colorsys"), _Imported("no_such_module")]))
    assert there.__name__ == "colorsys" and missing is None
    assert by_id("1.4").imports and all("." in name for name in by_id("1.4").imports)
