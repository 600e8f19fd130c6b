"""What can be chosen about Pong on tensors, and what that makes of its rules and observations."""

from dataclasses import dataclass
from typing import Literal

import torch

from recollect.envs import protocols
from recollect.envs.pong import drawing, physics, ram, rules, seeing
from recollect.envs.pong.physics import Range
from recollect.envs.vector import Protocol
from recollect.types import ObsSpec, TensorSpec

ENV_ID = "recollect/Pong-v0"
TURNS = {"NOOP": 0.0, "FIRE": 0.0, "RIGHT": -1.0, "LEFT": 1.0, "RIGHTFIRE": -1.0, "LEFTFIRE": 1.0}


@dataclass(frozen=True)
class Options(protocols.Options):
    """What can be chosen about Pong on tensors, beside the rules that it shares with Atari.

    Physics is a number, or a range as 8..24 from which each episode draws anew.
    """

    obs: Literal["pixels", "binary", "ram", "state"] = "pixels"
    """84x84 grey frames, 80x80 binary ones, the console's 128 bytes (which hide nothing), or positions."""
    stack: int = 4
    """Frames that pixels and binary show at once."""
    velocities: bool = True
    """The state has the ball's speed."""
    opponent: bool = True
    """The state has the opponent's paddle."""
    actions: Literal["six", "three", "two"] = "six"
    """All that the game knows; without FIRE; only up and down."""
    ball_speed: str | None = None
    """Columns a frame at the serve; the ALE's is 1."""
    acceleration: str | None = None
    """Columns a frame that each touch of a paddle adds; 0."""
    gravity: str | None = None
    """Lines a frame that each frame adds, downwards; 0."""
    bounce_loss: str | None = None
    """Share of the vertical speed that a wall takes; 0."""
    paddle_height: str | None = None
    """Lines of the player's paddle; 16."""
    paddle_speed: str | None = None
    """How fast the player's knob turns; 1."""
    opponent_speed: str | None = None
    """Lines a frame; 2."""
    opponent_lag: str | None = None
    """Frames by which the opponent's idea of the ball trails behind; 0."""
    spin: str | None = None
    """Lines a frame that the ball takes from each line a frame of the player's paddle; 0."""
    hidden_from: str | None = None
    """The ball is hidden from this column on (52 to 205 is the field) ..."""
    hidden_to: str | None = None
    """... to this one."""
    noise: str | None = None
    """Standard deviation of what is seen of each position, in lines and columns; 0."""

    def __post_init__(self) -> None:
        if self.stack < 1:
            raise ValueError(f"Pong's stack must be at least 1, got {self.stack}")
        for rule in ("life_loss_ends", "full_actions"):
            if getattr(self, rule):
                raise ValueError(f"Pong on tensors has one life and its own six actions: {rule} cannot be true")
        if (self.noop_max or 0) >= rules.START_WAIT:
            raise ValueError(f"Pong serves after {rules.START_WAIT} frames: noop_max must be less, got {self.noop_max}")
        physics.check_ranges(self.ranges())

    def ranges(self) -> dict[str, Range]:
        """The physics that were given."""
        given = {name: getattr(self, name) for name in physics.DEFAULTS}
        return {name: physics.parse_range(name, str(word)) for name, word in given.items() if word is not None}


def obs_spec(options: Options) -> ObsSpec:
    """What is observed."""
    if options.obs == "pixels":
        return {"frame": TensorSpec((options.stack, drawing.SIZE, drawing.SIZE), torch.uint8, 0, 255)}
    if options.obs == "binary":
        size = seeing.BINARY_SIZE
        return {"frame": TensorSpec((options.stack, size, size), torch.uint8, 0, 1)}
    width = ram.SIZE if options.obs == "ram" else len(seeing.state_names(options.velocities, options.opponent))
    return {"vector": TensorSpec((width,), torch.float32)}


def card(protocol: str, options: Options, ranges: dict[str, Range], worlds: bool) -> Protocol:
    """What the rules are, in words for what no field of a protocol says."""
    rules_named = protocols.rules_of(protocol, options.chosen())
    seen = {
        "pixels": "grey 84x84 by area mean",
        "binary": "binary 80x80",
        "ram": "128 bytes",
        "state": ", ".join(seeing.state_names(options.velocities, options.opponent)),
    }[options.obs]
    pictures = f", {options.stack} stacked, zeros before a reset" if options.obs in ("pixels", "binary") else ""
    changed = [f"{name} {low:g}" + (f"..{high:g}" if high > low else "") for name, (low, high) in ranges.items()]
    usual = "each environment its own" if worlds else "as the ALE"
    words = f"{seen}{pictures}; {options.actions} actions; physics: {', '.join(changed) or usual}"
    return Protocol(env_id=ENV_ID, engine="tensor", extra=words, **rules_named)
