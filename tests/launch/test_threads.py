"""How many cores and threads a rank gets."""

from __future__ import annotations

import pytest

from picolib.launch import threads


@pytest.mark.parametrize("quota, cores", [("350000 100000", 3), ("50000 100000", 1), ("max 100000", 8)])
def test_cores_are_cut_by_a_containers_quota(monkeypatch, quota, cores):
    monkeypatch.setattr(threads.os, "sched_getaffinity", lambda _: range(8), raising=False)
    monkeypatch.setattr(threads.Path, "read_text", lambda _self: quota)
    assert threads.usable_cores() == cores


def test_cores_are_divided_among_ranks_and_the_learners_own_setting_wins(monkeypatch):
    monkeypatch.setattr(threads, "usable_cores", lambda: 8)
    for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS"):
        monkeypatch.delenv(name, raising=False)
    assert [threads.threads_per_rank(n) for n in (1, 3, 8, 64)] == [8, 2, 1, 1]
    monkeypatch.setenv("OMP_NUM_THREADS", "5")
    assert threads.threads_per_rank(64) == 5
