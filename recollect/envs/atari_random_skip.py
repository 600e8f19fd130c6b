"""Atari games whose decisions last a random number of frames, as the old ``Pong-v0`` did.

One ``ALEInterface`` a game, stepped one after another: ale-py's ``act`` holds Python's lock, threads gain nothing
(measured 1.0 times the speed with two). Unlike ale-py's vector environment it shows the very frame that ends a game.
"""

import functools
import math

import numpy as np
import torch

from recollect.envs.atari_base import HEIGHT, WIDTH, AtariBase, Played, binary, import_ale
from recollect.envs.protocols import AtariOptions
from recollect.envs.vector import Protocol
from recollect.rng import stream_seed

NOOP, FIRE = 0, 1  # ALE's own action numbers


class RandomSkipAtari(AtariBase):
    """N single games; each decision of each game draws its frame skip from that game's own stream."""

    def __init__(
        self,
        rom: str,
        num_envs: int,
        protocol: Protocol,
        *,
        options: AtariOptions | None = None,
        device: torch.device | str = "cpu",
        first_env: int = 0,
    ):
        ale_py = import_ale()
        self._rom = ale_py.roms.get_rom_path(rom)
        self._games = [ale_py.ALEInterface() for _ in range(num_envs)]
        for game in self._games:
            game.setFloat("repeat_action_probability", protocol.sticky)
            game.loadROM(self._rom)
        first = self._games[0]
        self._actions = first.getLegalActionSet() if protocol.full_actions else first.getMinimalActionSet()
        self._fire = protocol.fire_reset and any(action.value == FIRE for action in self._actions)
        assert isinstance(protocol.frame_skip, tuple)
        self._skips = protocol.frame_skip
        super().__init__(num_envs, protocol, tuple(action.name for action in self._actions), device, first_env, options)
        self._see = binary if self.options.obs == "binary" else shrink

    def _begin(self, seeds: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        self._draws = [np.random.default_rng(stream_seed(int(seed), "frame_skip")) for seed in seeds]
        for game, seed in zip(self._games, seeds, strict=True):
            game.setInt("random_seed", int(seed))
            game.loadROM(self._rom)  # the seed takes effect when the game is loaded
        self._stack = np.zeros((self.num_envs, *self.obs_spec["frame"].shape), dtype=np.uint8)
        return self._open(np.ones(self.num_envs, dtype=bool))

    def _open(self, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Begin a game on ``rows`` [N] bool. -> frames [N, K, H, W], lives [N]"""
        stack = self._stack.copy()
        for i in np.flatnonzero(rows):
            game = self._games[i]
            game.reset_game()
            noops = int(self._draws[i].integers(0, self.protocol.noop_max + 1))
            if self._fire:
                game.act(FIRE)
            for _ in range(noops - self._fire):
                game.act(NOOP)
                if game.game_over():
                    game.reset_game()
            stack[i] = 0
            stack[i, -1] = self._see(game.getScreenGrayscale())
        self._stack = stack
        return stack, self._lives_now()

    def _lives_now(self) -> np.ndarray:
        """Lives left in each game: [N] int."""
        return np.array([game.lives() for game in self._games])

    def _act(self, action: np.ndarray) -> None:
        self._pending = action

    def _advance(self) -> Played:
        stack = np.empty_like(self._stack)
        stack[:, :-1] = self._stack[:, 1:]
        reward = np.zeros(self.num_envs)
        for i, action in enumerate(self._pending):
            screen, reward[i] = self._play(i, int(action))
            stack[i, -1] = self._see(screen)
        self._stack = stack
        over = np.array([game.game_over() for game in self._games])
        return Played(stack, stack, reward, over, self._lives_now())

    def _play(self, i: int, action: int) -> tuple[np.ndarray, int]:
        """One decision of game i. -> grey screen [210, 160], raw reward"""
        game, pool = self._games[i], self.protocol.max_pool
        low, high = self._skips
        skip = int(self._draws[i].integers(low, high + 1))
        reward, before = 0, None
        for frame in range(skip):
            if pool and frame == skip - 1:
                before = game.getScreenGrayscale() if frame else None
            reward += game.act(self._actions[action])
            if game.game_over():
                break
        screen = game.getScreenGrayscale()
        return screen if before is None else np.maximum(screen, before), reward

    def _restart(self, played: Played, capped: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        rows = played.over | capped
        return self._open(rows) if rows.any() else (played.frames, played.lives)

    def render(self) -> np.ndarray:
        """The picture of environment 0, uint8 [210, 160, 3]."""
        return self._games[0].getScreenRGB()


def shrink(screen: np.ndarray) -> np.ndarray:
    """Scale a grey screen down by the area mean, rounded half to even. uint8 [H, W] -> uint8 [84, 84]

    The weights are whole numbers and their sums exact. ale-py's OpenCV adds rounded fractions instead: the pictures
    are equal on all of Pong, while elsewhere one pixel in 30,000 or fewer, an exact tie, falls a grey level apart.
    """
    height, width = screen.shape
    rows, columns = _area_weights(height, HEIGHT), _area_weights(width, WIDTH)
    bands = screen.astype(np.float32).reshape(-1, rows.shape[1], width)
    total = (rows @ bands).reshape(-1, columns.shape[1]) @ columns.T
    return np.rint(total / (rows[0].sum() * columns[0].sum())).astype(np.uint8).reshape(HEIGHT, WIDTH)


@functools.cache
def _area_weights(size: int, target: int) -> np.ndarray:
    """How much of each pixel falls into each larger one, over one period of the pattern: float32 [target/g, size/g].

    In units of 1 / (target / g) of a pixel, g the greatest common divisor; 210 -> 84 is [[2, 2, 1, 0, 0],
    [0, 0, 1, 2, 2]].
    """
    common = math.gcd(size, target)
    pixels, cells = size // common, target // common
    start, cell = np.arange(pixels) * cells, np.arange(cells)[:, None] * pixels
    overlap = np.minimum(start + cells, cell + pixels) - np.maximum(start, cell)
    return overlap.clip(min=0).astype(np.float32)
