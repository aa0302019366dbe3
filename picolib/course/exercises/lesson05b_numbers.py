"""The numbers of exercise 5.5: what each rank of a group is given, and what comes of the whole in one process."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
import torch.nn.functional as F

from picolib.course.exercise import Case
from picolib.course.exercises.data import generator
from picolib.course.exercises.lesson05b_common import GROUPS, members

WIDTH, EACH = 7, 5  # h, and a rank's hidden numbers
EPS = 1e-6
WEIGHTS = ("norm", "up", "down")


def block_cases(world_size: int, seed: int) -> list[Case]:
    """Each way of making groups; one step on the whole world first, then two or three with growing weights."""
    random = generator(seed, world_size)
    made = []
    for number, groups in enumerate(GROUPS[world_size]):
        steps = 1 if world_size == 4 and number == 0 else 2 + seed % 2
        of_ranks: dict[int, dict] = {}
        first = int(torch.randint(2, 4, (), generator=random))
        for tokens, ranks in zip((first, 5 - first), groups, strict=False):  # others in each group: nobody mixes them
            of_ranks |= _group(ranks, tokens, steps, random)
        inputs = tuple((of_ranks[rank] | {"groups": groups},) for rank in range(world_size))
        made.append(Case("whole" if len(groups) == 1 else "groups", inputs, None))
    return made


def _group(ranks: list[int], tokens: int, steps: int, random: torch.Generator) -> dict[int, dict]:
    noise = lambda *shape: torch.randn(*shape, dtype=torch.float64, generator=random)  # noqa: E731
    batch = int(torch.randint(2, 4, (), generator=random))
    norm = 1 + 0.5 * noise(WIDTH)
    return {
        rank: {
            "norm": norm,
            "up": noise(EACH, WIDTH),
            "down": noise(WIDTH, EACH),
            "steps": [(noise(tokens, batch, WIDTH), noise(tokens, batch, WIDTH)) for _ in range(steps)],
        }
        for rank in ranks
    }


def normalized(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """RMSNorm."""
    return F.rms_norm(x, x.shape[-1:], weight, EPS)


class Whole(NamedTuple):
    """One step of one rank's group in one process. Tensors of all tokens are [s, b, h].

    shares: for each rank, its columns' share of the gradient of the norm's output; summands: of the MLP's output.
    """

    place: int
    x: torch.Tensor
    grad: torch.Tensor
    norm: torch.Tensor
    normed: torch.Tensor
    summands: list[torch.Tensor]
    shares: list[torch.Tensor]
    weights: list[dict[str, torch.Tensor]]

    @property
    def ranks(self) -> int:
        """Ranks of the group."""
        return len(self.shares)

    def own(self, whole: torch.Tensor, place: int | None = None) -> torch.Tensor:
        """A rank's tokens of all tokens."""
        return whole.chunk(self.ranks)[self.place if place is None else place]

    def y(self) -> torch.Tensor:
        """The right output of this rank."""
        return self.own(self.x + sum(self.summands))

    def through_norm(self, share: torch.Tensor, place: int | None = None) -> tuple[torch.Tensor, torch.Tensor]:
        """Gradients of x and of the norm's weight, from the gradient of the norm's output at a rank's tokens."""
        x, norm = self.own(self.x, place).clone().requires_grad_(), self.norm.clone().requires_grad_()
        return torch.autograd.grad(normalized(x, norm), (x, norm), share)

    def x_gradient(self, share: torch.Tensor) -> torch.Tensor:
        """The gradient of x with this one of the norm's output: beside the residual connection's."""
        return self.own(self.grad) + self.through_norm(share)[0]

    def norm_gradient(self, place: int) -> torch.Tensor:
        """What one rank's tokens add to the gradient of the norm's weight."""
        return self.through_norm(self.own(sum(self.shares), place), place)[1]

    def weight_gradients(self, grad: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Gradients of this rank's `up` and `down` from a gradient [s, b, h] of the output."""
        up, down = (self.weights[self.place][name].clone().requires_grad_() for name in ("up", "down"))
        return torch.autograd.grad(_mlp(self.normed, up, down), (up, down), grad)

    def rights(self) -> dict[str, torch.Tensor]:
        """The right gradients of this rank."""
        up, down = self.weight_gradients(self.grad)
        norm = sum(self.norm_gradient(place) for place in range(self.ranks))
        return {"up": up, "down": down, "x": self.x_gradient(self.own(sum(self.shares))), "norm": norm}


def _mlp(normed: torch.Tensor, up: torch.Tensor, down: torch.Tensor) -> torch.Tensor:
    return F.linear(F.gelu(F.linear(normed, up)), down)


def growth(step: int) -> float:
    """What the weights of a step are multiplied by: an optimizer changes them."""
    return 1 + step / 4


def whole_of(attempt: Any, rank: int, step: int) -> Whole:
    """What the group of this rank should have computed in this step."""
    given = [inputs[0] for inputs in attempt.case.inputs]
    ranks = members(given[rank]["groups"], rank)
    x, grad = (torch.cat([given[r]["steps"][step][part] for r in ranks]) for part in (0, 1))
    given = [one | {name: one[name] * growth(step) for name in WEIGHTS} for one in given]
    norm = given[rank]["norm"]
    normed = normalized(x, norm).requires_grad_()
    summands = [_mlp(normed, given[r]["up"], given[r]["down"]) for r in ranks]
    shares = [torch.autograd.grad(summand, normed, grad)[0] for summand in summands]
    summands = [summand.detach() for summand in summands]
    weights = [{name: given[r][name] for name in WEIGHTS} for r in ranks]
    return Whole(ranks.index(rank), x, grad, norm, normed.detach(), summands, shares, weights)
