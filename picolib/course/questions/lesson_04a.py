"""Sitting 04A: ZeRO. N ranks, Ψ parameters, m micro-batches."""

from picolib.course.quiz import Answer, Question

QUESTIONS = (
    Question(
        "04A.1",
        "ZeRO-1 shares out Adam's moments over N ranks. Where does the averaged gradient of a parameter have to be?",
        (
            Answer("on every rank, as in DDP", "who does not step on a parameter has no use for its gradient."),
            Answer(
                "on the rank that steps on it",
                "so a reduce-scatter is enough, and the other half of the all-reduce's bytes carries new parameters.",
                right=True,
            ),
            Answer("on rank 0", "then rank 0 would have all the memory and all the work."),
        ),
    ),
    Question(
        "04A.2",
        "DDP and ZeRO-1 send the same bytes. Which of them can hide behind the backward pass?",
        (
            Answer("all of both", "the new parameters are there only after the step, and backward is over by then."),
            Answer(
                "all of DDP's but the last bucket, and at most half of ZeRO-1's",
                "gradients can travel during backward. The all-gather comes after the step: it can hide behind the "
                "next forward pass at best.",
                right=True,
            ),
            Answer("none of either", "03B was about nothing else: buckets start from hooks."),
        ),
    ),
    Question(
        "04A.3",
        "8 ranks, 8 micro-batches a step, everything in buckets. ZeRO-2 sends how many times the bytes of ZeRO-1?",
        (
            Answer("as many", "with one micro-batch. Here each of the 8 is reduce-scattered, and .grad is not kept."),
            Answer("8 times", "the all-gather of the parameters comes once a step in both."),
            Answer("4.5 times", "(8 + 1) / 2: eight reduce-scatters and one all-gather, to one of each.", right=True),
        ),
    ),
    Question(
        "04A.4",
        "Four ranks hold parts of a gradient with norms 1, 2, 2 and 4. What is the norm of the whole?",
        (
            Answer("9", "norms do not add up; their squares do."),
            Answer("5", "√(1 + 4 + 4 + 16): the squares add up, then one root.", right=True),
            Answer("4", "the largest part is a part."),
            Answer("2.25", "that is the mean of the four norms."),
        ),
    ),
    Question(
        "04A.5",
        "Loss constant from the first step on, gradients right, no error, sharded model. What do you look at first?",
        (
            Answer("the learning rate schedule", "a warm-up from 0 moves little at first, but it moves."),
            Answer(
                "whether the optimizer was built before the sharding",
                "then it holds the old tensors. Their .grad is None, so step() leaves them out, in silence.",
                right=True,
            ),
            Answer("whether the ranks had the same seed", "replicas that start apart still move."),
        ),
    ),
    Question(
        "04A.6",
        "Llama 3 8B, bf16 with float32 master and Adam, ZeRO-1. What is left on a rank when N grows for ever?",
        (
            Answer("nothing", "parameters and gradients are on every rank: 4Ψ."),
            Answer("32 GB", "4Ψ: 2 bytes of parameters and 2 of gradients for each of 8 billion.", right=True),
            Answer("16 GB", "that is ZeRO-2: parameters alone stay, and gradients are shared out."),
        ),
    ),
)
