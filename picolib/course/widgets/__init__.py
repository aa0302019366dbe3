"""Things to play with. Each has a question that it answers, and a static picture for where nothing runs."""

from picolib.course.widgets.base import Explorer
from picolib.course.widgets.buckets import bucket_explorer
from picolib.course.widgets.cost import cost_explorer
from picolib.course.widgets.deadlock import deadlock_explorer
from picolib.course.widgets.fsdp import fsdp_stepper
from picolib.course.widgets.links import link_explorer
from picolib.course.widgets.memory import memory_explorer
from picolib.course.widgets.stepper import stepper, steps
from picolib.course.widgets.tensor import tensor_explorer
from picolib.course.widgets.tokens import token_explorer
from picolib.course.widgets.trade import trade_explorer

__all__ = [
    "Explorer",
    "bucket_explorer",
    "cost_explorer",
    "deadlock_explorer",
    "fsdp_stepper",
    "link_explorer",
    "memory_explorer",
    "stepper",
    "steps",
    "tensor_explorer",
    "token_explorer",
    "trade_explorer",
]
