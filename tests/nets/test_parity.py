"""Acting from the cache, learning in blocks and one dense pass over the whole episode compute the same thing.

On the core's output with inputs of size one, float32, the worst step: an untrained policy's head would hide a wrong
memory. The naive way, re-encoding the last W frames, is shown to be wrong from two layers on.
"""

import itertools

import pytest
import torch
from parity import ATTENTION, BOUND, CPU, acted, build, dense, inputs, worst

from recollect.nets.cores.stack import AttentionCore

LAYERS, WINDOWS = (1, 2, 4), (1, 10, 64, 256)
GRID = [case for case in itertools.product(ATTENTION, LAYERS, WINDOWS) if case[0] != "lookback" or case[1] == 1]
FAST = [case for case in GRID if case[2] <= 10 and case[1] < 4]
SETTINGS = [
    *(("transformer", {"core_positions": p}) for p in ("rotary", "relative", "learned", "none")),
    ("transformer", {"core_norm": "post"}),
    ("lookback", {"core_positions": "learned"}),
    ("gtrxl", {"core_gated": False}),
    ("gau", {"core_attention": "relu2"}),
    ("gau", {"core_attention": "relu2", "core_positions": "relative"}),
    ("gau", {"core_positions": "learned"}),
]


def check(core: AttentionCore, envs: int = 3) -> None:
    """Whole episodes, ragged resets, starts in mid-episode from the stored state and from burn-in."""
    window = core.look_back
    steps = core.reach + window // 2 + 40  # the window rolls, and burn-in leaves something to compare
    x_TND, reset_TN = inputs(steps, envs)
    start = core.initial_state(envs, CPU)
    with torch.no_grad():
        steps_TND, states = acted(core, x_TND, start, reset_TN)
        whole_TND = dense(core, x_TND, reset_TN)
        assert worst(steps_TND, whole_TND) <= BOUND
        assert worst(core(x_TND, start, reset_TN), whole_TND) <= BOUND
        for at in sorted({1, max(1, window - 1), window, min(steps - 1, window + 1), steps // 2}):
            late_TND = core(x_TND[at:], states[at], reset_TN[at:])
            assert worst(late_TND, whole_TND[at:]) <= BOUND, f"from step {at}"
        first = 17  # the burn-in begins in mid-episode, and nobody tells it
        burnt_TND = core(x_TND[first:], start, torch.zeros_like(reset_TN[first:]))
        exact = first + core.reach
        assert worst(burnt_TND[core.reach :], whole_TND[exact:]) <= BOUND

        x_TND, reset_TN = inputs(steps, envs, seed=1, resets=1.5 / (window + 10))
        assert reset_TN[1:].any()
        steps_TND, states = acted(core, x_TND, start, reset_TN)
        whole_TND = dense(core, x_TND, reset_TN)
        assert worst(steps_TND, whole_TND) <= BOUND
        late_TND = core(x_TND[23:], states[23], reset_TN[23:])
        assert worst(late_TND, whole_TND[23:]) <= BOUND


@pytest.mark.parametrize(("name", "layers", "window"), FAST)
def test_cached_blocked_and_dense_agree(name: str, layers: int, window: int):
    check(build(name, layers, window))


@pytest.mark.slow
@pytest.mark.parametrize(("name", "layers", "window"), [case for case in GRID if case not in FAST])
def test_cached_blocked_and_dense_agree_on_the_whole_grid(name: str, layers: int, window: int):
    check(build(name, layers, window), envs=2)


@pytest.mark.parametrize(("name", "settings"), SETTINGS)
def test_every_setting_agrees(name: str, settings: dict):
    check(build(name, 2, 10, **settings))


@pytest.mark.parametrize("name", ATTENTION)
def test_an_output_depends_on_reach_steps_and_not_one_more(name: str):
    """Each layer sees W back and itself: W + 1 positions."""
    core = build(name, layers=3, look_back=4)
    assert core.reach == (4 if name == "lookback" else 12)
    x_TND, reset_TN = inputs(core.reach + 5, 1)
    x_TND.requires_grad_()
    dense(core, x_TND, reset_TN)[-1].square().sum().backward()
    assert x_TND.grad is not None
    seen_T = x_TND.grad.abs().sum((1, 2)) > 0
    assert seen_T.tolist() == [False] * 4 + [True] * (core.reach + 1)


@pytest.mark.parametrize("name", ATTENTION)
def test_gradients_of_blocks_are_those_of_the_dense_pass(name: str):
    core = build(name, layers=2)
    x_TND, reset_TN = inputs(90, 2, resets=0.03)
    state = core.initial_state(2, CPU)
    core(x_TND, state, reset_TN).square().sum().backward()
    blocked = [weight.grad.clone() for weight in core.parameters()]
    core.zero_grad()
    dense(core, x_TND, reset_TN).square().sum().backward()
    for (label, weight), grad in zip(core.named_parameters(), blocked, strict=True):
        assert (grad - weight.grad).norm() <= 1e-4 * weight.grad.norm() + 1e-4, label
        assert weight.grad.norm() > 0, label


# The state after a segment


@pytest.mark.parametrize("name", [*ATTENTION, "gru", "lstm"])
@pytest.mark.parametrize("steps", [1, 7, 10, 11, 40])
def test_the_state_after_a_segment_is_the_one_that_acting_left(name: str, steps: int):
    core = build(name, 2)
    x_TND, reset_TN = inputs(60, 4, seed=2, resets=0.04)
    _, states = acted(core, x_TND, core.initial_state(4, CPU), reset_TN)
    with torch.no_grad():
        after = core.after(x_TND[15 : 15 + steps], states[15], reset_TN[15 : 15 + steps])
    assert after.keys() == states[0].keys()
    for part, expected in states[15 + steps].items():
        torch.testing.assert_close(after[part], expected, rtol=1e-5, atol=1e-5, msg=part)


@pytest.mark.parametrize("name", ATTENTION)
def test_a_cache_is_built_anew_from_reach_steps(name: str):
    """From an empty state in mid-episode: the clock is another, the outputs are the same; one step less is wrong."""
    core = build(name, 2)
    x_TND, reset_TN = inputs(core.reach + 30, 2)
    whole_TND, stop = dense(core, x_TND, reset_TN), core.reach + 15
    errors = {}
    for burnt in (core.reach, core.reach - 1):
        never_TN = torch.zeros(burnt, 2, dtype=torch.bool)
        with torch.no_grad():
            state = core.after(x_TND[stop - burnt : stop], core.initial_state(2, CPU), never_TN)
            tail_TND, _ = acted(core, x_TND[stop:], state, reset_TN[stop:])
        errors[burnt] = worst(tail_TND, whole_TND[stop:])
    assert errors[core.reach] <= BOUND < errors[core.reach - 1]


# Where the naive way goes wrong


def naive(core: AttentionCore, x_TND: torch.Tensor) -> torch.Tensor:
    """Each step re-encoded from its last W frames and itself, as code without a cache does. [T, N, D]"""
    outputs = []
    for t in range(len(x_TND)):
        window_TND = x_TND[max(0, t - core.look_back) : t + 1]
        never_TN = torch.zeros(window_TND.shape[:2], dtype=torch.bool)
        outputs.append(core(window_TND, core.initial_state(x_TND.shape[1], CPU), never_TN)[-1])
    return torch.stack(outputs)


@pytest.mark.parametrize("window", [10, 64])
def test_re_encoding_the_window_is_right_for_one_layer_and_wrong_for_more(window: int):
    x_TND, reset_TN = inputs(window + 30, 2)
    with torch.no_grad():
        one, two, four = (build("transformer", layers, window) for layers in (1, 2, 4))
        assert worst(naive(one, x_TND), dense(one, x_TND, reset_TN)) <= BOUND
        for core in (two, four):
            wrong_TND, whole_TND = naive(core, x_TND), dense(core, x_TND, reset_TN)
            assert worst(wrong_TND[: window + 1], whole_TND[: window + 1]) <= BOUND, "until the window rolls"
            assert worst(wrong_TND[window + 1 :], whole_TND[window + 1 :]) > 100 * BOUND


# Late in an episode

LATE = 27_000


@pytest.mark.parametrize(("name", "settings"), [("transformer", {}), ("gtrxl", {}), ("gau", {}), ("lookback", {})])
def test_a_late_clock_changes_nothing(name: str, settings: dict):
    """27,000 steps of one episode learnt at once, acted on from there, against a young episode's dense pass."""
    core = build(name, 2, look_back=64, **settings)
    x_TND, reset_TN = inputs(LATE + 80, 1)
    with torch.no_grad():
        state = core.after(x_TND[:LATE], core.initial_state(1, CPU), reset_TN[:LATE])
        assert state["clock"].tolist() == [LATE]
        steps_TND, _ = acted(core, x_TND[LATE:], state, reset_TN[LATE:])
        late_TND = core(x_TND[LATE:], state, reset_TN[LATE:])
        begin = LATE - core.reach
        young_TND = dense(core, x_TND[begin:], reset_TN[begin:])[core.reach :]
    assert worst(late_TND, young_TND) <= BOUND
    assert worst(steps_TND, young_TND) <= BOUND


@pytest.mark.slow
def test_acting_for_27000_steps_ends_where_one_pass_ends():
    core = build("transformer", 2, look_back=64)
    x_TND, reset_TN = inputs(LATE, 1)
    with torch.no_grad():
        state = core.initial_state(1, CPU)
        for x_ND, reset_N in zip(x_TND, reset_TN, strict=True):
            y_ND, state = core.step(x_ND, state, reset_N)
        assert worst(y_ND[None], core(x_TND, core.initial_state(1, CPU), reset_TN)[-1:]) <= BOUND


# Half precision


@pytest.mark.parametrize("name", ATTENTION)
def test_bf16_from_the_cache_is_no_coarser_than_bf16_at_once(name: str):
    half, full = build(name, 2, look_back=16, precision="bf16"), build(name, 2, look_back=16)
    x_TND, reset_TN = inputs(70, 4, resets=0.02)
    with torch.no_grad():
        exact_TND = dense(full, x_TND, reset_TN)
        with torch.autocast("cpu", torch.bfloat16):
            start = half.initial_state(4, CPU)
            assert start["key.0"].dtype is torch.bfloat16
            steps_TND, _ = acted(half, x_TND, start, reset_TN)
            pass_TND = dense(half, x_TND, reset_TN)
            blocks_TND = half(x_TND, start, reset_TN)
    cached, at_once, blocked = (
        ((y_TND.float() - exact_TND).norm() / exact_TND.norm()).item() for y_TND in (steps_TND, pass_TND, blocks_TND)
    )
    assert 1e-4 < at_once < 5e-2
    assert cached <= 2 * at_once
    assert blocked <= 2 * at_once
