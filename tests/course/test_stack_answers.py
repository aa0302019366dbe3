"""Every right answer of the table, not only the solution, does its work in a run with `use="mine"`."""

from functools import cache

import pytest
import torch
from torch.utils._pytree import tree_leaves

import picolib
from picolib.course import mine
from picolib.course.catalogue import by_id
from picolib.course.stack import PARTS
from tests.course import test_stack, test_stack_fsdp, test_stack_tensor
from tests.course.wrong_answers import load

ANSWERS = [answer for answer in load() if not answer.says and answer.exercise in PARTS.values()]
FUNCTIONS = {exercise: function for function, exercise in PARTS.items()}


def sharded_optimizer():
    return test_stack.zero_steps(torch.optim.AdamW, {"lr": 0.01})[0]


def collectives():
    return test_stack.sent_around(torch.float64, 0, [1.0, 2.0, 3.0]), test_stack.steps()[0]


def program_of(exercise):
    by_lesson = {"2": collectives, "3": test_stack.steps, "4": test_stack_fsdp.clipping, "5": test_stack_tensor.train}
    return sharded_optimizer if exercise == "4.1" else by_lesson[exercise[0]]


@cache
def librarys(program):
    return numbers_in(picolib.run(program, 4))


def numbers_in(run):
    return [torch.as_tensor(leaf) for leaf in tree_leaves(list(run)) if not isinstance(leaf, str)]


@pytest.mark.parametrize("answer", ANSWERS, ids=lambda answer: answer.label)
def test_a_right_answer_does_the_librarys_work(workspace, answer):
    assert mine.save(by_id(answer.exercise), answer.function)
    program = program_of(answer.exercise)
    found = picolib.run(program, 4, use="mine")
    for one, other in zip(librarys(program), numbers_in(found), strict=True):
        torch.testing.assert_close(other, one, rtol=1e-5, atol=1e-6)
    assert f"{FUNCTIONS[answer.exercise]} ({answer.exercise}) " in found.stdout[0].partition("Not called")[0]
