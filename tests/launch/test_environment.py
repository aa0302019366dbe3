"""Another job's variables, other sockets, no network: all the same to a run."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

import picolib
from tests.launch.conftest import REPOSITORY


def summed():
    x = torch.ones(1)
    dist.all_reduce(x)
    return float(x)


def test_launcher_variables_are_ignored_and_left_as_they_were(monkeypatch):
    foreign = {
        "RANK": "7",
        "WORLD_SIZE": "99",
        "LOCAL_RANK": "3",
        "MASTER_ADDR": "nowhere.invalid",
        "MASTER_PORT": "1",
        "GLOO_SOCKET_IFNAME": "no-such-interface",
        "SLURM_PROCID": "5",
        "TORCHELASTIC_RUN_ID": "other",
    }
    for name, value in foreign.items():
        monkeypatch.setenv(name, value)

    def seen():
        return summed(), [name for name in foreign if name in os.environ]

    assert list(picolib.run(seen, 3)) == [(3.0, [])] * 3
    assert {name: os.environ[name] for name in foreign} == foreign


def test_ranks_see_the_environment_folder_and_path_of_now(monkeypatch, tmp_path):
    (tmp_path / "my_module_of_today.py").write_text("ANSWER = 42")
    monkeypatch.setenv("MY_SETTING", "new")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])

    def seen():
        import my_module_of_today

        return os.environ["MY_SETTING"], os.getcwd(), my_module_of_today.ANSWER

    assert list(picolib.run(seen, 2)) == [("new", str(tmp_path), 42)] * 2
    (tmp_path / "my_module_of_today.py").write_text("ANSWER = 43  # edited")
    assert picolib.run(seen, 1)[0][2] == 43


def test_a_deleted_working_directory_does_not_matter(monkeypatch, tmp_path):
    folder = tmp_path / "gone"
    folder.mkdir()
    monkeypatch.chdir(folder)
    folder.rmdir()
    assert picolib.run(summed, 2)[0] == 2.0


def test_a_taken_port_29500_does_not_matter():
    with socket.socket() as stranger:
        stranger.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            stranger.bind(("127.0.0.1", 29500))
            stranger.listen()
        except OSError:
            pass  # taken by somebody else: as good
        assert picolib.run(summed, 2)[0] == 2.0


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_ranks_listen_on_loopback_only():
    def sockets():
        for descriptor in os.listdir("/proc/self/fd"):
            try:
                yield os.readlink(f"/proc/self/fd/{descriptor}")
            except FileNotFoundError:  # the descriptor of the listing itself
                pass

    def listening():
        dist.barrier()
        mine, found = set(sockets()), []
        for table in ("/proc/self/net/tcp", "/proc/self/net/tcp6"):
            for line in Path(table).read_text().splitlines()[1:] if os.path.exists(table) else []:
                fields = line.split()
                if fields[3] == "0A" and f"socket:[{fields[9]}]" in mine:
                    found.append(fields[1].split(":")[0])
        dist.barrier()
        return found

    loopback = {"0100007F", "00000000000000000000000001000000", "0000000000000000FFFF00000100007F"}
    for found in picolib.run(listening, 2):
        assert found and set(found) <= loopback


def test_the_rendezvous_folder_is_private_and_goes_away(tmp_path, monkeypatch):
    import tempfile

    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))

    def look():
        (folder,) = tmp_path.iterdir()
        return folder.stat().st_mode & 0o777

    assert picolib.run(look, 2)[0] == 0o700
    assert list(tmp_path.iterdir()) == []


def test_a_host_name_that_does_not_resolve_and_no_network_do_not_matter(script):
    result = script(
        """
        import ctypes, os, sys
        libc = ctypes.CDLL(None, use_errno=True)
        CLONE_NEWUTS, CLONE_NEWNET, CLONE_NEWUSER = 0x04000000, 0x40000000, 0x10000000
        if libc.unshare(CLONE_NEWUTS | CLONE_NEWNET | (0 if os.getuid() == 0 else CLONE_NEWUSER)) != 0:
            print("cannot unshare"), sys.exit()
        libc.sethostname(b"no-such-host.invalid", 20)
        os.system("ip link set lo up 2>/dev/null || ifconfig lo up 2>/dev/null")
        import fcntl, socket, struct
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as s:  # the same without tools: SIOCSIFFLAGS, IFF_UP
            fcntl.ioctl(s, 0x8914, struct.pack("16sh14x", b"lo", 1))
        import picolib, torch, torch.distributed as dist
        def summed():
            x = torch.ones(1); dist.all_reduce(x); return float(x)
        print(list(picolib.run(summed, 3)))
        """
    )
    if "cannot unshare" in result.stdout:
        pytest.skip("this system does not allow to make a host without network")
    assert result.stdout == "[3.0, 3.0, 3.0]\n", result.stderr


@pytest.fixture(scope="module")
def plain_script(tmp_path_factory):
    """A script without a main guard, in which torch has threads before the first run; its last run fails."""
    path = tmp_path_factory.mktemp("plain") / "script.py"
    path.write_text(SCRIPT)
    env = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
    return subprocess.run([sys.executable, path], capture_output=True, text=True, timeout=110, env=env, cwd=path.parent)


SCRIPT = """
import threading, torch, torch.distributed as dist, picolib
class Model(torch.nn.Linear): pass
model = Model(2, 2)
print("once")
torch.ones(500, 500) @ torch.ones(500, 500)
threading.Thread(target=threading.Event().wait, daemon=True).start()
def train():
    x = model(torch.ones(2)); dist.all_reduce(x); print("rank", dist.get_rank())
    return float((torch.ones(500, 500) @ torch.ones(500, 500))[0, 0])
print(list(picolib.run(train, 2)), flush=True)
def fail():
    1 / 0
picolib.run(fail, 2)
"""


def test_a_plain_script_needs_no_main_guard_and_its_threads_and_locks_do_not_matter(plain_script):
    assert plain_script.stdout == "once\n[rank 0] rank 0\n[rank 1] rank 1\n[500.0, 500.0]\n"


def test_a_failing_script_shows_the_explanation_and_nothing_else_on_stderr(plain_script):
    assert plain_script.returncode == 1 and plain_script.stderr.startswith("Traceback")
    explanation = "rank 0 failed with ZeroDivisionError: division by zero\n  script.py, line 13, in fail\n      1 / 0\n"
    assert plain_script.stderr.endswith(explanation + "rank 1 failed in the same line.\n")


def test_import_picolib_alone_does_not_import_torch(script):
    assert script("import picolib, sys; print('torch' in sys.modules)").stdout == "False\n"
