"""`show(f)`: the library's own source in the lesson, instead of a copy of it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from picolib.course.source import source_of

# What gives away the answer to which exercise.
ANSWERS = {
    "picolib.plan.memory.parameters.parameter_count": "1.1",
    "picolib.plan.memory.parameters._count": "1.1",
    "picolib.plan.memory.parameters._layer": "1.1",
    "picolib.plan.memory.state.model_state_parts": "1.2",
    "picolib.plan.memory.state.model_state_bytes": "1.2",
    "picolib.plan.memory.inference.kv_cache_bytes_per_token": "1.3",
    "picolib.plan.memory.inference.kv_cache_bytes": "1.3",
    "picolib.comm.reduce_scatter.ring": "2.3",
    "picolib.comm.all_gather.ring": "2.4",
    "picolib.comm.all_reduce.ring_once": "2.4",
    "picolib.comm.all_reduce.recursive_doubling": "2.6",
    "picolib.comm.all_reduce.doubling": "2.6",
    "picolib.parallel.ddp.wrapper.DistributedDataParallel": "3.1",
    "picolib.parallel.ddp.wrapper.DistributedDataParallel._copy_from_first_rank": "3.1",
    "picolib.parallel.ddp.bucketed.assign_buckets": "3.3",
    "picolib.parallel.ddp.bucketed.average_in_buckets": "3.3",
    "picolib.parallel.ddp.overlapped.OverlappedAverage": "3.4",
    "picolib.train.loss.count_global_tokens": "3.2",
    "picolib.parallel.fsdp.naive.NaiveFullyShard": "4.4",
    "picolib.parallel.fsdp.conductor.Conductor.before_forward": "4.5",
    "picolib.parallel.fsdp.conductor.Conductor.before_backward": "4.5",
    "picolib.parallel.zero.naive.zero_1_step": "4.1",
    "picolib.parallel.clip.clip_grad_norm_": "4.2",
    "picolib.comm.functional.copy_to_group": "5.1",
    "picolib.comm.functional.reduce_from_group": "5.1",
    "picolib.parallel.tensor.loss._CrossEntropy": "5.4",
    "picolib.comm.functional.all_gather": "5.5",
    "picolib.comm.functional.reduce_scatter": "5.5",
    "picolib.parallel.replicated.sum_gradient_over": "5.5",
    "picolib.parallel.tensor.random.sharded_region": "5.6",
}


class Notice:
    """A sentence in place of an output."""

    def __init__(self, text: str) -> None:
        self.text = text

    def __repr__(self) -> str:
        return self.text

    def _repr_markdown_(self) -> str:
        return "> " + self.text


def show(thing: Any, spoil: bool = False) -> None:
    """Show the source of a function, class, method or module, with the file it stands in.

    What answers an exercise that you have not solved yet is shown with `spoil=True` only.
    """
    from IPython.display import display

    display(view(thing, spoil, exercise_is_open))


def view(thing: Any, spoil: bool, is_open: Callable[[str], bool]) -> Any:
    """What `show` displays: the source, or a notice that it would give an answer away."""
    source = source_of(thing)
    exercise = ANSWERS.get(f"{getattr(thing, '__module__', '')}.{source.name}")
    if exercise is None or spoil or not is_open(exercise):
        return source
    return Notice(
        f"`{source.name}` answers exercise {exercise}, which is open. Try it first; to look now: "
        f"`show({source.name}, spoil=True)`."
    )


def exercise_is_open(exercise: str) -> bool:
    """Whether the learner has still to solve it; without a record of progress nothing is open."""
    try:
        from picolib.course.progress import is_open
    except ImportError:
        return False
    return is_open(exercise)
