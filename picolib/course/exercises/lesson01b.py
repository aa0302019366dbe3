"""Exercises of sitting 01B: recomputation, master weights, gradient accumulation. One process, measured bytes.

They stand in the order in which the lesson asks for them: 1.4, 1.6, 1.5. How 1.4 is tried and judged stands in
`lesson01b_recompute`, 1.5 in `lesson01b_masters`, 1.6 in `lesson01b_accumulate`.
"""

from __future__ import annotations

from picolib.course.exercise import Exercise
from picolib.course.exercises.borrowed import borrowed
from picolib.course.exercises.lesson01b_accumulate import (
    RUNNING_TOTAL,
    SECOND_TIME,
    accumulation_cases,
    judge_accumulation,
    step_with,
)
from picolib.course.exercises.lesson01b_masters import judge_masters, master_cases, train_with
from picolib.course.exercises.lesson01b_recompute import (
    LATE_IMPORTS,
    forward_and_backward,
    judge_recomputation,
    recompute_cases,
)

LESSON = "01B_before_you_split"
NOT_RECORDED = "does not require grad and does not have a grad_fn"
RECORD = (
    "Inside backward autograd records nothing: run the layer under torch.enable_grad(), on an input that requires a "
    "gradient."
)
ONE_EACH = "backward returns one gradient for each argument of forward, and None for what is no tensor."

EXERCISES = (
    Exercise(
        id="1.4",
        function="run_recomputing",
        title="recompute",
        lesson=LESSON,
        sitting="01B",
        difficulty=4,
        minutes=15,
        task="Run a stack of layers that keeps only each layer's input, and computes the rest again in backward.",
        cases=recompute_cases,
        call=forward_and_backward,
        judge=judge_recomputation,
        imports=LATE_IMPORTS,
        rules=(borrowed,),
        raised=((NOT_RECORDED, RECORD), ("incorrect number of gradients", ONE_EACH)),
        sizes=(1,),
        verified="output and gradients of the plain stack; 8 layers keep 8 inputs where the plain stack keeps 40; "
        "each layer runs twice",
        hints=(
            "One torch.autograd.Function for one layer: forward runs it without a graph and saves its input.",
            "In backward: a detached copy of the input that requires a gradient; run the layer again on it with "
            "torch.enable_grad(); then one backward pass through that little graph.",
            "torch.autograd.backward(output, gradient) fills the parameters' .grad and the copy's .grad: return the "
            "latter. (forward's other arguments get None.)",
        ),
    ),
    Exercise(
        id="1.6",
        function="accumulate",
        title="find the bug: four times too much",
        lesson=LESSON,
        sitting="01B",
        difficulty=2,
        minutes=8,
        task="Gradients of a batch in m micro-batches: they come out m times too big, and the memory is not saved.",
        cases=accumulation_cases,
        call=step_with,
        judge=judge_accumulation,
        raised=((SECOND_TIME, RUNNING_TOTAL),),
        sizes=(1,),
        verified="gradients of the whole batch, with the activations of one micro-batch",
        hints=(
            "Two faults. How large is the gradient of a sum of m means? And until when is a graph kept?",
            "A graph lives as long as a tensor that belongs to it. Call backward() in the loop, and keep numbers only.",
            "(loss / len(micro_batches)).backward() in the loop; add up loss.item() / len(micro_batches).",
        ),
    ),
    Exercise(
        id="1.5",
        function="master_step",
        title="master weights",
        lesson=LESSON,
        sitting="01B",
        difficulty=2,
        minutes=8,
        task="A step of SGD on bf16 parameters that does not lose small updates.",
        cases=master_cases,
        call=train_with,
        judge=judge_masters,
        rules=(borrowed,),
        sizes=(1,),
        verified="after 100 small steps the float32 masters of plain SGD, and parameters that are their bf16 rounding",
        hints=(
            "1 - 0.001 in bf16 is 1. In which of the two tensors must the update add up?",
            "The master takes the step, with the gradient in float32; the parameter is what the master rounds to.",
            "With torch.no_grad(): master -= lr * p.grad.float(), and then p.copy_(master).",
        ),
    ),
)
