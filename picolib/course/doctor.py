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

TESTED_PYTHON = ((3, 10), (3, 13))
PACKAGES = ("torch", "numpy", "cloudpickle", "ipywidgets", "matplotlib", "jupyterlab", "nbval")

# lesson -> (ranks it starts, memory it wants in GB, what else it needs)
LESSONS = {
    "00_welcome": (4, 2.0, ""),
    "02A_messages_and_ring": (8, 2.0, ""),
    "02B_cost_and_choice": (8, 3.0, ""),
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


def usable_cores() -> float:
    """Cores this process may use: the affinity mask, cut by a container's CPU quota."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else (os.cpu_count() or 1)
    try:
        quota, period = Path("/sys/fs/cgroup/cpu.max").read_text().split()
        return min(cores, float(quota) / float(period))
    except (OSError, ValueError):  # not Linux, cgroup v1, or "max": no quota
        return cores


def usable_memory() -> float | None:
    """Memory this process may still use, in GB (10^9 bytes); None where the system does not tell."""
    found = []
    try:
        for line in Path("/proc/meminfo").read_text().splitlines():
            if line.startswith("MemAvailable:"):
                found.append(int(line.split()[1]) * 1024)
        limit = Path("/sys/fs/cgroup/memory.max").read_text().strip()
        used = int(Path("/sys/fs/cgroup/memory.current").read_text())
        found.append(int(limit) - used)
    except (OSError, ValueError):
        pass
    if not found and hasattr(os, "sysconf") and "SC_PHYS_PAGES" in os.sysconf_names:
        found.append(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))
    return min(found) / 1e9 if found else None


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
    cores, memory = usable_cores(), usable_memory()
    report.say("system", f"{platform.system()} {platform.machine()}")
    report.say("cores", f"{cores:g}")
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
    memory = usable_memory()
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
