"""Widgets: a question, a static picture, and controls that redraw without printing or plotting anything."""

import re

import pytest

from picolib.course.figures import schedules
from picolib.course.figures.waits import around_a_ring, cycle, wait_graph
from picolib.course.widgets import (
    bucket_explorer,
    cost_explorer,
    deadlock_explorer,
    link_explorer,
    memory_explorer,
    stepper,
    token_explorer,
)
from picolib.course.widgets.cost import LINKS, OWN

EXPLORERS = {
    "stepper": stepper,
    "cost": cost_explorer,
    "deadlock": deadlock_explorer,
    "buckets": bucket_explorer,
    "memory": memory_explorer,
    "links": link_explorer,
    "tokens": token_explorer,
}


def controls(explorer):
    """The panel's controls by their description."""
    found, boxes = {}, [explorer.panel]
    while boxes:
        for child in boxes.pop().children:
            if hasattr(child, "children"):
                boxes.append(child)
            elif getattr(child, "description", ""):
                found[child.description] = child
    return found


def shown(explorer):
    """The SVG on the panel now."""
    last = explorer.panel.children[-1]
    return last.value if hasattr(last, "value") else last.children[last.selected_index].value


@pytest.mark.parametrize("name", EXPLORERS)
def test_a_widget_asks_a_question_and_its_stored_text_is_that_question(name):
    explorer = EXPLORERS[name]()
    text = explorer.panel._repr_mimebundle_()["text/plain"]
    assert explorer.question.endswith("?") and text == f"[widget: {explorer.question}]" == repr(explorer)
    assert "application/vnd.jupyter.widget-view+json" in explorer.panel._repr_mimebundle_()


@pytest.mark.parametrize("name", EXPLORERS)
def test_the_static_picture_comes_first_and_is_the_same_each_time(name, monkeypatch):
    displayed = []
    monkeypatch.setattr("IPython.display.display", displayed.append)
    explorer = EXPLORERS[name]()
    explorer._ipython_display_()
    assert displayed == [explorer.picture, explorer.panel]
    assert explorer.picture.svg() == EXPLORERS[name]().picture.svg()


@pytest.mark.parametrize("name", EXPLORERS)
def test_nothing_is_captured_or_printed_while_controls_move(name, capsys):
    from ipywidgets import Output

    explorer = EXPLORERS[name]()
    for control in controls(explorer).values():
        options = getattr(control, "options", ())
        if options:
            control.index = len(options) - 1
    assert capsys.readouterr() == ("", "")
    assert not any(isinstance(child, Output) for child in explorer.panel.children)


def test_stepping_needs_no_kernel_slider_play_and_pictures_are_linked_in_the_browser():
    explorer = stepper("all_reduce", "ring", 4)
    slider, stack = controls(explorer)["step"], explorer.panel.children[-1]
    assert [child.value.count("<svg") for child in stack.children] == [1] * 7
    assert slider.options == ("step 1", "step 2", "step 3", "step 4", "step 5", "step 6", "done")
    assert "step 1 of 6" in shown(explorer)


def test_a_link_of_the_menu_sets_both_sliders_and_a_slider_sets_the_menu_back():
    menus = controls(cost_explorer(alpha=5e-6, gigabytes_per_second=50))
    link, latency, speed = menus["link"], menus["latency α"], menus["bandwidth 1/β"]
    assert link.value == "PCIe 5"
    for name, (alpha, gigabytes) in LINKS.items():
        link.value = name
        assert (latency.value, speed.value) == (alpha, gigabytes) and link.value == name
    speed.value = 100
    assert link.value == OWN and latency.value == LINKS["10 Gb Ethernet"][0]
    latency.value, speed.value = LINKS["InfiniBand"]
    assert link.value == "InfiniBand"


def test_each_link_of_the_menu_draws_its_own_bills():
    explorer = cost_explorer()
    link, pictures = controls(explorer)["link"], set()
    for name in LINKS:
        link.value = name
        pictures.add(shown(explorer))
    assert len(pictures) == len(LINKS)


def test_the_stepper_changes_algorithm_ranks_and_collective():
    explorer = stepper()
    menus = controls(explorer)
    menus["ranks"].value = 8
    menus["algorithm"].value = "recursive_doubling"
    assert "all_reduce[recursive_doubling]: step 1 of 3" in shown(explorer)
    menus["collective"].value = "broadcast"
    assert menus["algorithm"].options == tuple(schedules.SCHEDULES["broadcast"])
    assert "broadcast[binomial]: step 1 of 3" in shown(explorer)
    assert len(explorer.panel.children[-1].children) == 4


def test_the_cost_explorer_names_another_winner_on_the_other_side_of_the_crossing():
    explorer = cost_explorer(ranks=8, nbytes=2**20, alpha=5e-5, gigabytes_per_second=2)
    moved = controls(explorer)
    moved["size S"].value = 2**10
    assert "cheapest: recursive_doubling" in shown(explorer)
    moved["size S"].value = 2**26
    assert "cheapest: ring and direct" in shown(explorer)
    moved[next(name for name in moved if "share one" in name)].value = True
    assert "cheapest: direct" in shown(explorer)


def test_the_cost_explorer_starts_from_your_own_numbers():
    explorer = cost_explorer(ranks=5, nbytes=3000, alpha=3.3e-5, gigabytes_per_second=1.7)
    assert "α = 33 µs" in shown(explorer) and "1.7 GB/s" in shown(explorer) and "on 5 ranks" in shown(explorer)


def test_one_rank_that_sends_first_is_enough_and_everybody_hangs_again():
    explorer = deadlock_explorer()
    first = controls(explorer)["sends first"]
    verdicts = {}
    for name in first.options:
        first.value = name
        verdicts[name] = bool(re.search("deadlock", shown(explorer)))
    assert verdicts == {
        "nobody": True,
        "rank 0": False,
        "even ranks": False,
        "all but rank 0": False,
        "everybody": True,
    }


@pytest.mark.parametrize("ranks", range(2, 8))
def test_a_ring_of_blocking_calls_hangs_exactly_when_all_begin_with_the_same_call(ranks):
    for chosen in range(2**ranks):
        first = [r for r in range(ranks) if chosen >> r & 1]
        hangs = bool(cycle(around_a_ring(ranks, first)))
        assert hangs == (len(first) in (0, ranks))


def test_each_rank_waits_for_the_neighbour_that_its_first_call_names():
    assert around_a_ring(4, []) == {0: 3, 1: 0, 2: 1, 3: 2}
    assert around_a_ring(4, range(4)) == {0: 1, 1: 2, 2: 3, 3: 0}
    assert around_a_ring(4, [2]) == {0: None, 1: None, 2: None, 3: None}


def test_the_wait_graph_names_the_cycle_and_who_only_waits_for_it():
    figure = wait_graph({0: 1, 1: 2, 2: 1, 3: None}, {0: "waits to receive from rank 1"})
    assert figure.alt.endswith("deadlock: rank 1 → rank 2 → rank 1.")
    assert "rank 0 waits to receive from rank 1; rank 1 waits for rank 2" in figure.alt
    assert wait_graph({0: 1, 1: None}).alt.endswith("no cycle: nobody waits for ever.")
