"""The pictures of the course, drawn from a run's own trace or from formulas that tests hold against the run.

Each function returns a `Figure`, which shows itself as the last line of a cell and saves itself with `.save(path)`.
"""

from picolib.course.figures.block_tokens import block_tokens
from picolib.course.figures.bucket_plan import bucket_plan
from picolib.course.figures.canvas import Figure
from picolib.course.figures.collectives import collectives_picture, collectives_to_name
from picolib.course.figures.curves import cost_curves, loss_curves
from picolib.course.figures.display import display_figure
from picolib.course.figures.formula import bytes_vs_formula
from picolib.course.figures.fsdp_life import fsdp_life
from picolib.course.figures.layouts import layouts
from picolib.course.figures.link_speed import link_speed
from picolib.course.figures.matrix import message_matrix
from picolib.course.figures.memory import held_curves, memory_bars
from picolib.course.figures.scaling import scaling
from picolib.course.figures.sharding_trade import sharding_trade
from picolib.course.figures.stack import stack
from picolib.course.figures.steps import frame, overview, walk, walk_trace
from picolib.course.figures.tensor_share import tensor_share
from picolib.course.figures.timeline import timeline
from picolib.course.figures.tokens import token_weights
from picolib.course.figures.topology import topology
from picolib.course.figures.training_step import exposed_seconds, training_step
from picolib.course.figures.waits import wait_graph
from picolib.course.figures.zero_chart import zero_chart

__all__ = [
    "Figure",
    "block_tokens",
    "bucket_plan",
    "bytes_vs_formula",
    "collectives_picture",
    "collectives_to_name",
    "cost_curves",
    "display_figure",
    "exposed_seconds",
    "frame",
    "fsdp_life",
    "held_curves",
    "layouts",
    "link_speed",
    "loss_curves",
    "memory_bars",
    "message_matrix",
    "overview",
    "scaling",
    "sharding_trade",
    "stack",
    "tensor_share",
    "timeline",
    "token_weights",
    "topology",
    "training_step",
    "wait_graph",
    "walk",
    "walk_trace",
    "zero_chart",
]
