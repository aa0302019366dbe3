"""picolib.comm against torch.distributed: the signatures, and the one table of deviations."""

from __future__ import annotations

import inspect
from pathlib import Path

import pytest
import torch.distributed as dist

from picolib import comm

TABLE = Path(__file__).parents[2] / "docs" / "deviations.md"
FUNCTIONS = [name for name in comm.__all__ if inspect.isfunction(getattr(comm, name))]
Deviation = tuple[str, str, str, str]  # function, parameter, in torch, in picolib


def told() -> set[Deviation]:
    """The rows of the table, one function at a time; "-" stands for what is not there."""
    first = TABLE.read_text(encoding="utf-8").partition("\n# ")[0]  # the other tables are about strategies
    rows = [line.strip("| ").split(" | ") for line in first.splitlines() if "|" in line]
    header, _, *rows = rows
    assert header == ["function", "parameter", "torch.distributed", "picolib.comm", "why"]
    plain = [[cell.replace("`", "").strip() for cell in row] for row in rows]
    return {(name, *cells[:3]) for names, *cells in plain for name in names.split(", ")}


def parameters(function) -> dict[str, str]:
    """Each parameter's default, as text; "required" where there is none."""
    signature = inspect.signature(function).parameters.values()
    return {p.name: "required" if p.default is p.empty else repr(p.default) for p in signature}


def real() -> set[Deviation]:
    """How the signatures deviate in fact."""
    deviations = set()
    for name in FUNCTIONS:
        if not inspect.isfunction(getattr(dist, name, None)):
            deviations.add((name, "(function)", "-", "yes"))
            continue
        theirs, ours = parameters(getattr(dist, name)), parameters(getattr(comm, name))
        for parameter in theirs.keys() | ours.keys():
            pair = theirs.get(parameter, "-"), ours.get(parameter, "-")
            if pair[0] != pair[1]:
                deviations.add((name, parameter, *pair))
    return deviations


needs_todays_torch = pytest.mark.skipif(
    not hasattr(dist, "all_gather_single"), reason="this torch has other signatures: the contract is that of 2.13"
)


@needs_todays_torch
def test_the_table_of_deviations_is_the_whole_truth():
    assert told() == real()


@needs_todays_torch
@pytest.mark.parametrize("name", [name for name in FUNCTIONS if inspect.isfunction(getattr(dist, name, None))])
def test_torchs_parameters_come_first_and_in_torchs_order(name):
    ours = inspect.signature(getattr(comm, name)).parameters.values()
    positional = [p.name for p in ours if p.kind is p.POSITIONAL_OR_KEYWORD]
    assert positional == list(inspect.signature(getattr(dist, name)).parameters)
    assert all(p.kind is p.KEYWORD_ONLY for p in ours if p.name not in positional)


def test_every_name_of_the_contract_is_there():
    contract = """send recv isend irecv barrier broadcast reduce all_reduce gather scatter all_gather
        all_gather_into_tensor all_gather_single reduce_scatter reduce_scatter_tensor reduce_scatter_single
        all_to_all all_to_all_single"""
    assert set(contract.split()) <= set(FUNCTIONS)


def test_every_function_says_what_it_does():
    assert [name for name in FUNCTIONS if not inspect.getdoc(getattr(comm, name))] == []
