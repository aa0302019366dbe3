"""In a Jupyter kernel: cells, tracebacks by cell and line, the stop button, restarts, kill -9."""

from __future__ import annotations

import os
import signal
import time
import uuid
from pathlib import Path
from queue import Empty

import pytest

from tests.launch.conftest import REPOSITORY, marked, wait_until

jupyter_client = pytest.importorskip("jupyter_client")
pytest.importorskip("ipykernel")


class Kernel:
    """A kernel and what its cells put out."""

    def __init__(self) -> None:
        self.mark = uuid.uuid4().hex
        env = {**os.environ, "PICOLIB_TEST": self.mark, "PYTHONPATH": str(REPOSITORY), "TMPDIR": self.make_tmp()}
        self.manager = jupyter_client.KernelManager(kernel_name="python3")
        self.manager.start_kernel(env=env)
        self.client = self.manager.client()
        self.client.start_channels()
        self.client.wait_for_ready(timeout=100)

    def make_tmp(self) -> str:
        self.tmp = Path("/tmp") / f"picolib-test-{self.mark}"
        self.tmp.mkdir()
        return str(self.tmp)

    def start(self, code: str) -> str:
        return self.client.execute(code)

    def finish(self, message: str, until: str = "", seconds: float = 100) -> dict:
        """Collect a cell's outputs until it is done, or until its stdout holds `until`."""
        seen = {"stdout": "", "stderr": "", "error": None, "displays": []}
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            try:
                reply = self.client.get_iopub_msg(timeout=1)
            except Empty:
                continue
            if reply["parent_header"].get("msg_id") != message:
                continue
            kind, content = reply["msg_type"], reply["content"]
            if kind == "stream":
                seen[content["name"]] += content["text"]
            elif kind == "error":
                seen["error"] = content
            elif "display_data" in kind:
                seen["displays"].append((kind, content["data"]))
            done = kind == "status" and content["execution_state"] == "idle"
            if done or (until and until in seen["stdout"]):
                return seen
        raise TimeoutError(seen)

    def run(self, code: str) -> dict:
        return self.finish(self.start(code))

    def close(self) -> None:
        self.client.stop_channels()
        self.manager.shutdown_kernel(now=True)
        assert wait_until(lambda: not marked(self.mark), 5), [p.cmdline() for p in marked(self.mark)]
        assert list(self.tmp.glob("picolib-*")) == []
        for rest in self.tmp.iterdir():
            rest.unlink() if rest.is_file() else rest.rmdir()
        self.tmp.rmdir()


IMPORTS = "import os, time, picolib, torch, torch.distributed as dist"


@pytest.fixture(scope="module")
def kernel():
    made = Kernel()
    assert made.run(IMPORTS)["error"] is None
    yield made
    made.close()


def ranks_of(kernel: Kernel) -> int:
    """Processes besides the kernel and its fork server."""
    return len(marked(kernel.mark)) - 2


def test_functions_lambdas_and_classes_from_cells_work_and_stderr_is_clean(kernel):
    kernel.run(
        "torch.ones(300, 300) @ torch.ones(300, 300)\nclass Model(torch.nn.Linear):\n    pass\nmodel = Model(2, 1)"
    )
    seen = kernel.run("print(list(picolib.run(lambda: type(model(torch.ones(2))).__name__, 2)))")
    assert (seen["stdout"], seen["stderr"], seen["error"]) == ("['Tensor', 'Tensor']\n", "", None)


def test_output_is_complete_and_in_order_before_the_cell_returns(kernel):
    seen = kernel.run("def talk():\n    os.system('echo sub')\n    print(dist.get_rank())\n\n_ = picolib.run(talk, 3)")
    assert seen["stdout"] == "".join(f"[rank {rank}] sub\n[rank {rank}] {rank}\n" for rank in range(3))
    assert seen["displays"] == [] and kernel.run("1")["stdout"] == ""


def test_an_error_shows_the_explanation_alone_with_cell_and_line(kernel):
    seen = kernel.run("x = 0\ndef train():\n    if dist.get_rank() == 1:\n        1 / x\n    dist.barrier()")
    number = int(kernel.run("print(len(In) - 2)")["stdout"])
    seen = kernel.run("picolib.run(train, 3)")
    assert seen["error"]["ename"] == "RankError"
    assert "\n".join(seen["error"]["traceback"]).splitlines() == [
        "rank 1 failed with ZeroDivisionError: division by zero",
        f"  cell In[{number}], line 4, in train",
        "      1 / x",
        "ranks 0 and 2 stopped because rank 1 failed.",
    ]


def test_a_deadlock_tells_the_cell_and_the_kernel_lives_on(kernel):
    seen = kernel.run("def ring():\n    dist.recv(torch.ones(1), 1 - dist.get_rank())\n\npicolib.run(ring, 2)")
    text = "\n".join(seen["error"]["traceback"])
    assert seen["error"]["ename"] == "DeadlockError" and "cell In[" in text and "line 2" in text
    assert kernel.run("print(picolib.run(dist.get_rank, 2)[1])")["stdout"] == "1\n"


def test_a_long_run_has_a_live_view_that_leaves_nothing(kernel):
    kernel.run("def talk():\n    if dist.get_rank() == 1:\n        print('early')\n    time.sleep(1.6)")
    seen = kernel.run("_ = picolib.run(talk, 2)")
    assert seen["stdout"] == "[rank 1] early\n"
    assert seen["displays"][0] == ("display_data", {}) and seen["displays"][-1] == ("update_display_data", {})
    assert ("update_display_data", {"text/plain": "[rank 1] early"}) in seen["displays"]


def test_the_stop_button_ends_all_ranks_in_one_line_within_seconds(kernel):
    message = kernel.start("def work():\n    print('up')\n    time.sleep(1000)\n\npicolib.run(work, 4)")
    kernel.finish(message, until="up")
    start = time.monotonic()
    kernel.manager.interrupt_kernel()
    seen = kernel.finish(message)
    assert time.monotonic() - start < 3
    assert seen["error"]["traceback"] == ["Interrupted: ranks 0-3 ended."] and seen["stderr"] == ""
    assert ranks_of(kernel) == 0
    assert kernel.run("print(list(picolib.run(dist.get_rank, 2)))")["stdout"] == "[0, 1]\n"


def busy_kernel() -> Kernel:
    kernel = Kernel()
    kernel.run(IMPORTS)
    message = kernel.start(
        "def work():\n    os.system('sleep 1000 &')\n    print('up')\n    dist.barrier()\n    time.sleep(1000)\n\n"
        "picolib.run(work, 2)"
    )
    kernel.finish(message, until="up")
    return kernel


def test_a_restart_during_a_run_leaves_no_rank_and_the_next_kernel_works():
    kernel = busy_kernel()
    before = {process.pid for process in marked(kernel.mark)}
    kernel.manager.restart_kernel(now=False)
    kernel.client.wait_for_ready(timeout=100)
    assert wait_until(lambda: not before & {process.pid for process in marked(kernel.mark)}, 5)
    assert kernel.run(IMPORTS + "\nprint(list(picolib.run(dist.get_rank, 2)))")["stdout"] == "[0, 1]\n"
    kernel.close()


def test_kill_9_of_the_kernel_leaves_no_process_and_no_folder():
    kernel = busy_kernel()
    assert list(kernel.tmp.glob("picolib-*"))
    os.kill(kernel.manager.provisioner.pid, signal.SIGKILL)
    assert wait_until(lambda: not marked(kernel.mark), 5), [p.cmdline() for p in marked(kernel.mark)]
    assert list(kernel.tmp.glob("picolib-*")) == []
    kernel.close()


def test_a_notebook_executed_by_nbclient_holds_the_ranks_output():
    nbformat, nbclient = pytest.importorskip("nbformat"), pytest.importorskip("nbclient")
    cell = nbformat.v4.new_code_cell("import picolib\n_ = picolib.run(lambda: print('hello'), 2)")
    notebook = nbformat.v4.new_notebook(cells=[cell])
    nbclient.NotebookClient(notebook, timeout=100, kernel_name="python3").execute()
    texts = [output["text"] for output in notebook.cells[0].outputs if output["output_type"] == "stream"]
    assert "".join(texts) == "[rank 0] hello\n[rank 1] hello\n"
