"""However the work is split, the trainer does what one process does with the whole batch."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import cloudpickle
import pytest
import torch
import torch.distributed as dist

import picolib
from picolib.course import figures
from picolib.model import Batch
from picolib.train import DocumentBatches, History, TrainConfig, pad, train
from tests.train import plain
from tests.train.plain import RecordingSGD, plain_training, tiny_llama, torch_ddp, trainable

cloudpickle.register_pickle_by_value(plain)

FULL = DocumentBatches([torch.arange(16) % 16], batch_size=6, sequence_length=9)
RAGGED = DocumentBatches(plain.documents(), batch_size=4, sequence_length=9, seed=2)  # on 5 ranks, one has no row
CONFIG = TrainConfig(steps=5, log_every=2, max_norm=0.7, learning_rate=0.5, warm_up=1, final_learning_rate=0.1)
EXACT = {"rtol": 1e-10, "atol": 1e-13}


def with_a_gap(step: int) -> Batch:
    """Steps 1 and 4 have no valid token at all; rank 0 of two has none in step 2."""
    if step in (1, 4):
        return pad([torch.tensor([3])] * 4)
    return pad([torch.tensor([5]), torch.tensor([6]), *plain.documents()[2:4]]) if step == 2 else RAGGED(step)


BATCHES = {"full": FULL, "ragged": RAGGED, "gap": with_a_gap}


def trained(batches: Callable[[int], Batch], config: TrainConfig, **options: Any) -> tuple[History, list, list]:
    """In a rank: what `train` gave, every step's gradients, and the parameters after it."""
    optimizers = []

    def make_optimizer(model: torch.nn.Module, config: TrainConfig) -> torch.optim.Optimizer:
        optimizers.append(RecordingSGD(trainable(model), lr=config.learning_rate))
        return optimizers[0]

    model = tiny_llama(seed=dist.get_rank())  # other weights on every rank: rank 0's must win
    history = train(model, batches, config, make_optimizer=make_optimizer, **options)
    return history, optimizers[0].seen, [p.detach() for p in model.parameters()]


def reference(batches: Callable[[int], Batch]) -> tuple[list[float], list[float], list, list]:
    model = tiny_llama(seed=0)
    rates = [CONFIG.rate(step) for step in range(CONFIG.steps)]
    return *plain_training(model, batches, rates, CONFIG.max_norm), list(model.parameters())


def accumulating(pieces: int) -> TrainConfig:
    return TrainConfig(**{**vars(CONFIG), "accumulation": pieces})


def compare(found: tuple[History, list, list], right: tuple[list[float], list[float], list, list]) -> None:
    history, gradients, parameters = found
    losses, norms, right_gradients, right_parameters = right
    torch.testing.assert_close(history.losses, losses, **EXACT)
    torch.testing.assert_close(history.grad_norms, norms, **EXACT)
    torch.testing.assert_close(gradients, right_gradients, **EXACT)
    torch.testing.assert_close(parameters, right_parameters, **EXACT)


def test_the_reference_itself_learns_clips_and_has_ragged_rows():
    losses, norms, *_ = reference(RAGGED)
    assert losses[-1] < losses[0] and max(norms) > CONFIG.max_norm
    assert len({int((row != -100).sum()) for row in RAGGED(0).targets}) > 1


@pytest.mark.parametrize("world_size", [1, 2, 3, 4, 5])
def test_losses_norms_gradients_and_parameters_are_those_of_one_process(world_size):
    """In float64, over 5 steps of SGD with clipping, on every rank."""
    cases = [(name, pieces) for name in BATCHES for pieces in (1, 3)]

    def all_cases():
        return [trained(BATCHES[name], accumulating(pieces)) for name, pieces in cases]

    right = {name: reference(batches) for name, batches in BATCHES.items()}
    for rank, results in enumerate(picolib.run(all_cases, world_size)):
        for (name, pieces), found in zip(cases, results, strict=True):
            compare(found, right[name])
            assert found[0].skipped == ([1, 4] if name == "gap" else []), (rank, name, pieces)


@pytest.mark.parametrize("world_size", [2, 5])
def test_pytorch_s_own_ddp_fits_in_as_well(world_size):
    def both():
        return [trained(RAGGED, accumulating(pieces), wrap=torch_ddp) for pieces in (1, 3)]

    right = reference(RAGGED)
    for results in picolib.run(both, world_size):
        for found in results:
            compare(found, right)


def test_ranks_of_a_group_train_for_themselves():
    """Ranks 1 and 3 train, with group ranks 0 and 1; rank 0 and 2 do nothing."""

    def odd_ones():
        group = dist.new_group([1, 3])
        return trained(RAGGED, CONFIG, group=group) if dist.get_rank() % 2 else None

    model = tiny_llama(seed=1)
    rates = [CONFIG.rate(step) for step in range(CONFIG.steps)]
    right = *plain_training(model, RAGGED, rates, CONFIG.max_norm), list(model.parameters())
    found = picolib.run(odd_ones, 4)
    compare(found[1], right)
    compare(found[3], right)


def test_a_step_without_any_token_changes_nothing_and_costs_one_count():
    """Three steps with tokens: a count, a gradient and its share of a loss each. Two without: a count each."""
    run = picolib.run(partial(trained, with_a_gap, CONFIG), 2)
    counts, gradients, losses = 5, 3, 2
    assert [calls["all_reduce"] for calls in run.trace.calls] == [counts + gradients + losses] * 2
    assert run[0][0].steps == [0, 2, 3]


def test_accumulation_sends_nothing_more():
    bytes_sent = [picolib.run(partial(trained, FULL, accumulating(n)), 3).trace.bytes_sent for n in (1, 2, 6)]
    assert bytes_sent[0] == bytes_sent[1] == bytes_sent[2]


def test_infinity_turns_clipping_off_and_the_norm_is_still_measured():
    config = TrainConfig(**{**vars(CONFIG), "max_norm": math.inf})
    history, gradients, _ = picolib.run(partial(trained, RAGGED, config), 2)[0]
    norms = [torch.cat([g.flatten() for g in step]).norm().item() for step in gradients]
    assert history.grad_norms == pytest.approx(norms, rel=1e-12)


def test_adamw_decays_matrices_only_and_follows_the_schedule():
    def rates_and_groups():
        seen = []

        def make(model: torch.nn.Module, config: TrainConfig) -> torch.optim.Optimizer:
            seen.append(picolib.train.adamw(model, config))
            return seen[0]

        config = TrainConfig(steps=4, warm_up=2, learning_rate=1.0, final_learning_rate=0.5)
        history = train(tiny_llama(0), FULL, config, make_optimizer=make)
        groups = [
            (g["weight_decay"], {p.dim() for p in g["params"]}, g["lr"], g["betas"]) for g in seen[0].param_groups
        ]
        return history.learning_rates, groups

    rates, groups = picolib.run(rates_and_groups, 1)[0]
    assert rates == pytest.approx([1 / 3, 2 / 3, 1.0, 0.75])
    assert groups == [(0.1, {2}, rates[-1], (0.9, 0.95)), (0.0, {1}, rates[-1], (0.9, 0.95))]


def test_every_rank_has_the_same_history_and_bit_for_bit_the_same_parameters():
    results = picolib.run(partial(trained, RAGGED, CONFIG), 3)
    assert all(torch.equal(a, b) for rank in (1, 2) for a, b in zip(results[0][2], results[rank][2], strict=True))
    first, *others = [history for history, *_ in results]
    for other in others:
        assert (other.losses, other.grad_norms, other.tokens) == (first.losses, first.grad_norms, first.tokens)
    assert first.tokens == [int((RAGGED(step).targets != -100).sum()) for step in range(5)]
    assert first.seconds == sorted(first.seconds) and first.tokens_per_second() > first.tokens_per_second(0) == 0


def test_the_losses_can_be_drawn():
    figure = figures.loss_curves({"two ranks": picolib.run(partial(trained, FULL, CONFIG), 2)[0][0].losses})
    assert "two ranks" in figure.svg()


def test_only_rank_0_speaks_and_what_stays_is_one_line_that_is_always_the_same():
    run = picolib.run(partial(trained, with_a_gap, CONFIG), 2)
    tokens = sum(run[0][0].tokens)
    assert run.stdout == [f"3 steps, {tokens} tokens, 2 skipped for want of tokens\n", ""]


def test_wrong_settings_are_named():
    with pytest.raises(ValueError, match="steps=0 must be at least 1"):
        TrainConfig(steps=0)
    with pytest.raises(ValueError, match="accumulation=0 must be at least 1"):
        TrainConfig(accumulation=0)
    with pytest.raises(ValueError, match="warm_up=20 must be from 0 to steps=10"):
        TrainConfig(steps=10)
