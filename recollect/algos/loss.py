"""A loss as named, weighted terms: each is logged by its name, and one more plugs in without editing an algorithm."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from recollect.nets.agent import Replayed
from recollect.types import Obs, State


@dataclass(frozen=True)
class Minibatch:
    """What a gradient step learns from: segments [T, B], of length one where rows are shuffled."""

    obs: Obs  # {name: [T, B, ...]}
    state: State  # {name: [B, ...]} memory before the first step
    reset: Tensor  # [T, B]
    action: Tensor  # [T, B] or [T, B, A]
    logp: Tensor  # [T, B] when it was acted
    value: Tensor  # [T, B] when it was acted
    advantage: Tensor  # [T, B]
    target: Tensor  # [T, B] of the value


@dataclass(frozen=True)
class Term:
    """``weight * loss(replayed, minibatch)`` is added to the total and logged unweighted as ``loss/{name}``."""

    name: str
    weight: float
    loss: Callable[[Replayed, Minibatch], Tensor]


def total(terms: Sequence[Term], replayed: Replayed, minibatch: Minibatch) -> tuple[Tensor, dict[str, Tensor]]:
    """The weighted sum, and each term by its metric's name."""
    values = {f"loss/{term.name}": term.loss(replayed, minibatch) for term in terms}
    weighted = [term.weight * value for term, value in zip(terms, values.values(), strict=True)]
    return torch.stack(weighted).sum(), {name: value.detach() for name, value in values.items()}
