"""The model, its weights, its batches and its loss on real ranks: gradients averaged by hand equal one process's."""

import pytest
import torch
import torch.distributed as dist

import picolib
from picolib.model import LlamaConfig, LlamaForCausalLM, TextBatches, init_weights, sum_of_token_losses

CONFIG = LlamaConfig(
    vocab_size=32,
    hidden_size=16,
    intermediate_size=24,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=2,
    tie_word_embeddings=True,
)
BATCHES = TextBatches(torch.arange(500) % 31, batch_size=4, sequence_length=6)


def three_steps(rank: int, n: int) -> dict[str, torch.Tensor]:
    """Three SGD steps in float64 on this rank's share; every loss is divided by the tokens of the global batch."""
    model = init_weights(LlamaForCausalLM(CONFIG), seed=0, std=0.2).double()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    for step in range(3):
        inputs, targets = BATCHES(step, rank, n)
        optimizer.zero_grad()
        (sum_of_token_losses(model(inputs), targets) / BATCHES(step).targets.numel()).backward()
        for parameter in model.parameters():
            if n > 1:
                dist.all_reduce(parameter.grad)
        optimizer.step()
    return {name: tensor.detach() for name, tensor in model.state_dict().items()}


@pytest.mark.parametrize("world_size", [2, 3])
def test_ranks_with_equal_or_unequal_shares_train_the_one_process_model(world_size):
    alone = three_steps(0, 1)
    for state in picolib.run(lambda: three_steps(dist.get_rank(), world_size), world_size):
        for name, tensor in state.items():
            torch.testing.assert_close(tensor, alone[name], rtol=1e-12, atol=1e-13, msg=lambda m, name=name: name + m)
