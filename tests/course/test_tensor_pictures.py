"""The picture of lesson 05A: its bytes are those of a run, its seconds those of a run on slow links."""

import pytest
import torch
from torch import nn

import picolib
from picolib.course.figures.tensor_share import ALL_REDUCES, BLOCKS, Block, share, tensor_share
from picolib.course.widgets import tensor_explorer
from picolib.launch.links import Link

TOKENS, HIDDEN = 50, 40
SLOW = Link(5e-3, 1e6)


def four_all_reduces():
    """Two blocks, each f, columns, rows, g."""
    blocks = [
        (
            picolib.ColumnParallelLinear(HIDDEN, 8, algorithm="ring"),
            picolib.RowParallelLinear(8, HIDDEN, algorithm="ring"),
        )
        for _ in range(2)
    ]
    x = torch.zeros(TOKENS, HIDDEN, requires_grad=True)
    with picolib.mark("step"):
        y = x
        for column, row in blocks:
            y = y + row(nn.functional.gelu(column(y)))
        y.sum().backward()


@pytest.mark.parametrize("ranks", [2, 4])
def test_a_layer_sends_and_waits_as_the_formula_says(ranks):
    run = picolib.run(four_all_reduces, ranks, links=picolib.Links(1, ranks, intra=SLOW), trace=True)
    expected = share(Block("here", 0, HIDDEN), ranks, TOKENS, SLOW)
    factor = 4 / 2  # float32 travels here, bf16 in the picture
    assert run.trace.bytes_sent == [factor * expected.sent] * ranks
    links = picolib.Links(1, ranks, intra=SLOW)
    seconds = ALL_REDUCES * picolib.plan.links.ring_all_reduce(links, TOKENS * HIDDEN * 4)
    (step,) = [e for e in run.trace.events if e.kind == "mark" and e.rank == 0]
    assert step.end - step.start > 0.95 * seconds


def test_more_tokens_do_not_help_and_a_wider_model_does():
    part = lambda block, tokens, ranks=8: _part(share(block, ranks, tokens, Link(0.0, 1e10)))  # noqa: E731
    assert part(BLOCKS[1], 1024) == pytest.approx(part(BLOCKS[1], 65536))
    assert part(BLOCKS[2], 1024) < part(BLOCKS[1], 1024) < part(BLOCKS[0], 1024)
    assert part(BLOCKS[1], 1024, ranks=2) < part(BLOCKS[1], 1024, ranks=8)


def _part(one):
    return one.exposed / (one.compute + one.exposed)


def test_the_picture_can_be_drawn():
    assert "NVLink 4" in tensor_share(BLOCKS[0], 4096, [2, 8]).alt
    explorer = tensor_explorer()
    assert len(explorer.picture.png(1)) > 1000
    assert "Ethernet" in explorer.panel.children[-1].value
