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
from recollect.envs.pong.seeing import BINARY_SIZE, BINARY_TOP
from recollect.envs.protocols import FEWER, AtariOptions, rules_of
from recollect.envs.vector import Protocol, RawStep
from recollect.types import Discrete, Obs, TensorSpec

HEIGHT, WIDTH = 84, 84
PONG = "ALE/Pong-v5"
GROUNDS = (87, 107)  # the greys of Pong's empty field: in play, and in a game's first two frames


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


def atari_protocol(
    env_id: str, name: str, overrides: Mapping[str, Any] | None = None, options: AtariOptions | None = None
) -> Protocol:
    """The card of a named protocol with single fields overridden, ``frame_skip`` perhaps by a range (low, high)."""
    rules = rules_of(name, overrides)
    options = options or AtariOptions()
    if options.obs == "binary" and env_id != PONG:
        raise ValueError(f"obs=binary erases Pong's background; {env_id} shows pixels")
    seen = {"pixels": "grey 84x84 by area mean", "binary": "binary 80x80"}[options.obs]
    actions = f"{options.actions} actions; " if options.actions else ""
    return Protocol(
        env_id=env_id,
        engine="ale-py" if isinstance(rules["frame_skip"], int) else "ale-py, one by one",
        extra=f"{seen}, {options.stack} stacked, zeros before a reset; {actions}FIRE opens games, not lives",
        **rules,
    )


@dataclass(frozen=True)
class Played:
    """One decision as an emulator tells it, in numpy."""

    frames: np.ndarray  # [N, K, H, W] uint8, the emulator's present stack, in memory that nobody writes again
    final: np.ndarray  # [N, K, H, W] uint8, the stack after the action, before any reset; may be ``frames`` itself
    reward: np.ndarray  # [N] raw
    over: np.ndarray  # [N] bool, the game ended
    lives: np.ndarray  # [N] int


class AtariBase(HostEnv):
    """The step limit, lost lives and rounds on top of an emulator (see the module's docstring).

    An engine writes ``_begin``, ``_act``, ``_advance`` and ``_restart``. The limit is counted here, in decisions.
    K frames are stacked.
    """

    def __init__(
        self,
        num_envs: int,
        protocol: Protocol,
        actions: tuple[str, ...],
        device: torch.device | str,
        first_env: int,
        options: AtariOptions | None = None,
    ):
        """actions: names of all that the emulator takes, of which ``options`` may leave fewer."""
        self.options = options or AtariOptions()
        self.num_envs, self.first_env = num_envs, first_env
        self.device = torch.device(device)
        self.protocol = protocol
        self.stack = self.options.stack
        binary = self.options.obs == "binary"
        size = (BINARY_SIZE, BINARY_SIZE) if binary else (HEIGHT, WIDTH)
        self.obs_spec = {"frame": TensorSpec((self.options.stack, *size), torch.uint8, 0, 1 if binary else 255)}
        names = FEWER[self.options.actions] if self.options.actions else actions
        self._numbers = _numbers(names, actions, protocol.env_id)
        self.action_spec = Discrete(len(names), names)
        self._upload = Upload(self.device)
        self._has_rounds = protocol.env_id == "ALE/Pong-v5"  # each nonzero reward is a point
        self._limit = protocol.max_episode_steps or np.iinfo(np.int64).max

    # What an engine writes.

    @abstractmethod
    def _begin(self, seeds: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Start all games. seeds: [N] -> frames [N, K, H, W], lives [N]"""

    @abstractmethod
    def _act(self, action: np.ndarray) -> None:
        """Start a decision. action: [N] int64, as the emulator numbers them"""

    @abstractmethod
    def _advance(self) -> Played:
        """Finish the decision."""

    @abstractmethod
    def _restart(self, played: Played, capped: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Reset what must start anew: capped [N] bool met the limit -> frames [N, K, H, W], lives [N]"""

    # What it gets.

    def _start(self, seeds: np.ndarray) -> Obs:
        frames, self._lives = self._begin(seeds)
        self._game_steps = np.zeros(self.num_envs, dtype=np.int64)
        self._age = np.zeros(self.num_envs, dtype=np.int64)  # decisions since the training episode began
        return self._upload({"frame": frames})

    def _send(self, action: Tensor) -> None:
        self._act(self._numbers[self._host_action(action)])

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

        frames, final: [N, K, H, W]; lost, ended: [N] bool
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


def binary(screen: np.ndarray) -> np.ndarray:
    """Pong's field, every second line and column, 1 where something stands on it. uint8 [..., 210, 160] -> [80, 80]

    Empty screens, as of a stack's beginning, stay empty.
    """
    field = np.ascontiguousarray(screen[..., BINARY_TOP : BINARY_TOP + 2 * BINARY_SIZE : 2, ::2])
    stands = field != 0
    for ground in GROUNDS:
        stands &= field != ground
    return stands.view(np.uint8)


def _numbers(names: tuple[str, ...], actions: tuple[str, ...], env_id: str) -> np.ndarray:
    """The emulator's number of each named action. [A] int64"""
    for name in names:
        if name not in actions:
            raise ValueError(f"{env_id} does not know the action {name}, only {', '.join(actions)}")
    return np.array([actions.index(name) for name in names], dtype=np.int64)


def _keep_newest(stack: np.ndarray, count: np.ndarray) -> None:
    """Zero all but the newest ``count`` frames, in place. stack: [N, K, H, W]; count: [N] int"""
    size = stack.shape[1]
    for row in np.flatnonzero(count < size):
        stack[row, : size - count[row]] = 0
