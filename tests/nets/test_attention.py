"""The band mask and what is computed under it, against loops; garbage behind the mask changes nothing."""

import math

import pytest
import torch
from parity import ATTENTION, CPU, acted, build, dense, inputs, worst
from torch import Tensor

from recollect.fast import can_compile, fast
from recollect.nets import flex
from recollect.nets.attention import (
    Acting,
    Segment,
    attend,
    banded,
    cached_episode,
    rotate,
    rotation,
    visible,
)
from recollect.nets.flex import banded_flex

N, H, d, W = 3, 2, 4, 5


def test_the_mask_sees_itself_and_w_steps_back_of_its_own_episode():
    age = torch.tensor([-1, 0, 1, 5, 6])
    assert visible(age, torch.tensor(2), torch.tensor(2), 5).tolist() == [False, True, True, True, False]
    assert not visible(age, torch.tensor(2), torch.tensor(1), 5).any()
    assert not visible(age, torch.tensor(0), torch.tensor(-1), 5).any()
    assert cached_episode(torch.tensor([0, 3, 4]), torch.tensor(3)).tolist() == [0, 0, -1]


def draw(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed + sum(shape)))


def parts(steps: int, value_width: int = d) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Queries, keys, values, and episodes with a cached beginning and ragged resets."""
    episode_NT = (torch.rand(N, steps, generator=torch.Generator().manual_seed(4)) < 0.1).cumsum(1)
    cached_NW = torch.tensor([[0] * W, [-1] * W, [-1] * 3 + [0] * (W - 3)])
    keys, values = draw(N, H, W + steps, d, seed=1), draw(N, H, W + steps, value_width, seed=2)
    return draw(N, H, steps, d), keys, values, episode_NT, torch.cat([cached_NW, episode_NT], 1)


def by_hand(query, key, value, episode, key_episode, bias: Tensor | None, squared: bool) -> Tensor:
    """One query at a time, in float64, over a list of the keys that it may see."""
    out = torch.zeros(*query.shape[:3], value.shape[-1], dtype=torch.float64)
    for n in range(N):
        for h in range(H):
            for t in range(query.shape[2]):
                seen = [s for s in range(t, t + W + 1) if key_episode[n, s] == episode[n, t]]
                scores = torch.stack([(query[n, h, t].double() @ key[n, h, s].double()) / math.sqrt(d) for s in seen])
                if bias is not None:
                    row = bias.expand(N, H, query.shape[2], W + 1)[n, h, t].double()
                    scores = scores + torch.stack([row[W + t - s] for s in seen])
                weights = scores.relu() ** 2 / len(seen) if squared else scores.softmax(0)
                out[n, h, t] = sum(w * value[n, h, s].double() for w, s in zip(weights, seen, strict=True))
    return out


BIASES = {"no bias": None, "a bias": (1, H, 1, W + 1), "a bias a query": (N, H, 40, W + 1)}


@pytest.mark.parametrize("bias", BIASES)
@pytest.mark.parametrize("squared", [False, True])
@pytest.mark.parametrize("block", [1, 3, 8, 40, 64])
def test_blocks_compute_what_loops_compute(bias: str, squared: bool, block: int):
    shape = BIASES[bias]
    by_age = None if shape is None else draw(*shape)
    query, key, value, episode, key_episode = parts(40, value_width=6)
    expected = by_hand(query, key, value, episode, key_episode, by_age, squared)
    found = banded(query, key, value, episode, key_episode, W, by_age, squared, block)
    torch.testing.assert_close(found.double(), expected, rtol=1e-5, atol=1e-6)


@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
@pytest.mark.parametrize("steps", [1, 40, 200])
def test_flex_attention_with_the_same_mask_computes_the_same(steps: int):
    """Uncompiled on a CPU: slow, but the mask and the layout are those of the GPU."""
    given = parts(steps)
    torch.testing.assert_close(banded_flex(visible, *given, W), banded(*given, W, None, False, 8), rtol=1e-5, atol=1e-6)


@pytest.mark.slow
@pytest.mark.skipif(not can_compile(), reason="no C++ compiler here")
def test_flex_attention_compiled_skips_the_blocks_that_are_not_listed(monkeypatch: pytest.MonkeyPatch):
    """Compiled it reads the listed blocks only; a block too few would change the outputs."""
    monkeypatch.setattr(flex, "flex_attention", flex.compiled())
    query, key, value, episode, key_episode = (part[:2] for part in parts(400))
    query, key, value = (part.repeat(1, 1, 1, 4) for part in (query, key, value))
    given = (query, key, value, episode, key_episode, W)
    with torch.no_grad():
        torch.testing.assert_close(banded_flex(visible, *given), banded(*given, None, False, 8), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(("steps", "look_back"), [(1, 1), (130, 5), (128, 128), (300, 127), (700, 256), (1000, 1)])
def test_the_written_blocks_hold_every_visible_pair_and_few_others(steps: int, look_back: int):
    def mask_mod(n, h, t, s):
        return visible(look_back + t - s, t * 0, s * 0, look_back)

    listed = flex.block_mask(steps, look_back, mask_mod, CPU).to_dense()[0, 0]
    t, s = torch.arange(steps)[:, None], torch.arange(steps + look_back)
    seen = visible(look_back + t - s, t * 0, s * 0, look_back)
    padded = torch.zeros(len(listed) * flex.SIZE, listed.shape[1] * flex.SIZE, dtype=torch.bool)
    padded[: len(t), : len(s)] = seen
    touched = padded.unflatten(0, (-1, flex.SIZE)).unflatten(2, (-1, flex.SIZE)).any(3).any(1)
    assert torch.equal(listed.bool(), touched)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("look_back", [10, 256])
def test_flex_attention_on_a_gpu_agrees_in_values_and_gradients(look_back: int):
    core = build("transformer", 2, look_back, core_width=64).cuda()
    x_TND, reset_TN = (part.cuda() for part in inputs(700, 4, resets=0.01))
    state, results = core.initial_state(4, torch.device("cuda")), []
    for memory in (Segment(state, reset_TN, look_back), None):
        core.zero_grad()
        if memory is None:
            core.cpu()
            x_TND, reset_TN, state = x_TND.cpu(), reset_TN.cpu(), core.initial_state(4, CPU)
            memory = Segment(state, reset_TN, look_back, block=len(x_TND))
        y_TND = core.through(x_TND, memory)
        y_TND.square().mean().backward()
        results.append((y_TND.detach().cpu(), [weight.grad.cpu().clone() for weight in core.parameters()]))
    (fast, fast_grads), (slow, slow_grads) = results
    assert worst(fast, slow) <= 1e-5
    for one, other in zip(fast_grads, slow_grads, strict=True):
        assert (one - other).norm() <= 1e-4 * other.norm() + 1e-6


def test_rotation_knows_the_distance_alone_at_any_clock():
    query, key = draw(1, 1, 1, 16), draw(1, 1, 1, 16, seed=1)

    def product(clock: int, age: int) -> float:
        turns = [rotation(torch.tensor([[at]]), 16) for at in (clock, clock - age)]
        return (rotate(query, turns[0]) * rotate(key, turns[1])).sum().item()

    young = [product(age, age) for age in range(65)]
    late = [product(27_000, age) for age in range(65)]
    assert max(abs(a - b) for a, b in zip(young, late, strict=True)) < 1e-5
    assert len({round(score, 4) for score in young}) > 60, "distances differ"
    assert young[0] == pytest.approx((query * key).sum().item(), rel=1e-5)


# What is not valid is not read


def poisoned(state: dict, look_back: int) -> dict:
    """NaN in every slot that is older than the episode, and in the one that is about to be written."""
    age_NS = (state["clock"][:, None] - torch.arange(look_back + 1)) % (look_back + 1)
    dead_NS = (age_NS > state["clock"][:, None]) | (age_NS == 0)
    return {
        name: part if name == "clock" else part.masked_fill(dead_NS[:, None, :, None], torch.nan)
        for name, part in state.items()
    }


@pytest.mark.parametrize("name", ATTENTION)
@pytest.mark.parametrize("settings", [{}, {"core_positions": "learned"}, {"core_attention": "relu2"}])
def test_nan_in_slots_that_are_not_valid_changes_nothing(name: str, settings: dict):
    core = build(name, 2, W, **settings)
    x_TND, reset_TN = inputs(40, 4, resets=0.15)
    _, states = acted(core, x_TND, core.initial_state(4, CPU), reset_TN)
    for at in (0, 3, 9, 20):
        bad = poisoned(states[at], W)
        assert bad["key.0"].isnan().any()
        with torch.no_grad():
            one, clean = core.step(x_TND[at], bad, reset_TN[at]), core.step(x_TND[at], states[at], reset_TN[at])
            assert torch.equal(one[0], clean[0])
            assert not any(part.isnan().any() for part in one[1].values())
        given = (x_TND[at:], bad, reset_TN[at:])
        assert torch.equal(core(*given), core(x_TND[at:], states[at], reset_TN[at:]))
        assert not any(part.isnan().any() for part in core.after(*given).values())
        core.zero_grad()
        core(*given).square().sum().backward()
        assert all(weight.grad.isfinite().all() for weight in core.parameters())


@pytest.mark.parametrize("name", ATTENTION)
def test_a_reset_forgets_a_state_of_nan(name: str):
    core = build(name, 2, W)
    x_TND, reset_TN = inputs(12, 3)
    clean = core.initial_state(3, CPU)
    nan = {key: part if key == "clock" else torch.full_like(part, torch.nan) for key, part in clean.items()}
    nan["clock"] = torch.full_like(clean["clock"], 9)
    assert torch.equal(core(x_TND, nan, reset_TN), core(x_TND, clean, reset_TN))
    assert torch.equal(acted(core, x_TND, nan, reset_TN)[0], acted(core, x_TND, clean, reset_TN)[0])


def test_no_row_is_ever_fully_masked():
    """Not in a segment's padding either: a softmax over nothing is NaN, and so is every gradient below it."""
    x_TND, reset_TN = inputs(37, 3, resets=0.5)
    core = build("transformer", 1, W)
    memory = Segment(core.initial_state(3, CPU), reset_TN, W, block=8)
    seen: list[Tensor] = []

    def watched(query, key, value, visible_N1LS, bias, squared):
        seen.append(visible_N1LS)
        return attend(query, key, value, visible_N1LS, bias, squared)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("recollect.nets.attention.attend", watched)
        core.through(x_TND, memory)
        core.step(x_TND[0], core.initial_state(3, CPU), reset_TN[0])
    assert [mask.shape[2] for mask in seen] == [8, 1]
    assert all(mask.any(-1).all() for mask in seen)
    assert seen[0].sum(-1).max() <= W + 1


# Acting is static


@pytest.mark.parametrize("name", ATTENTION)
def test_a_step_is_one_graph_of_static_shapes(name: str):
    """No branch on a tensor's value, no number brought to the host: what a CUDA graph can hold."""
    core = build(name, 2, W)
    x_TND, reset_TN = inputs(9, 3, resets=0.2)
    step = torch.compile(core.step, backend="eager", fullgraph=True)
    state = start = core.initial_state(3, CPU)
    outputs = []
    with torch.no_grad():
        for x_ND, reset_N in zip(x_TND, reset_TN, strict=True):
            y_ND, state = step(x_ND, state, reset_N)
            outputs.append(y_ND)
            assert {k: v.shape for k, v in state.items()} == {k: v.shape for k, v in start.items()}
    assert worst(torch.stack(outputs), dense(core, x_TND, reset_TN)) <= 1e-5


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("name", ATTENTION)
def test_a_captured_step_is_the_step(name: str):
    device = torch.device("cuda")
    core = build(name, 2, W).to(device)
    x_TND, reset_TN = (part.to(device) for part in inputs(40, 3, resets=0.1))
    step, state, outputs = fast(core.step, device, compiled=True), core.initial_state(3, device), []
    with torch.no_grad():
        for x_ND, reset_N in zip(x_TND, reset_TN, strict=True):
            y_ND, state = step(x_ND, state, reset_N)
            outputs.append(y_ND)
        core, x_TND, reset_TN = core.cpu(), x_TND.cpu(), reset_TN.cpu()
        assert worst(torch.stack(outputs).cpu(), dense(core, x_TND, reset_TN)) <= 1e-5


def test_the_state_does_not_grow_and_says_its_clock():
    core = build("transformer", 1, W)
    x_TND, reset_TN = inputs(30, 2)
    reset_TN[12, 1] = True
    _, states = acted(core, x_TND, core.initial_state(2, CPU), reset_TN)
    assert states[-1]["clock"].tolist() == [30, 18]
    assert {tuple(state["key.0"].shape) for state in states} == {(2, 4, W + 1, 8)}
    assert Acting(states[12], reset_TN[12], W).visible_NS.sum(1).tolist() == [W + 1, 1]


# What a core is told


@pytest.mark.parametrize(
    ("name", "settings", "words"),
    [
        ("transformer", {"core_heads": 5}, "core_heads 5 does not divide core_width 32"),
        ("transformer", {"core_heads": 32}, "a head's width 1 is odd"),
        ("gau", {"core_width": 31}, "a head's width 31 is odd"),
        ("lookback", {"look_back": 0}, "look_back must be at least 1"),
    ],
)
def test_sizes_that_do_not_fit_are_said_in_words(name: str, settings: dict, words: str):
    with pytest.raises(ValueError, match=words):
        build(name, **settings)


@pytest.mark.parametrize(("detached", "flows"), [(False, True), (True, False)])
@pytest.mark.parametrize("name", ATTENTION)
def test_detached_keys_leave_past_steps_alone(name: str, detached: bool, flows: bool):
    core = build(name, 2, W, core_detached=detached)
    x_TND, reset_TN = inputs(9, 1)
    x_TND.requires_grad_()
    core(x_TND, core.initial_state(1, CPU), reset_TN)[-1].square().sum().backward()
    assert x_TND.grad is not None
    assert (x_TND.grad[-2].abs().sum() > 0) == flows
    assert x_TND.grad[-1].abs().sum() > 0
    assert all(weight.grad.norm() > 0 for label, weight in core.named_parameters() if ".key." in label)


@pytest.mark.parametrize("name", ATTENTION)
def test_no_gradient_reaches_a_stored_ring(name: str):
    core = build(name, 2, W)
    x_TND, reset_TN = inputs(9, 2)
    state = acted(core, x_TND, core.initial_state(2, CPU), reset_TN)[1][-1]
    rings = {k: v.clone().requires_grad_(v.is_floating_point()) for k, v in state.items()}
    never_TN = torch.zeros_like(reset_TN)
    (core(x_TND, rings, never_TN).square().sum() + core.step(x_TND[0], rings, never_TN[0])[0].sum()).backward()
    assert all(part.grad is None for part in rings.values())
