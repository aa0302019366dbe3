"""`picolib doctor`: what this machine can do, what each lesson needs, and the reason when something will not work."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import platform
import shutil
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

from picolib.launch import threads  # needs no torch: the doctor also looks where torch is missing

TESTED_PYTHON = ((3, 10), (3, 13))
PACKAGES = ("torch", "numpy", "cloudpickle", "ipywidgets", "matplotlib", "jupyterlab", "nbval")

# lesson -> (ranks it starts, memory it wants in GB, what else it needs)
LESSONS = {
    "00_welcome": (4, 2.0, ""),
    "01A_budgets": (4, 2.0, ""),
    "01B_before_you_split": (1, 2.0, ""),
    "02A_messages_and_ring": (8, 2.0, ""),
    "02B_cost_and_choice": (8, 3.0, ""),
    "03A_ddp_right": (4, 2.0, ""),
    "03B_ddp_fast": (4, 2.0, ""),
    "04A_zero": (4, 2.0, ""),
    "04B_fsdp": (4, 2.0, ""),
    "05A_tensor": (4, 2.0, ""),
    "05B_sequence": (4, 2.0, ""),
}


@dataclass
class Report:
    """The lines of an examination; `problems` are those that stop a lesson from working."""

    lines: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)

    @property
    def healthy(self) -> bool:
        """Whether nothing was found that stops a lesson from working."""
        return not self.problems

    def say(self, name: str, value: str, problem: str = "") -> None:
        """Add one line; `problem` says in a sentence what to do about it."""
        self.lines.append(f"{'!' if problem else ' '} {name:<22} {value}")
        if problem:
            self.problems.append(problem)

    def __str__(self) -> str:
        verdict = "Everything the lessons need is here." if self.healthy else "What to do:"
        return "\n".join([*self.lines, "", verdict, *(f"- {problem}" for problem in self.problems)])


def free_gigabytes() -> float | None:
    """Memory that can still be allocated here, in GB (10^9 bytes); None where the system does not tell."""
    memory = threads.usable_memory()
    return None if memory is None else memory / 1e9


def _python(report: Report) -> None:
    version = sys.version_info[:2]
    low, high = TESTED_PYTHON
    problem = ""
    if not low <= version <= high:
        problem = (
            f"Python {version[0]}.{version[1]} is not tested; use one from {low[0]}.{low[1]} to {high[0]}.{high[1]}."
        )
    report.say("Python", f"{platform.python_version()} at {sys.executable} (ranks use this one too)", problem)


def _packages(report: Report) -> None:
    for name in PACKAGES:
        try:
            report.say(name, importlib.metadata.version(name))
        except importlib.metadata.PackageNotFoundError:
            problem = f"{name} is missing in this Python: run `{Path(sys.executable).name} -m pip install {name}`."
            if name == "torch" and platform.system() == "Darwin" and platform.machine() == "x86_64":
                problem = "PyTorch has no builds for Intel Macs since 2.3; use the devcontainer or a hosted notebook."
            report.say(name, "not installed", problem)


def _widgets(report: Report) -> None:
    """A widget stays blank when the server's extension and the kernel's ipywidgets differ in major version."""
    jupyter = shutil.which("jupyter")
    if jupyter is None or importlib.util.find_spec("ipywidgets") is None:
        return
    mine = importlib.metadata.version("ipywidgets").split(".")[0]
    query = "import importlib.metadata as m; print(m.version('jupyterlab_widgets').split('.')[0])"
    first = Path(jupyter).read_bytes().split(b"\n")[0].decode(errors="replace")
    server = first[2:].strip() if first.startswith("#!") else sys.executable
    answer = subprocess.run([*server.split(), "-c", query], capture_output=True, text=True, timeout=20)
    theirs = answer.stdout.strip()
    expected = {"8": "3", "7": "1"}.get(mine)  # ipywidgets 8 speaks to jupyterlab_widgets 3
    if theirs and expected and theirs != expected:
        problem = f"widgets stay blank: ipywidgets {mine} here, jupyterlab_widgets {theirs} in the JupyterLab server."
        report.say("widgets", "kernel and server differ", problem)


def _machine(report: Report) -> None:
    memory = free_gigabytes()
    report.say("system", f"{platform.system()} {platform.machine()}")
    report.say("cores", str(threads.usable_cores()))
    report.say("memory", "unknown" if memory is None else f"{memory:.1f} GB free")
    fork = hasattr(os, "fork")
    report.say("ranks", "forked from a warm server" if fork else "spawned (no fork here): starting them takes seconds")


def _backends(report: Report) -> None:
    if importlib.util.find_spec("torch") is None:
        return
    import torch
    import torch.distributed as dist

    if not dist.is_available():
        report.say("gloo", "torch was built without torch.distributed", "install a torch build with torch.distributed.")
        return
    gloo = dist.is_gloo_available()
    report.say("gloo", "yes" if gloo else "no", "" if gloo else "this torch has no gloo; install the official wheel.")
    gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0
    names = ", ".join(torch.cuda.get_device_name(i) for i in range(gpus))
    report.say("GPUs", f"{gpus} ({names})" if gpus else "none (every lesson runs without)")
    report.say("NCCL", "yes" if gpus and dist.is_nccl_available() else "not used here")


def _lessons(report: Report) -> None:
    memory = free_gigabytes()
    for lesson, (ranks, wanted, other) in LESSONS.items():
        short = memory is not None and memory < wanted
        problem = f"{lesson} wants {wanted:g} GB of free memory; {memory:.1f} GB are free." if short else ""
        report.say(lesson, f"{ranks} ranks, {wanted:g} GB{', ' + other if other else ''}", problem)


def examine() -> Report:
    """Look at this machine and say what the lessons can count on."""
    report = Report()
    for part in (_python, _packages, _widgets, _machine, _backends, _lessons):
        part(report)
    return report
