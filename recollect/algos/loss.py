"""A loss as named, weighted terms: each is logged by its name, and one more plugs in without editing an algorithm."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from recollect.data.history import History
from recollect.nets.agent import Replayed
from recollect.types import Obs, State


@dataclass(frozen=True)
class Minibatch:
    """What a gradient step learns from: segments [T, B], of length one where rows are shuffled.

    Of whole episodes it is a piece: the gradients of a minibatch's pieces add up, and ``weight`` leaves out the rows
    that only fill it up. Take means by ``mean``: over all pieces it sums to the mean over the minibatch's own rows.
    """

    obs: Obs  # {name: [T, B, ...]}
    state: State  # {name: [B, ...]} memory before the first step
    reset: Tensor  # [T, B]
    action: Tensor  # [T, B] or [T, B, A]
    logp: Tensor  # [T, B] when it was acted
    value: Tensor  # [T, B] when it was acted
    advantage: Tensor  # [T, B]
    target: Tensor  # [T, B] of the value
    weight: Tensor | None = None  # [T, B] what a row counts for in a mean; none: all alike
    before: History | None = None  # [H, B] burn-in: the steps that ``state`` is to be had from, which is empty then

    def mean(self, each_TB: Tensor) -> Tensor:
        """The mean over the rows that count. each: [T, B] -> []"""
        return each_TB.mean() if self.weight is None else (each_TB * self.weight).sum()

    def max(self, each_TB: Tensor) -> Tensor:
        """The largest among the rows that count, at least 0. each: [T, B] -> []"""
        return (each_TB if self.weight is None else each_TB * (self.weight > 0)).max()


@dataclass(frozen=True)
class Term:
    """``weight * loss(replayed, minibatch)`` is added to the total and logged unweighted as ``loss/{name}``."""

    name: str
    weight: float | Tensor  # a tensor [] where it changes during a run
    loss: Callable[[Replayed, Minibatch], Tensor]


def total(terms: Sequence[Term], replayed: Replayed, minibatch: Minibatch) -> tuple[Tensor, dict[str, Tensor]]:
    """The weighted sum, and each term by its metric's name."""
    values = {f"loss/{term.name}": term.loss(replayed, minibatch) for term in terms}
    weighted = [term.weight * value for term, value in zip(terms, values.values(), strict=True)]
    return torch.stack(weighted).sum(), {name: value.detach() for name, value in values.items()}
