"""A training step with picolib's tensor parallelism beside PyTorch's (parallelize_module on DTensor), alternating.

    python -m benchmarks.tensor

A small Llama and a stack of wide layers (columns, then rows), each matrix cut over all ranks: forward, loss and
backward. "native" is picolib's on torch's own collectives, "overlap" with communication beside the products. A ratio
above 1: picolib's step is the faster one. Nothing watches.
"""

from __future__ import annotations

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.distributed.device_mesh import init_device_mesh

from benchmarks.ddp import compare
from benchmarks.side_by_side import alternate, medians
from picolib.launch import monitor
from picolib.model import LlamaConfig, LlamaForCausalLM
from picolib.parallel.tensor import ColumnParallelLinear, RowParallelLinear, parallelize, vocab_parallel_cross_entropy

WIDTH, LAYERS = 512, 8


def llama() -> LlamaForCausalLM:
    """The small Llama with a key-value head for each query head, so that PyTorch's styles can cut it over 4 ranks."""
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=256, hidden_size=128, intermediate_size=344, num_hidden_layers=4, num_attention_heads=4,
        max_position_embeddings=128,
    )  # fmt: skip
    return LlamaForCausalLM(config)


def stack() -> nn.Sequential:
    """Wide layers with nothing in between."""
    torch.manual_seed(0)
    return nn.Sequential(*(nn.Linear(WIDTH, WIDTH) for _ in range(LAYERS)))


class PyTorchs:
    """A step by parallelize_module and loss_parallel."""

    def __init__(self, name: str, sequence_parallel: bool) -> None:
        from torch.distributed.tensor.parallel import parallelize_module

        mesh = init_device_mesh("cpu", (dist.get_world_size(),))
        model = llama() if name == "llama" else stack()
        self.model = parallelize_module(model, mesh, styles(model, sequence_parallel))
        self.batch = batch(name, sequence_parallel)

    def step(self) -> None:
        """Forward and backward with fresh gradients."""
        from torch.distributed.tensor.parallel import loss_parallel

        self.model.zero_grad()
        output = self.model(self.batch)
        with loss_parallel():
            if isinstance(self.model, LlamaForCausalLM):
                loss = F.cross_entropy(output.flatten(0, 1), self.batch.flatten())
            else:
                loss = output.square().mean()
            loss.backward()


class Picolibs:
    """The same step by picolib."""

    def __init__(self, name: str, sequence_parallel: bool, **options: object) -> None:
        options["sequence_parallel"] = sequence_parallel
        if name == "llama":
            self.model: nn.Module = parallelize(llama(), **options)
        else:
            kinds = (ColumnParallelLinear, RowParallelLinear)
            layers = [kinds[n % 2].from_linear(layer, **options) for n, layer in enumerate(stack())]
            self.model = nn.Sequential(*layers)
        self.is_llama, self.batch = name == "llama", batch(name, sequence_parallel)

    def step(self) -> None:
        """Forward and backward with fresh gradients."""
        self.model.zero_grad()
        output = self.model(self.batch)
        loss = vocab_parallel_cross_entropy(output, self.batch) if self.is_llama else output.square().mean()
        loss.backward()


def batch(name: str, sequence_parallel: bool) -> torch.Tensor:
    """4 texts of 64 tokens, or as many vectors as the stack's first layer takes."""
    torch.manual_seed(0)
    if name == "llama":
        return torch.randint(256, (4, 64))
    return torch.randn(4, 64 // dist.get_world_size() if sequence_parallel else 64, WIDTH)


def styles(model: nn.Module, sequence_parallel: bool) -> dict:
    """PyTorch's plan for either model, as in its tutorial."""
    from torch.distributed.tensor import Replicate, Shard
    from torch.distributed.tensor.parallel import (
        ColwiseParallel,
        PrepareModuleInput,
        RowwiseParallel,
        SequenceParallel,
    )

    between = Shard(1) if sequence_parallel else Replicate()
    into = lambda: ColwiseParallel(input_layouts=between)
    out_of = lambda: RowwiseParallel(output_layouts=between)
    if isinstance(model, nn.Sequential):
        return {str(n): out_of() if n % 2 else into() for n in range(len(model))}
    plan = {"model.embed_tokens": RowwiseParallel(input_layouts=Replicate(), output_layouts=between)}
    plan["lm_head"] = ColwiseParallel(input_layouts=between, output_layouts=Shard(-1), use_local_output=False)
    for n in range(len(model.model.layers)):
        layer = f"model.layers.{n}"
        columns = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "mlp.gate_proj", "mlp.up_proj")
        plan |= {f"{layer}.{name}": ColwiseParallel() for name in columns}
        plan |= {f"{layer}.{name}": out_of() for name in ("self_attn.o_proj", "mlp.down_proj")}
        if sequence_parallel:
            plan |= {f"{layer}.{name}": SequenceParallel() for name in ("input_layernorm", "post_attention_layernorm")}
        # One DTensor for the layers that share it: gathered once forward, its gradients added before they travel.
        plan[f"{layer}.self_attn"] = PrepareModuleInput(
            input_layouts=(between, None), desired_input_layouts=(Replicate(), None)
        )
        plan[f"{layer}.mlp"] = PrepareModuleInput(input_layouts=between, desired_input_layouts=Replicate())
    if sequence_parallel:
        plan["model.norm"] = SequenceParallel()
    return plan


def measure(name: str, sequence_parallel: bool, rounds: int) -> dict[str, float]:
    """On every rank: median seconds of a step, by each way."""
    monitor.stop()
    ways = {
        "torch": PyTorchs(name, sequence_parallel),
        "picolib": Picolibs(name, sequence_parallel),
        "native": Picolibs(name, sequence_parallel, algorithm="native"),
        "overlap": Picolibs(name, sequence_parallel, overlap=True),
    }
    steps = {way: job.step for way, job in ways.items()}
    for step in steps.values():
        for _ in range(3):
            step()
    return medians(alternate(steps, rounds, turn_seconds=0.1))


def main() -> None:
    """Measure and print."""
    compare("tensor", "sequence parallel", {"no": False, "yes": True}, measure, __doc__)


if __name__ == "__main__":
    main()
