"""Pictures of memory: what they show is what the formulas say."""

import doctest

import pytest

from picolib.course.figures import memory_bars, zero_chart
from picolib.course.figures.canvas import text_width
from picolib.course.figures.memory import PARTS
from picolib.course.style import ACCENT
from picolib.course.widgets import memory_explorer
from picolib.course.widgets.memory import OPTIMIZERS, PRECISIONS, STAGES, both, budget
from picolib.plan import memory

from .test_widgets import controls, shown

COMMON = {"precision": "bf16, float32 master", "optimizer": "Adam", "recompute": "none"}


@pytest.mark.parametrize("module", ["memory", "zero_chart"])
def test_the_examples_in_the_docstrings(module):
    import importlib

    assert doctest.testmod(importlib.import_module(f"picolib.course.figures.{module}")).failed == 0


@pytest.mark.parametrize("stage", range(4))
@pytest.mark.parametrize("ranks", [1, 8, 64])
def test_what_the_chart_fills_is_the_model_state(stage, ranks):
    from picolib.course.figures.zero_chart import bytes_on_a_rank

    assert bytes_on_a_rank(stage, 8_030_261_248, ranks) == memory.model_state_bytes(8_030_261_248, ranks, stage)


def test_the_riddle_gives_nothing_away_and_the_chart_says_it():
    order = (2, 0, 3, 1)
    riddle, answer = zero_chart(8_030_261_248, 8, order, riddle=True), zero_chart(8_030_261_248, 8, order)
    assert "ZeRO" not in riddle.svg() and "GB" not in riddle.svg() and "A = ?" in riddle.svg()
    assert all(words in answer.svg() for words in ("ZeRO-2", "128 GB", "44.2 GB", "30.1 GB", "16.1 GB", "2.91x less"))


def test_bars_that_do_not_fit_are_marked_and_all_parts_are_told():
    figure = memory_bars({"a": {"parameters": 70e9, "optimizer": 20e9}, "b": {"parameters": 1e9}}, "Two", line=80e9)
    assert "a 90 GB (parameters 70 GB, optimizer 20 GB); b 1 GB (parameters 1 GB)" in figure.alt
    labels = {shape.text: shape.color for shape in figure.shapes if hasattr(shape, "text")}
    assert labels["90 GB"] == ACCENT != labels["1 GB"]


def test_the_line_goes_behind_the_numbers():
    figure = memory_bars({"a": {"kv cache": 160e9}}, "One", line=80e9)
    line = next(i for i, shape in enumerate(figure.shapes) if getattr(shape, "dash", False))
    behind = [shape for shape in figure.shapes[line:] if getattr(shape, "fill", "") == PARTS["kv cache"]]
    assert len(behind) == 1 and figure.shapes[-1].text == "160 GB"


@pytest.mark.parametrize("model", memory.PRESETS)
def test_the_calculator_knows_every_preset(model):
    parts = both(model, ranks=64, stage="ZeRO-3", sequence=4096, batch=1, **COMMON)
    assert all(size > 0 for bar in parts.values() for size in bar.values())


def test_the_calculator_adds_up_precision_and_optimizer():
    psi = memory.parameter_count(memory.PRESETS["Llama 3 8B"])
    for precision in PRECISIONS:
        for optimizer in OPTIMIZERS:
            chosen = {**COMMON, "precision": precision, "optimizer": optimizer}
            training = both("Llama 3 8B", ranks=1, stage="DDP", sequence=512, batch=1, **chosen)["training"]
            state = sum(training[part] for part in ("parameters", "gradients", "optimizer"))
            assert state == psi * (sum(PRECISIONS[precision]) + OPTIMIZERS[optimizer])


def test_the_legend_of_all_parts_lies_on_the_card():
    figure = budget("Llama 3 8B", 8, "ZeRO-3", 4096, 1, **COMMON)
    names = {"kv cache", "gathered layer", "parameters", "optimizer"}
    ends = {s.text: s.x + text_width(s.text, s.size) for s in figure.shapes if getattr(s, "text", "") in names}
    assert set(ends) == names and max(ends.values()) < figure.width


def test_the_calculator_answers_its_question():
    explorer = memory_explorer()
    menus = controls(explorer)
    assert "times what there is" in shown(explorer)
    menus["stage"].value = "ZeRO-3"
    assert "times what there is" in shown(explorer)
    menus["recompute"].value = "full"
    assert "1.07 times what there is" in shown(explorer)
    menus["micro-batch b"].value = 2
    assert "tokens: fits" in shown(explorer)
    assert list(menus["stage"].options) == list(STAGES)
