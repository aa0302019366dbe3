"""First weights that depend on the seed and on each parameter's full name, and on nothing else.

The usual way (`torch.manual_seed`, then build the model) depends on the order of construction: a rank that builds only
its own part would draw other numbers. Here each parameter has its own generator, so that every rank, however the model
is split, starts from the same model.
"""

import torch
import torch.nn as nn

from picolib.model.seeds import named_generator
from picolib.parallel.full_state import like_meta, own_part, replace_parameters
from picolib.parallel.spec import named_specs


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

    A parameter of which this rank holds a part (tensor parallelism, fully_shard) gets its part of the full value, so
    the model does not depend on how many ranks there are. Parameters on the meta device (built under
    `with torch.device("meta")`) are created on the CPU and keep their ties and `requires_grad`. `prefix` completes the
    names of a module that is part of a model: "model.layers.3.". A tied parameter uses its first name. Returns
    `module`.
    """
    made: dict[nn.Parameter, nn.Parameter] = {}
    for name, parameter, spec in named_specs(module):
        full_name = f"{prefix.rstrip('.')}.{name}".lstrip(".")
        shape = parameter.shape if spec is None else spec.shape
        value = own_part(initial_value(full_name, tuple(shape), seed, std), spec)
        if parameter.is_meta:
            made[parameter] = like_meta(parameter, value)
        else:
            with torch.no_grad():
                parameter.copy_(value)
    replace_parameters(module, made)
    return module
