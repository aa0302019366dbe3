"""Sitting 03B: data parallel, fast. N ranks, Ψ parameters, m micro-batches, α seconds a message, β seconds a byte."""

from picolib.course.quiz import Answer, Question

QUESTIONS = (
    Question(
        "03B.1",
        "8 ranks, one billion parameters, gradients in float32. About how many bytes does each rank send in a step?",
        (
            Answer("7 GB", "2(N-1)/N is 1.75, and the gradients have 4 GB: 1.75 · 4 GB.", right=True),
            Answer("4 GB", "that is the gradients once; a ring or direct all-reduce sends 2(N-1)/N of them."),
            Answer("28 GB", "(N-1) times the gradients is what sending everything to everybody costs."),
            Answer("0.5 GB", "a share 1/N is what a rank reduces; it sends the other shares, and then its own around."),
        ),
    ),
    Question(
        "03B.2",
        "Why are buckets filled from the last parameter to the first?",
        (
            Answer("the last layers are the largest", "often they are not; the size of a bucket is bounded anyway."),
            Answer(
                "the backward pass comes to the last layers first",
                "their gradients are there while the first layers' are still to come: so their all-reduce can hide.",
                right=True,
            ),
            Answer("the all-reduce needs that order", "an all-reduce does not know what it adds up."),
        ),
    ),
    Question(
        "03B.3",
        "Backward takes 80 ms, the all-reduces 60 ms in all, in buckets of equal size. What can overlap not hide?",
        (
            Answer("nothing: 60 ms fit into 80 ms", "one bucket is complete only when the backward pass ends."),
            Answer(
                "the last bucket",
                "its last gradient is the last of the backward pass: nothing is left to hide it behind.",
                right=True,
            ),
            Answer("the first bucket", "it is complete first, and has the longest time to hide."),
        ),
    ),
    Question(
        "03B.4",
        "You move to a network with ten times the latency and the same bandwidth. `bucket_cap_mb` should be",
        (
            Answer(
                "larger",
                "each bucket pays α for its messages: with fewer buckets it is paid less often.",
                right=True,
            ),
            Answer("smaller", "then there are more messages, and each costs ten times as much."),
            Answer("as before", "that holds for bandwidth's part alone; the messages have become more expensive."),
        ),
    ),
    Question(
        "03B.5",
        "Of m = 8 micro-batches the first seven have their backward pass in `no_sync()`, but not their forward pass. "
        "What happens?",
        (
            Answer("one synchronisation, as wanted", "PyTorch's and picolib's DDP decide in the forward pass."),
            Answer("no synchronisation at all", "the last one is outside: it would synchronise in any case."),
            Answer(
                "eight synchronisations, and right gradients",
                "whether to synchronise is settled in forward. Nothing is wrong but the bytes: eight times as many.",
                right=True,
            ),
        ),
    ),
    Question(
        "03B.6",
        "One rank takes 100 ms for a batch of 64. Four ranks take 40 ms for the same 64 sequences. "
        "And they take 105 ms for 64 sequences each. How good is that?",
        (
            Answer("63% and 95%", "100/(4·40): strong scaling. 100/105: weak scaling. Always say which.", right=True),
            Answer("95%, whichever way", "that is the weak one; for the same batch four ranks are 2.5 times as fast."),
            Answer("40% and 95%", "40 ms is the time; ideal would be 25 ms: 25/40 = 63%."),
        ),
    ),
)
