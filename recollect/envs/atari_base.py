"""What both Atari engines share: named protocols, games by name, and where episodes end.

A *game* runs from a reset to its end or to the step limit and is what the score counts. A *training episode* is the
game, or with ``life_loss_ends`` one life of it: the game goes on, but the stack of frames starts afresh, so nothing
of one life is seen in the next.
"""

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import numpy as np
import torch
from torch import Tensor

from recollect.config import choose
from recollect.envs.host import HostEnv, Upload
from recollect.envs.protocols import rules_of
from recollect.envs.vector import Protocol, RawStep
from recollect.types import Discrete, Obs, TensorSpec

STACK, HEIGHT, WIDTH = 4, 84, 84


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
    rules = rules_of(name, overrides)
    return Protocol(
        env_id=env_id,
        engine="ale-py" if isinstance(rules["frame_skip"], int) else "ale-py, one by one",
        extra="grey 84x84 by area mean, 4 stacked, three of zeros after a reset; FIRE opens games, not lives",
        **rules,
    )


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
        self.stack = STACK
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
