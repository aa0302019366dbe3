"""The board's memory: what one rank writes, all others read; and a deadlock is what its definition says."""

import os

import pytest
import torch

from picolib.launch import memory
from picolib.launch.announce import Lane
from picolib.launch.board import COLLECTIVE, RECV, RETURNED, SEND, Board
from picolib.launch.places import find_place
from picolib.launch.reader import Reader
from picolib.launch.watch import Watcher, deadlocked
from picolib.launch.writer import Writer


@pytest.fixture
def board():
    board = Board.create(3)
    yield board
    board.close()


def collective_channel(writer, group=1, members=(0, 1, 2)):
    index = writer.open_channel(COLLECTIVE, group, 0, 0, writer.text(str(["world", *members]).replace("'", '"')))
    return Lane(writer.layout, writer.rank, COLLECTIVE, index)


def test_a_post_is_read_back_by_others(board):
    writer, reader = Writer(board, 1), Reader(board, 1)
    lane = collective_channel(writer)
    writer.post(lane, 0, writer.text("sum"), place=writer.text("here"), stack=5, nbytes=12)
    channel = reader.find(COLLECTIVE, 1)
    entry = reader.entry(channel, 0)
    assert reader.count(channel) == 1 and reader.text(entry.signature) == "sum" and reader.text(entry.place) == "here"
    assert (entry.stack, entry.nbytes) == (5, 12)
    assert Reader(board, 0).find(COLLECTIVE, 1) is None


def test_a_post_that_was_lapped_is_unknown_and_not_wrong(board):
    writer, reader = Writer(board, 0), Reader(board, 0)
    lane = collective_channel(writer)
    for number in range(100):
        writer.post(lane, number, writer.text(f"call {number}"))
    channel = reader.find(COLLECTIVE, 1)
    assert reader.entry(channel, 10) is None and reader.entry(channel, 100) is None
    assert reader.text(reader.entry(channel, 99).signature) == "call 99"


def test_a_text_that_was_overwritten_is_unknown(board):
    writer, reader = Writer(board, 0), Reader(board, 0)
    first = writer.text("first")
    for i in range(300):
        writer.text(f"{i}" * 2000)
    assert reader.text(first) is None
    assert reader.text(writer.text("first")) == "first"


def test_a_full_board_says_that_it_does_not_know(board):
    writer, reader = Writer(board, 0), Reader(board, 0)
    indices = [writer.open_channel(SEND, 1, 1, tag, writer.text("")) for tag in range(600)]
    assert indices[0] == 0 and indices[-1] is None and reader.overflow()


def test_the_board_leaves_no_file_and_closes_its_descriptor(board):
    extra = Board.create(64)
    assert os.fstat(extra.fd).st_blocks * 512 < 1_000_000, "pages that nobody has written take no memory"
    descriptor = extra.fd
    extra.close()
    extra.close()
    with pytest.raises(OSError):
        os.fstat(descriptor)


def waiting_for(board, waits):
    """Ranks that wait to receive from another: {rank: peer}."""
    for rank, peer in waits.items():
        writer = Writer(board, rank)
        members = writer.text('["world", 0, 1, 2]')
        index = writer.open_channel(RECV, 1, peer, 0, members)
        writer.post(Lane(writer.layout, rank, RECV, index), 0, writer.text("{}"))
        writer.begin_wait(0, RECV, index, 0, peer, 0, writer.text(""))


def test_two_ranks_that_wait_for_each_other_are_deadlocked_and_a_third_is_not(board):
    waiting_for(board, {0: 1, 1: 0})
    Writer(board, 2)
    assert deadlocked(Watcher(board, 3).picture()) == {0, 1}


def test_a_chain_that_ends_in_a_running_rank_is_no_deadlock(board):
    waiting_for(board, {0: 1, 1: 2})
    Writer(board, 2)
    assert deadlocked(Watcher(board, 3).picture()) == set()


def test_a_chain_that_ends_in_a_rank_that_has_returned_is_a_deadlock(board):
    waiting_for(board, {0: 1, 1: 2})
    Writer(board, 2).set_state(RETURNED)
    assert deadlocked(Watcher(board, 3).picture()) == {0, 1}


def test_a_message_that_was_posted_is_progress_however_long_it_takes(board):
    waiting_for(board, {0: 1})
    sender = Writer(board, 1)
    index = sender.open_channel(SEND, 1, 0, 0, sender.text(""))
    sender.post(Lane(sender.layout, 1, SEND, index), 0, sender.text("{}"))
    sender.set_state(RETURNED)
    assert deadlocked(Watcher(board, 3).picture()) == set()


def test_a_rank_with_a_free_thread_is_no_part_of_a_deadlock(board):
    waiting_for(board, {0: 1, 1: 0})
    Writer(board, 0).set_free_threads(1)
    assert deadlocked(Watcher(board, 3).picture()) == set()


def test_a_mistake_that_a_rank_has_noted_explains_a_failure(board):
    Writer(board, 1).complain("the shapes differ")
    verdict = Watcher(board, 3).final("connection closed by peer")
    assert (verdict.kind, verdict.text, verdict.rank) == ("mismatch", "the shapes differ", 1)


def test_the_place_is_the_callers_line_and_not_a_librarys():
    place = torch.utils._pytree.tree_map(lambda _: find_place(), [0])[0]
    assert "test_board.py" in place.text and place.text.endswith('"<lambda>"]')


@pytest.mark.parametrize("n", [1, 100, 5000, 100_000])
def test_a_fingerprint_sees_changes_at_both_ends_and_throughout(n):
    x = torch.zeros(n)
    where = memory.range_of(x)
    before = memory.fingerprint(where)
    for change in (lambda: x[0].fill_(1), lambda: x[-1].fill_(1), lambda: x.add_(1)):
        x.zero_()
        assert memory.fingerprint(where) == before
        change()
        assert memory.fingerprint(where) != before


def test_ranges_of_chunks_do_not_overlap_and_a_column_does():
    x = torch.zeros(4, 4)
    a, b = (memory.range_of(t) for t in x.chunk(2))
    assert not a.overlaps(b) and a.overlaps(memory.range_of(x[:, 0]))
    assert memory.is_dense(x.t()) and not memory.is_dense(x[:, 0]) and memory.is_dense(x[0])
    assert memory.sharing([x[0], x[1], x[0]]) == (0, 2) and memory.sharing(list(x.unbind())) is None
