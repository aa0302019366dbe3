"""First weights that depend on the seed and on each parameter's full name, and on nothing else.

The usual way (`torch.manual_seed`, then build the model) depends on the order of construction: a rank that builds only
its own part would draw other numbers. Here each parameter has its own generator, so that every rank, however the model
is split, starts from the same model.
"""

import torch
import torch.nn as nn

from picolib.model.seeds import named_generator


def initial_value(name: str, shape: tuple[int, ...], seed: int, std: float = 0.02) -> torch.Tensor:
    """The first value of the full parameter `name`, in float32 on the CPU: a strategy slices its shard from it.

    Matrices (and anything of more dimensions) are normal with standard deviation `std`, as in Hugging Face's Llama.
    Vectors are norm scales and start at 1, biases at 0.
    """
    if name.endswith("bias"):
        return torch.zeros(shape)
    if len(shape) < 2:
        return torch.ones(shape)
    return std * torch.randn(shape, generator=named_generator(seed, name))


def init_weights(module: nn.Module, seed: int, *, std: float = 0.02, prefix: str = "") -> nn.Module:
    """Fills every parameter of `module` in place with its `initial_value`, one full parameter at a time.

    Parameters on the meta device (built under `with torch.device("meta")`) are created on the CPU and keep their ties
    and `requires_grad`. `prefix` completes the names of a module that is part of a model: "model.layers.3.". A tied
    parameter uses its first name. Returns `module`.
    """
    made: dict[nn.Parameter, nn.Parameter] = {}
    for name, parameter in module.named_parameters(prefix=prefix.rstrip(".")):
        value = initial_value(name, tuple(parameter.shape), seed, std)
        if parameter.is_meta:
            made[parameter] = nn.Parameter(value.to(parameter.dtype), requires_grad=parameter.requires_grad)
        else:
            with torch.no_grad():
                parameter.copy_(value)
    replace_parameters(module, made)
    return module


def replace_parameters(module: nn.Module, made: dict[nn.Parameter, nn.Parameter]) -> None:
    """Puts each new parameter wherever the old one stood; the same old one in two places stays one (a tie)."""
    for part in module.modules():
        for name, old in list(part._parameters.items()):
            if old in made:
                part._parameters[name] = made[old]
