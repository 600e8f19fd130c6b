"""What cores share that walk a segment step by step."""

from typing import Any

import torch
from torch import Tensor

from recollect.types import State


def walk(core: Any, x_TND: Tensor, state: State, reset_TN: Tensor) -> tuple[Tensor, State]:
    """Step through a segment: resets may stand anywhere. x_TND: [T, N, D] -> [T, N, width] and the state after it."""
    outputs = []
    for x_ND, reset_N in zip(x_TND, reset_TN, strict=True):
        y_ND, state = core.step(x_ND, state, reset_N)
        outputs.append(y_ND)
    return torch.stack(outputs), state
