"""The step-through pictures and the cost formulas, held against what the collectives really send."""

from collections import Counter

import pytest
import torch
import torch.distributed as dist

import picolib
from picolib.course.figures import costs, frame, schedules, traced, walk, walk_trace
from picolib.course.figures.moves import Move, apply, start
from picolib.course.figures.steps import digits, sentence

PICTURED = [(c, a) for c, algorithms in schedules.SCHEDULES.items() for a in algorithms]


def run_all(pairs):
    """Each pictured collective once, on 24 elements a rank."""
    from picolib import comm

    n = dist.get_world_size()
    x, all_of_it, share = torch.ones(24 * n), torch.empty(24 * n * n), torch.empty(24)
    for collective, algorithm in pairs:
        if collective == "all_reduce":
            comm.all_reduce(x, algorithm=algorithm)
        elif collective == "broadcast":
            comm.broadcast(x, 0, algorithm=algorithm)
        elif collective == "all_gather":
            comm.all_gather_into_tensor(all_of_it, x, algorithm=algorithm)
        else:
            comm.reduce_scatter_tensor(share, x, algorithm=algorithm)


@pytest.fixture(scope="module", params=[2, 3, 4, 6])
def traced_run(request):
    return picolib.run(run_all, request.param, PICTURED, trace=True)


def _moves(steps):
    return Counter((m.src, m.dst, m.chunks) for step in steps for m in step)


def test_each_schedule_has_the_messages_of_the_run_and_its_result(traced_run):
    for call, (collective, algorithm) in zip(traced.collectives(traced_run.trace), PICTURED, strict=True):
        ranks = len(traced_run.trace.bytes_sent)
        assert _moves(traced.from_trace(traced_run.trace, call)) == _moves(
            schedules.steps(collective, algorithm, ranks)
        )
        assert walk_trace(traced_run.trace, call).states[-1] == walk(collective, algorithm, ranks).states[-1]


def test_steps_are_found_from_what_each_rank_had_waited_for(traced_run):
    ranks = len(traced_run.trace.bytes_sent)
    for name in ("ring", "direct", "naive", "one_shot", "tree"):
        seen = traced.from_trace(traced_run.trace, f"all_reduce[{name}]")
        assert [_moves([step]) for step in seen] == [_moves([s]) for s in schedules.steps("all_reduce", name, ranks)]


@pytest.mark.parametrize("ranks", range(1, 10))
@pytest.mark.parametrize("algorithm", schedules.SCHEDULES["all_reduce"])
def test_every_all_reduce_ends_with_each_contribution_once_on_every_rank(algorithm, ranks):
    assert all(tally == (1,) * ranks for held in walk("all_reduce", algorithm, ranks).states[-1] for tally in held)


@pytest.mark.parametrize("algorithm", costs.ALL_REDUCE)
def test_cost_formulas_equal_messages_rounds_and_bytes_counted_in_the_schedule(algorithm):
    cost = costs.ALL_REDUCE[algorithm]
    for n in range(1, 18):
        messages, rounds, share = costs.critical(schedules.steps("all_reduce", algorithm, n))
        assert (cost.messages(n), cost.rounds(n)) == (messages, rounds)
        assert cost.share(n) == pytest.approx(share)


def test_the_ring_wins_beyond_the_size_that_the_formulas_give():
    alpha, beta, n = 5e-5, 1 / 2e9, 8
    crossing = (14 - 3) * alpha / ((3 - 14 / 8) * beta)  # 3(α + Sβ) = 14(α + S/8·β)
    sizes = [crossing * f for f in (0.5, 0.99, 1.01, 2)]
    ranges = costs.winners(n, sizes, alpha, beta, ("naive", "recursive_doubling", "ring"))
    assert [name for _, _, name in ranges] == ["recursive_doubling", "ring"]
    assert ranges[0][1] == ranges[1][0] == sizes[2]


def test_sharing_a_latency_helps_the_algorithms_with_few_rounds():
    apart, together = (costs.times(8, 1024, 1e-4, 1e-9, overlap=overlap) for overlap in (False, True))
    assert apart["direct"] == apart["ring"] and together["direct"] < together["ring"] / 4


def test_messages_of_a_step_leave_before_any_of_them_arrives():
    exchange = [Move(0, 0, 1, (0,), True), Move(0, 1, 0, (0,), True)]
    assert apply(start("all_reduce", 2, 1), exchange) == [[(1, 1)], [(1, 1)]]


def test_adding_in_the_gather_half_counts_contributions_twice():
    once = [[(1, 1)], [(1, 1)]]
    assert apply(once, [Move(0, 0, 1, (0,), True)])[1] == [(2, 2)]
    assert apply(once, [Move(0, 0, 1, (0,), None)])[1] == [(1, 1)]  # not recorded: taken for a copy


def test_digits_read_from_the_right_like_the_exercises():
    assert digits((1, 0, 1, 1)) == "1101"
    assert digits((0, 0)) == "·"


def _by_hand():
    """A ring reduce-scatter from send and recv: chunk rank - 1 - k in message k."""
    rank, n = dist.get_rank(), dist.get_world_size()
    x, arriving = torch.ones(n), torch.empty(1)
    for k in range(n - 1):
        leaving, coming = (rank - 1 - k) % n, (rank - 2 - k) % n
        handle = dist.isend(x[leaving : leaving + 1].clone(), (rank + 1) % n)
        dist.recv(arriving, (rank - 1) % n)
        handle.wait()
        x[coming] += arriving[0]


def test_messages_of_your_own_code_are_pictured_once_you_say_their_chunks():
    trace = picolib.run(_by_hand, 4, trace=True).trace
    with pytest.raises(ValueError, match="pass chunk_of"):
        walk_trace(trace)
    seen = walk_trace(trace, chunk_of=lambda rank, k: (rank - 1 - k) % 4)
    assert seen.states == walk("reduce_scatter", "ring", 4).states


def test_a_run_without_events_and_an_unknown_call_are_refused_in_words(traced_run):
    with pytest.raises(ValueError, match="trace=True"):
        walk_trace(picolib.run(dist.get_rank, 2).trace)
    with pytest.raises(ValueError, match=r"all_reduce\[bogus\]' sent nothing.*all_reduce\[ring\]"):
        walk_trace(traced_run.trace, "all_reduce[bogus]")
    with pytest.raises(ValueError, match="has no step-through"):
        walk("all_to_all", "direct", 4)


def test_a_frame_says_in_words_what_is_sent():
    ring = walk("all_reduce", "ring", 4)
    assert sentence(ring, 0) == "0 → 1: chunk 3   1 → 2: chunk 0   2 → 3: chunk 1   3 → 0: chunk 2"
    assert frame(ring, 0).alt.startswith("all_reduce[ring]: step 1 of 6. 0 → 1: chunk 3")
    assert frame(ring, 6).alt == "all_reduce[ring]: done. done"
