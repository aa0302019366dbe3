"""From the plain Llama to its tensor-parallel form and back, without any rank holding the whole model."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import pytest
import torch
import torch.distributed as dist
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

import picolib
from picolib.model import LlamaConfig, LlamaForCausalLM, init_weights, initial_value
from picolib.parallel.full_state import full_state_dict, load_full_state_dict
from picolib.parallel.tensor import parallelize
from tests.parallel.llamas import assert_logits_close, llama, tokens

DEEP = {
    "vocab_size": 64, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 8, "num_attention_heads": 4,
    "num_key_value_heads": 4,
}  # fmt: skip
LARGEST = 64 * 32 * 4  # bytes of the largest parameters


def deep() -> LlamaForCausalLM:
    return LlamaForCausalLM(LlamaConfig(**DEEP))


class LiveBytes(TorchDispatchMode):
    """Counts, after every operation, the bytes of all tensors that it has seen made and that are still there."""

    def __init__(self) -> None:
        super().__init__()
        self.live: dict[int, tuple[StorageWeakRef, int]] = {}
        self.peak = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        found = function(*args, **(kwargs or {}))
        for tensor in tree_leaves(found):
            if isinstance(tensor, torch.Tensor) and not tensor.is_meta:
                storage = tensor.untyped_storage()
                self.live[storage._cdata] = StorageWeakRef(storage), storage.nbytes()
        self.live = {key: kept for key, kept in self.live.items() if not kept[0].expired()}
        self.peak = max(self.peak, sum(nbytes for _, nbytes in self.live.values()))
        return found


class OneAtATime(Mapping):
    """A state whose tensors are made when they are asked for, as from a file."""

    def __init__(self) -> None:
        with torch.device("meta"):
            self.shapes = {name: tuple(p.shape) for name, p in deep().state_dict().items()}

    def __getitem__(self, name: str) -> torch.Tensor:
        return initial_value(name, self.shapes[name], seed=7)

    def __iter__(self) -> Iterator[str]:
        return iter(self.shapes)

    def __len__(self) -> int:
        return len(self.shapes)


def built_from_nothing(how: str) -> tuple[int, int, dict[str, torch.Tensor]]:
    with LiveBytes() as counted:
        if how == "whole":
            model = parallelize(init_weights(deep(), seed=7))
        else:
            with torch.device("meta"):
                model = deep()
            parallelize(model, sequence_parallel=True)
            if how == "init":
                init_weights(model, seed=7)
            else:
                load_full_state_dict(model, OneAtATime())
    own = sum(p.nbytes for p in model.parameters())
    return counted.peak, own, full_state_dict(model)


@pytest.mark.parametrize("how", ["init", "load"])
def test_a_rank_holds_its_part_and_one_full_parameter_at_a_time(how):
    right = init_weights(deep(), seed=7).state_dict()
    whole = sum(value.nbytes for value in right.values())
    for peak, own, state in picolib.run(built_from_nothing, 4, how):
        assert own < 0.3 * whole
        assert own <= peak <= own + 3 * LARGEST < whole / 2  # random numbers, scaled, and this rank's part of them
        assert all(torch.equal(state[name], value) for name, value in right.items())


def test_building_the_whole_model_first_would_be_seen():
    peak, own, _ = picolib.run(built_from_nothing, 4, "whole")[0]
    assert peak > own + 3 * LARGEST


def there_and_back(sizes: dict, options: dict):
    model = parallelize(llama(**sizes), **options)
    state = full_state_dict(model)
    plain = llama(**sizes)
    init_weights(plain, seed=99)
    plain.load_state_dict(state)  # strict: the very names
    again = parallelize(llama(**sizes), **options)
    init_weights(again, seed=98)
    load_full_state_dict(again, state)
    inputs = tokens()[0]
    assert_logits_close(again(inputs), plain(inputs), again.lm_head)
    return all(torch.equal(state[name], value) for name, value in llama(**sizes).state_dict().items())


@pytest.mark.parametrize("options", [{}, {"sequence_parallel": True, "overlap": True}], ids=["plain", "overlap"])
@pytest.mark.parametrize("heads", [12, 2])
@pytest.mark.parametrize("tied", [False, True])
def test_the_full_state_is_the_plain_models_and_goes_back(heads, tied, options):
    sizes = {"num_key_value_heads": heads, "tie_word_embeddings": tied}
    assert list(picolib.run(there_and_back, 4, sizes, options)) == [True] * 4


def kept_on_meta():
    with torch.device("meta"):
        model = llama(tie_word_embeddings=True, meta=True)
    model.model.norm.weight.requires_grad_(False)
    parallelize(model)
    assert all(p.is_meta for p in model.parameters())
    load_full_state_dict(model, llama(tie_word_embeddings=True).state_dict())
    assert not any(p.is_meta for p in model.parameters())
    return (
        model.lm_head.weight is model.model.embed_tokens.weight,
        model.model.norm.weight.requires_grad,
        model.lm_head.weight.shape[0] == model.lm_head.last - model.lm_head.first,
        dist.get_world_size(),
    )


def test_ties_and_frozen_parameters_stay_when_numbers_come():
    assert list(picolib.run(kept_on_meta, 3)) == [(True, False, True, 3)] * 3
