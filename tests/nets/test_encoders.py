"""Encoders: what they read of frames and how, what a difference is, and that a reset cannot be seen through."""

import itertools
import math
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import recollect
from recollect.envs.pong.env import PongEnv
from recollect.envs.pong.options import Options
from recollect.fast import can_compile, fast
from recollect.nets.agent import make_agent
from recollect.nets.config import NetConfig
from recollect.nets.encoders import ENCODERS, Fourier, Frames, differences
from recollect.run.metrics import read_rows
from recollect.types import Discrete, ObsSpec, TensorSpec

CPU = torch.device("cpu")
FRAME_ENCODERS = ["mlp", "cnn", "cnn3d", "cnn3d2d", "nature", "small"]
B = 5


def spec_of(depth: int, size: int = 80, high: float = 1, dtype: torch.dtype = torch.uint8) -> ObsSpec:
    return {"frame": TensorSpec((depth, size, size), dtype, 0, high)}


BINARY, GREY = spec_of(4), spec_of(4, 84, 255)


def build(name: str, spec: ObsSpec = BINARY, seed: int = 3, **settings: object) -> nn.Module:
    torch.manual_seed(seed)
    return ENCODERS[name](spec, NetConfig(**{"encoder": name, "hidden": (24,), "cnn_width": 24, **settings}))


def frames(spec: ObsSpec, rows: int = B, seed: int = 0) -> Tensor:
    stream, part = torch.Generator().manual_seed(seed), spec["frame"]
    return torch.randint(0, int(part.high) + 1, (rows, *part.shape), dtype=torch.uint8, generator=stream)


@torch.no_grad()
def said(encoder: nn.Module, frame: Tensor) -> Tensor:
    return encoder({"frame": frame})


def close(actual: Tensor, expected: Tensor) -> bool:
    return torch.allclose(actual, expected, rtol=1e-4, atol=1e-5)


# What they give


@pytest.mark.parametrize("name", FRAME_ENCODERS)
@pytest.mark.parametrize("difference", [False, True])
@pytest.mark.parametrize(("depth", "size", "high"), [(4, 80, 1), (4, 84, 255), (3, 84, 255), (11, 80, 1)])
def test_every_encoder_reads_every_frame(name: str, difference: bool, depth: int, size: int, high: int):
    spec = spec_of(depth, size, high)
    encoder = build(name, spec, difference=difference)
    feature = said(encoder, frames(spec))
    assert feature.shape == (B, encoder.width)
    assert encoder.width == (48 if name == "cnn3d2d" else 24)
    assert feature.isfinite().all()
    assert feature.std(0).max() > 1e-3, "it sees that frames differ"


@pytest.mark.parametrize("name", FRAME_ENCODERS)
def test_an_encoder_is_a_function_of_its_seed_and_its_frames(name: str):
    frame, encoder = frames(BINARY), build(name)
    assert torch.equal(said(encoder, frame), said(build(name), frame))
    assert torch.equal(said(encoder, frame), said(encoder, frame)), "nothing is remembered"
    assert not torch.equal(said(encoder, frame), said(build(name, seed=4), frame))
    assert torch.equal(frame, frames(BINARY)), "nor is anything written into the observation"
    alone = torch.cat([said(encoder, frame[i : i + 1]) for i in range(B)])
    assert close(alone, said(encoder, frame)), "rows do not see each other"


@pytest.mark.parametrize("name", FRAME_ENCODERS)
@pytest.mark.parametrize("difference", [False, True])
def test_a_gradient_reaches_every_weight(name: str, difference: bool):
    encoder = build(name, difference=difference, activation="tanh")
    encoder({"frame": frames(BINARY)}).pow(2).sum().backward()
    for weight, value in encoder.named_parameters():
        assert value.grad is not None and value.grad.abs().max() > 0, weight


def test_the_ladders_networks_have_their_known_sizes():
    """As in the source's program: 16 filters, 32 filters, 200 features."""
    sizes = {"mlp": 6400 * 200 + 200, "cnn": 16 * 64 + 16 + 32 * 16 * 16 + 32 + 32 * 100 * 200 + 200}
    deep = 16 * 3 * 64 + 16 + 32 * 16 * 3 * 16 + 32 + 32 * 2 * 100 * 200 + 200
    sizes |= {"cnn3d": deep, "cnn3d2d": deep + sizes["cnn"]}
    for name, size in sizes.items():
        spec = spec_of(11 if "3d" in name else 1)
        assert sum(p.numel() for p in build(name, spec, hidden=(200,), cnn_width=200).parameters()) == size, name


@pytest.mark.parametrize("name", FRAME_ENCODERS)
def test_the_clock_stands_beside_the_features(name: str):
    spec = BINARY | {"clock": TensorSpec((1,), torch.float32)}
    encoder, obs = build(name, spec), {"frame": frames(BINARY)}
    early, late = (encoder(obs | {"clock": torch.full((B, 1), c)}) for c in (0.0, 1.0))
    assert early.shape == (B, encoder.width)
    assert not torch.equal(early, late)


@pytest.mark.parametrize("name", FRAME_ENCODERS)
@pytest.mark.parametrize("difference", [False, True])
def test_bf16_is_coarser_and_no_more(name: str, difference: bool):
    encoder, frame = build(name, GREY, difference=difference), frames(GREY)
    full = said(encoder, frame)
    with torch.autocast("cpu", torch.bfloat16):
        half = said(encoder, frame).float()
    assert 1e-5 < (half - full).norm() / full.norm() < 3e-2


# What they compute

CONVOLUTIONS = {  # stride and padding of each
    "cnn": ((4, 2), (2, 1)),
    "nature": ((4, 0), (2, 0), (1, 0)),
    "small": ((4, 0), (2, 0), (1, 0)),
    "cnn3d": (((2, 4, 4), (0, 2, 2)), (2, (0, 1, 1))),
}


@pytest.mark.parametrize("name", CONVOLUTIONS)
def test_convolutions_bend_and_the_last_layer_as_it_should(name: str):
    """Written out layer by layer: rectified convolutions, then a linear layer, rectified in Mnih et al. alone."""
    spec = spec_of(11)
    encoder, frame = build(name, spec), frames(spec)
    weights = list(encoder.parameters())
    *pairs, last = zip(weights[::2], weights[1::2], strict=True)
    x = frame.float()[:, None] if name == "cnn3d" else frame.float()
    convolve = nn.functional.conv3d if name == "cnn3d" else nn.functional.conv2d
    for (weight, bias), (stride, padding) in zip(pairs, CONVOLUTIONS[name], strict=True):
        x = convolve(x, weight, bias, stride, padding).clamp(min=0)
    x = nn.functional.linear(x.flatten(1), *last)
    expected = x.clamp(min=0) if name in ("nature", "small") else x
    assert close(said(encoder, frame), expected)
    assert (expected.min() < 0) == (name in ("cnn", "cnn3d"))


# What they read


@pytest.mark.parametrize("name", FRAME_ENCODERS)
def test_pixels_are_read_from_0_to_1_whatever_their_type(name: str):
    """The same picture as bits, as grey bytes and as fractions."""
    bits = frames(BINARY)
    expected = said(build(name), bits)
    assert close(said(build(name, spec_of(4, 80, 255)), bits * 255), expected)
    assert close(said(build(name, spec_of(4, 80, 1.0, torch.float32)), bits.float()), expected)
    unbounded = {"frame": TensorSpec((4, 80, 80), torch.uint8)}
    assert close(said(build(name, unbounded), bits * 255), expected), "bytes of which nothing is known"


@pytest.mark.parametrize("name", FRAME_ENCODERS)
@pytest.mark.parametrize("depth", [2, 3, 4, 5, 6, 7, 8, 11])
def test_every_frame_of_the_stack_is_seen(name: str, depth: int):
    encoder, frame = build(name, spec_of(depth)), frames(spec_of(depth))
    for k in range(depth):
        other = frame.clone()
        other[:, k] = 1 - other[:, k]
        assert not close(said(encoder, other), said(encoder, frame)), k


def test_depth_has_an_order():
    encoder, frame = build("cnn3d", spec_of(11)), frames(spec_of(11))
    assert not close(said(encoder, frame.flip(1)), said(encoder, frame))


def test_missing_depth_is_filled_with_empty_frames():
    """Four frames are the newest of seven of which three are empty: what an episode's start looks like."""
    short, long = build("cnn3d", spec_of(4)), build("cnn3d", spec_of(7))
    for mine, other in zip(long.parameters(), short.parameters(), strict=True):
        other.data.copy_(mine)
    for layer in ("first", "second"):
        getattr(short.network, layer).bias.data.zero_()
        getattr(long.network, layer).bias.data.zero_()
    frame = frames(spec_of(7))
    frame[:, :3] = 0
    assert close(said(short, frame[:, 3:]), said(long, frame))


def test_history_and_newest_frame_stand_side_by_side():
    encoder, frame = build("cnn3d2d"), frames(BINARY)
    other = frame.clone()
    other[:, :3] = 1 - other[:, :3]
    before, after = said(encoder, frame).split(24, -1), said(encoder, other).split(24, -1)
    assert not close(after[0], before[0])
    assert torch.equal(after[1], before[1]), "the second half reads the newest frame only"


def test_an_mlp_of_no_activation_is_linear():
    """f(a) + f(b) = f(a + b) + f(0)"""
    spec = spec_of(1, 80, 1.0, torch.float32)
    one, two, none = (frames(spec, seed=i).float() * i for i in (1, 2, 0))
    gaps = {}
    for activation in ("none", "relu", "tanh"):
        encoder = build("mlp", spec, activation=activation)
        gap = said(encoder, one) + said(encoder, two) - said(encoder, one + two) - said(encoder, none)
        gaps[activation] = gap.abs().max()
        assert (said(encoder, one).min() >= 0) == (activation == "relu")
    assert gaps["none"] < 1e-3 < 0.1 < min(gaps["relu"], gaps["tanh"])


def test_an_mlp_prefers_the_vector_unless_differences_are_asked_for():
    spec = BINARY | {"vector": TensorSpec((3,), torch.float32)}
    obs = {"frame": frames(BINARY), "vector": torch.randn(B, 3)}
    changed = obs | {"frame": 1 - obs["frame"]}
    for difference in (False, True):
        encoder = build("mlp", spec, difference=difference)
        assert torch.equal(encoder(obs), encoder(changed)) != difference


# Differences


def by_hand(frame: Tensor) -> Tensor:
    """The definition, pixel by pixel: [B, C, H, W] -> [B, C - 1, H, W]"""
    rows, count, height, width = frame.shape
    out = torch.zeros(rows, count - 1, height, width)
    for b, k in itertools.product(range(rows), range(count - 1)):
        if frame[b, k].max() > 0:
            for y, x in itertools.product(range(height), range(width)):
                out[b, k, y, x] = float(frame[b, k + 1, y, x]) - float(frame[b, k, y, x])
    return out


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_difference_is_the_newer_less_the_older(dtype: torch.dtype):
    """Signed, exact for bytes in both arithmetics, nothing after an empty frame."""
    spec = spec_of(4, 6, 255)
    frame = frames(spec)
    frame[:, 0, 0, 0], frame[:, 1, 0, 0] = 255, 0
    frame[1, :2] = 0
    frame[2, :3] = 0
    found = differences(frame, dtype)
    assert found.dtype is dtype
    assert torch.equal(found.float(), by_hand(frame))
    assert found[0].min() == -255
    assert found[2].abs().max() == 0


def test_differences_are_read_from_minus_1_to_1():
    for high in (1, 255):
        reader = Frames(spec_of(3, 8, high), NetConfig(difference=True), "mine")
        frame = torch.zeros(1, 3, 8, 8, dtype=torch.uint8)
        frame[0, 0, 0, 0], frame[0, 1, 0, 1] = high, high
        difference = reader({"frame": frame}) * reader.scale
        assert reader.shape == (2, 8, 8)
        assert difference[0, :, 0, :2].tolist() == [[-1.0, 1.0], [0.0, -1.0]]


@pytest.mark.parametrize("name", FRAME_ENCODERS)
def test_an_encoder_with_difference_is_one_without_that_reads_differences(name: str):
    frame = frames(BINARY)
    plain = build(name, spec_of(3, 80, 1.0, torch.float32))
    assert close(said(build(name, difference=True), frame), said(plain, differences(frame, torch.float32)))
    standing = frame[:, :1].expand(-1, 4, -1, -1)
    assert close(*(said(build(name, difference=True), f) for f in (standing, torch.zeros_like(frame))))


@pytest.mark.parametrize("obs", ["binary", "pixels"])
def test_a_difference_never_crosses_a_reset(obs: str):
    """Whatever stood in the stack before a reset: after it, the observation and its difference are the same."""
    clean, poisoned = (PongEnv(3, Options(obs=obs, max_episode_steps=6)) for _ in range(2))
    encoder = build("cnn", clean.obs_spec, difference=True)
    opening = clean.reset(0)["frame"]
    poisoned.reset(0)
    still = torch.zeros(3, dtype=torch.int64)
    for _ in range(5):
        clean.step(still)
        poisoned.step(still)
    poisoned._stack = frames(clean.obs_spec, 3, seed=9)
    steps = clean.step(still), poisoned.step(still)
    assert steps[0].truncated.all()
    assert not torch.equal(steps[0].final_obs["frame"], steps[1].final_obs["frame"]), "the poison was there"
    for step in steps:
        assert torch.equal(step.obs["frame"], opening)
        assert differences(step.obs["frame"], torch.float32).abs().max() == 0
        assert close(said(encoder, step.obs["frame"]), said(encoder, torch.zeros_like(opening)))
    move = torch.full((3,), 2)
    later = [env.step(move).obs["frame"] for env in (clean, poisoned)]
    assert torch.equal(said(encoder, later[0]), said(encoder, later[1]))
    assert differences(later[0], torch.float32)[:, -1].abs().max() > 0, "from the second frame on there is one"
    assert differences(later[0], torch.float32)[:, :-1].abs().max() == 0


# What cannot be read


@pytest.mark.parametrize(
    ("name", "spec", "settings", "words"),
    [
        ("cnn", spec_of(1), {"difference": True}, "'cnn' with difference reads at least 2 stacked frames"),
        ("mlp", spec_of(1), {"difference": True}, "'mlp' with difference reads at least 2 stacked frames"),
        ("cnn3d", spec_of(1), {}, "'cnn3d' reads at least 2 stacked frames, the environment shows 1"),
        ("cnn3d2d", spec_of(2), {"difference": True}, "at least 3 stacked frames, the environment shows 2"),
        ("cnn", spec_of(4, 7), {}, r"of at least 8x8, got \[4, 7, 7\]"),
        ("cnn3d", {"frame": TensorSpec((80, 80), torch.uint8)}, {}, r"reads frames \[C, H, W\]"),
        ("mlp", {"vector": TensorSpec((3,), torch.float32)}, {"difference": True}, "reads 'frame', but .* has vector"),
        ("cnn3d", {"vector": TensorSpec((3,), torch.float32)}, {}, "reads 'frame', but .* has vector"),
    ],
)
def test_what_cannot_be_read_is_said_in_words(name: str, spec: ObsSpec, settings: dict, words: str):
    with pytest.raises(ValueError, match=words) as caught:
        make_agent(spec, Discrete(2), NetConfig(encoder=name, **settings), 1, CPU)
    assert "\n" not in str(caught.value)


# In use


@pytest.mark.parametrize("name", FRAME_ENCODERS)
def test_each_trains_for_a_few_updates(name: str, tmp_path: Path):
    around = {"threads": 1, "device": "cpu", "eval_episodes": 0, "checkpoint_every": 0, "out": tmp_path}
    shape = {"num_envs": 2, "num_steps": 8, "num_minibatches": 2, "update_epochs": 1, "total_timesteps": 48}
    game = {"env_id": "recollect/Pong-v0", "env_options": ("obs=binary", "actions=two", "stack=3")}
    net = {"encoder": name, "hidden": (8,), "cnn_width": 8, "difference": True}
    recollect.train("cartpole-ppo", **around, **shape, **game, **net)
    (run,) = tmp_path.iterdir()
    rows = list(read_rows(run / "metrics.jsonl"))
    assert [row["step"] for row in rows] == [16, 32, 48]
    assert all(row["parity/max_ratio_error"] < 1e-4 for row in rows), "acting and learning see the same"
    assert all(math.isfinite(row["loss/value"]) and row["optim/grad_norm"] > 0 for row in rows)


@pytest.mark.skipif(not can_compile(), reason="no C++ compiler here")
@pytest.mark.slow
@pytest.mark.parametrize("name", ["mlp", "cnn3d2d"])
def test_compiled_acting_equals_eager(name: str):
    agent = make_agent(BINARY, Discrete(2), NetConfig(encoder=name, cnn_width=16, difference=True), 1, CPU)
    never, noise = torch.zeros(B, dtype=torch.bool), torch.rand(B, generator=torch.Generator().manual_seed(1))
    frame = frames(BINARY)
    frame[0, :2] = 0
    with torch.no_grad():
        plain, built = (
            fast(agent.act, CPU, compiled)({"frame": frame}, {}, never, noise)[0] for compiled in (False, True)
        )
    for part in ("action", "logp", "value"):
        torch.testing.assert_close(getattr(built, part), getattr(plain, part), rtol=1e-4, atol=1e-5)


def test_a_background_is_nothing():
    """Frames of the background alone look as empty ones do without it, exactly in bf16 too."""
    spec = {"frame": TensorSpec((4, 84, 84), torch.uint8, 0, 255)}
    frame = torch.randint(87, 169, (2, 4, 84, 84), dtype=torch.uint8)
    plain, lowered = (Frames(spec, NetConfig(background=level), "nature") for level in (0, 87))
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(lowered({"frame": frame}), plain({"frame": frame - 87}))
        assert torch.equal(lowered({"frame": frame - 87}).float(), frame.float() - 2 * 87)


def test_waves_of_positions():
    """Zero waves leave the mlp; each position adds a sine and a cosine of every length."""
    spec, obs = {"vector": TensorSpec((2,), torch.float32)}, {"vector": torch.tensor([[0.5, -1.0]])}
    assert Fourier(spec, NetConfig(frequencies=0)).layers[0].in_features == 2
    encoder = Fourier(spec, NetConfig(frequencies=2, hidden=(10,), activation="none"))
    torch.nn.init.eye_(encoder.layers[0].weight)
    half = 0.5**0.5
    expected = [0.5, -1.0, half, -1.0, half, 0.0, 1.0, 0.0, 0.0, -1.0]  # x, sin and cos of pi/2 x, then of pi x
    torch.testing.assert_close(encoder(obs), torch.tensor([expected]), atol=1e-6, rtol=0)


def test_a_background_brighter_than_any_pixel_is_refused():
    binary = {"frame": TensorSpec((4, 80, 80), torch.uint8, 0, 1)}
    with pytest.raises(ValueError, match="background 87 is brighter than frames get: 1"):
        Frames(binary, NetConfig(background=87), "cnn")


def test_a_background_is_nothing_to_differences():
    """So rows that set one for grey pictures also play binary ones by their differences."""
    binary = {"frame": TensorSpec((2, 80, 80), torch.uint8, 0, 1)}
    frame = torch.randint(0, 2, (3, 2, 80, 80), dtype=torch.uint8)
    with_one, without = (Frames(binary, NetConfig(background=b, difference=True), "mlp") for b in (87, 0))
    assert torch.equal(with_one({"frame": frame}), without({"frame": frame}))
