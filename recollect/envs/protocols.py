"""Named sets of Atari rules: what a protocol's name stands for, and single rules on top of it."""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, Literal

from recollect.config import choose, nearest

FRAME_LIMIT = 108_000  # emulator frames of one game: 30 minutes at 60 Hz, Atari's usual limit

V5 = {
    "sticky": 0.25,
    "frame_skip": 4,
    "max_pool": False,
    "noop_max": 0,
    "fire_reset": False,
    "life_loss_ends": False,
    "clip_reward": False,
    "full_actions": False,
}
PROTOCOLS: dict[str, dict[str, Any]] = {
    "v5": V5,
    "v5-pooled": {**V5, "max_pool": True},
    "deterministic": {**V5, "sticky": 0.0},
    "no-sticky": {**V5, "max_pool": True, "sticky": 0.0},
    "v0-random-skip": {**V5, "frame_skip": (2, 4)},
}
"""What a protocol's name stands for; any field may be overridden.

``v5``              as Gymnasium registers ``ALE/Pong-v5``: the last of four frames, sticky actions; also what the old
                    ``PongDeterministic-v0`` was
``v5-pooled``       the same with the pixel maximum of the last two frames: nothing flickers. The default
``deterministic``   as ``PongDeterministic-v4``: not sticky, no no-ops, so a game is a function of the actions alone
                    and N environments differ by their actions only
``no-sticky``       ``v5-pooled`` without sticky actions, equally deterministic
``v0-random-skip``  the old ``Pong-v0``: sticky, and each decision lasts 2, 3 or 4 frames by chance
"""


@dataclass(frozen=True)
class Options:
    """Single rules on top of a protocol; None leaves the protocol's."""

    sticky: float | None = None
    """Probability that an emulator frame repeats the action before."""
    frame_skip: int | None = None
    """Emulator frames per decision."""
    max_pool: bool | None = None
    """Show the pixel maximum of a decision's last two frames."""
    noop_max: int | None = None
    """A game begins with a random number of no-ops, at most this many."""
    fire_reset: bool | None = None
    """A game begins with FIRE, where the game knows it."""
    life_loss_ends: bool | None = None
    """A lost life ends the training episode; the game goes on."""
    clip_reward: bool | None = None
    """Training sees the sign of the reward."""
    full_actions: bool | None = None
    """All 18 actions instead of those that the game knows."""
    max_episode_steps: int | None = None
    """Decisions until a game is truncated, 0 for no limit; the default is 108,000 frames."""

    def chosen(self) -> dict[str, Any]:
        """The rules that were given; what a subclass adds is none of them."""
        given = {field.name: getattr(self, field.name) for field in fields(Options)}
        return {name: value for name, value in given.items() if value is not None}


ACTIONS = ("NOOP", "FIRE", "RIGHT", "LEFT", "RIGHTFIRE", "LEFTFIRE")  # as the ALE numbers those that Pong knows
FEWER = {"six": ACTIONS, "three": ACTIONS[:1] + ACTIONS[2:4], "two": ACTIONS[2:4]}


@dataclass(frozen=True)
class AtariOptions(Options):
    """What can be chosen about a game of the ALE, named as it is for Pong on tensors."""

    obs: Literal["pixels", "binary", "ram", "state"] = "pixels"
    """84x84 grey frames or, of Pong, 80x80 binary ones; the others are shown by Pong on tensors."""
    stack: int = 4
    """Frames shown at once."""
    actions: Literal["six", "three", "two"] | None = None
    """Only NOOP, RIGHT and LEFT; only RIGHT and LEFT, in Pong up and down; none for all that the game knows."""

    def __post_init__(self) -> None:
        if self.stack < 1:
            raise ValueError(f"Atari's stack must be at least 1, got {self.stack}")
        if self.obs in ("ram", "state"):
            raise ValueError(f"ALE games show pixels or binary; obs={self.obs} is shown by recollect/Pong-v0")


def rules_of(name: str, overrides: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """The fields of ``Protocol`` that a name stands for, single ones overridden.

    ``frame_skip`` may be overridden by a range (low, high).
    """
    if name not in PROTOCOLS:
        meant = nearest(name, PROTOCOLS)
        near = meant if "did you mean" in meant else ""
        raise ValueError(f"unknown protocol {name!r}, allowed: {', '.join(PROTOCOLS)}{near}")
    overrides = dict(overrides or {})
    for field in overrides:
        choose("protocol field", field, {**V5, "max_episode_steps": None})
    fields = {**PROTOCOLS[name], **overrides}
    if isinstance(fields["frame_skip"], list):  # as a YAML file writes the range
        fields["frame_skip"] = tuple(fields["frame_skip"])
    _check_fields(fields)
    skip = fields["frame_skip"]
    mean_skip = skip if isinstance(skip, int) else sum(skip) / 2
    fields["max_episode_steps"] = fields.get("max_episode_steps", int(FRAME_LIMIT // mean_skip)) or None
    changed = ", ".join(f"{field}={value}" for field, value in overrides.items())
    return {"name": f"{name} ({changed})" if changed else name, **fields}


def _check_fields(fields: Mapping[str, Any]) -> None:
    """Raise ValueError for a protocol field outside its range."""
    skip, limit = fields["frame_skip"], fields.get("max_episode_steps")
    pair = skip if isinstance(skip, tuple) else (skip, skip)
    if len(pair) != 2 or not all(isinstance(k, int) for k in pair) or not 1 <= pair[0] <= pair[1]:
        raise ValueError(f"frame_skip must be an integer from 1 or a range (low, high), got {skip!r}")
    if not 0.0 <= fields["sticky"] <= 1.0:
        raise ValueError(f"sticky must be a probability in 0..1, got {fields['sticky']!r}")
    if fields["noop_max"] < 0:
        raise ValueError(f"noop_max must be at least 0, got {fields['noop_max']!r}")
    if limit is not None and limit < 0:
        raise ValueError(f"max_episode_steps must be at least 1, or 0 for no limit, got {limit!r}")
