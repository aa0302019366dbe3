"""One loss rule: every rank divides by the valid tokens of the whole step."""

import torch
import torch.distributed as dist

import picolib
from picolib.model import Batch, LlamaConfig, LlamaForCausalLM, init_weights, sum_of_token_losses
from picolib.train import count_global_tokens, micro_batches, pad


def ragged(*lengths: int) -> Batch:
    """One document of each length, counting upwards."""
    return pad([torch.arange(length) for length in lengths])


def test_the_count_is_the_same_on_every_rank_for_every_split():
    batch = ragged(4, 10, 1, 3, 6)

    def counts():
        rank, n = dist.get_rank(), dist.get_world_size()
        return [count_global_tokens(micro_batches(batch, rank, n, pieces)) for pieces in (1, 2, 3)]

    for world_size in (1, 2, 3, 7):
        assert list(picolib.run(counts, world_size)) == [[3 + 9 + 0 + 2 + 5] * 3] * world_size


def test_it_costs_one_all_reduce_of_one_number():
    run = picolib.run(lambda: count_global_tokens(micro_batches(ragged(4, 10), dist.get_rank(), 2, 2)), 2)
    assert run.trace.calls == [{"all_reduce": 1}] * 2
    assert run.trace.bytes_sent == [8, 8]


def test_a_group_counts_for_itself():
    def count():
        pairs = [dist.new_group([0, 1]), dist.new_group([2, 3])]
        mine, rank = pairs[dist.get_rank() // 2], dist.get_rank() % 2
        return count_global_tokens(micro_batches(ragged(4, 10), rank, 2), mine)

    assert list(picolib.run(count, 4)) == [12] * 4


def test_losses_divided_by_the_global_count_add_up_to_the_one_process_loss_and_gradients():
    """3 and 9 tokens: here a mean of means would be wrong by a fifth."""
    batch = ragged(4, 10)

    def share():
        model = init_weights(LlamaForCausalLM(TINY), seed=0, std=0.5).double()
        parts = micro_batches(batch, dist.get_rank(), dist.get_world_size())
        tokens = count_global_tokens(parts)
        loss = sum(sum_of_token_losses(model(part.inputs), part.targets) for part in parts) / tokens
        loss.backward()
        return loss.item(), [p.grad for p in model.parameters()]

    (alone, gradients) = picolib.run(share, 1)[0]
    for world_size in (2, 3):  # with three, one rank has no token at all
        found = picolib.run(share, world_size)
        assert abs(sum(loss for loss, _ in found) - alone) < 1e-12
        for summed, whole in zip(zip(*(grads for _, grads in found), strict=True), gradients, strict=True):
            torch.testing.assert_close(sum(summed), whole, rtol=1e-10, atol=1e-14)


TINY = LlamaConfig(
    vocab_size=16, hidden_size=8, intermediate_size=16, num_hidden_layers=1, num_attention_heads=2,
    num_key_value_heads=1, max_position_embeddings=16,
)  # fmt: skip
