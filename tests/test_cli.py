"""`picolib` on the command line, and what the doctor says."""

from __future__ import annotations

import importlib.metadata
import json
import os
import subprocess
import sys
import time
import urllib.error
import urllib.request

import psutil
import pytest

from picolib.__main__ import main
from picolib.course import doctor


def test_without_arguments_it_lists_its_commands(capsys):
    assert main([]) == 0
    text = capsys.readouterr().out
    for command in ("lab", "update", "grade", "doctor", "calibrate"):
        assert f"\n    {command}" in text


def test_a_mistake_is_one_sentence_and_no_traceback(capsys, tmp_path):
    assert main(["update", "--workspace", str(tmp_path / "nowhere")]) == 2
    error = capsys.readouterr().err
    assert error.startswith("picolib: ") and "nowhere" in error and len(error.splitlines()) == 1


def test_update_in_a_workspace_is_for_that_one(capsys, tmp_path, monkeypatch):
    monkeypatch.delenv("PICOLIB_WORKSPACE", raising=False)
    (tmp_path / ".picolib").mkdir()
    monkeypatch.chdir(tmp_path)
    assert main(["update"]) == 0
    assert "START.ipynb: new" in capsys.readouterr().out and (tmp_path / "START.ipynb").exists()
    assert main(["update"]) == 0
    assert capsys.readouterr().out == "Everything is up to date.\n"


@pytest.mark.parametrize("command", ["", "--help", "doctor", "calibrate"])
def test_a_reader_that_has_seen_enough_causes_no_noise(command):
    reader, writer = os.pipe()
    os.close(reader)
    arguments = [sys.executable, "-m", "picolib", *command.split()]
    env = {**os.environ, "PYTHONUNBUFFERED": ""}  # else argparse itself swallows the error
    result = subprocess.run(arguments, stdout=writer, stderr=subprocess.PIPE, text=True, timeout=120, env=env)
    os.close(writer)
    assert (result.returncode, result.stderr) == (141, "")


def test_the_doctor_names_versions_cores_and_every_lesson():
    report = str(doctor.examine())
    assert f"torch                  {importlib.metadata.version('torch')}" in report
    for word in ("Python", "cores", "memory", "ranks", "gloo", "GPUs", "NCCL", *doctor.LESSONS):
        assert f" {word} " in report


def test_the_doctor_says_what_to_do_about_a_missing_package(monkeypatch):
    monkeypatch.setattr(doctor, "PACKAGES", ("torch", "no_such_package"))
    report = doctor.examine()
    assert not report.healthy
    assert "no_such_package is missing in this Python: run" in str(report)


def test_the_doctor_names_a_lesson_that_does_not_fit_into_memory(monkeypatch):
    monkeypatch.setattr(doctor.threads, "usable_memory", lambda: 500_000_000)
    assert "00_welcome wants 2 GB of free memory; 0.5 GB are free." in str(doctor.examine())


def test_the_doctor_works_where_torch_is_missing():
    code = "import sys; sys.modules['torch'] = None; from picolib.course import doctor; print(doctor.examine())"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert result.returncode == 0 and "cores" in result.stdout, result.stderr


def fetched(url, end):
    """What a server answers that may have written its address before it listens."""
    while True:
        try:
            with urllib.request.urlopen(url, timeout=30) as answer:
                return json.load(answer)
        except urllib.error.URLError:
            if time.monotonic() > end:
                raise
        time.sleep(0.1)


def served_by_lab(folder, runtime):
    """The files that JupyterLab, started by `picolib lab`, offers; it is ended then."""
    arguments = [sys.executable, "-m", "picolib", "lab", "--workspace", str(folder), "--", "--no-browser", "--port=0"]
    env = {**os.environ, "JUPYTER_RUNTIME_DIR": str(runtime), "JUPYTER_CONFIG_DIR": str(runtime / "config")}
    with subprocess.Popen(arguments, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as lab:
        end = time.monotonic() + 60
        while not (found := list(runtime.glob("jpserver-*.json"))) and time.monotonic() < end and lab.poll() is None:
            time.sleep(0.1)
        try:
            server = json.loads(found[0].read_text())
            contents = fetched(f"{server['url']}api/contents?token={server['token']}", end)
            return sorted(entry["name"] for entry in contents["content"])
        finally:
            for process in [*psutil.Process(lab.pid).children(recursive=True), lab]:
                process.kill()
            found and found[0].unlink()


def test_lab_serves_the_workspace_and_a_second_start_keeps_what_was_edited(tmp_path):
    pytest.importorskip("jupyterlab")
    folder, runtime = tmp_path / "work space", tmp_path / "runtime"
    runtime.mkdir()
    served = served_by_lab(folder, runtime)
    assert {"00_welcome.ipynb", "00_welcome_exercises.ipynb", "mine"} <= set(served)
    mine = folder / "00_welcome_exercises.ipynb"
    text = mine.read_text().replace('"cells": [', '"cells": [\n  ', 1)
    mine.write_text(text)
    (folder / "02A_messages_and_ring.ipynb").unlink()
    assert served_by_lab(folder, runtime) == served
    assert mine.read_text() == text
