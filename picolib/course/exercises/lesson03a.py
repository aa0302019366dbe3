"""Exercises of sitting 03A: wrap a module, one loss rule, a test that Adam cannot fool, one batch less.

How each is tried and judged stands in a file of its own: `lesson03a_wrap` and `_replicas`, `_loss`, `_alibi`, `_epoch`.
"""

from __future__ import annotations

from picolib.course.exercise import COLLECTIVES, Exercise
from picolib.course.exercises import gradients
from picolib.course.exercises.lesson03a_alibi import alibi_cases, judge_alibi, left_early, verdicts_of
from picolib.course.exercises.lesson03a_epoch import (
    NO_SUCH_BATCH,
    NOT_A_BATCH,
    OWN_BATCH,
    RANK_ENDS,
    epoch_cases,
    ignores_sums,
    judge_epoch,
    only_here,
    train_with,
)
from picolib.course.exercises.lesson03a_loss import backward_of, ignores_count, judge_loss, loss_cases
from picolib.course.exercises.lesson03a_refuse import only
from picolib.course.exercises.lesson03a_wrap import ignores_all_reduce, judge_wrap, wrap_and_train, wrap_cases
from picolib.course.exercises.rebuilt import rebuilt

LESSON = "03A_ddp_right"
NO_GRADIENT, NO_HOOK = r"(?s)NoneType.*\.grad\b", "cannot register a hook on a tensor that doesn't require gradient"
ITS_OWN = (
    "p.grad is None. While a hook runs, other parameters may not have their gradients yet: a hook for each parameter, "
    "which averages the one that it was made for. (In a lambda, a loop's variable has its last value.)"
)
NOT_CALLED = (
    "p.grad is None: what gives the gradients is the function under test. Does yours call average(model, loss), which "
    "calls loss.backward(), before it looks at them?"
)
IN_WRAP = r"(?s)NoneType.*\bin wrap\n.*\.grad\b"
NO_BACKWARD_YET = (
    "p.grad is None: wrap runs once, before the first backward pass, so no gradient is there to average. Register a "
    "hook for each parameter; it is called in each backward pass, when that gradient is there."
)
RETURNS = "What a hook returns takes the place of something: here it changes p.grad, and returns nothing."
FROZEN = (
    "A frozen parameter (requires_grad is False) gets no gradient, so nothing ever calls a hook on it: leave it out "
    "of the hooks, and only there. It is broadcast like the others."
)
NO_BATCH = (
    "p.grad is None on a rank without a batch: it has run no backward pass. Give zeros there, torch.zeros_like(p)."
)

EXERCISES = (
    Exercise(
        id="3.1",
        function="wrap",
        title="wrap it",
        lesson=LESSON,
        sitting="03A",
        difficulty=3,
        minutes=10,
        task="Make the ranks of a group start alike, and every gradient their mean when backward() returns.",
        cases=wrap_cases,
        call=wrap_and_train,
        judge=judge_wrap,
        ignores=ignores_all_reduce,
        sizes=(2, 4, 3, 1),
        allows=COLLECTIVES | {"barrier"},
        rules=(only("broadcast", "all_reduce"), rebuilt, gradients.in_own_dtype),
        tags=("gradients",),
        raised=((IN_WRAP, NO_BACKWARD_YET), (NO_GRADIENT, ITS_OWN), (NO_HOOK, FROZEN), ("but hook returned", RETURNS)),
        verified="replicas equal to the group's first rank, gradients its mean in each backward pass, "
        "one all-reduce a parameter",
        hints=(
            "Two things: what is copied now, once, and what happens later, after each gradient.",
            "p.register_post_accumulate_grad_hook(f) calls f(p) as soon as p.grad is there. Broadcast is not only for "
            "what has a gradient.",
            "dist.broadcast(t, group_src=0, group=group) for each parameter and buffer; in the hook, all_reduce p.grad "
            "over the group and divide by dist.get_world_size(group).",
        ),
    ),
    Exercise(
        id="3.2",
        function="loss_to_backward",
        title="one loss rule",
        lesson=LESSON,
        sitting="03A",
        difficulty=2,
        minutes=6,
        task="Ranks have different numbers of tokens: return the loss whose gradients, averaged over ranks, are right.",
        cases=loss_cases,
        call=backward_of,
        judge=judge_loss,
        ignores=ignores_count,
        sizes=(2, 4, 3, 1),
        allows=COLLECTIVES | {"barrier"},
        rules=(only("all_reduce"), rebuilt),
        blocked="A rank without tokens has a count to give as well: 0.",
        tags=("gradients",),
        verified="averaged gradients equal those of the mean over all tokens, on an empty rank too; one number sent",
        hints=(
            "Write down the gradient you want as a sum over all tokens, and what averaging makes of yours.",
            "You want the sum of all losses / the tokens of all ranks. Averaging brings another 1/N: undo it.",
            "count = torch.tensor(float(len(token_losses))), all-reduced; then token_losses.sum() * N / count.",
        ),
    ),
    Exercise(
        id="3.6",
        function="test_average",
        title="find the bug: Adam's alibi",
        lesson=LESSON,
        sitting="03A",
        difficulty=3,
        minutes=8,
        task="Write the test: it accepts every right way to average gradients, and rejects every wrong one.",
        cases=alibi_cases,
        call=verdicts_of,
        judge=judge_alibi,
        ended=left_early,
        raised=((NO_GRADIENT, NOT_CALLED), (r"must be Tensor, not NoneType", NOT_CALLED)),
        operations=frozenset({"MAX", "MIN", "PRODUCT"}),
        sizes=(4, 2, 3),
        allows=COLLECTIVES | {"barrier"},
        tags=("gradients",),
        blocked="A rank whose assertion fails leaves your test, and the others may still wait for it: "
        "communicate first, assert at the end.",
        verified="two right versions accepted, five wrong ones rejected",
        hints=(
            "Which gradients do you know without running the thing under test? Choose a loss that makes it easy.",
            "If rank r's loss is the sum of w·10^r over all parameters w, its gradient is 10^r everywhere.",
            "Then the mean is (1 + 10 + ... + 10^(N-1)) / N: compare every p.grad of a model with several parameters.",
        ),
    ),
    Exercise(
        id="3.7",
        function="train_epoch",
        title="find the bug: one batch less",
        lesson=LESSON,
        sitting="03A",
        difficulty=3,
        minutes=8,
        task="An epoch hangs, because one rank has a batch less. Mend it so that no token is lost.",
        cases=epoch_cases,
        call=train_with,
        judge=judge_epoch,
        ignores=ignores_sums,
        operations=frozenset({"MAX"}),
        sizes=(3, 4, 2, 1),
        allows=COLLECTIVES | {"barrier"},
        rules=(only("all_reduce"), rebuilt, only_here),
        stretch=True,
        blocked=RANK_ENDS,
        raised=(
            (NO_GRADIENT, NO_BATCH),
            ("list index out of range", NO_SUCH_BATCH),
            (NOT_A_BATCH, OWN_BATCH),
            (r"shape differs under all_reduce", RANK_ENDS),
        ),
        tags=("gradients",),
        verified="parameters equal those of one process with every token, on every rank",
        hints=(
            "How many steps does the epoch have? A rank cannot know from its own batches.",
            "dist.all_reduce(steps, op=dist.ReduceOp.MAX). Every rank takes that many steps, some without a batch.",
            "Without a batch: the count is 0 and p.grad is torch.zeros_like(p); all the rest as in the other ranks.",
        ),
    ),
)
