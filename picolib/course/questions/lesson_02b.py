"""Lesson 02B: cost and choice. N ranks, S bytes, α seconds a message, β seconds a byte."""

from picolib.course.quiz import Answer, Question

QUESTIONS = (
    Question(
        "02B.1",
        "A link has α = 50 µs and 1/β = 2 GB/s. From which message size on do the bytes cost more than the start-up?",
        (
            Answer(
                "about 100 KB",
                "α/β = 50 µs · 2 GB/s = 100 KB: below it, count messages; above it, count bytes.",
                right=True,
            ),
            Answer("about 25 bytes", "α has to be multiplied by the bandwidth, not divided by it."),
            Answer("about 100 MB", "50 µs · 2 GB/s is 10^5 bytes, not 10^8: check the units."),
        ),
    ),
    Question(
        "02B.2",
        "All-reduce of 1 KB on 8 ranks. The ring sends 14 messages one after the other. "
        "How many does recursive doubling send?",
        (
            Answer("7", "that is one for each partner; but each exchange doubles the number of ranks in the sum."),
            Answer("3", "log2(8): after k steps every rank has the sum of 2**k ranks.", right=True),
            Answer("14 as well, of half the size", "its messages are whole tensors, and there are fewer of them."),
        ),
    ),
    Question(
        "02B.3",
        "Why does recursive doubling lose to the ring for 64 MB?",
        (
            Answer(
                "its partners are far away", "on one switch distance costs nothing; in this model it does not appear."
            ),
            Answer("it needs a power of two", "8 is one, and it loses there too."),
            Answer(
                "it sends log2(N)·S bytes, the ring 2(N-1)/N·S",
                "24 units against 14 on 8 ranks, in eighths of S: whole tensors at each step add up.",
                right=True,
            ),
        ),
    ),
    Question(
        "02B.4",
        "Two nodes of 4 ranks, the link between the nodes ten times slower than those inside. "
        "What does a hierarchical all-reduce save?",
        (
            Answer(
                "steps and bytes on the slow link",
                "sums are made inside first: two steps cross in place of fourteen, with a quarter of the tensor each.",
                right=True,
            ),
            Answer("bytes that a rank sends", "1.75·S, as in the ring; what changes is how many cross the slow link."),
            Answer("additions", "each element is added N - 1 times whichever way."),
        ),
    ),
    Question(
        "02B.5",
        "Rank 0 calls all_reduce(a) and then all_reduce(b); rank 1 calls them the other way round. "
        "Same shapes. What does plain `torch.distributed` do?",
        (
            Answer("it matches them by name", "a collective has no name on the wire: only its number in the group."),
            Answer("it hangs", "both ranks enter as many collectives of the same size: nothing waits."),
            Answer(
                "it adds a to b in silence",
                "the first call of one meets the first call of the other. picolib's watch sees it where the two calls "
                "stand on lines of their own, in swapped order; in one line of a loop it cannot.",
                right=True,
            ),
        ),
    ),
)
