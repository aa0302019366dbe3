"""`show`: the source as it is, where it stands, and no answer to an open exercise."""

import functools
import importlib
import pkgutil
from pathlib import Path

import pytest

from picolib.course import show as show_function
from picolib.course.show import ANSWERS, Notice, view
from picolib.course.source import Source, highlight, source_of

all_reduce = importlib.import_module("picolib.comm.all_reduce")  # the package has a function of that name


def open_all(exercise):
    return True


def test_the_text_is_the_source_with_its_file_and_lines():
    source = view(all_reduce.naive, False, open_all)
    first, rest = repr(source).split("\n", 1)
    assert first.startswith("# picolib/comm/all_reduce.py, lines ")
    assert rest.startswith("def naive(link") and rest in Path(all_reduce.__file__).read_text(encoding="utf-8")


def test_the_stored_text_is_the_same_each_time_and_holds_no_machine_path():
    data = source_of(all_reduce.naive)._repr_mimebundle_()
    assert data == source_of(all_reduce.naive)._repr_mimebundle_()
    assert all(str(all_reduce.__file__) not in text and "0x" not in text for text in data.values())


def test_html_keeps_every_character_of_the_code():
    import html
    import re

    code = source_of(all_reduce).code
    assert html.unescape(re.sub("<[^>]+>", "", highlight(code))) == code
    assert "<b>" not in Source("f", "f.py, line 1", "x = '<b>'").html()


def test_what_answers_an_open_exercise_is_shown_on_request_only():
    notice = view(all_reduce.recursive_doubling, False, open_all)
    assert isinstance(notice, Notice)
    assert repr(notice) == (
        "`recursive_doubling` answers exercise 2.6, which is open. Try it first; to look now: "
        "`show(recursive_doubling, spoil=True)`."
    )
    assert isinstance(view(all_reduce.recursive_doubling, True, open_all), Source)
    assert isinstance(view(all_reduce.recursive_doubling, False, lambda exercise: False), Source)


def test_every_function_that_is_guarded_exists():
    for name in ANSWERS:
        assert name.endswith(f".{source_of(pkgutil.resolve_name(name)).name}")


def test_decorated_functions_methods_and_modules_are_shown_and_numbers_are_not():
    @functools.wraps(all_reduce.naive)
    def wrapped(*args):
        return all_reduce.naive(*args)

    assert source_of(wrapped).name == "naive"
    assert source_of(Source.html).code.startswith("def html(self)")  # dedented
    assert source_of(all_reduce).place.startswith("picolib/comm/all_reduce.py, lines 1-")
    for thing in (3, len):
        with pytest.raises(TypeError, match="has no Python source to show"):
            source_of(thing)


def test_show_displays_and_returns_nothing(monkeypatch):
    shown = []
    monkeypatch.setattr("IPython.display.display", shown.append)
    assert show_function(all_reduce.naive) is None
    assert [source.name for source in shown] == ["naive"]
