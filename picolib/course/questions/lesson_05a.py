"""Sitting 05A: tensor parallelism. t ranks, b·s tokens, h the width of the stream."""

from picolib.course.quiz import Answer, Question

QUESTIONS = (
    Question(
        "05A.1",
        "Why not rows first?",
        (
            Answer("row-parallel layers are slower", "they compute as much."),
            Answer(
                "GeLU of a sum is not the sum of GeLUs",
                "each rank has a summand of every hidden number. The sum would have to be made before GeLU.",
                right=True,
            ),
            Answer("the bias could not be added", "it could, once, after a sum."),
        ),
    ),
    Question(
        "05A.2",
        "In a checkpoint gate and up are fused in one matrix, gate's rows above up's. How is it cut for two ranks?",
        (
            Answer("in the middle", "rank 0 would have all of gate and rank 1 all of up: nothing to multiply."),
            Answer(
                "each of the two by itself: a half of gate's rows and the same half of up's",
                "SiLU(gate) · up takes the same numbers of both, as a query needs its own key.",
                right=True,
            ),
            Answer(
                "by input features",
                "then each rank has summands, and SiLU of a sum is not the sum of SiLUs.",
            ),
        ),
    ),
    Question(
        "05A.3",
        "Somebody writes g with an all-reduce in both passes. t = 4, one layer of this kind. What is seen?",
        (
            Answer("an error", "shapes fit, and every rank does the same."),
            Answer("a wrong loss", "the forward pass is right."),
            Answer(
                "right losses in the first step, gradients 4 times too big",
                "each rank has the gradient of the sum already; once more is once a rank. What goes on from there to "
                "earlier layers is wrong as well.",
                right=True,
            ),
        ),
    ),
    Question(
        "05A.4",
        "32 query heads, 8 key-value heads. On how many ranks has each of them key-value heads of its own?",
        (
            Answer("up to 8", "on 16, two ranks share one, and add up its gradient.", right=True),
            Answer("up to 32", "there is a query head for each of 32 ranks, but only 8 key-value heads."),
            Answer("any number: head_dim can be cut", "scores are sums over head_dim, with softmax behind them."),
        ),
    ),
    Question(
        "05A.5",
        "A layer under tensor parallelism waits 60% of its time. Which of these makes that part smaller?",
        (
            Answer("more tokens in the micro-batch", "compute and bytes both grow with them, in step."),
            Answer("more ranks", "compute gets less, bytes even a little more."),
            Answer("fewer ranks", "the compute of each grows, and the bytes shrink.", right=True),
        ),
    ),
)
