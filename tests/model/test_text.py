"""The text, its bytes, and batches that do not depend on how they are split."""

import pytest
import torch

from picolib.model import TextBatches, decode, encode, load_text, split_tokens

BATCHES = TextBatches(torch.arange(1000), batch_size=6, sequence_length=8, seed=4)


def test_the_manual_pages_are_real_text_of_some_length():
    text = load_text()
    assert 300_000 < len(text) < 900_000
    assert "statement" in text


def test_a_file_can_be_named(tmp_path):
    path = tmp_path / "mine.txt"
    path.write_bytes("Grüße\n".encode())
    assert load_text(path) == load_text(str(path)) == "Grüße\n"


def test_decode_undoes_encode():
    text = "naïve — ½ \n\t日本"
    tokens = encode(text)
    assert tokens.dtype == torch.long and tokens.max() < 256
    assert decode(tokens) == text
    assert decode(torch.tensor([255, 65])) == "\ufffdA"


def test_validation_is_the_end_of_the_text():
    train, validation = split_tokens(torch.arange(100), 0.25)
    assert train.tolist() == list(range(75)) and validation.tolist() == list(range(75, 100))
    with pytest.raises(ValueError, match="validation=1.5 must be a share"):
        split_tokens(torch.arange(100), 1.5)


def test_a_batch_depends_on_seed_and_step_alone():
    torch.manual_seed(0)
    first = BATCHES(3)
    torch.manual_seed(1)
    assert torch.equal(BATCHES(3).inputs, first.inputs)
    assert not torch.equal(BATCHES(4).inputs, first.inputs)
    assert not torch.equal(TextBatches(torch.arange(1000), 6, 8, seed=5)(3).inputs, first.inputs)


def test_a_target_is_the_next_token():
    inputs, targets = BATCHES(0)
    assert inputs.shape == targets.shape == (6, 8)
    assert torch.equal(targets, inputs + 1)


@pytest.mark.parametrize("world_size", [1, 2, 3, 4, 6, 8])
def test_every_split_over_ranks_gives_the_same_global_batch(world_size):
    shares = [BATCHES(2, rank, world_size) for rank in range(world_size)]
    for field in ("inputs", "targets"):
        assert torch.equal(torch.cat([getattr(share, field) for share in shares]), getattr(BATCHES(2), field))
    sizes = [len(share.inputs) for share in shares]
    assert max(sizes) - min(sizes) <= 1


def test_splits_compose_over_ranks_micro_batches_and_the_sequence():
    whole = BATCHES(1)
    rows = [
        torch.cat([whole.shard(rank, 2).shard(micro, 3).shard(part, 4, dim=1).targets for part in range(4)], dim=1)
        for rank in range(2)
        for micro in range(3)
    ]
    assert torch.equal(torch.cat(rows), whole.targets)


def test_every_stretch_of_the_text_can_be_drawn():
    batches = TextBatches(torch.arange(10), batch_size=200, sequence_length=8)
    assert batches(0).inputs[:, 0].unique().tolist() == [0, 1]


def test_wrong_arguments_are_named():
    with pytest.raises(ValueError, match="rank=2 must be from 0 to 1"):
        BATCHES(0, 2, 2)
    with pytest.raises(ValueError, match="sequence_length=8 needs a text of at least 9 tokens; this one has 8"):
        TextBatches(torch.arange(8), 1, 8)
