"""Lesson 00: what a rank is."""

from picolib.course.quiz import Answer, Question

QUESTIONS = (
    Question(
        "00.1",
        "`x` is a tensor in your notebook. `picolib.run(f, 4)` runs an `f` that adds 1 to it in place. "
        "What is `x` then?",
        (
            Answer(
                "4 larger: every rank added 1", "the ranks are processes of their own; none of them can reach your `x`."
            ),
            Answer("1 larger", "that would take one rank working on the notebook's own memory; ranks get copies."),
            Answer(
                "unchanged",
                "each rank got its own copy and changed that. What you want back, `f` returns: it is in the `Run`.",
                right=True,
            ),
        ),
    ),
    Question(
        "00.2",
        "Rank 3 of 4 raises an exception while the others wait for its message. What do you want to be told?",
        (
            Answer(
                "what went wrong on rank 3",
                "that is the cause. That the other three lost their connection to it only follows from it.",
                right=True,
            ),
            Answer(
                "all four tracebacks, in order",
                "three of them say 'connection closed by peer': they are the consequence and hide the cause.",
            ),
            Answer("which rank waited longest", "they waited because of rank 3; its exception is the cause."),
        ),
    ),
    Question(
        "00.3",
        "Rank 0 calls `recv` from rank 1, and rank 1 calls `recv` from rank 0. Both have something to send afterwards. "
        "What happens?",
        (
            Answer("it works: both messages are small", "no message is under way yet: both receive before they send."),
            Answer(
                "nothing, for ever: each waits for the other",
                "a cycle of waits. It ends only when one of the two sends first.",
                right=True,
            ),
            Answer("the slower rank gets an error", "speed does not matter: neither ever reaches its send."),
        ),
    ),
    Question(
        "00.4",
        "Four ranks each compute gradients on a quarter of the batch, sum them over all ranks and forget to divide. "
        "The loss is a mean over tokens. How large are the gradients?",
        (
            Answer(
                "right: a sum is what backward computes", "each rank's loss is already a mean over its own quarter."
            ),
            Answer("a quarter of the right ones", "that would be dividing twice."),
            Answer(
                "exactly 4 times too large",
                "the sum of four means is four times their mean. With Adam the loss hides it; the check does not.",
                right=True,
            ),
        ),
    ),
    Question(
        "00.5",
        "Four ranks add up in digits: rank r contributes 10^r. Every rank ends with 1011. What do you know?",
        (
            Answer("rank 2's number is missing", "digits are read from the right: rank 0, 1, 2, 3.", right=True),
            Answer("rank 1's number is missing", "that is 1101: the digit of rank 1 is the second from the right."),
            Answer("one rank has added twice", "then a digit would be 2."),
        ),
    ),
    Question(
        "00.6",
        "You average gradients over four ranks, in code of your own. What proves that it is right?",
        (
            Answer("the loss falls", "it falls with wrong gradients, too, only less well."),
            Answer("all four ranks have the same weights", "they can be the same and wrong: all may divide by 3."),
            Answer(
                "one process with the whole batch takes the same way",
                "the same losses and weights, up to rounding: that is what the four ranks stand for.",
                right=True,
            ),
        ),
    ),
)
