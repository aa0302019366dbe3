"""One loss rule: sum of token losses, divided by the valid tokens of the whole batch."""

import torch

from picolib.model import count_valid_tokens, sum_of_token_losses


def random_case(rows: int = 6) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    targets = torch.randint(11, (rows, 5), generator=generator)
    targets[0], targets[3, 2:] = -100, -100
    return torch.randn(rows, 5, 11, generator=generator, dtype=torch.float64), targets


def test_shares_of_unequal_valid_tokens_add_up_to_the_whole():
    logits, targets = random_case()
    whole = sum_of_token_losses(logits, targets) / count_valid_tokens(targets)
    cuts = [slice(0, 1), slice(1, 4), slice(4, 4), slice(4, 6)]
    loss = sum(sum_of_token_losses(logits[cut], targets[cut]) for cut in cuts)
    torch.testing.assert_close(loss / sum(count_valid_tokens(targets[cut]) for cut in cuts), whole)
    torch.testing.assert_close(whole, torch.nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten()))


def test_a_share_without_valid_tokens_gives_zero_and_zero_gradients():
    logits = torch.randn(2, 3, 11, requires_grad=True)
    loss = sum_of_token_losses(logits, torch.full((2, 3), -100))
    loss.backward()
    assert loss.item() == 0 and torch.equal(logits.grad, torch.zeros(2, 3, 11))
    assert count_valid_tokens(torch.full((2, 3), -100)).item() == 0


def test_the_count_can_be_added_up_by_all_reduce():
    count = count_valid_tokens(torch.tensor([1, -100, 2]))
    assert count.shape == () and count.dtype == torch.int64 and count.item() == 2


def test_low_precision_logits_are_summed_in_float32():
    logits, targets = random_case()
    loss = sum_of_token_losses(logits.bfloat16(), targets)
    assert loss.dtype == torch.float32
    torch.testing.assert_close(loss.double(), sum_of_token_losses(logits.bfloat16().double(), targets))
