"""Sitting 01A: budgets. N ranks, Ψ parameters, b micro-batch, s sequence, h hidden, L layers."""

from picolib.course.quiz import Answer, Question

QUESTIONS = (
    Question(
        "01A.1",
        "Adam in mixed precision. Which of these is the largest part of the 16 bytes a parameter?",
        (
            Answer("what the optimizer keeps", "two moments and the master copy in float32: 4 + 4 + 4.", right=True),
            Answer("the bf16 parameters and gradients", "they are 2 + 2 bytes of the 16."),
            Answer("the gradients", "2 bytes; Adam's moments alone are 8."),
        ),
    ),
    Question(
        "01A.2",
        "A model of 7 billion parameters, ZeRO-2 on 8 ranks. Model state on one rank?",
        (
            Answer("14 GB", "that is 16Ψ/N, so ZeRO-3; here the parameters stay whole."),
            Answer("38.5 GB", "4Ψ + 12Ψ/8: that is ZeRO-1, with whole gradients."),
            Answer("26 GB", "2Ψ for whole parameters, 14Ψ/8 for the rest: 14 + 12.25.", right=True),
            Answer("112 GB", "16Ψ: nothing is shared out there."),
        ),
    ),
    Question(
        "01A.3",
        "You double the number of ranks under ZeRO-3, each with the micro-batch that it had. What happens on one rank?",
        (
            Answer("all memory is halved", "activations are this rank's own; nobody shares them."),
            Answer("nothing changes", "that is DDP, where nothing is shared out."),
            Answer(
                "model state is halved, activations stay",
                "16Ψ/N shrinks with N; activations depend on this rank's micro-batch and sequence.",
                right=True,
            ),
        ),
    ),
    Question(
        "01A.4",
        "An expert model has 47 billion parameters in all and 13 billion active ones. Training needs",
        (
            Answer(
                "memory for 47, arithmetic for 13",
                "every expert has state, whoever visits it; a token multiplies with its own two experts only.",
                right=True,
            ),
            Answer("memory and arithmetic for 13", "the other experts' weights are somewhere, and Adam's moments too."),
            Answer("memory and arithmetic for 47", "6·N·D counts the parameters that a token passes through."),
        ),
    ),
    Question(
        "01A.5",
        "64 query heads, 8 key-value heads, head_dim 128, 80 layers, bf16. How large is the cache of one token?",
        (
            Answer("about 2.6 MB", "that is with 64 heads of keys and values; there are 8."),
            Answer("about 4 KB", "that is one layer; there are 80."),
            Answer("about 0.33 MB", "2 · 80 · 8 · 128 numbers of 2 bytes.", right=True),
        ),
    ),
    Question(
        "01A.6",
        "A model fits for inference on one GPU with some room. Its fine-tuning with Adam in mixed precision",
        (
            Answer("fits too: the weights are the same", "they are an eighth of the state."),
            Answer(
                "needs at least eight times the weights",
                "2 bytes a parameter for inference, 16 for training, and activations come on top.",
                right=True,
            ),
            Answer("needs twice the weights", "with gradients alone; Adam keeps 12 bytes more for each parameter."),
        ),
    ),
)
