"""Atari games on ale-py's C++ vector environment: emulation, scaling and stacking in its threads.

What was measured of ale-py 0.12 and is relied on here:

- Every ``recv`` hands out new memory, so an observation may be held for as long as one likes.
- In ``SAME_STEP`` mode ``info["final_obs"]`` exists only on steps where some game ended and is stale on the others'
  rows; ``info["lives"]`` is already the next game's.
- On the frame that ends a game or reaches ale-py's frame limit it reads no screen: the newest picture of ``final_obs``
  is then the one before. Games that end keep that picture (nothing bootstraps from them); the limit is counted here
  instead, so that the observation a truncated step bootstraps from is the true one.
- ``episodic_life`` would reset the whole game at a lost life; lives are watched here instead, and the game goes on.
- An action outside its range would leave ``recv`` waiting for ever; it is refused before it is sent.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from recollect.envs.atari_base import (
    HEIGHT,
    WIDTH,
    AtariBase,
    Played,
    atari_protocol,
    binary,
    import_ale,
    rom_of,
)
from recollect.envs.atari_random_skip import RandomSkipAtari
from recollect.envs.protocols import PROTOCOLS, AtariOptions
from recollect.envs.vector import Protocol, VectorEnv

__all__ = ["PROTOCOLS", "AtariEnv", "AtariOptions", "make_atari"]

NEVER = 2**30  # ale-py's own limit in emulator frames, out of reach


def make_atari(
    env_id: str,
    num_envs: int,
    *,
    protocol: str = "v5-pooled",
    overrides: Mapping[str, Any] | None = None,
    options: AtariOptions | None = None,
    device: torch.device | str = "cpu",
    num_threads: int = 0,
    first_env: int = 0,
    render: bool = False,
) -> VectorEnv:
    """N games of ``env_id`` by the rules of a named protocol (``PROTOCOLS`` says what each means).

    ``options`` and ``overrides`` change single rules, the first as the command line parses them, observations and
    actions among them. ``num_threads`` 0 lets ale-py choose; ``render`` keeps a coloured copy of environment 0 for
    ``render()``.
    """
    rom, options = rom_of(env_id), options or AtariOptions()
    card = atari_protocol(env_id, protocol, {**options.chosen(), **(overrides or {})}, options)
    where: dict[str, Any] = {"options": options, "device": device, "first_env": first_env}
    if isinstance(card.frame_skip, tuple):
        return RandomSkipAtari(rom, num_envs, card, **where)
    return AtariEnv(rom, num_envs, card, num_threads=num_threads, render=render, **where)


class AtariEnv(AtariBase):
    """Games with a fixed frame skip; ``send`` returns at once, so two halves of a batch can take turns with acting."""

    _games: Any  # ale-py's AtariVectorEnv, imported only when a game is made
    _painter: Any  # another of one environment that draws what environment 0 plays, or None

    def __init__(
        self,
        rom: str,
        num_envs: int,
        protocol: Protocol,
        *,
        options: AtariOptions | None = None,
        device: torch.device | str = "cpu",
        num_threads: int = 0,
        first_env: int = 0,
        render: bool = False,
    ):
        options = options or AtariOptions()
        self._binary = options.obs == "binary"
        shape = {"stack": options.stack, "whole": self._binary}
        self._games = _vector_env(rom, num_envs, protocol, num_threads=num_threads, **shape)
        actions = tuple(action.name for action in self._games.ale.get_action_set())
        super().__init__(num_envs, protocol, actions, device, first_env, options)
        self._painter = _vector_env(rom, 1, protocol, num_threads=1, colour=True) if render else None

    def _begin(self, seeds: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        if self._painter is not None:
            self._picture = self._painter.reset(seed=seeds[:1])[0][0, 0]
        frames, info = self._games.reset(seed=seeds)
        return self._see(frames), info["lives"]

    def _see(self, frames: np.ndarray) -> np.ndarray:
        """The observation that ale-py's frames make. [N, K, H, W]"""
        return binary(frames) if self._binary else frames

    def _act(self, action: np.ndarray) -> None:
        self._games.send(action)
        if self._painter is not None:
            self._painter.send(action[:1])

    def _advance(self) -> Played:
        frames, reward, over, _, info = self._games.recv()
        if self._painter is not None:
            self._picture = self._painter.recv()[0][0, 0]
        final = frames = self._see(frames)
        if over.any():
            final = frames.copy()
            final[over] = self._see(info["final_obs"][over])
        return Played(frames, final, reward, over, info["lives"])

    def _restart(self, played: Played, capped: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Games that ended have begun anew already; those at the limit do it here, on the streams they are on."""
        if not capped.any():
            return played.frames, played.lives
        if self._painter is not None and capped[0]:
            self._picture = _reset_rows(self._painter, capped[:1])[0][0, 0]
        frames, info = _reset_rows(self._games, capped)
        return self._see(frames), info["lives"]

    def render(self) -> np.ndarray:
        """The picture of environment 0, uint8 [210, 160, 3]."""
        if self._painter is None:
            raise ValueError(f"{self.protocol.env_id} draws pictures only when made with render=True")
        return self._picture

    def close(self) -> None:
        """Stop ale-py's threads."""
        self._games = self._painter = None


def _reset_rows(games: Any, rows: np.ndarray) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    """Reset the games of ``rows`` [N] bool without reseeding; every row's observation and info."""
    return games.reset(seed=np.full(rows.sum(), -1), options={"reset_mask": rows})


def _vector_env(
    rom: str,
    num_envs: int,
    protocol: Protocol,
    *,
    num_threads: int,
    stack: int = 1,
    whole: bool = False,
    colour: bool = False,
) -> Any:
    """ale-py's vector environment, every option stated; ``whole`` leaves screens at their size, ``colour`` as well."""
    ale_py = import_ale()
    height, width = _screen_size(ale_py, rom) if whole or colour else (HEIGHT, WIDTH)
    return ale_py.vector_env.AtariVectorEnv(
        rom,
        num_envs,
        batch_size=0,  # all of them, in order
        num_threads=num_threads,
        thread_affinity_offset=-1,  # threads are not pinned to cores
        max_num_frames_per_episode=NEVER,
        repeat_action_probability=protocol.sticky,
        full_action_space=protocol.full_actions,
        continuous=False,
        continuous_action_threshold=0.5,
        autoreset_mode="SameStep",
        img_height=height,
        img_width=width,
        grayscale=not colour,
        stack_num=stack,
        frameskip=protocol.frame_skip,
        maxpool=protocol.max_pool and not colour,  # pooling would draw moving things twice
        noop_max=protocol.noop_max + 1 if protocol.noop_max else 0,  # ale-py draws from 0..noop_max - 1
        episodic_life=False,
        life_loss_info=False,
        reward_clipping=False,
        use_fire_reset=protocol.fire_reset,
    )


def _screen_size(ale_py: Any, rom: str) -> tuple[int, int]:
    """Height and width of a game's own screen: 210 x 160, for a few games 250 x 160."""
    game = ale_py.ALEInterface()
    game.loadROM(ale_py.roms.get_rom_path(rom))
    return game.getScreenDims()
