"""No memory: the control for every other core."""

import torch
from torch import Tensor, nn

from recollect.nets.config import NetConfig
from recollect.types import State


class NoMemory(nn.Module):
    """Features pass through unchanged."""

    reach = 0

    def __init__(self, width: int, config: NetConfig):
        super().__init__()
        self.width = width

    def initial_state(self, num_envs: int, device: torch.device) -> State:
        """Nothing to remember."""
        return {}

    def step(self, x_ND: Tensor, state: State, reset_N: Tensor) -> tuple[Tensor, State]:
        """x_ND: [N, D] -> the same."""
        return x_ND, state

    def forward(self, x_TND: Tensor, state: State, reset_TN: Tensor) -> Tensor:
        """x_TND: [T, N, D] -> the same."""
        return x_TND

    def after(self, x_TND: Tensor, state: State, reset_TN: Tensor) -> State:
        """Still nothing."""
        return {}
