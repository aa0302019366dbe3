"""Sitting 01B: before you split. b micro-batch, s sequence, h hidden, L layers, m micro-batches."""

from picolib.course.quiz import Answer, Question

QUESTIONS = (
    Question(
        "01B.1",
        "All layers are recomputed. What does a step cost now, in forward passes? (A backward pass counts two.)",
        (
            Answer("3, as before", "each layer runs forward twice."),
            Answer("6: twice as much", "only the forward pass is done again, and that is a third of a step."),
            Answer("4: a third more", "forward, forward again, backward: 1 + 1 + 2.", right=True),
        ),
    ),
    Question(
        "01B.2",
        "The whole stack of L layers is wrapped in *one* checkpoint. What is the most that is held during the step?",
        (
            Answer(
                "as much as without",
                "the first thing backward does is to run all L layers again, and keep everything.",
                right=True,
            ),
            Answer("one input", "that is true until the backward pass begins."),
            Answer("L inputs", "for that each layer has to be a piece of its own."),
        ),
    ),
    Question(
        "01B.3",
        "A batch of 64 becomes 8 micro-batches of 8. What is divided by about 8?",
        (
            Answer("activations and logits", "those of one micro-batch are held at a time.", right=True),
            Answer("everything", "parameters, gradients and optimizer state know nothing of the batch."),
            Answer("activations and gradients", "gradients have the size of the parameters, whatever the batch."),
        ),
    ),
    Question(
        "01B.4",
        "In bf16 (8 bits of precision) a weight is 1.0. Which update is lost?",
        (
            Answer("one of 0.01", "the next number above 1 is 1.0078: that is moved, roughly."),
            Answer("none, only digits", "1 - 0.001 rounds to 1: nothing of it is left."),
            Answer("one of 0.001", "less than half the distance to a neighbour, on either side of 1.", right=True),
        ),
    ),
    Question(
        "01B.5",
        "`losses.append(loss)` in a training loop, and memory grows. Which cure is right?",
        (
            Answer("`del loss` at the end of the step", "the list still holds it, and with it its graph."),
            Answer("`losses.append(loss.item())`", "a number has no graph. (`.detach()` does it as well.)", right=True),
            Answer("`torch.no_grad()` around the step", "then there is no gradient to train with."),
        ),
    ),
    Question(
        "01B.6",
        "Long sequences, fused attention, no recomputation. How do saved activations grow with s?",
        (
            Answer("with s", "each token saves the same numbers; the s·s scores are never kept.", right=True),
            Answer("with s²", "so it was before attention was fused: 5·a·s²·b bytes a layer."),
            Answer("not at all", "every token's activations are saved."),
        ),
    ),
)
