"""Seeing what an agent attends to while it acts, without a word about it in the layers or in the fast path."""

from typing import TypeGuard

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from recollect.nets.attention import Acting
from recollect.nets.cores.stack import AttentionCore
from recollect.types import State


class Watching(Acting):
    """Acting that keeps what each layer looked at: it computes the same, and ``weights`` fills up beside it.

    There is no second formula for the weights: attention that reads values returns their weighted sum, so where each
    slot's value is its own age, one-hot, what it reads is the weight of every age.
    """

    def __init__(self, state: State, reset_N: Tensor, look_back: int):
        super().__init__(state, reset_N, look_back)
        self.weights: list[Tensor] = []  # [N, H, A] fp32 for each layer, ages 0..W

    def read(
        self, layer: int, query: Tensor, key: Tensor, value: Tensor, by_age: Tensor | None = None, squared: bool = False
    ) -> Tensor:
        """As ``Acting.read``."""
        out = super().read(layer, query, key, value, by_age, squared)
        keys_NHSd = self.next_state[f"key.{layer}"].float()
        age_NHSA = F.one_hot(self.age_NS, self.age_NS.shape[1]).float()[:, None].expand(-1, keys_NHSd.shape[1], -1, -1)
        self.weights.append(self._attended(query, keys_NHSd, age_NHSA, by_age, squared)[:, :, 0].float())
        return out


def attends(core: nn.Module) -> TypeGuard[AttentionCore]:
    """Whether a core is made of layers that read a memory, and so can be watched."""
    return isinstance(core, AttentionCore)


def attended(core: nn.Module, x_ND: Tensor, state: State, reset_N: Tensor) -> list[Tensor]:
    """The weights with which each layer of a core would read, [N, H, A] each; none of a core that does not attend.

    ``state`` is the one before this step and stays as it was.
    """
    if not attends(core):
        return []
    memory = Watching(state, reset_N, core.look_back)
    with torch.no_grad():
        core.through(x_ND[None], memory)
    return memory.weights
