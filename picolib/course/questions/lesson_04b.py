"""Sitting 04B: fully sharded data parallelism. N ranks, Ψ parameters, L layers of equal size."""

from picolib.course.quiz import Answer, Question

QUESTIONS = (
    Question(
        "04B.1",
        "80 equal layers, FSDP by layer with prefetch, many ranks. About how much of the weights has a rank at most, "
        "during forward?",
        (
            Answer("all of them", "that is what one unit for the whole model would do."),
            Answer("1/N", "between the steps. While a layer computes, it is whole."),
            Answer(
                "two layers and 1/N of all",
                "the one that computes, the one that is on its way, and the shards.",
                right=True,
            ),
            Answer("half of them", "each layer is freed when it has computed; they do not add up."),
        ),
    ),
    Question(
        "04B.2",
        "Why does FSDP gather a layer again in the backward pass?",
        (
            Answer("the optimizer has changed it", "the optimizer steps after the backward pass."),
            Answer(
                "it was freed after forward, and the gradient of its input needs it",
                "keeping it would mean L whole layers at the end of forward. reshard_after_forward=False does that.",
                right=True,
            ),
            Answer("to average it over the ranks", "parameters are not averaged; gradients are."),
        ),
    ),
    Question(
        "04B.3",
        "A rank needs the mean gradient of its own part. Why not an all-reduce, of which it keeps its part?",
        (
            Answer(
                "it sends twice as much",
                "a reduce-scatter is the first half of an all-reduce, and leaves exactly that part.",
                right=True,
            ),
            Answer("the values would be different", "they would be the same: the part is the part."),
            Answer("it cannot run in backward", "DDP's runs in backward, from the same hooks."),
        ),
    ),
    Question(
        "04B.4",
        "A timeline of FSDP: in forward every gather starts when the layer before has ended. What is missing?",
        (
            Answer(
                "a faster network", "it would shorten the red, and the network would still be idle half of the time."
            ),
            Answer("prefetch", "the next layer's gather can start before this one computes.", right=True),
            Answer("larger units", "one unit for everything has nothing at all to hide its gather behind."),
        ),
    ),
    Question(
        "04B.5",
        "N ranks on a slow network, few tokens each. The model fits on one GPU with DDP. What is FSDP?",
        (
            Answer("faster: it holds less", "it sends half as much again, and part of it in forward."),
            Answer("slower", "gathers take longer than the compute that should hide them.", right=True),
            Answer("as fast: prefetch hides everything", "nothing longer than a layer's compute is hidden."),
        ),
    ),
    Question(
        "04B.6",
        "`optimizer = AdamW(model.parameters())`, then `fully_shard(model)`. PyTorch, no error. What does training do?",
        (
            Answer("it works, with more memory", "the optimizer holds tensors that get no gradients any more."),
            Answer("nothing moves", "sharding has made new parameters; the optimizer has the old ones.", right=True),
            Answer("it diverges", "for that it would have to change something."),
        ),
    ),
)
