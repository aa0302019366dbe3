"""Reading who contributed, how often, and from which place."""

import torch

from picolib.course import digits


def test_a_complete_sum_reads_1111_and_knows_its_place():
    total = sum(digits.contribution(rank, 6) for rank in range(4))
    assert [n.text for n in digits.read_all(total, 4)] == ["1111"] * 6
    assert [n.place for n in digits.read_all(total, 4)] == list(range(6))


def test_a_missing_rank_is_a_zero_at_its_digit():
    total = sum(digits.contribution(rank, 1) for rank in (0, 2, 3))
    number = digits.read(float(total), 4)
    assert number.text == "1101" and number.counts == (1, 0, 1, 1)


def test_what_is_no_sum_of_contributions_is_not_read():
    assert digits.read(0.3, 4) is None
    assert digits.read(-1.0, 4) is None
    assert digits.read(float("nan"), 4) is None
    assert digits.read(1e6, 4) is None


def test_mixed_places_have_no_place():
    total = digits.contribution(0, 2)[0] + digits.contribution(1, 2)[1]
    assert digits.read(float(total), 2).place is None


def test_a_chunk_is_recognised_by_its_places():
    vector = digits.contribution(2, 8)
    assert digits.piece_of(digits.read_all(vector[4:6], 4), 8, 4) == 2
    assert digits.piece_of(digits.read_all(vector[3:5], 4), 8, 4) is None
    assert digits.written(torch.tensor([1101.0, 0.5]), 4) == "1101 0.5"
