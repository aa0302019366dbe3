"""What a tensor-parallel layer sends, in how many collectives."""

from __future__ import annotations

from functools import partial

import pytest
import torch.distributed as dist

import picolib
from picolib.parallel.tensor import parallelize, vocab_parallel_cross_entropy
from tests.parallel.llamas import BATCH, LENGTH, llama, tokens

ACTIVATIONS = BATCH * LENGTH * 24 * 8  # s·b·h numbers of e = 8 bytes

plain_or_not = pytest.mark.parametrize("overlap", [False, True], ids=["one after the other", "overlap"])


def forward_backward(layers: int, whole: bool, micro_batches: int, sizes: dict, **options) -> None:
    model = parallelize(llama(num_hidden_layers=layers, **sizes), **options)
    for step in range(micro_batches):
        inputs, targets = tokens(step)
        loss = vocab_parallel_cross_entropy(model(inputs), targets)
        if whole:
            loss.backward()


def one_layer_more(
    world_size: int, *, whole: bool = True, micro_batches: int = 1, sizes: dict | None = None, **options
) -> tuple[dict[str, int], list[int]]:
    """What a second layer adds: collectives of rank 0, and the bytes that each rank sends."""
    run = lambda layers: picolib.run(
        partial(forward_backward, layers, whole, micro_batches, sizes or {}, **options), world_size
    )
    one, two = run(1).trace, run(2).trace
    more = {name: two.calls[0][name] - one.calls[0].get(name, 0) for name in two.calls[0]}
    sent = [b - a for a, b in zip(one.bytes_sent, two.bytes_sent, strict=True)]
    return {name: count for name, count in more.items() if count}, sent


def test_two_all_reduces_forward_and_two_backward():
    assert one_layer_more(2, whole=False) == ({"all_reduce": 2}, [2 * ACTIVATIONS] * 2)
    assert one_layer_more(2) == ({"all_reduce": 4}, [4 * ACTIVATIONS] * 2)


@plain_or_not
@pytest.mark.parametrize("micro_batches", [1, 3])
@pytest.mark.parametrize("t", [2, 3, 4])
def test_a_layer_sends_eight_t_minus_one_over_t_of_its_activations(t, micro_batches, overlap):
    calls, sent = one_layer_more(t, micro_batches=micro_batches, overlap=overlap, algorithm="ring")
    assert calls == {"all_reduce": 4 * micro_batches}
    assert sent == [micro_batches * 8 * (t - 1) * ACTIVATIONS // t] * t


@pytest.mark.parametrize("t", [2, 3, 4])
def test_the_algorithm_that_is_chosen_by_itself_sends_no_more_on_average(t):
    assert sum(one_layer_more(t)[1]) == 8 * (t - 1) * ACTIVATIONS


@plain_or_not
@pytest.mark.parametrize("t", [2, 3, 4])
def test_sequence_parallelism_sends_the_same_bytes_and_the_norms_gradients(t, overlap):
    calls, sent = one_layer_more(t, sequence_parallel=True, overlap=overlap, algorithm="ring")
    assert calls == {"all_gather_into_tensor": 4, "reduce_scatter_tensor": 4, "all_reduce": 2}
    norms = [2 * 24 * 8] if t == 2 else tree_bytes(2 * 24 * 8, t)
    assert [n - 8 * (t - 1) * ACTIVATIONS // t for n in sent] == (norms * t)[:t]


def tree_bytes(nbytes: int, t: int) -> list[int]:
    """What each rank sends in the all-reduces of two norms' gradients: up to its parent, down to its children."""
    return [nbytes * ((rank > 0) + sum(child < t for child in (2 * rank + 1, 2 * rank + 2))) for rank in range(t)]


def test_gathering_again_in_backward_is_an_all_gather_more_for_each_block():
    calls, sent = one_layer_more(3, sequence_parallel=True, regather=True, algorithm="ring")
    assert calls == {"all_gather_into_tensor": 4 + 2, "reduce_scatter_tensor": 4, "all_reduce": 2}
    norms = tree_bytes(2 * 24 * 8, 3)
    assert [a - b for a, b in zip(sent, norms, strict=True)] == [(8 + 2) * 2 * ACTIVATIONS // 3] * 3


def saved(options: dict) -> tuple[int, float]:
    """Activations of the layers and the last norm: measured, and by formula."""
    sizes = {"num_hidden_layers": 2, "intermediate_size": 24}
    model = parallelize(llama(**sizes), **options)
    with picolib.memory.measure(model) as found:
        model.model(tokens()[0]).square().sum().backward()
    kind = {"tensor_parallel": dist.get_world_size(), "sequence_parallel": options.get("sequence_parallel", False)}
    return found.activations, picolib.memory.activation_bytes(model.config, BATCH, LENGTH, bytes_per_number=8, **kind)


@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize("t", [2, 4])
def test_activations_are_the_formulas_and_what_was_gathered_where_it_is_kept(t, overlap):
    kinds = {"plain": {}, "kept": {"sequence_parallel": True}}
    kinds["regathered"] = {"sequence_parallel": True, "regather": True}
    found = {kind: picolib.run(saved, t, {**options, "overlap": overlap})[0] for kind, options in kinds.items()}
    for kind in ("plain", "regathered"):
        assert found[kind][0] == pytest.approx(found[kind][1], rel=0.05), kind
    others = 2 * 2 * ACTIVATIONS * (t - 1) // t  # the other ranks' tokens, for two blocks in two layers
    assert found["kept"][0] - found["regathered"][0] == others


def test_shared_key_value_heads_add_the_sum_of_their_gradients():
    kv = {"num_key_value_heads": 2}  # on 4 ranks: k and v of one head of 2 x 24 numbers, shared by two ranks
    calls, sent = one_layer_more(4, sizes=kv, algorithm="ring")
    assert calls == {"all_reduce": 4 + 2}
    assert sent == [8 * 3 * ACTIVATIONS // 4 + 2 * (2 * 24 * 8)] * 4
