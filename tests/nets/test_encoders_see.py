"""Every encoder can see: after a few hundred gradient steps it says where the ball of an unseen game is, and whither.

Two games from one seed, played alike, one as pictures and one as numbers: the numbers are what the pictures show.
The ball flies faster or slower, and in curves, so that where it is does not tell where it goes.
"""

import functools

import pytest
import torch
from torch import Tensor, nn

from recollect.envs.pong.env import PongEnv
from recollect.envs.pong.options import Options
from recollect.envs.pong.seeing import state_names
from recollect.nets.config import NetConfig
from recollect.nets.encoders import ENCODERS
from recollect.types import TensorSpec

STACK = 7
WORLD = {"noop_max": 30, "ball_speed": "0.5..3", "gravity": "-0.1..0.1"}
NAMES = state_names(velocities=True, opponent=True)
LEARNT = [NAMES.index(name) for name in ("ball_y", "ball_speed_y")]


@functools.cache
def games(seed: int, num_envs: int = 64, steps: int = 160) -> tuple[Tensor, Tensor]:
    """Some moments of random play with a ball: frames [B, STACK, 80, 80] and its height and vertical speed [B, 2]."""
    pictures = PongEnv(num_envs, Options(obs="binary", stack=STACK, **WORLD))
    numbers = PongEnv(num_envs, Options(obs="state", **WORLD))
    pictures.reset(seed)
    numbers.reset(seed)
    stream = torch.Generator().manual_seed(seed)
    shown, true = [], []
    for t in range(steps):
        action = torch.randint(6, (num_envs,), generator=stream)
        frame, state = pictures.step(action).obs["frame"], numbers.step(action).obs["vector"]
        if t % 3 == 0:
            shown.append(frame)
            true.append(state)
    frame, state = torch.cat(shown), torch.cat(true)
    there = state[:, NAMES.index("ball_visible")] > 0
    return frame[there], state[there][:, LEARNT]


def explained(name: str, stack: int, steps: int = 200, **settings: object) -> tuple[Tensor, Tensor]:
    """R² of each number in games of another seed, by an encoder of the last ``stack`` frames; and if frames lie. [2]"""
    torch.manual_seed(0)
    config = NetConfig(hidden=(128,), cnn_width=128, activation="relu", **settings)
    encoder = ENCODERS[name]({"frame": TensorSpec((stack, 80, 80), torch.uint8, 0, 1)}, config)
    (frame, state), (new_frame, new_state) = games(0), games(1)
    frame, new_frame, mean, std = frame[:, -stack:], new_frame[:, -stack:], state.mean(0), state.std(0)
    head = nn.Linear(encoder.width, 2)
    optimizer = torch.optim.Adam([*encoder.parameters(), *head.parameters()], 1e-3)
    for _ in range(steps):
        rows = torch.randint(len(frame), (128,))
        loss = (head(encoder({"frame": frame[rows]})) - (state[rows] - mean) / std).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    with torch.no_grad():
        said = head(encoder({"frame": new_frame})) * std + mean
    spread = new_state.var(0)
    return tuple(1 - (guess - new_state).square().mean(0) / spread for guess in (said, said[torch.randperm(len(said))]))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "stack", "settings"),
    [
        ("mlp", 2, {"difference": True}),
        ("cnn", 4, {}),
        ("cnn", 2, {"difference": True}),
        ("cnn3d", 7, {}),
        ("cnn3d2d", 7, {}),
        ("nature", 4, {}),
        ("small", 4, {}),
    ],
)
def test_it_sees_where_the_ball_is_and_goes(name: str, stack: int, settings: dict):
    (height, speed), control = explained(name, stack, **settings)
    assert height > 0.6
    assert speed > 0.2
    assert control.max() < 0, "moments that are not its own"


@pytest.mark.slow
def test_one_frame_does_not_show_whither():
    """What the bound on the speed means: without history the same network finds the height, but not the speed."""
    (height, speed), _ = explained("cnn", 1)
    assert height > 0.6
    assert speed < 0.15
