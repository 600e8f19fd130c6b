"""What both Atari engines share: named protocols, games by name, and where episodes end.

A *game* runs from a reset to its end or to the step limit and is what the score counts. A *training episode* is the
game, or with ``life_loss_ends`` one life of it: the game goes on, but the stack of frames starts afresh, so nothing
of one life is seen in the next.
"""

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from types import ModuleType
from typing import Any

import numpy as np
import torch
from torch import Tensor

from recollect.config import choose, nearest
from recollect.envs.host import HostEnv, Upload
from recollect.envs.vector import Protocol, RawStep
from recollect.types import Discrete, Obs, TensorSpec

STACK, HEIGHT, WIDTH = 4, 84, 84
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
        """The rules that were given."""
        return {field: value for field, value in asdict(self).items() if value is not None}


def import_ale() -> ModuleType:
    """ale-py, which is an extra."""
    try:
        import ale_py
        import ale_py.roms
        import ale_py.vector_env
    except ImportError:
        raise ValueError("Atari games need ale-py, which is not installed: install recollect[atari]") from None
    ale_py.ALEInterface.setLoggerMode(ale_py.LoggerMode.Error)  # else it prints a banner for every environment
    return ale_py


def rom_of(env_id: str) -> str:
    """The ROM behind an id: ``ALE/MsPacman-v5`` -> ``ms_pacman``."""
    multiplayer_only = {"combat", "joust", "maze_craze", "warlords"}
    roms = set(import_ale().roms.get_all_rom_ids()) - multiplayer_only
    return choose("game", env_id, {f"ALE/{rom.title().replace('_', '')}-v5": rom for rom in roms})


def atari_protocol(env_id: str, name: str, overrides: Mapping[str, Any] | None = None) -> Protocol:
    """The card of a named protocol with single fields overridden, ``frame_skip`` perhaps by a range (low, high)."""
    if name not in PROTOCOLS:
        raise ValueError(f"unknown protocol {name!r}, allowed: {', '.join(PROTOCOLS)}{nearest(name, PROTOCOLS)}")
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
    return Protocol(
        env_id=env_id,
        engine="ale-py" if isinstance(skip, int) else "ale-py, one by one",
        name=f"{name} ({changed})" if changed else name,
        extra="grey 84x84 by area mean, 4 stacked, three of zeros after a reset; FIRE opens games, not lives",
        **fields,
    )


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


@dataclass(frozen=True)
class Played:
    """One decision as an emulator tells it, in numpy."""

    frames: np.ndarray  # [N, 4, 84, 84] uint8, the emulator's present stack, in memory that nobody writes again
    final: np.ndarray  # [N, 4, 84, 84] uint8, the stack after the action, before any reset; may be ``frames`` itself
    reward: np.ndarray  # [N] raw
    over: np.ndarray  # [N] bool, the game ended
    lives: np.ndarray  # [N] int


class AtariBase(HostEnv):
    """The step limit, lost lives and rounds on top of an emulator (see the module's docstring).

    An engine writes ``_begin``, ``_act``, ``_advance`` and ``_restart``. The limit is counted here, in decisions.
    """

    def __init__(
        self, num_envs: int, protocol: Protocol, actions: tuple[str, ...], device: torch.device | str, first_env: int
    ):
        self.num_envs, self.first_env = num_envs, first_env
        self.device = torch.device(device)
        self.protocol = protocol
        self.obs_spec = {"frame": TensorSpec((STACK, HEIGHT, WIDTH), torch.uint8, 0, 255)}
        self.action_spec = Discrete(len(actions), actions)
        self._upload = Upload(self.device)
        self._has_rounds = protocol.env_id == "ALE/Pong-v5"  # each nonzero reward is a point
        self._limit = protocol.max_episode_steps or np.iinfo(np.int64).max

    # What an engine writes.

    @abstractmethod
    def _begin(self, seeds: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Start all games. seeds: [N] -> frames [N, 4, 84, 84], lives [N]"""

    @abstractmethod
    def _act(self, action: np.ndarray) -> None:
        """Start a decision. action: [N] int64"""

    @abstractmethod
    def _advance(self) -> Played:
        """Finish the decision."""

    @abstractmethod
    def _restart(self, played: Played, capped: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Reset what must start anew: capped [N] bool met the limit -> frames [N, 4, 84, 84], lives [N]"""

    # What it gets.

    def _start(self, seeds: np.ndarray) -> Obs:
        frames, self._lives = self._begin(seeds)
        self._game_steps = np.zeros(self.num_envs, dtype=np.int64)
        self._age = np.zeros(self.num_envs, dtype=np.int64)  # decisions since the training episode began
        return self._upload({"frame": frames})

    def _send(self, action: Tensor) -> None:
        self._act(self._host_action(action))

    def _recv(self) -> RawStep:
        played = self._advance()
        self._game_steps += 1
        capped = (self._game_steps >= self._limit) & ~played.over
        frames, lives = self._restart(played, capped)
        game_over = played.over | capped
        self._game_steps[game_over] = 0
        if not self.protocol.life_loss_ends:
            return self._hand_over(played, frames, played.over, capped)
        # A game that shows no lives left while it still runs (Q*bert) has not lost one more.
        lost = (played.lives < self._lives) & (played.lives > 0) & ~played.over
        self._lives = lives
        frames = self._hide_earlier_lives(frames, played.final, lost, lost | game_over)
        return self._hand_over(played, frames, played.over | lost, capped & ~lost, game_over)

    def _hide_earlier_lives(
        self, frames: np.ndarray, final: np.ndarray, lost: np.ndarray, ended: np.ndarray
    ) -> np.ndarray:
        """Zero the frames from before the training episode; the present stack, a copy where ``final`` must differ.

        frames, final: [N, 4, 84, 84]; lost, ended: [N] bool
        """
        _keep_newest(final, self._age + 2)
        if final is frames and lost.any():
            frames = frames.copy()
        self._age = np.where(ended, 0, self._age + 1)
        _keep_newest(frames, self._age + 1)
        return frames

    def _hand_over(
        self,
        played: Played,
        frames: np.ndarray,
        terminated: np.ndarray,
        truncated: np.ndarray,
        game_over: np.ndarray | None = None,
    ) -> RawStep:
        """Take one step's arrays to the device."""
        arrays = {"frame": frames, "reward": played.reward.astype(np.float32)}
        arrays |= {"terminated": terminated, "truncated": truncated}
        if played.final is not frames:
            arrays["final"] = played.final
        if game_over is not None:
            arrays["game_over"] = game_over
        parts = self._upload(arrays)
        return RawStep(
            obs={"frame": parts["frame"]},
            reward=parts["reward"],
            terminated=parts["terminated"],
            truncated=parts["truncated"],
            final_obs={"frame": parts.get("final", parts["frame"])},
            round_end=parts["reward"] != 0 if self._has_rounds else None,
            may_truncate=bool(truncated.any()),
            game_over=parts.get("game_over"),
        )


def _keep_newest(stack: np.ndarray, count: np.ndarray) -> None:
    """Zero all but the newest ``count`` frames, in place. stack: [N, 4, 84, 84]; count: [N] int"""
    for row in np.flatnonzero(count < STACK):
        stack[row, : STACK - count[row]] = 0
