"""Every registered core keeps the contract: acting step by step and learning from a segment compute the same thing.

The proof is on the core's output with inputs of size one: an untrained policy's small head would hide a wrong memory.
"""

import pytest
import torch
from torch import Tensor, nn

from recollect.nets.config import NetConfig
from recollect.nets.cores import CORES
from recollect.types import State

T, N, D = 37, 5, 12
CPU = torch.device("cpu")


def build(name: str) -> nn.Module:
    torch.manual_seed(3)
    return CORES[name](D, NetConfig(core=name, core_width=16))


def inputs(seed: int = 0) -> tuple[Tensor, Tensor]:
    """Features of size one and ragged resets. [T, N, D], [T, N]"""
    stream = torch.Generator().manual_seed(seed)
    x_TND = torch.nn.functional.normalize(torch.randn(T, N, D, generator=stream), dim=-1) * D**0.5
    reset_TN = torch.rand(T, N, generator=stream) < 0.1
    reset_TN[0] = True
    return x_TND, reset_TN


@torch.no_grad()
def acted(core, x_TND: Tensor, state: State, reset_TN: Tensor) -> tuple[Tensor, list[State]]:
    """Step by step; the state *before* each step as well."""
    outputs, states = [], []
    for x_ND, reset_N in zip(x_TND, reset_TN, strict=True):
        states.append(state)
        y_ND, state = core.step(x_ND, state, reset_N)
        outputs.append(y_ND)
    return torch.stack(outputs), states


def relative_error(actual: Tensor, expected: Tensor) -> float:
    return ((actual - expected).norm() / expected.norm()).item()


@pytest.mark.parametrize("name", CORES)
def test_a_segment_computes_what_its_steps_did(name: str):
    core, (x_TND, reset_TN) = build(name), inputs()
    state = core.initial_state(N, CPU)
    steps_TND, _ = acted(core, x_TND, state, reset_TN)
    segment_TND = core(x_TND, state, reset_TN)
    assert segment_TND.shape == (T, N, core.width)
    assert relative_error(segment_TND, steps_TND) <= 1e-5


@pytest.mark.parametrize("name", CORES)
@pytest.mark.parametrize("start", [1, 10, 30])
def test_a_segment_may_begin_in_mid_episode(name: str, start: int):
    core, (x_TND, reset_TN) = build(name), inputs(1)
    steps_TND, states = acted(core, x_TND, core.initial_state(N, CPU), reset_TN)
    late_TND = core(x_TND[start:], states[start], reset_TN[start:])
    assert relative_error(late_TND, steps_TND[start:]) <= 1e-5


@pytest.mark.parametrize("name", CORES)
def test_a_reset_forgets_everything_before_it(name: str):
    """Garbage before a reset, and in the state at a reset, changes nothing after."""
    core, (x_TND, reset_TN) = build(name), inputs(2)
    reset_TN[20] = True
    clean = core(x_TND, core.initial_state(N, CPU), reset_TN)
    dirty_TND = x_TND.clone()
    dirty_TND[:20] = 1e3
    garbage = {k: torch.full_like(v, 1e3) for k, v in core.initial_state(N, CPU).items()}
    dirty = core(dirty_TND, garbage, reset_TN)
    assert torch.equal(clean[20:], dirty[20:])
    one_by_one, _ = acted(core, dirty_TND, garbage, reset_TN)
    assert relative_error(one_by_one[20:], clean[20:]) <= 1e-5


@pytest.mark.parametrize("name", CORES)
def test_environments_do_not_see_each_other(name: str):
    core, (x_TND, reset_TN) = build(name), inputs(3)
    state = core.initial_state(N, CPU)
    other_TND = x_TND.clone()
    other_TND[:, 1:] = -other_TND[:, 1:]
    assert torch.equal(core(x_TND, state, reset_TN)[:, 0], core(other_TND, state, reset_TN)[:, 0])


@pytest.mark.parametrize("name", CORES)
def test_a_step_leaves_the_state_it_was_given(name: str):
    """State is an argument and a return value; whoever holds the old one still has it."""
    core, (x_TND, reset_TN) = build(name), inputs(4)
    _, state = core.step(x_TND[0], core.initial_state(N, CPU), reset_TN[0])
    before = {k: v.clone() for k, v in state.items()}
    core.step(x_TND[1], state, torch.zeros(N, dtype=torch.bool))
    assert all(torch.equal(state[k], before[k]) for k in before)


def test_the_gru_remembers_and_learns_through_time():
    core, (x_TND, reset_TN) = build("gru"), inputs(5)
    reset_TN[1:] = False
    x_TND.requires_grad_()
    core(x_TND, core.initial_state(N, CPU), reset_TN)[-1].sum().backward()
    assert x_TND.grad is not None
    assert (x_TND.grad[-5].abs().sum(-1) > 0).all()


def test_no_gradient_reaches_the_stored_state():
    core, (x_TND, reset_TN) = build("gru"), inputs(6)
    state = core.initial_state(N, CPU)
    assert not state["h"].requires_grad
    _, stored = acted(core, x_TND, state, reset_TN)
    assert not stored[-1]["h"].requires_grad
