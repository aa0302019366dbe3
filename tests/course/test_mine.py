"""`mine/FUNCTION.py`: what has passed, with all that it uses of its notebook, and nothing else."""

import linecache

import pytest

from picolib.course import mine
from picolib.course.catalogue import by_id

CELLS = """
import math
import torch
import torch.distributed as dist
from torch import nn
from math import prod as product
import functools

WIDTH = 3
x = 5
forward = lambda shards: shards                        # another exercise of the same notebook

def twice(value):
    return 2 * value

double = twice

class Base(torch.autograd.Function):
    @staticmethod
    def backward(ctx, grad):
        return grad

class Kept(nn.Module):
    @staticmethod
    def forward(x, width=WIDTH):
        return double(x) * width

class Sharded(Base):
    @staticmethod
    def forward(ctx, x):
        return Kept.forward(x)

def unused():
    return math.pi

def sharded_linear(shard, x):
    forward = Sharded.forward
    return forward(None, x), product([1, 2]), module_of(x)

def module_of(x):
    return dist.get_rank if x is None else module_of(None)
"""


@pytest.fixture
def cell():
    """A function of a notebook's cell, as the kernel makes it: known to linecache, in no file."""
    name = "<cell of a notebook>"
    linecache.cache[name] = (len(CELLS), None, CELLS.splitlines(keepends=True), name)
    namespace = {"__name__": "__main__"}
    exec(compile(CELLS, name, "exec"), namespace)
    return namespace["sharded_linear"]


def test_what_a_function_uses_of_its_notebook_comes_along_in_an_order_that_runs(workspace, cell):
    with pytest.raises((OSError, TypeError)):
        mine.source_with_helpers(type("Nowhere", (), {}))
    path = mine.save(by_id("4.4"), cell)
    text, found = path.read_text(), {}
    exec(text, found)
    result = found["sharded_linear"](None, 7)
    assert result[:2] == (42, 2) and result[2] is found["dist"].get_rank
    for absent in ("unused", "math.pi", "import math", "x = 5", "lambda", "__name__"):
        assert absent not in text
    assert text.startswith('"""Exercise 4.4, ') and text.count("class Sharded") == 1


def test_a_file_is_known_as_the_one_that_passed_until_it_is_changed(workspace, cell):
    text = mine.save(by_id("4.4"), cell).read_text()
    assert not mine.was_changed("sharded_linear", text)
    assert mine.was_changed("sharded_linear", text + " ")
    assert not mine.was_changed("never_saved", text)


def test_an_answer_of_another_name_is_saved_under_the_exercises(workspace, cell):
    path = mine.save(by_id("4.3"), cell)
    assert path.name == "forward.py" and path.read_text().endswith("forward = sharded_linear\n")


def test_nothing_is_saved_without_a_workspace_or_a_source(nowhere, workspace, monkeypatch, cell):
    assert mine.save(by_id("4.4"), len) is None
    monkeypatch.delenv("PICOLIB_WORKSPACE")
    assert mine.save(by_id("4.4"), cell) is None
