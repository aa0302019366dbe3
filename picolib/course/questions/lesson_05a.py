"""Sitting 05A: tensor parallelism. t ranks, b·s tokens, h the width of the stream."""

from picolib.course.quiz import Answer, Question

QUESTIONS = (
    Question(
        "05A.1",
        "The first matrix of an MLP is cut by columns, the second by rows. What is sent between them?",
        (
            Answer("all columns, to all ranks", "then the second matrix would not have to be cut by rows."),
            Answer(
                "nothing",
                "a rank's columns are just what its rows of the second matrix take in, and GeLU works on each number "
                "by itself.",
                right=True,
            ),
            Answer("the sum over the ranks", "columns are numbers of their own, no summands."),
        ),
    ),
    Question(
        "05A.2",
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
        "128,256 words over 8 ranks. What does the vocabulary-parallel loss send for each token?",
        (
            Answer("128,256 logits", "that is what gathering would send."),
            Answer("16,032 logits", "that is a rank's own part, and it stays where it is."),
            Answer("3 numbers", "a maximum, a sum of exponentials, the target's logit.", right=True),
        ),
    ),
    Question(
        "05A.6",
        "A layer under tensor parallelism waits 60% of its time. Which of these makes that part smaller?",
        (
            Answer("more tokens in the micro-batch", "compute and bytes both grow with them, in step."),
            Answer("more ranks", "compute gets less, bytes even a little more."),
            Answer("fewer ranks", "the compute of each grows, and the bytes shrink.", right=True),
        ),
    ),
)
