"""Exercises of sitting 04A: a step of ZeRO-1, a norm over shards, an optimizer that moves nothing.

How each is tried and judged stands in a file of its own: `lesson04a_step` and `_part`, `_clip`, `_moved`.
"""

from __future__ import annotations

from picolib.course.exercise import COLLECTIVES, Exercise
from picolib.course.exercises.lesson03a_refuse import only
from picolib.course.exercises.lesson04a_clip import clip_cases, clip_ignored, clipped, judge_clip
from picolib.course.exercises.lesson04a_moved import judge_moved, moved_cases, moved_ignored, train_with
from picolib.course.exercises.lesson04a_step import judge_steps, step_cases, steps_ignored, take_steps

LESSON = "04A_zero"
UNEVEN = (
    "A reduce-scatter gives every rank an equal part, so the length must be a multiple of the number of ranks. Put "
    "zeros behind: torch.nn.functional.pad(x, (0, -len(x) % n)). The part comes first, then the whole: "
    "dist.reduce_scatter_tensor(part, whole)."
)
LEAF = "A parameter may not be changed in place while autograd watches: write into p.data, or under torch.no_grad()."
VIEW = "is a view and is being modified inplace"
WATCHED = "Autograd watches this tensor: put the flat one together of p.detach(), or of p.data."
PADDING = "Cut the zeros at the end off before you split: flat[:total].split(sizes)."
CUT_OFF = (
    "Nothing is left of the flat tensor: a negative number in F.pad cuts off. What is missing to a multiple of N is "
    "-len(x) % n, which Python reads as (-len(x)) % n."
)
ROOM_FIRST = (
    "The tensor for everybody's parts comes first, this rank's part second: dist.all_gather_into_tensor(whole, part). "
    "The first is N times as long."
)
DTYPE = "Parameters and gradients are float64 here: make room in their dtype, as with torch.empty_like(part)."
EMPTY = "A rank may hold no part at all: shards is an empty list, its square is 0, and it takes part all the same."
START = "Begin with torch.zeros((), dtype=torch.float64), and add to it."
ODD_LENGTH = r"outputShape\[0\] \* worldSize == inputShape|same size as output size times"

EXERCISES = (
    Exercise(
        id="4.1",
        function="zero1_step",
        title="a step of ZeRO-1",
        lesson=LESSON,
        sitting="04A",
        difficulty=3,
        minutes=12,
        task="Average the gradients, step on 1/N of the parameters with state for these alone, and tell the others.",
        cases=step_cases,
        call=take_steps,
        judge=judge_steps,
        ignores=steps_ignored,
        sizes=(4, 3, 2, 1),
        allows=COLLECTIVES | {"barrier"},
        tags=("gradients",),
        raised=(
            (ODD_LENGTH, UNEVEN),
            (r"float vs\.? double", DTYPE),
            ("a leaf Variable", LEAF),
            (r"split_with_sizes.* to sum exactly to 0 ", CUT_OFF),
            ("split_with_sizes", PADDING),
            ("allgather: invalid tensor size", ROOM_FIRST),
            (VIEW, WATCHED),
        ),
        verified="parameters equal one process's after each step, state is 1/N, 2(N-1)/N·Ψ sent",
        hints=(
            "An all-reduce is a reduce-scatter and an all-gather. What can be done in between, and by whom?",
            "One flat tensor of gradients, padded to a multiple of N; its mean, reduce-scattered, is your part. "
            "update(your part of the flat parameters, that mean, state). Then gather, and copy back.",
            "dist.reduce_scatter_tensor(mean, flat_gradient); mean /= n; part = flat.chunk(n)[rank].clone(); "
            "update(part, mean, state); dist.all_gather_into_tensor(flat, part); then flat.split(...) into p.data.",
        ),
    ),
    Exercise(
        id="4.2",
        function="clip",
        title="clip by the global norm",
        lesson=LESSON,
        sitting="04A",
        difficulty=2,
        minutes=7,
        task="Some gradients are in parts over the ranks, some are on every rank: scale all by the norm of the whole.",
        cases=clip_cases,
        call=clipped,
        judge=judge_clip,
        ignores=clip_ignored,
        sizes=(4, 3, 2, 1),
        allows=COLLECTIVES | {"barrier"},
        rules=(only("all_reduce"),),
        blocked=EMPTY,
        raised=(
            (r"ZeroDivisionError", "The norm is 0 where all gradients are 0. Scale only where norm > max_norm."),
            (r"but\s+got <class 'int'|non-empty TensorList|non-empty list|'int' object", f"{EMPTY} {START}"),
            (r"[Dd]type.* differ|has float(32|64)", f"{EMPTY} {START} Gradients are float64 here."),
        ),
        tags=("gradients",),
        verified="the norm counts every element once, also where a rank has no part; one number all-reduced",
        hints=(
            "The norm is the root of a sum of squares. Which of the squares do the other ranks have already?",
            "All-reduce the sum of squares of the shards. Add the squares of the replicated ones afterwards.",
            "square = torch.zeros((), dtype=torch.float64), plus g.square().sum() for each shard; dist.all_reduce("
            "square, group=group); then the root; then g.mul_(max_norm / norm) where norm > max_norm.",
        ),
    ),
    Exercise(
        id="4.6",
        function="train_sharded",
        title="find the bug: the optimizer that moved nothing",
        lesson=LESSON,
        sitting="04A",
        difficulty=2,
        minutes=7,
        task="Nothing crashes, and no parameter moves. Mend it: the parameters of one process, 1/N of the state.",
        cases=moved_cases,
        call=train_with,
        judge=judge_moved,
        ignores=moved_ignored,
        raised=((VIEW, WATCHED), ("allgather: invalid tensor size", ROOM_FIRST)),
        sizes=(4, 3, 2, 1),
        allows=COLLECTIVES | {"barrier"},
        tags=("gradients",),
        verified="parameters equal one process's on every rank, optimizer state is 1/N",
        hints=(
            "Print optimizer.param_groups[0]['params'] and the .grad of each, right before optimizer.step().",
            "The optimizer was built with the model's parameters, and the averaged gradient is in shard.grad.",
            "Build it after the shard is there, and with the shard alone.",
        ),
    ),
)
