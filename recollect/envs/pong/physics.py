"""What can be changed about the game's physics: a number for each environment, drawn anew for each episode on request.

The defaults are the ALE's game exactly.
"""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from recollect.config import choose


@dataclass(frozen=True)
class Physics:
    """Every field is float32 [N], or [1] where all environments share it."""

    ball_speed: Tensor  # columns a frame at the serve
    acceleration: Tensor  # columns a frame that each touch of a paddle adds
    gravity: Tensor  # lines a frame, each frame, downwards: the flight is curved
    bounce_loss: Tensor  # share of the vertical speed that a wall takes
    paddle_height: Tensor  # lines of the player's paddle
    paddle_speed: Tensor  # how fast the player's knob turns, 1 is the ALE's
    opponent_speed: Tensor  # lines a frame, in seven frames of eight
    opponent_lag: Tensor  # frames by which the opponent's idea of the ball trails behind
    spin: Tensor  # lines a frame that the ball takes from each line a frame of the player's paddle
    hidden_from: Tensor  # from this column ...
    hidden_to: Tensor  # ... to this one the ball cannot be seen
    noise: Tensor  # standard deviation of what is seen of each position, in lines and columns


DEFAULTS: dict[str, float] = {
    "ball_speed": 1.0,
    "acceleration": 0.0,
    "gravity": 0.0,
    "bounce_loss": 0.0,
    "paddle_height": 16.0,
    "paddle_speed": 1.0,
    "opponent_speed": 2.0,
    "opponent_lag": 0.0,
    "spin": 0.0,
    "hidden_from": 256.0,
    "hidden_to": 0.0,
    "noise": 0.0,
}

LIMITS: dict[str, tuple[float, float]] = {
    "ball_speed": (0.25, 4.0),
    "acceleration": (0.0, 4.0),
    "gravity": (-1.0, 1.0),
    "bounce_loss": (0.0, 1.0),
    "paddle_height": (2.0, 160.0),
    "paddle_speed": (0.0, 10.0),
    "opponent_speed": (0.0, 20.0),
    "opponent_lag": (0.0, 1000.0),
    "spin": (-2.0, 2.0),
    "hidden_from": (0.0, 256.0),
    "hidden_to": (0.0, 256.0),
    "noise": (0.0, 50.0),
}

assert list(DEFAULTS) == list(LIMITS) == [field.name for field in dataclasses.fields(Physics)]

Range = tuple[float, float]  # lowest and highest of a uniform draw; equal for a fixed number


def check_ranges(ranges: Mapping[str, Range]) -> None:
    """Raise ValueError for an unknown name or a number outside its limits."""
    for name, (low, high) in ranges.items():
        least, most = choose("physics", name, LIMITS)
        if not least <= low <= high <= most:
            given = f"{low:g}" if low == high else f"{low:g}..{high:g}"
            raise ValueError(f"physics {name} must lie in {least:g}..{most:g}, got {given}")
    if len({"hidden_from", "hidden_to"} & ranges.keys()) == 1:
        raise ValueError("physics hidden_from and hidden_to go together: the ball is hidden between two columns")


def parse_range(name: str, word: str) -> Range:
    """``16`` or ``8..24``."""
    low, dots, high = word.partition("..")
    try:
        return (float(low), float(high if dots else low))
    except ValueError:
        raise ValueError(f"physics {name!r} is a number or a range as 8..24, got {word!r}") from None


def usual(device: torch.device) -> Physics:
    """The ALE's, shared by all environments: every field is [1]."""
    return Physics(**{name: torch.full((1,), value, device=device) for name, value in DEFAULTS.items()})


def draw(ranges: Mapping[str, Range], uniform_PN: Tensor, shared: Physics) -> Physics:
    """``shared`` with the fields of ``ranges`` drawn for each environment. uniform: [P, N], a row for every field

    The other fields stay the very same tensors: a captured graph makes nothing that it does not change.
    """
    assert len(uniform_PN) == len(DEFAULTS)
    number = dict(zip(DEFAULTS, uniform_PN, strict=True))
    drawn = {name: low + (high - low) * number[name] for name, (low, high) in ranges.items()}
    return dataclasses.replace(shared, **drawn)


def from_tensor(values_NP: Tensor, num_envs: int) -> Physics:
    """Physics of N environments from a tensor, a column for each field of ``Physics`` in order. [N, P]"""
    names = list(DEFAULTS)
    if values_NP.shape != (num_envs, len(names)):
        wanted = f"[{num_envs}, {len(names)}]"
        raise ValueError(f"physics must be {wanted}: {', '.join(names)}; got {list(values_NP.shape)}")
    lows, highs = values_NP.amin(0).tolist(), values_NP.amax(0).tolist()
    check_ranges(dict(zip(names, zip(lows, highs, strict=True), strict=True)))
    return Physics(*values_NP.float().unbind(1))
