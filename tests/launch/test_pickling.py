"""What travels to ranks; what cannot is named."""

from __future__ import annotations

import functools
import threading
import warnings

import pytest
import torch
import torch.distributed as dist

import picolib

LOCK = threading.Lock()


def refusal(fn, *args) -> str:
    with pytest.raises(TypeError) as error:
        picolib.run(fn, 2, *args)
    return str(error.value)


def test_a_lock_is_named_with_its_user_and_the_way_out():
    lock = threading.Lock()

    def train():
        with lock:
            pass

    text = refusal(train)
    assert text == "`lock`, used by `train`, cannot be sent to ranks (it is a _thread.lock); create it inside `train`"


def test_a_global_used_two_functions_down_is_named():
    def deep():
        return LOCK.locked()

    def train():
        return deep()

    assert refusal(train).startswith("`LOCK`, used by `deep`, cannot be sent")


def test_an_open_file_is_refused_by_name(tmp_path):
    log = open(tmp_path / "log", "w")  # noqa: SIM115

    def train():
        log.write("x")

    with log:
        assert refusal(train).startswith("`log`, used by `train`, cannot be sent to ranks (it is a _io.TextIOWrapper)")


def test_a_generator_is_refused_by_name():
    batches = (k for k in range(3))
    assert refusal(lambda: next(batches)).startswith("`batches`, used by `<lambda>`")


def test_a_widget_is_refused_by_name():
    slider = pytest.importorskip("ipywidgets").IntSlider()

    def train():
        return slider.value

    assert refusal(train).startswith("`slider`, used by `train`, cannot be sent to ranks (it is an ipywidgets.")


def test_the_attribute_that_holds_it_is_named():
    class Trainer:
        def __init__(self):
            self.steps = {"inner": [threading.Lock()]}

        def fit(self):
            pass

    assert refusal(Trainer().fit).startswith("`Trainer.steps['inner'][0]` cannot be sent")


def test_an_argument_is_named():
    text = refusal(lambda x: x, (k for k in "ab"))
    assert text.startswith("`args[0]`, an argument of `<lambda>`, cannot be sent to ranks (it is a generator)")
    assert "keywords['x']" in refusal(functools.partial(lambda x: x, x=LOCK))


def test_a_large_global_is_sent_once_with_a_warning_that_names_it():
    corpus = torch.zeros(25_000_000)

    def train():
        return float(corpus[-1])

    with pytest.warns(UserWarning, match=r"`corpus` \(100 MB\), used by `train`, is sent to the ranks") as caught:
        assert list(picolib.run(train, 2)) == [0.0, 0.0]
    assert caught[0].filename == __file__


def test_large_arguments_are_meant_and_so_not_warned_of():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert picolib.run(lambda x: x.numel(), 2, torch.zeros(10_000_000))[0] == 10_000_000


def test_a_result_that_cannot_come_back_is_told_with_its_type():
    with pytest.raises(picolib.RankError, match="the returned lock cannot be sent back"):
        picolib.run(lambda: threading.Lock(), 2)


def test_an_exception_that_cannot_be_pickled_is_told_in_its_own_words():
    class Awkward(Exception):
        def __init__(self, a, b):
            super().__init__(f"{a} and {b}")

    def fail():
        raise Awkward("this", "that")

    with pytest.raises(picolib.RankError, match="rank 0 failed with Awkward: this and that"):
        picolib.run(fail, 1)


def test_a_global_called_config_does_not_drag_torchs_own_config_module_along():
    cell: dict = {}
    exec(  # as in a notebook: `dist` and `config` are globals, and torch.distributed.config is a module of its own kind
        "import torch.distributed as dist\nconfig = {'lr': 0.1}\n"
        "def train():\n    return config['lr'] * dist.get_world_size()\n",
        cell,
    )
    assert list(picolib.run(cell["train"], 2)) == [0.2, 0.2]


def test_a_result_that_cannot_be_restored_here_is_told_with_its_rank():
    class Refuses:
        def __reduce__(self):
            return int, ("not a number",)

    with pytest.raises(picolib.RankError) as error:
        picolib.run(lambda: Refuses() if dist.get_rank() == 1 else 0, 2)
    assert str(error.value).startswith("rank 1 returned a value that cannot be restored here: ValueError: invalid")
    assert "not a number" in str(error.value) and error.value.rank == 1
    assert list(picolib.run(lambda: 1, 2)) == [1, 1]
