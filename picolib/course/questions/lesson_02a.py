"""Lesson 02A: messages and the ring. N ranks, S bytes of tensor."""

from picolib.course.quiz import Answer, Question

QUESTIONS = (
    Question(
        "02A.1",
        "Naive all-reduce: everyone sends its tensor of S bytes to rank 0, which sends the sum back. "
        "On 8 ranks, how many bytes does rank 0 send and receive together?",
        (
            Answer("2·S", "that is what every other rank sends and receives; rank 0 serves seven of them."),
            Answer("14·S", "7·S come in and 7·S go out: 2(N-1)·S, growing with the number of ranks.", right=True),
            Answer("8·S", "count both directions, and not itself: it does not send to itself."),
        ),
    ),
    Question(
        "02A.2",
        "Ring all-reduce of S = 100 MB on 4 ranks, then on 400. About how many bytes does each rank send?",
        (
            Answer(
                "150 MB, then about 200 MB",
                "2(N-1)/N·S: it never reaches 2·S, however many ranks. What grows is the number of steps.",
                right=True,
            ),
            Answer("150 MB, then 15 GB", "each step sends S/N, not S: there are more steps, each with less in it."),
            Answer("100 MB in both cases", "each half of the ring moves (N-1)/N·S, and there are two halves."),
        ),
    ),
    Question(
        "02A.3",
        "After a ring reduce-scatter in digits (rank r contributes 10^r), a rank of 4 holds 1101 where 1111 belongs. "
        "What went wrong?",
        (
            Answer("rank 2 is missing", "digits count from the right, from rank 0: the digit that is 0 is digit 1."),
            Answer(
                "rank 1 is missing: one step too few",
                "the digit of rank 1 is 0. With N - 1 steps the chunk would have passed by it too.",
                right=True,
            ),
            Answer("the chunk was copied instead of added", "then only one digit would be left."),
        ),
    ),
    Question(
        "02A.4",
        "All ranks of a ring call `send` to the right and then `recv` from the left, both blocking, "
        "with 100 MB. What happens?",
        (
            Answer(
                "they hang: every send waits for a receive that comes after it",
                "some backends buffer small messages and hide it; with large ones everybody stands still.",
                right=True,
            ),
            Answer("it works, a send never waits", "only if somebody keeps a copy of 100 MB for each message."),
            Answer("it works for an even number of ranks", "it would if every second rank received first."),
        ),
    ),
    Question(
        "02A.5",
        "Which two collectives, one after the other, are an all-reduce?",
        (
            Answer("all-gather, then reduce-scatter", "the other way round: you can only gather sums that exist."),
            Answer("broadcast, then reduce", "the sum would end on one rank only."),
            Answer(
                "reduce-scatter, then all-gather",
                "first everyone has one chunk of the sum, then all of them. ZeRO will use the halves one by one.",
                right=True,
            ),
        ),
    ),
)
