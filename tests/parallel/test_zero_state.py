"""The sharded optimizer's full state: into other numbers of ranks, another stage, one process, and back."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist
from torch import nn

import picolib
from tests.parallel.steps import SMALL
from tests.parallel.zoo import Branches, Plain, TiedAndFrozen, build, data

BATCH, RANKS = 13, [3, 2, 5, 1]  # stopped and continued on so many
CASES = [(Plain, {}), (TiedAndFrozen, {}), (Branches, {"which": "left"})]


def groups_of(model: nn.Module) -> list[dict]:
    """Weights decay and go slowly, the rest goes fast and doesn't."""
    named = dict(model.named_parameters())
    weights = [p for name, p in named.items() if name.endswith("weight")]
    rest = [p for name, p in named.items() if not name.endswith("weight")]
    return [{"params": weights, "lr": 0.01, "weight_decay": 0.3}, {"params": rest}]


def one_step(kind, stage: int | None, step: int, saved: dict | None, options: dict) -> dict:
    """Build everything anew, take over what was saved, do one step, save."""
    rank, size = (0, 1) if stage is None else (dist.get_rank(), dist.get_world_size())
    model = build(kind, 100)
    if stage is None:
        optimizer = torch.optim.AdamW(groups_of(model), lr=0.1)
    else:
        optimizer = picolib.ZeroRedundancyOptimizer(
            groups_of(model), torch.optim.AdamW, stage=stage, gradient_divide_factor=1, bucket_cap_mb=SMALL, lr=0.1
        )
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)
    if saved is not None:
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        scheduler.load_state_dict(saved["scheduler"])
    x, y = (t.tensor_split(size)[rank] for t in data(BATCH, step))
    ((model(x, **options) - y).square().sum() / BATCH).backward()
    optimizer.step()
    scheduler.step()
    state = {name: value.clone() for name, value in model.state_dict().items()}
    return {"model": state, "optimizer": optimizer.state_dict(), "scheduler": scheduler.state_dict()}


@pytest.mark.parametrize(("kind", "options"), CASES, ids=[kind.__name__ for kind, _ in CASES])
def test_a_job_may_go_on_with_another_number_of_ranks_and_another_stage(kind, options):
    alone = saved = None
    for step, ranks in enumerate(RANKS):
        alone = one_step(kind, None, step, alone, options)
        stage = 1 + step % 2
        all_saved = list(picolib.run(one_step, ranks, kind, stage, step, saved, options))
        for found in all_saved:
            assert_same(found, alone)
        saved = all_saved[-1]
    assert_same(one_step(kind, None, len(RANKS), saved, options), one_step(kind, None, len(RANKS), alone, options))


def assert_same(found, right) -> None:
    """Nested alike, with the same numbers."""
    if isinstance(right, dict):
        assert found.keys() == right.keys()
        for name, value in right.items():
            assert_same(found[name], value)
    elif isinstance(right, list):
        assert len(found) == len(right)
        for one, two in zip(found, right, strict=True):
            assert_same(one, two)
    elif isinstance(right, torch.Tensor):
        assert found.shape == right.shape and torch.allclose(found, right, rtol=1e-9, atol=1e-12)
    else:
        assert found == pytest.approx(right) if isinstance(right, float) else found == right


def with_other_groups():
    model = build(Plain, 0)
    optimizer = picolib.ZeroRedundancyOptimizer(model.parameters(), torch.optim.SGD, lr=0.1)
    optimizer.load_state_dict(torch.optim.SGD(groups_of(model), lr=0.1).state_dict())


def test_a_state_with_other_groups_is_refused():
    with pytest.raises(picolib.RankError, match=r"parameter groups of \[5\] parameters, got \[2, 3\]"):
        picolib.run(with_other_groups, 2)
