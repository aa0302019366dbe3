"""The fork server imports, in its idle time, what ranks would have to import one by one."""

from __future__ import annotations

import sys
import types

import torch

import picolib
from picolib.launch.preload import Preload
from tests.launch.conftest import wait_until


def is_there():
    return "torch._dynamo" in sys.modules and "torch.distributed.fsdp" in sys.modules


def step_of_ddp():
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(2, 2))
    model(torch.ones(1, 2)).sum().backward()


def test_once_ranks_have_used_it_the_next_ones_find_it_imported():
    picolib.run(step_of_ddp, 2)
    assert wait_until(lambda: list(picolib.run(is_there, 1)) == [True], 60)


def test_a_module_of_the_learners_with_the_same_name_is_theirs(monkeypatch, tmp_path):
    (tmp_path / "toy.py").write_text("")
    (tmp_path / "toys").mkdir()
    for name in ("toy", "toy.part", "toys", "toyota"):
        monkeypatch.setitem(sys.modules, name, types.ModuleType(name))
    preload = Preload()
    preload.names = {"toy", "toys", "toyota"}
    preload.forget_shadowed([str(tmp_path), *sys.path])
    assert [name for name in ("toy", "toy.part", "toys", "toyota") if name in sys.modules] == ["toyota"]


SCRIPT = """
import sys, time
import picolib

def loaded():
    return sorted(name for name in ("starts_a_thread", "colorsys") if name in sys.modules)

print(list(picolib.run(loaded, 2)))
time.sleep(3)
print(list(picolib.run(loaded, 2)))
"""


def test_a_module_that_starts_a_thread_has_the_server_begin_anew_without_it(script, tmp_path):
    folder = tmp_path / "site-packages"
    folder.mkdir()
    (folder / "starts_a_thread.py").write_text(
        "import threading, time\nthreading.Thread(target=time.sleep, args=(1000,), daemon=True).start()\n"
    )
    text = f"import sys; sys.path.append({str(folder)!r})\n{SCRIPT}"
    result = script(text, PICOLIB_PRELOAD="starts_a_thread,colorsys")
    assert result.stdout == "[[], []]\n[[], []]\n", result.stderr
    assert script(SCRIPT, PICOLIB_PRELOAD="colorsys").stdout == "[[], []]\n[['colorsys'], ['colorsys']]\n"


def test_a_server_that_has_not_been_asked_for_anything_imports_nothing(script):
    text = """
        import sys, time
        from picolib.launch import forked
        forked.warm_up()
        import picolib
        forked.fork_server().wait_ready()
        time.sleep(2.5)
        print(list(picolib.run(lambda: "colorsys" in sys.modules, 1)))
    """
    assert script(text, PICOLIB_PRELOAD="colorsys").stdout == "[False]\n"
