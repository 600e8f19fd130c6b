"""What the tests of memory share: cores whose every weight matters, inputs of size one, errors step by step."""

import torch
from torch import Tensor

from recollect.nets.attention import Segment
from recollect.nets.config import NetConfig
from recollect.nets.cores import CORES
from recollect.nets.cores.stack import AttentionCore
from recollect.types import State

CPU = torch.device("cpu")
D = 12
ATTENTION = ("lookback", "transformer", "gtrxl", "gau")
BOUND = 1e-5


def build(name: str, layers: int = 1, look_back: int = 10, **settings) -> AttentionCore:
    """A core whose zeros and ones (biases, norms, distances) are drawn, so that none can hide."""
    torch.manual_seed(3)
    sizes = {"core_width": 32, "core_heads": 4, "core_layers": layers, "look_back": look_back}
    core = CORES[name](D, NetConfig(core=name, **(sizes | settings)))
    with torch.no_grad():
        for weight in core.parameters():
            if weight.unique().numel() == 1:
                weight += 0.3 * torch.randn_like(weight)
    return core


def inputs(steps: int, envs: int, seed: int = 0, resets: float = 0.0) -> tuple[Tensor, Tensor]:
    """Features of size one; episodes that begin at step 0 and, with chance ``resets``, at any other."""
    stream = torch.Generator().manual_seed(seed)
    x_TND = torch.randn(steps, envs, D, generator=stream)
    reset_TN = torch.rand(steps, envs, generator=stream) < resets
    reset_TN[0] = True
    return x_TND, reset_TN


@torch.no_grad()
def acted(core, x_TND: Tensor, state: State, reset_TN: Tensor) -> tuple[Tensor, list[State]]:
    """Step by step: outputs, and the state before every step and after the last."""
    outputs, states = [], [state]
    for x_ND, reset_N in zip(x_TND, reset_TN, strict=True):
        y_ND, state = core.step(x_ND, state, reset_N)
        outputs.append(y_ND)
        states.append(state)
    return torch.stack(outputs), states


def dense(core: AttentionCore, x_TND: Tensor, reset_TN: Tensor, state: State | None = None) -> Tensor:
    """The reference: the whole of it under one T x (W + T) mask."""
    state = core.initial_state(reset_TN.shape[1], CPU) if state is None else state
    return core.through(x_TND, Segment(state, reset_TN, core.look_back, block=len(x_TND)))


def worst(actual_TND: Tensor, expected_TND: Tensor) -> float:
    """The largest relative error of any step of any environment: one wrong step among many shows."""
    assert actual_TND.shape == expected_TND.shape
    difference = (actual_TND.float() - expected_TND.float()).norm(dim=-1)
    return (difference / expected_TND.float().norm(dim=-1)).max().item()
