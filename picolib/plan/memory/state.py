"""Model state: parameters, gradients and the optimizer's numbers, and what each stage of ZeRO leaves on a rank."""

from __future__ import annotations

from typing import Any, NamedTuple

from picolib.plan.memory.activations import activation_bytes, activation_bytes_per_layer, logits_bytes
from picolib.plan.memory.parameters import layer_parameter_count, parameter_count
from picolib.plan.memory.shape import Shape

STAGES = (0, 1, 2, 3)


class BytesPerParameter(NamedTuple):
    """Bytes for one parameter: itself, its gradient, and all that the optimizer keeps (master copy and moments)."""

    parameter: float
    gradient: float
    optimizer: float

    @property
    def total(self) -> float:
        """All three: 16 for Adam in mixed precision."""
        return self.parameter + self.gradient + self.optimizer


# Rajbhandari et al. 2020 (ZeRO), section 3.1: parameter and gradient in 16 bits; Adam keeps a copy of the parameter and
# two moments in 32 bits each, K = 12.
ADAM_MIXED = BytesPerParameter(2, 2, 12)
ADAM_FLOAT32 = BytesPerParameter(4, 4, 8)
SGD_FLOAT32 = BytesPerParameter(4, 4, 0)


def model_state_parts(
    parameters: int, ranks: int = 1, stage: int = 0, each: BytesPerParameter = ADAM_MIXED
) -> dict[str, float]:
    """Bytes on one rank, by part: "parameters", "gradients", "optimizer" (Rajbhandari et al. 2020, figure 1).

    Args:
        parameters: Ψ, of the whole model.
        ranks: N, over which the state is shared out.
        stage: 0 keeps everything on every rank (DDP), 1 shards the optimizer's part, 2 the gradients too, 3 all (FSDP).
        each: bytes for each parameter.

    >>> model_state_parts(70_000_000_000, ranks=64, stage=1)
    {'parameters': 140000000000, 'gradients': 140000000000, 'optimizer': 13125000000.0}
    """
    if stage not in STAGES:
        raise ValueError(f"stage must be 0 (DDP), 1, 2 or 3 (FSDP), got {stage!r}.")
    if ranks < 1:
        raise ValueError(f"ranks must be at least 1, got {ranks!r}.")
    shared = {"parameters": stage >= 3, "gradients": stage >= 2, "optimizer": stage >= 1}
    whole = {name: parameters * size for name, size in zip(shared, each, strict=True)}
    return {name: whole[name] / ranks if shared[name] and ranks > 1 else whole[name] for name in shared}


def model_state_bytes(parameters: int, ranks: int = 1, stage: int = 0, each: BytesPerParameter = ADAM_MIXED) -> float:
    """The sum of `model_state_parts`: 16Ψ for DDP, 4Ψ + 12Ψ/N, 2Ψ + 14Ψ/N and 16Ψ/N for stages 1, 2 and 3."""
    return sum(model_state_parts(parameters, ranks, stage, each).values())


def unsharded_layer_bytes(config: Any, bytes_per_parameter: float = 2, layers: int = 1) -> float:
    """What stage 3 holds for a moment beside its shards: `layers` gathered layers (2 with prefetch)."""
    return layers * layer_parameter_count(config) * bytes_per_parameter


def training_bytes(
    config: Any, batch: int, sequence: int, *, ranks: int = 1, stage: int = 0, each: BytesPerParameter = ADAM_MIXED,
    tensor_parallel: int = 1, sequence_parallel: bool = False, recompute: str = "none",
) -> dict[str, float]:  # fmt: skip
    """The peak of a training step on one rank, as named parts in bytes; their sum is the peak.

    Args:
        batch, sequence: b and s of one micro-batch on this rank.
        ranks, stage, each: see `model_state_parts`; ranks counts the replicas (or shards) of data parallelism.
        tensor_parallel: t, which splits every layer. sequence_parallel, recompute: see `activation_bytes`.
    """
    parts = model_state_parts(parameter_count(config) // tensor_parallel, ranks, stage, each)
    layout: dict[str, Any] = {"tensor_parallel": tensor_parallel, "sequence_parallel": sequence_parallel}
    layout["bytes_per_number"] = each.parameter
    parts["activations"] = activation_bytes(config, batch, sequence, recompute=recompute, **layout)
    if recompute == "full":  # the layer that runs again in backward is there in full
        parts["activations"] += activation_bytes_per_layer(config, batch, sequence, **layout)
    parts["logits"] = logits_bytes(Shape(config).vocab_size, batch, sequence, each.parameter) / tensor_parallel
    if stage == 3:
        parts["gathered layer"] = unsharded_layer_bytes(config, each.parameter) / tensor_parallel
    return parts
