"""Small models made to be nasty, shared by the tests of every strategy. All in float64."""

from __future__ import annotations

import dataclasses

import torch
from torch import nn


class Plain(nn.Module):
    """Two layers, a bias of 7 numbers, a scalar parameter, and a parameter with no elements at all."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(5, 7), nn.Linear(7, 3, bias=False)
        self.scale, self.nothing = nn.Parameter(torch.tensor(1.5)), nn.Parameter(torch.empty(0, 4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[b, 5] -> [b, 3]."""
        return self.second(torch.tanh(self.first(x))) * self.scale + self.nothing.sum()


class TiedAndFrozen(nn.Module):
    """One weight used twice, one that is frozen."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.frozen = nn.Linear(5, 5), nn.Linear(5, 5), nn.Linear(5, 3)
        self.second.weight = self.first.weight
        self.frozen.requires_grad_(False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[b, 5] -> [b, 3]."""
        return self.frozen(torch.tanh(self.second(torch.tanh(self.first(x)))))


class UsedInAnotherOrder(nn.Module):
    """Registers its layers in the order in which it does not use them."""

    def __init__(self) -> None:
        super().__init__()
        self.last, self.middle, self.first = nn.Linear(9, 3), nn.Linear(7, 9), nn.Linear(5, 7)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[b, 5] -> [b, 3]."""
        return self.last(torch.tanh(self.middle(torch.tanh(self.first(x)))))


class Branches(nn.Module):
    """Two branches; `which` says through which of them an input goes. A third is never used."""

    def __init__(self) -> None:
        super().__init__()
        self.shared, self.left, self.right, self.never = (nn.Linear(5, 5) for _ in range(4))
        self.head = nn.Linear(5, 3)

    def forward(self, x: torch.Tensor, which: str = "left") -> torch.Tensor:
        """[b, 5] -> [b, 3]."""
        return self.head(getattr(self, which)(torch.tanh(self.shared(x))))


class WithRunningStatistics(nn.Module):
    """Has buffers that change in each forward pass."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm, self.second = nn.Linear(5, 6), nn.BatchNorm1d(6), nn.Linear(6, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[b, 5] -> [b, 3]."""
        return self.second(self.norm(self.first(x)))


@dataclasses.dataclass
class Output:
    """What a `Head` gives."""

    y: torch.Tensor


class Head(nn.Linear):
    """A layer whose output is no tensor."""

    def __init__(self) -> None:
        super().__init__(5, 3)

    def forward(self, x: torch.Tensor) -> Output:
        """[b, 5] -> y [b, 3]."""
        return Output(super().forward(x))


class Shared(nn.Module):
    """A layer that runs twice in one forward pass, a list of parameters, a layer that gives a dataclass."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.head = nn.Linear(5, 5), Head()
        self.scales = nn.ParameterList([nn.Parameter(torch.ones(3)), nn.Parameter(torch.ones(5))])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[b, 5] -> [b, 3]."""
        x = torch.tanh(self.layer(torch.tanh(self.layer(x))) * self.scales[1])
        return self.head(x).y * self.scales[0]


def build(kind: type[nn.Module], seed: int) -> nn.Module:
    """The model with random weights that depend on the seed."""
    torch.manual_seed(seed)
    return kind().double()


def data(n: int, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    """n inputs [n, 5] and targets [n, 3]."""
    generator = torch.Generator().manual_seed(seed)
    return (
        torch.randn(n, 5, dtype=torch.float64, generator=generator),
        torch.randn(n, 3, dtype=torch.float64, generator=generator),
    )
