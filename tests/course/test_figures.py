"""Every picture: the same text each time, words for those who do not see it, colours that can be told apart."""

import base64
import itertools
import json
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from types import SimpleNamespace

import numpy as np
import pytest
import torch

import picolib
from picolib.course import style
from picolib.course.figures import (
    block_tokens,
    bucket_plan,
    bytes_vs_formula,
    collectives_picture,
    cost_curves,
    frame,
    held_curves,
    layouts,
    link_speed,
    loss_curves,
    memory_bars,
    message_matrix,
    overview,
    scaling,
    stack,
    timeline,
    topology,
    wait_graph,
    walk,
    zero_chart,
)
from picolib.course.figures.bars import cost_bars
from picolib.course.figures.canvas import Figure, Lines
from picolib.course.figures.display import as_picture, display_figure
from picolib.course.figures.tensor_share import BLOCKS
from picolib.course.figures.timeline import exposed, minus, union
from picolib.course.figures.tokens import token_weights, weights
from picolib.course.figures.topology import tree_places
from picolib.launch.trace import Event, Recorder, Trace


def small_trace() -> Trace:
    """Rank 0 computes for 1 s, then sends 100 bytes to rank 1, which has waited for them all the time."""
    first, second = Recorder(0, 2, events=True), Recorder(1, 2, events=True)
    first.sent(1, 100)
    first.events = [
        (0, "mark", None, None, "forward", 10.0, 11.0, None, None),
        (0, "send", 1, 100, "send", 11.0, 12.0, None, None),
    ]
    second.events = [(1, "recv", 0, 100, "recv", 10.0, 12.0, None, None)]
    return Trace(2, [first.report(), second.report()])


PICTURES = {
    "timeline": lambda: timeline(small_trace()),
    "matrix": lambda: message_matrix(small_trace()),
    "formula": lambda: bytes_vs_formula(small_trace(), [100, 0], "S"),
    "collectives": collectives_picture,
    "costs": lambda: cost_curves(8, 5e-5, 1 / 2e9, points={"ring": [(1e6, 1e-3)]}),
    "bars": lambda: cost_bars(8, 2**20, 5e-5, 1 / 2e9),
    "loss": lambda: loss_curves({"one process": [3.0, 2.0], "4 ranks": [3.0, 2.0]}),
    "memory": lambda: memory_bars(
        {"DDP": {"parameters": 2e9, "optimizer": 90e9}, "ZeRO-3": {"parameters": 1e9}}, "Two"
    ),
    "held": lambda: held_curves({"plain": [10, 40, 0], "recomputed": [10, 20, 0]}, "Held", {"8 inputs": 16}),
    "zero": lambda: zero_chart(8_030_261_248, 8),
    "riddle": lambda: zero_chart(8_030_261_248, 8, order=(2, 0, 3, 1), riddle=True),
    "buckets": lambda: bucket_plan([0.5, 4, 64]),
    "scaling": lambda: scaling({"strong": {1: 1.0, 4: 2.5}}, cores=2),
    "layouts": layouts,
    "block": block_tokens,
    "links": lambda: link_speed(BLOCKS[1], 8192, [2, 16]),
    "stack": lambda: stack({"2.4": "ring_all_reduce", "3.1": "wrap", "3.3": "average_in_buckets"}, {"2.4"}),
    "topology": topology,
    "waits": lambda: wait_graph({0: 1, 1: 0, 2: None}),
    "frame": lambda: frame(walk("all_reduce", "ring", 4), 2),
    "overview": lambda: overview(walk("all_reduce", "ring", 4)),
}


@pytest.mark.parametrize("name", PICTURES)
def test_a_picture_is_well_formed_and_drawn_twice_it_is_the_same_text(name):
    svg = PICTURES[name]().svg()
    assert svg == PICTURES[name]().svg()
    root = ElementTree.fromstring(svg)
    assert root.get("role") == "img"
    assert len(root.get("aria-label")) > 20
    assert "nan" not in svg and " id=" not in svg


@pytest.mark.parametrize("name", PICTURES)
def test_all_text_and_lines_of_a_picture_lie_on_its_card(name):
    figure = PICTURES[name]()
    for element in ElementTree.fromstring(figure.svg()).iter():
        tag = element.tag.rpartition("}")[2]
        if tag == "text" and "rotate" not in element.get("transform", ""):
            width = 0.62 * float(element.get("font-size")) * len(element.text or "")
            start = float(element.get("x")) - {"start": 0, "middle": 0.5, "end": 1}[element.get("text-anchor")] * width
            assert start > 0 and start + width < figure.width + 12, element.text
            assert 0 < float(element.get("y")) < figure.height
        if tag in ("polyline", "polygon"):
            points = [tuple(map(float, p.split(","))) for p in element.get("points").split()]
            assert all(-1 <= x <= figure.width + 1 and -1 <= y <= figure.height + 1 for x, y in points)


def test_a_notebook_stores_png_and_svg_with_alt_text_and_the_same_plain_text():
    data, metadata = layouts("data")._repr_mimebundle_()
    assert set(data) == {"image/png", "image/svg+xml", "text/plain"}
    assert base64.b64decode(data["image/png"]).startswith(b"\x89PNG")
    assert data["text/plain"].startswith("[figure: One model and one batch on four ranks")
    assert metadata["alt"] == metadata["image/png"]["alt"] == metadata["image/svg+xml"]["alt"] == layouts().alt


@pytest.mark.parametrize("picture", [layouts(), as_picture('<svg width="9"><g/></svg>', "a <picture>")], ids=repr)
def test_stored_svg_says_itself_what_it_shows(picture):
    data, _ = picture._repr_mimebundle_()
    root = ElementTree.fromstring(data["image/svg+xml"])
    title = next(element for element in root.iter() if element.tag.rpartition("}")[2] == "title")
    assert root.get("role") == "img" and root.get("aria-label") == title.text == picture.alt


@pytest.mark.parametrize("ranks", [2, 5, 8])
def test_the_tree_drawn_is_the_tree_that_runs(ranks):
    def summed():
        picolib.comm.all_reduce(torch.ones(4), algorithm="tree")

    matrix = picolib.run(summed, ranks).trace.matrix
    sent = {(a, b) for a in range(ranks) for b in range(ranks) if matrix[a][b]}
    drawn = {(rank, parent) for rank, (_, parent) in tree_places(ranks).items() if rank}
    assert sent == drawn | {(parent, rank) for rank, parent in drawn}


def test_a_picture_of_measured_times_stores_no_svg_and_no_time_in_words():
    figure = timeline(small_trace())
    data, _ = figure._repr_mimebundle_()
    assert "image/svg+xml" not in data  # nbval would compare it
    assert (
        data["text/plain"]
        == "[figure: Timeline of 2 ranks: 1 messages, and the time each rank waits in communication.]"
    )


def test_png_is_the_same_twice_and_as_large_as_asked():
    figure = message_matrix(small_trace())
    assert figure.png(1) == figure.png(1)
    width, height = np.frombuffer(figure.png(2)[16:24], ">u4")
    assert (width, height) == (2 * figure.width, 2 * figure.height)


def test_timeline_counts_only_the_time_that_compute_does_not_hide():
    trace = small_trace()
    assert exposed([e for e in trace.events if e.rank == 0]) == [(1.0, 2.0)]
    assert exposed([e for e in trace.events if e.rank == 1]) == [(0.0, 2.0)]
    svg = timeline(trace).svg()
    assert "50% exposed" in svg and "100% exposed" in svg


def test_timeline_believes_a_rank_that_says_when_it_waits():
    events = [Event(0, "collective", None, None, "all_reduce", 0.0, 9.0), Event(0, "wait", None, None, "", 7.0, 9.0)]
    assert exposed(events) == [(7.0, 9.0)]
    assert exposed([*events, Event(0, "mark", None, None, "backward", 0.0, 8.0)]) == [(7.0, 9.0)]  # it waits in there


def test_what_a_collective_computes_between_its_messages_is_no_waiting():
    wait = Event(0, "wait", None, None, "", 1.0, 5.0)
    block = Event(0, "mark", None, None, "block 0", 1.0, 3.0)
    assert exposed([wait, block]) == [(3.0, 5.0)]
    assert exposed([wait, block._replace(start=1.0, end=5.0)]) == [(1.0, 5.0)]  # a mark around the call says nothing


def test_overlapping_marks_hide_what_any_of_them_covers():
    talk = Event(0, "recv", 1, 8, "recv", 0.0, 10.0)
    marks = [Event(0, "mark", None, None, "", a, b) for a, b in ((1.0, 5.0), (2.0, 3.0), (4.0, 6.0))]
    assert exposed([talk, *marks]) == [(0.0, 1.0), (6.0, 10.0)]


def test_spans_join_and_lose_their_holes():
    assert union([(4, 5), (0, 2), (1, 3)]) == [(0, 3), (4, 5)]
    assert minus([(0, 10)], [(2, 3), (5, 6), (9, 12)]) == [(0, 2), (3, 5), (6, 9)]


def test_timeline_of_a_run_without_events_says_what_to_do():
    with pytest.raises(ValueError, match="trace=True"):
        timeline(Trace(2, [None, None]))


def test_message_matrix_writes_the_bytes_of_each_pair_and_their_sums():
    figure = message_matrix(small_trace())
    assert figure.svg().count(">100 B<") == 3  # the pair, what rank 0 sent, what rank 1 received
    assert "rank 0 sent 100 B to 1; rank 1 sent nothing" in figure.alt


def test_the_sums_of_exact_numbers_are_exact():
    trace = SimpleNamespace(matrix=[[0, 4000, 4000, 4000], [9000, 0, 0, 0], [0, 0, 0, 0], [0, 0, 0, 0]])
    assert "12,000 B" in message_matrix(trace).svg()
    trace.matrix[1][0] = 4_000_000
    assert "12,000 B" not in message_matrix(trace).svg()


def test_in_halves_every_run_begins_its_backward_pass_in_the_middle():
    figure = held_curves({"plain": [10, 40, 0], "recomputed": [10, 20, 5, 25, 0]}, "Held", halves=True)
    lines = [shape.points for shape in figure.shapes if isinstance(shape, Lines) and shape.stroke_width == 2.5]
    turns = [points[1][0] for points in lines]
    assert len(lines) == 2 and turns[0] == turns[1] == (lines[0][0][0] + lines[0][-1][0]) / 2


def test_bytes_against_the_formula_are_equal_to_the_byte_or_named():
    assert "equal on every rank" in bytes_vs_formula(small_trace(), [100, 0]).alt
    off = bytes_vs_formula(small_trace(), lambda rank: 99 * (rank == 0))
    assert "different on rank 0" in off.alt and "100 B, not 99 B (1x)" not in off.alt
    with pytest.raises(ValueError, match="3 numbers; the run had 2 ranks"):
        bytes_vs_formula(small_trace(), [1, 2, 3])


def test_layouts_lights_one_panel_and_refuses_an_unknown_one():
    assert layouts("data").svg() != layouts().svg()
    with pytest.raises(ValueError, match="'ddp'"):
        layouts("ddp")


def test_hidden_names_of_collectives_are_nowhere_in_the_picture():
    svg = collectives_picture(("all_gather", "reduce"), hide_names=True).svg()
    assert "all_gather" not in svg and "everyone" not in svg and "picture B" in svg


def test_rank_colors_can_be_told_apart_by_colour_blind_readers():
    # Machado, Oliveira and Fernandes (2009), complete protanopia, deuteranopia, tritanopia; distances in OKLab.
    eyes = [
        np.eye(3),
        [[0.152, 1.053, -0.205], [0.115, 0.786, 0.099], [-0.004, -0.048, 1.052]],
        [[0.367, 0.861, -0.228], [0.280, 0.673, 0.047], [-0.012, 0.043, 0.969]],
        [[1.256, -0.077, -0.179], [-0.078, 0.931, 0.148], [0.005, 0.691, 0.304]],
    ]
    for eye in map(np.array, eyes):
        seen = [_oklab(np.clip(eye @ _linear(color), 0, 1)) for color in style.RANK_COLORS]
        distances = [np.linalg.norm(a - b) for a, b in itertools.combinations(seen, 2)]
        assert min(distances) > 0.07


def _linear(color):
    c = np.array(style.channels(color))
    return np.where(c <= 0.04045, c / 12.92, ((c + 0.055) / 1.055) ** 2.4)


def _oklab(rgb):
    lms = np.array([[0.4122, 0.5363, 0.0514], [0.2119, 0.6807, 0.1074], [0.0883, 0.2817, 0.6300]]) @ rgb
    to_lab = np.array([[0.2105, 0.7936, -0.0041], [1.9780, -2.4286, 0.4506], [0.0259, 0.7828, -0.8087]])
    return to_lab @ np.cbrt(lms)


def test_text_contrast_meets_wcag():
    for ink in (style.INK, style.MUTED, style.ACCENT, style.GOOD):
        assert style.contrast(ink, style.PAPER) >= 4.5
    for color in (*style.RANK_COLORS, *style.SERIES_COLORS):
        assert style.contrast(style.ink_on(color), color) >= 4.0


def test_numbers_are_written_in_the_unit_that_fits():
    assert [style.bytes_text(b) for b in (0, 4096, 10_000, 1_572_864, 2**31)] == [
        "0 B",
        "4,096 B",
        "9.77 KB",
        "1.5 MB",
        "2 GB",
    ]
    assert [style.seconds_text(s) for s in (2.5, 0.0012, 3.5e-5, 1e-9)] == ["2.5 s", "1.2 ms", "35 µs", "0.001 µs"]
    assert [style.size_text(b) for b in (512, 1024, 64 * 2**20)] == ["512 B", "1 KB", "64 MB"]


def test_display_figure_asks_for_alt_text_and_refuses_what_is_no_picture():
    with pytest.raises(ValueError, match="alt is empty"):
        display_figure("<svg></svg>")
    with pytest.raises(TypeError, match="figure is int"):
        display_figure(3, alt="a number")
    assert as_picture("<svg></svg>", "nothing").alt == "nothing"


def test_a_matplotlib_figure_becomes_svg_without_dates_or_random_ids():
    matplotlib = pytest.importorskip("matplotlib")
    matplotlib.use("Agg")
    from matplotlib import pyplot

    def picture():
        sheet, axes = pyplot.subplots(figsize=(2, 2))
        axes.plot([1, 2])
        return as_picture(sheet, "A line.")

    first, second = picture(), picture()
    assert first.svg == second.svg and "<dc:date>" not in first.svg
    assert repr(first) == "[figure: A line.]" and not pyplot.get_fignums()


def test_saving_takes_svg_and_png_only(tmp_path):
    figure = Figure(40, "an empty card", width=60)
    assert figure.save(tmp_path / "a.svg").read_text().startswith("<svg")
    assert figure.save(tmp_path / "a.png").read_bytes().startswith(b"\x89PNG")
    with pytest.raises(ValueError, match="saved as .svg or .png"):
        figure.save(tmp_path / "a.pdf")


def test_importing_the_figures_loads_neither_torch_nor_matplotlib_nor_ipywidgets():
    code = "import sys, json, picolib.course.figures; print(json.dumps(sorted(sys.modules)))"
    loaded = json.loads(subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout)
    assert not {"torch", "matplotlib", "ipywidgets"} & set(loaded)


def test_what_a_token_counts_is_its_gradient():
    ranks = [torch.zeros(3, requires_grad=True), torch.zeros(9, requires_grad=True)]
    ((ranks[0].mean() + ranks[1].mean()) / 2).backward()
    means, rule = weights([3, 9])
    assert [float(t.grad[0]) for t in ranks] == pytest.approx([1 / int(text[2:]) for text in means])
    assert rule == ["1/12", "1/12"]


def test_a_rank_without_tokens_is_nan_in_a_mean_of_means_and_counts_nothing_in_the_one_rule():
    assert "nan: rank 1 takes the mean of no tokens" in token_weights([5, 0]).svg()
    assert "rank 0: each 1/5" in token_weights([5, 0]).svg()
    assert "every rank skips the step" in token_weights([0, 0]).svg()
