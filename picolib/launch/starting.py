"""How ranks start here: forked from a warm server where that works, else spawned."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from picolib.launch import pickling
from picolib.launch.board import Board, Layout
from picolib.launch.forked import ForkedRanks, ServerGone, fork_server
from picolib.launch.spawn import SpawnedRanks

VARIABLE = "PICOLIB_START"  # "fork" or "spawn" overrides the choice
_chosen: str | None = None


def method() -> str:
    """ "fork" or "spawn". The fork server is started to find out whether it works."""
    global _chosen
    wish = os.environ.get(VARIABLE, "")
    if wish == "spawn":
        return "spawn"
    if _chosen is None:
        reason = _why_not_fork()
        if reason and wish == "fork":
            raise RuntimeError(f"{VARIABLE}=fork, but the fork server does not work here: {reason}")
        if reason:
            print("Ranks are spawned here, not forked: the first run of a session takes some seconds longer.")
        _chosen = "spawn" if reason else "fork"
    return _chosen


def _why_not_fork() -> str:
    if not hasattr(os, "fork"):
        return "this system has no fork"
    try:
        fork_server().wait_ready()
        return ""
    except (ServerGone, OSError) as error:
        return str(error)


@contextmanager
def ranks(request: dict[str, Any], payload: list[Any]) -> Iterator[tuple[Any, Board | None]]:
    """The started ranks of one run, and its board (None with checked=False)."""
    start = _forked if method() == "fork" else _spawned
    board: Board | None = None
    running = None
    try:
        board = _board(request, in_file=start is _spawned)
        running = start(request, payload, board)
        yield running, board
    finally:
        if running is not None:
            running.close()
        if board is not None:
            board.close()


def _forked(request: dict[str, Any], payload: list[Any], board: Board | None) -> ForkedRanks:
    with pickling.to_file(payload) as file:
        shared = [file.fileno()] if board is None else [file.fileno(), board.fd]
        try:
            return ForkedRanks(fork_server(), request, shared)
        except (ServerGone, OSError):  # it has been killed since the last run
            return ForkedRanks(fork_server(), request, shared)


def _spawned(request: dict[str, Any], payload: list[Any], board: Board | None) -> SpawnedRanks:
    return SpawnedRanks(request, payload)


def _board(request: dict[str, Any], in_file: bool) -> Board | None:
    """Forked ranks inherit a file without a name; spawned ones open it in the run's private folder."""
    world_size = request["world_size"]
    if not request["options"]["checked"]:
        return None
    if not in_file:
        return Board.create(world_size)
    request["board"] = os.path.join(os.path.dirname(request["store"]), "board")
    descriptor = os.open(request["board"], os.O_RDWR | os.O_CREAT | getattr(os, "O_BINARY", 0), 0o600)
    os.ftruncate(descriptor, Layout(world_size).size)
    return Board(descriptor, world_size)
