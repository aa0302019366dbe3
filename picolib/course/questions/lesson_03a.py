"""Lesson 03A: data parallel, right. N ranks."""

from picolib.course.quiz import Answer, Question

QUESTIONS = (
    Question(
        "03A.1",
        "Four ranks start from different weights, average their gradients exactly in every step, and train with plain "
        "SGD. What do you get after 1,000 steps?",
        (
            Answer("four equal models: the average pulls them together", "gradients are averaged, weights are not."),
            Answer(
                "four models as far apart as at the start",
                "all take the same steps, so their differences stay for ever. (AdamW would shrink them: weight decay.) "
                "That is why a wrapper broadcasts first.",
                right=True,
            ),
            Answer("an error from the all-reduce", "shapes and dtypes agree; values are nobody's business."),
        ),
    ),
    Question(
        "03A.2",
        "Rank 0 has 3 tokens with a mean loss of 4, rank 1 has 9 tokens with a mean loss of 2. "
        "What is the loss of the batch?",
        (
            Answer("3", "that is the mean of the means: rank 0's tokens would count three times as much as rank 1's."),
            Answer("2.5", "(3·4 + 9·2) / 12: the sum over all tokens, divided by all tokens.", right=True),
            Answer("6", "losses of ranks are not added, unless each has been divided by all tokens before."),
        ),
    ),
    Question(
        "03A.3",
        "Somebody forgot to divide: all gradients are 8 times too big, on 8 ranks, with Adam. "
        "Which number of the log gives it away?",
        (
            Answer("the training loss", "Adam divides the gradient by its own size: the loss hardly changes."),
            Answer("the difference between the ranks", "there is none: all are wrong alike."),
            Answer(
                "the gradient norm",
                "it is 8 times that of one process with the same batch. And clipping at 1 now clips much earlier.",
                right=True,
            ),
        ),
    ),
    Question(
        "03A.4",
        "Rank 3 has 99 batches, the others 100; an ordinary loop, any data parallel wrapper. What happens in step 100?",
        (
            Answer("the mean is taken over the other ranks", "a collective needs every rank of its group."),
            Answer(
                "ranks 0, 1 and 2 wait inside the all-reduce",
                "rank 3 has left the loop and never calls it. Plain PyTorch: half an hour, then a time-out.",
                right=True,
            ),
            Answer("rank 3 raises StopIteration", "the end of its loop is nothing special to rank 3."),
        ),
    ),
    Question(
        "03A.5",
        "A model with batch normalisation on 4 ranks, buffers broadcast before each forward pass. "
        "Whose data are in the running mean at the end?",
        (
            Answer("everybody's, averaged", "gradients are averaged; buffers are copied."),
            Answer(
                "rank 0's only",
                "the others' statistics are overwritten in each step. Where that is not good enough: SyncBatchNorm.",
                right=True,
            ),
            Answer("each rank keeps its own", "that is broadcast_buffers=False: then the replicas differ."),
        ),
    ),
)
