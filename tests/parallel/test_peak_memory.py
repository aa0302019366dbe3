"""What each strategy holds on a rank, by owner: bytes as measured equal the formulas of picolib.memory."""

from __future__ import annotations

from functools import partial

import pytest
import torch
import torch.distributed as dist

import picolib
from picolib import memory
from picolib.model import LlamaConfig, LlamaForCausalLM, sum_of_token_losses
from picolib.parallel.fsdp.conductor import Conductor

CONFIG = LlamaConfig(
    vocab_size=256, hidden_size=64, intermediate_size=192, num_hidden_layers=4, num_attention_heads=4,
    num_key_value_heads=2,
)  # fmt: skip
ADAM = memory.BytesPerParameter(4, 4, 8)
COUNTER = 4  # bytes of a step counter, one for each of the optimizer's tensors
ALL, LAYER = memory.parameter_count(CONFIG), memory.layer_parameter_count(CONFIG)
ROOT = ALL - CONFIG.num_hidden_layers * LAYER  # embedding, last norm, head
HEAD = 256 * 64 + 64  # with the norm before it


def model_on_a_rank() -> LlamaForCausalLM:
    torch.manual_seed(0)
    return LlamaForCausalLM(CONFIG)


def step(model, optimizer) -> None:
    optimizer.zero_grad()
    tokens = torch.randint(256, (2, 16), generator=torch.Generator().manual_seed(dist.get_rank()))
    sum_of_token_losses(model(tokens), tokens).backward()


def ddp():
    model = picolib.DistributedDataParallel(model_on_a_rank())
    return model, torch.optim.AdamW(model.parameters()), lambda: ()


def zero(stage: int, **options):
    model = model_on_a_rank()
    optimizer = picolib.ZeroRedundancyOptimizer(model.parameters(), torch.optim.AdamW, stage=stage, **options)

    def reduced():
        optimizer.finalize_grads()
        return [piece.shard.grad for bucket in optimizer.buckets for piece in bucket.pieces]

    return model, optimizer, reduced if stage == 2 else lambda: ()


def fsdp(**options):
    model = model_on_a_rank()
    for layer in model.model.layers:
        picolib.fully_shard(layer, **options)
    picolib.fully_shard(model, **options)
    return model, torch.optim.AdamW(model.parameters()), lambda: ()


STAGES = {0: ddp, 1: partial(zero, 1), 2: partial(zero, 2), 3: fsdp}


def model_state(stage: int) -> dict[str, int]:
    """In the second step, between backward and step: everything is there."""
    model, optimizer, reduced = STAGES[stage]()
    step(model, optimizer)
    optimizer.step()
    step(model, optimizer)
    with memory.measure(model, optimizer, reduced=reduced()) as found:
        pass
    counters = COUNTER * len(optimizer.state)
    return {
        "parameters": found.parameters, "gradients": found.gradients + found.others["reduced"],
        "optimizer": found.optimizer - counters,
    }  # fmt: skip


@pytest.mark.parametrize("ranks", [2, 4])
@pytest.mark.parametrize("stage", STAGES)
def test_model_state_is_the_formula_to_the_byte(stage, ranks):
    right = memory.model_state_parts(ALL, ranks, stage, ADAM)
    assert list(picolib.run(model_state, ranks, stage)) == [right] * ranks


def nbytes(tensors) -> int:
    """Of the storages, each once."""
    storages = {t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in tensors if t is not None}
    return sum(storages.values())


def temporaries(units) -> dict[str, int]:
    """What is held beside shards right now."""
    whole = [p.full for unit in units for p in unit.parameters]
    gathering = [unit.gathering[1] for unit in units if unit.gathering]
    reducing = [t for unit in units if unit.reducing for t in unit.reducing[1:]]
    return {
        "whole parameters": nbytes([p.data for p in whole] + gathering),
        "whole gradients": nbytes(p.grad for p in whole), "reducing": nbytes(reducing),
    }  # fmt: skip


def peaks(**options) -> dict[str, int]:
    """The most of each during a second step, looked at after each layer and gradient, and before each reduction."""
    model, optimizer, _ = fsdp(**options)
    units = [part.__dict__["_picolib_unit"] for part in (model, *model.model.layers)]
    step(model, optimizer)
    seen: list[dict[str, int]] = []
    look = lambda *_: seen.append(temporaries(units))
    for layer in model.model.layers:
        layer.register_forward_hook(look, prepend=True)
    for p in (p for unit in units for p in unit.parameters):
        p.full.register_post_accumulate_grad_hook(look)
    after_backward = Conductor.after_backward
    Conductor.after_backward = lambda self, unit: (look(), after_backward(self, unit))
    step(model, optimizer)
    assert temporaries(units) == dict.fromkeys(seen[0], 0)  # nothing between the steps
    return {name: max(each[name] for each in seen) for name in seen[0]}


@pytest.mark.parametrize("ranks", [2, 4])
@pytest.mark.parametrize("reshard", [True, False])
def test_fsdp_holds_two_whole_layers_and_the_root_s_own_parameters_at_most(reshard, ranks):
    """One that computes and one that is on its way; without resharding after forward all of them."""
    two_layers = memory.unsharded_layer_bytes(CONFIG, 4, layers=2)
    right = {
        "whole parameters": 4 * ROOT + two_layers if reshard else 4 * ALL,
        "whole gradients": 4 * (HEAD + LAYER),  # the head's until the embedding's is there, too
        "reducing": 4 * (LAYER + LAYER // ranks),
    }
    assert list(picolib.run(partial(peaks, reshard_after_forward=reshard), ranks)) == [right] * ranks


def largest_gradients() -> tuple[int, int]:
    """The most bytes in `.grad` during a backward pass in stage 2, and those of the largest bucket."""
    model, optimizer, _ = zero(2, bucket_cap_mb=4 * LAYER / (1 << 20))
    seen = []
    for p in model.parameters():
        p.register_post_accumulate_grad_hook(lambda _: seen.append(nbytes(p.grad for p in model.parameters())))
    step(model, optimizer)
    return max(seen), max(bucket.flat.nbytes for bucket in optimizer.buckets)


def test_stage_2_holds_a_bucket_of_whole_gradients_at_most():
    for most, bucket in picolib.run(largest_gradients, 2):
        assert 0 < most < bucket < 4 * ALL // 2
