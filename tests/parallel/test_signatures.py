"""The strategies against torch's own: the signatures, and the second table of deviations."""

from __future__ import annotations

import inspect
from pathlib import Path

import pytest
import torch
import torch.distributed.fsdp
import torch.distributed.optim

import picolib

TABLE = Path(__file__).parents[2] / "docs" / "deviations.md"
THEIRS = {
    "DistributedDataParallel": torch.nn.parallel.DistributedDataParallel,
    "ZeroRedundancyOptimizer": torch.distributed.optim.ZeroRedundancyOptimizer,
    "fully_shard": torch.distributed.fsdp.fully_shard,
    "clip_grad_norm_": torch.nn.utils.clip_grad_norm_,
}
OURS = [name for name, home in picolib._HOME.items() if home.startswith("picolib.parallel")]
Deviation = tuple[str, str, str, str]  # strategy, parameter, in torch, in picolib


def rows() -> list[list[str]]:
    """The second table, cell by cell, without its header."""
    second = TABLE.read_text(encoding="utf-8").partition("\n# Where the strategies deviate")[2]
    cells = [line.strip("| ").split(" | ") for line in second.splitlines() if line.startswith("|")]
    assert cells[0] == ["strategy", "parameter", "torch", "picolib", "why"]
    return [[cell.replace("`", "").strip() for cell in row] for row in cells[2:]]


def told() -> set[Deviation]:
    """The rows of the table, one strategy and one parameter at a time; "-" stands for what is not there."""
    return {
        (strategy, parameter, *pair)
        for strategies, parameters, *pair, _ in rows()
        for strategy in strategies.split(", ")
        for parameter in parameters.split(", ")
    }


def parameters(function) -> dict[str, str]:
    """Each parameter's default, as text: "required" where there is none, "Policy()" for an object."""
    found = {}
    for parameter in inspect.signature(function).parameters.values():
        default = parameter.default
        plain = default is None or isinstance(default, (bool, int, float, str, tuple))
        found[parameter.name] = repr(default) if plain else f"{type(default).__name__}()"
        if default is parameter.empty:
            found[parameter.name] = "required"
    return found


def real() -> set[Deviation]:
    """How the signatures deviate in fact."""
    deviations = {(name, "(all of it)", "-", "yes") for name in OURS if name not in THEIRS}
    for name, their in THEIRS.items():
        theirs, ours = parameters(their), parameters(getattr(picolib, name))
        for parameter in theirs.keys() | ours.keys():
            pair = theirs.get(parameter, "-"), ours.get(parameter, "-")
            if pair[0] != pair[1]:
                deviations.add((name, parameter, *pair))
    return deviations


needs_todays_torch = pytest.mark.skipif(
    "bucket_cap_mb_list" not in parameters(THEIRS["DistributedDataParallel"]),
    reason="this torch has other signatures: the table is that of 2.13",
)


@needs_todays_torch
def test_the_table_of_strategies_is_the_whole_truth():
    assert told() == real()


def test_every_deviation_has_a_reason():
    assert [row for row in rows() if not row[-1]] == []


def test_every_strategy_says_what_it_does():
    assert [name for name in OURS if not inspect.getdoc(getattr(picolib, name))] == []
