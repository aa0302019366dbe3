"""The pictures of lesson 05B: the lines cross where the formula says, the grids show what a run's ranks hold."""

import pytest
import torch
import torch.distributed as dist

import picolib
from picolib.course.figures import block_tokens, link_speed, memory_bars
from picolib.course.figures.block_tokens import BLOCKS, RANKS
from picolib.course.figures.link_speed import SPEEDS, break_even, latency_at, waiting
from picolib.course.figures.tensor_share import BLOCKS as MODELS
from picolib.course.figures.tensor_share import LINKS
from picolib.course.widgets import link_explorer
from picolib.launch.links import Link
from picolib.parallel.sequence import gather_tokens, reduce_scatter_tokens

from .test_widgets import controls, shown


@pytest.mark.parametrize("ranks", [2, 8])
@pytest.mark.parametrize("model", MODELS)
def test_at_break_even_a_layer_waits_as_long_as_it_computes_whatever_the_tokens(model, ranks):
    link = Link(0.0, break_even(model, ranks))
    assert waiting(model, ranks, 1024, link) == pytest.approx(0.5) == waiting(model, ranks, 65536, link)


@pytest.mark.parametrize("faster, left", [(1.0, 1 / 2 - 1 / 3), (1.5, 0.0), (0.75, 2 / 3 - 1 / 3), (0.5, 2 - 1.0)])
def test_overlap_hides_within_each_pass_and_forward_needs_more_than_backward(faster, left):
    link = Link(0.0, faster * break_even(MODELS[1], 8))  # left: what is exposed, in parts of what is computed
    assert waiting(MODELS[1], 8, 8192, link, hidden=True) == pytest.approx(left / (1 + left), abs=1e-9)


def test_latency_is_that_of_the_named_links_and_in_between():
    assert all(latency_at(link.bandwidth) == pytest.approx(link.latency) for link in LINKS.values())
    assert sorted(map(latency_at, SPEEDS), reverse=True) == list(map(latency_at, SPEEDS))
    assert latency_at(1e6) == latency_at(SPEEDS[0]) > latency_at(3e10) > latency_at(SPEEDS[-1]) == latency_at(1e13)


def test_the_explorer_answers_its_question():
    explorer = link_explorer()
    model, tokens, overlap = (controls(explorer)[name] for name in ("model", "tokens b·s", "overlap"))
    assert "8 ranks: NVLink 4 26%, PCIe 5 69%, 100G Ethernet 92%" in explorer.picture.alt
    assert explorer.picture.alt in shown(explorer)
    overlap.value = "all that can be"
    assert "8 ranks: NVLink 4 0%, PCIe 5 56%, 100G Ethernet 91%" in shown(explorer)
    overlap.value = "nothing is hidden"
    tokens.value = 32768
    assert "8 ranks: NVLink 4 24%, PCIe 5 69%" in shown(explorer)  # less latency, no more
    model.value = "Llama 3.1 405B"
    assert "8 ranks: NVLink 4 8%, PCIe 5 38%" in shown(explorer)
    overlap.value = "all that can be"
    assert "8 ranks: NVLink 4 0%, PCIe 5 0%, 100G Ethernet 67%" in shown(explorer)
    assert len(explorer.picture.png(1)) > 1000


def stations():
    """[tokens, features] that this rank has at each station, with cut tokens: 1 where it has a number."""
    rank = dist.get_rank()
    own = torch.zeros(RANKS, RANKS)
    own[rank] = 1
    gathered = gather_tokens(own[rank : rank + 1])
    inside = torch.zeros(RANKS, RANKS)
    inside[:, rank] = 1
    left = torch.zeros(RANKS, RANKS)
    left[rank] = reduce_scatter_tokens(torch.ones(RANKS, RANKS)) / RANKS
    return [own, gathered, inside, torch.ones(RANKS, RANKS), left]


def test_the_grids_are_what_the_ranks_of_a_run_have():
    found = picolib.run(stations, RANKS)
    for rank, grids in enumerate(found):
        for station, grid in zip(BLOCKS["With sequence parallelism"], grids, strict=True):
            drawn = [[float(station.holds(rank, t, f)) for f in range(RANKS)] for t in range(RANKS)]
            assert grid.tolist() == drawn, station.name


def test_the_pictures_say_in_words_what_they_show():
    assert "norm its own tokens, then all-gather; input all of it" in block_tokens().alt.replace(", input", "; input")
    assert "16 ranks: NVLink 4" in link_speed(MODELS[0], 64, [16]).alt
    bars = memory_bars({"t = 8": {"cut over the ranks": 1e9, "the same on every rank": 3e9}}, "Two", line=None)
    colors = {getattr(shape, "fill", "") for shape in bars.shapes if getattr(shape, "height", 0) == 26}
    assert len(colors) >= 3  # the two parts differ, and the empty bar behind them
