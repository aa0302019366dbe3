"""Sitting 05B: sequence parallelism and overlap. t ranks, b·s tokens, h the width of the stream."""

from picolib.course.quiz import Answer, Question

QUESTIONS = (
    Question(
        "05B.1",
        "The tokens are gathered in front of the columns. What is the backward pass of this all-gather?",
        (
            Answer("each rank takes its own slice of the gradient", "that holds what its own columns say, a summand."),
            Answer("nothing, it only copied", "the gradient has all tokens, and a rank owns some of them."),
            Answer(
                "a reduce-scatter",
                "all ranks' columns have used my tokens: their gradients are summed, and I keep my tokens' part.",
                right=True,
            ),
        ),
    ),
    Question(
        "05B.2",
        "Somebody forgets to sum the gradients of the norms' weights in sequence parallelism. What is seen?",
        (
            Answer("an error", "shapes fit, and every rank does the same."),
            Answer("gradients t times too big", "they are too small: each has seen 1/t of the tokens."),
            Answer(
                "a loss that falls, and norms that drift apart",
                "each rank steps on the gradient of its own tokens, so the copies are no copies any more.",
                right=True,
            ),
        ),
    ),
    Question(
        "05B.3",
        "All ranks have called `torch.manual_seed(0)`. Where does `nn.Dropout` do the wrong thing?",
        (
            Answer(
                "where activations are cut",
                "all ranks draw the same mask for numbers that are different ones: twins.",
                right=True,
            ),
            Answer("where activations are whole on every rank", "there masks must agree, and they do."),
            Answer("nowhere: equal seeds are what one wants", "equal masks are, where the numbers are copies."),
        ),
    ),
    Question(
        "05B.4",
        "In the backward pass of a column layer, what can be computed while the input's gradient is being summed?",
        (
            Answer("the backward pass of the layer in front", "that waits for this very sum."),
            Answer(
                "the weight's gradient", "it needs the output's gradient and the input, and both are here.", right=True
            ),
            Answer("the next step's forward pass", "that needs the weights after the step."),
        ),
    ),
    Question(
        "05B.5",
        "Eight ranks wait 69% of a layer's time on PCIe. Which change makes that smaller?",
        (
            Answer("four times the tokens", "compute and bytes both grow four times."),
            Answer("sequence parallelism", "it sends as many bytes: two halves instead of one all-reduce."),
            Answer("a layer of twice the width", "compute grows with h², the bytes with h.", right=True),
        ),
    ),
    Question(
        "05B.6",
        "Eight GPUs in two nodes, t = 4, two replicas, sequences of 8,192 tokens. Who are neighbours within a node?",
        (
            Answer(
                "the four ranks that share a layer",
                "the stream crosses four times a layer, and with many tokens it is larger than the gradients.",
                right=True,
            ),
            Answer("ranks with the same part of the layer", "then every layer's sums would cross the network."),
            Answer("it makes no difference", "it does as soon as the two kinds of link differ."),
        ),
    ),
)
