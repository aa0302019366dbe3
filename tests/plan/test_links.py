"""The alpha-beta formulas of collectives and pipelines."""

from __future__ import annotations

import doctest

import pytest

from picolib.launch.links import Link, Links
from picolib.plan import links as formulas

TWO_NODES = Links(2, 4, intra=(1e-3, 1e6), inter=(5e-3, 2e5))


def test_the_examples_in_the_docstrings():
    assert doctest.testmod(formulas).failed == 0


def test_a_ring_goes_at_the_pace_of_its_slowest_link():
    assert formulas.ring_all_reduce(TWO_NODES, 6400) == pytest.approx(14 * (5e-3 + 800 / 2e5))
    assert formulas.ring_all_reduce(Links(4, 1, inter=(1e-3, 1e6)), 4000) == pytest.approx(6 * 2e-3)
    assert formulas.ring_all_reduce(Links(1, 1), 4000) == 0


def test_hierarchical_on_one_node_is_a_ring():
    one = Links(1, 4, intra=(1e-3, 1e6))
    assert formulas.hierarchical_all_reduce(one, 8000) == pytest.approx(formulas.ring_all_reduce(one, 8000))


def test_one_rank_a_node_leaves_nothing_to_do_inside():
    apart = Links(4, 1, inter=(1e-3, 1e6))
    assert formulas.hierarchical_all_reduce(apart, 8000) == pytest.approx(formulas.ring_all_reduce(apart, 8000))


def test_long_vectors_like_rings_and_short_ones_trees():
    links = Links(1, 16, intra=Link.NVLINK4)
    assert formulas.tree_all_reduce(links, 100) < formulas.ring_all_reduce(links, 100)
    assert formulas.tree_all_reduce(links, 1e9) > formulas.ring_all_reduce(links, 1e9)


def test_a_tree_of_one_and_of_two():
    assert formulas.tree_all_reduce(Links(1, 1), 100) == 0
    assert formulas.tree_all_reduce(Links(1, 2, intra=(1e-3, 1e6)), 1000) == pytest.approx(2 * 2e-3)
    with pytest.raises(ValueError, match="links must have one node for this formula, got 2"):
        formulas.tree_all_reduce(TWO_NODES, 100)


def test_a_pipeline_that_waits_for_its_messages_is_slower():
    assert formulas.pipeline(4, 8, 0.1, 0.01) == pytest.approx(11 * 0.1 + 3 * 0.01)
    assert formulas.pipeline(4, 8, 0.1, 0.01, overlapped=False) == pytest.approx(11 * 0.11 - 0.01)
    assert formulas.pipeline(1, 8, 0.1, 0.01, overlapped=False) == pytest.approx(0.8)
    assert formulas.idle_share(1, 8) == 0
