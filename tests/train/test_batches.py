"""Every split of a global batch holds the same tokens: any world size, any accumulation, ragged rows too."""

import pytest
import torch

from picolib.model import Batch, TextBatches, count_valid_tokens
from picolib.train import DocumentBatches, micro_batches, pad

TEXT = TextBatches(torch.arange(1000), batch_size=7, sequence_length=8, seed=4)
DOCUMENTS = [torch.arange(100 * i, 100 * i + length) for i, length in enumerate([1, 2, 3, 9, 10, 25, 60])]
RAGGED = DocumentBatches(DOCUMENTS, batch_size=7, sequence_length=9, seed=4)


def together(parts: list[Batch]) -> Batch:
    return Batch(*(torch.cat(tensors) for tensors in zip(*parts, strict=True)))


@pytest.mark.parametrize("world_size", [1, 2, 3, 4, 5, 9])
@pytest.mark.parametrize("accumulation", [1, 2, 3])
@pytest.mark.parametrize("batches", [TEXT, RAGGED], ids=["text", "ragged"])
def test_all_shares_in_rank_order_are_the_global_batch(batches, world_size, accumulation):
    whole = batches(2)
    parts = [part for rank in range(world_size) for part in micro_batches(whole, rank, world_size, accumulation)]
    assert len(parts) == world_size * accumulation
    assert torch.equal(together(parts).inputs, whole.inputs) and torch.equal(together(parts).targets, whole.targets)
    assert sum(count_valid_tokens(part.targets) for part in parts) == count_valid_tokens(whole.targets)


@pytest.mark.parametrize("world_size", [2, 3, 4, 5, 9])
def test_shares_and_micro_batches_differ_by_one_row_at_most(world_size):
    for rank in range(world_size):
        rows = [len(part.inputs) for part in micro_batches(TEXT(0), rank, world_size, 2)]
        assert max(rows) - min(rows) <= 1
        assert sum(rows) in (7 // world_size, 7 // world_size + 1)


def test_a_rank_beyond_the_rows_gets_empty_micro_batches_of_the_same_width():
    parts = micro_batches(TEXT(0), rank=8, world_size=9, accumulation=3)
    assert [part.inputs.shape for part in parts] == [(0, 8)] * 3


def test_a_micro_batch_is_a_run_of_neighbouring_rows():
    parts = micro_batches(TEXT(1), rank=1, world_size=2, accumulation=3)
    assert [part.inputs.tolist() for part in parts] == [TEXT(1).inputs[i : i + 1].tolist() for i in (4, 5, 6)]


def test_padding_asks_for_nothing():
    batch = pad([torch.tensor([5, 6, 7]), torch.tensor([8]), torch.tensor([], dtype=torch.long), torch.tensor([1, 2])])
    assert batch.inputs.tolist() == [[5, 6], [0, 0], [0, 0], [1, 0]]
    assert batch.targets.tolist() == [[6, 7], [-100, -100], [-100, -100], [2, -100]]


def test_documents_without_any_target_still_make_a_batch():
    batch = DocumentBatches([torch.tensor([3])], batch_size=4, sequence_length=8)(0)
    assert batch.inputs.shape == (4, 1) and count_valid_tokens(batch.targets) == 0


def test_every_row_is_one_stretch_of_one_document():
    for step in range(20):
        for inputs, targets in zip(*RAGGED(step), strict=True):
            n = int(count_valid_tokens(targets))
            assert n <= 9 and torch.equal(targets[:n], inputs[:n] + 1) and (targets[n:] == -100).all()
            if n:
                document = DOCUMENTS[int(inputs[0]) // 100]
                assert n == min(len(document) - 1, 9)


def test_every_document_and_every_place_of_a_long_one_can_be_drawn():
    batches = DocumentBatches([torch.arange(4), torch.arange(10, 22)], batch_size=300, sequence_length=9)
    assert batches(0).inputs[:, 0].unique().tolist() == [0, 10, 11, 12]


def test_a_ragged_batch_depends_on_seed_and_step_alone():
    torch.manual_seed(0)
    first = RAGGED(3)
    torch.manual_seed(1)
    assert torch.equal(RAGGED(3).inputs, first.inputs)
    other = DocumentBatches(DOCUMENTS, batch_size=7, sequence_length=9, seed=5)(3)
    assert RAGGED(4).inputs.tolist() != first.inputs.tolist() != other.inputs.tolist()


def test_wrong_arguments_are_named():
    with pytest.raises(ValueError, match="accumulation=0 must be at least 1"):
        micro_batches(TEXT(0), accumulation=0)
    with pytest.raises(ValueError, match="rank=3 must be from 0 to 2"):
        micro_batches(TEXT(0), rank=3, world_size=3)
    with pytest.raises(ValueError, match="documents is empty"):
        DocumentBatches([], 1, 8)
    with pytest.raises(ValueError, match="sequence_length=0 must be at least 1"):
        DocumentBatches(DOCUMENTS, 1, 0)
