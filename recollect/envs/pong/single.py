"""Pong for everyone: ``gymnasium.make`` and ``gymnasium.make_vec`` of "recollect/Pong-v0", arrays in and out.

    gymnasium.make("recollect/Pong-v0", obs="state", protocol="v5", sticky=0.1, paddle_height="8..24", gravity=0.1)

Every field of ``Options`` is a keyword argument: what is observed, single rules on top of the protocol, and physics as
a number, or a range (8, 24) from which each episode draws anew. ``gymnasium.make`` keeps ``max_episode_steps`` to
itself and counts it in a wrapper of its own; ``make_vec`` and the classes here hand it to the game.
"""

import numbers
from collections.abc import Mapping
from typing import Any

import gymnasium
import numpy as np
import torch
from gymnasium.spaces import Box, Discrete
from gymnasium.vector import AutoresetMode
from gymnasium.vector.utils import batch_space
from torch import Tensor

from recollect.config import choose, flat_fields, override
from recollect.envs.pong import physics, ram, seeing, showing
from recollect.envs.pong.env import Playing, PongEnv
from recollect.envs.pong.options import Options
from recollect.envs.protocols import PROTOCOLS
from recollect.nested import flatten, unflatten
from recollect.types import Discrete as DiscreteSpec
from recollect.types import Obs

HERTZ = 60  # frames that the console shows in a second
RENDER_MODES = {None: "nothing is drawn", "rgb_array": "the screen"}

# What a number of the state vector may be under any physics, noise included; in the ALE's game all lie about in -2..2.
PLACE_BOUNDS, SPEED_BOUNDS = (-8.0, 8.0), (-64.0, 64.0)
STATE_BOUNDS = {
    "ball_visible": (0.0, 1.0),
    "paddle_speed": SPEED_BOUNDS,
    "ball_speed_x": (-1.0, 1.0),
    "ball_speed_y": SPEED_BOUNDS,
}


def options_of(settings: Mapping[str, Any]) -> Options:
    """The options that keyword arguments name. Raise ValueError for an unknown one, or a value that is none."""
    known = flat_fields(Options)
    for name in settings:
        choose("Pong option", name, known)
    return override(Options(), **{name: _as_word(name, value) for name, value in settings.items()})


def _as_word(name: str, value: Any) -> Any:
    """Physics as ``Options`` writes it: (8, 24) is "8.0..24.0"; all else as it is."""
    if name not in physics.DEFAULTS or value is None or isinstance(value, str):
        return value
    pair = isinstance(value, list | tuple)
    ends = tuple(value) if pair else (value,)
    real = all(isinstance(end, numbers.Real) and not isinstance(end, bool) for end in ends)
    if not real or len(ends) != 1 + pair:
        raise ValueError(f"physics {name!r} is a number or a range as (8, 24) or '8..24', got {value!r}")
    return "..".join(str(float(end)) for end in ends)


def observations(env: PongEnv) -> Box:
    """What one environment shows: pictures and memory in bytes, positions in float32."""
    options = env.options
    if options.obs == "ram":
        return Box(0, 255, (ram.SIZE,), np.uint8)
    if options.obs == "state":
        names = seeing.state_names(options.velocities, options.opponent)
        low, high = np.array([STATE_BOUNDS.get(name, PLACE_BOUNDS) for name in names], np.float32).T
        return Box(low, high, dtype=np.float32)
    frame = env.obs_spec["frame"]
    return Box(int(frame.low), int(frame.high), frame.shape, np.uint8)


def actions_of(env: PongEnv) -> Discrete:
    """What one environment can be told."""
    assert isinstance(env.action_spec, DiscreteSpec)
    return Discrete(env.action_spec.n)


def _made(num_envs: int, protocol: str, render_mode: str | None, settings: Mapping[str, Any]) -> PongEnv:
    """The tensor games behind an interface."""
    if render_mode not in RENDER_MODES:
        raise ValueError(f"render_mode must be None or 'rgb_array', got {render_mode!r}")
    if not isinstance(num_envs, int) or num_envs < 1:
        raise ValueError(f"num_envs must be a whole number from 1, got {num_envs!r}")
    choose("protocol", str(protocol), PROTOCOLS)
    return PongEnv(num_envs, options_of(settings), protocol=str(protocol))


def _fps(env: PongEnv) -> int:
    """Decisions in a second of the console's time."""
    return max(1, round(HERTZ / env.protocol.frames_per_step))


def _arrays(env: PongEnv, obs: Obs) -> np.ndarray:
    """Observations as an array that nobody else holds: uint8, of the state float32 [N, ...]"""
    (seen,) = obs.values()
    if env.options.obs == "ram":
        seen = (seen * 255).round().to(torch.uint8)
    return seen.numpy().copy()


def _row(playing: Playing, row: int) -> Playing:
    """One environment of a batch. Every field is [1]"""
    parts = {name: part if len(part) == 1 else part[row : row + 1] for name, part in flatten(playing).items()}
    return unflatten(playing, parts)


def _screen(playing: Playing) -> np.ndarray:
    """The screen of a single environment in colour, uint8 [210, 160, 3]."""
    return showing.screen(playing.game, playing.physics)


def _last(env: PongEnv, before: Playing, action_N: Tensor) -> Playing:
    """What a decision made of ``before``, without the episodes that have begun since: its frames, played again."""
    return env._frames(before, env._turns[action_N], env._buttons[action_N])[0]


class PongSingle(gymnasium.Env[np.ndarray, np.int64]):
    """One game: row 0 of a ``PongEnv`` with the same seed.

    The next episode has begun when one ends, so ``reset()`` goes on with it; in mid-episode it draws a new seed.
    """

    metadata = {"render_modes": ["rgb_array"], "render_fps": HERTZ // 4}  # noqa: RUF012 - as Gymnasium has it

    def __init__(self, *, protocol: str = "v5-pooled", render_mode: str | None = None, **settings: Any):
        self._env = _made(1, protocol, render_mode, settings)
        self.render_mode = render_mode
        self.metadata = {**self.metadata, "render_fps": _fps(self._env)}
        self.action_space = actions_of(self._env)
        self.observation_space = observations(self._env)
        self._shown: Playing | None = None  # what render shows; None before the first reset
        self._opening: np.ndarray | None = None  # of the next episode, between the last one's end and reset

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[np.ndarray, dict]:
        super().reset(seed=seed)
        opening, self._opening = self._opening, None
        if seed is not None or opening is None:
            seed = int(self.np_random.integers(2**31)) if seed is None else seed
            opening = _arrays(self._env, self._env.reset(seed))[0]
        self._shown = self._env._playing
        return opening, {}

    def step(self, action: np.int64 | int) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        if self._shown is None or self._opening is not None:
            raise ValueError("reset() must come before step(action), and again after an episode's end")
        if not self.action_space.contains(action):
            raise ValueError(f"an action must be a whole number in 0..{len(self._env._turns) - 1}, got {action!r}")
        before, action_1 = self._env._playing, torch.tensor([int(action)])
        step = self._env.step(action_1)
        terminated, truncated = bool(step.terminated), bool(step.truncated)
        if terminated or truncated:
            self._opening = _arrays(self._env, step.obs)[0]
            self._shown = _last(self._env, before, action_1)
        else:
            self._shown = self._env._playing
        seen = _arrays(self._env, step.final_obs)[0]
        return seen, float(step.reward), terminated, truncated, {"round_end": bool(step.round_end)}

    def render(self) -> np.ndarray | None:  # type: ignore[override]
        """The screen, uint8 [210, 160, 3]: at an episode's end its last one."""
        if self.render_mode is None:
            return None
        if self._shown is None:
            raise ValueError("reset() must come before render()")
        return _screen(self._shown)

    def state_dict(self) -> dict[str, Any]:
        """Everything needed to go on from here to the bit, as plain data and tensors."""
        if self._shown is None:
            raise ValueError("reset() must come before state_dict()")
        return {
            "env": self._env.state_dict(),
            "shown": flatten(self._shown),
            "ended": self._opening is not None,
            "np_random": self.np_random.bit_generator.state,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> np.ndarray:
        """Go on from ``state_dict``: what the next action sees."""
        obs = _arrays(self._env, self._env.load_state_dict(state["env"]))[0]
        self._shown = unflatten(self._env._playing, state["shown"])
        self._opening = obs if state["ended"] else None
        self.np_random.bit_generator.state = state["np_random"]
        return obs.copy()


class PongVector(gymnasium.vector.VectorEnv[np.ndarray, np.ndarray, np.ndarray]):
    """N games at once. Where an episode ends, ``step`` gives the next one's first observation and, in
    ``info["final_obs"]``, the last one's.
    """

    metadata = {"render_modes": ["rgb_array"], "autoreset_mode": AutoresetMode.SAME_STEP}  # noqa: RUF012

    def __init__(
        self, num_envs: int = 1, *, protocol: str = "v5-pooled", render_mode: str | None = None, **settings: Any
    ):
        self._env = _made(num_envs, protocol, render_mode, settings)
        self.num_envs, self.render_mode = num_envs, render_mode
        self.metadata = {**self.metadata, "render_fps": _fps(self._env)}
        self.single_action_space = actions_of(self._env)
        self.single_observation_space = observations(self._env)
        self.action_space = batch_space(self.single_action_space, num_envs)
        self.observation_space = batch_space(self.single_observation_space, num_envs)
        self._begun = False

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[np.ndarray, dict]:
        """Every episode anew. Environment i draws from stream i of the seed."""
        super().reset(seed=seed)
        if options and "reset_mask" in options:
            raise ValueError("reset_mask is not known here: each episode begins anew by itself when one ends")
        seed = int(self.np_random.integers(2**31)) if seed is None else seed
        self._begun = True
        return _arrays(self._env, self._env.reset(seed)), {}

    def step(self, actions: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, dict[str, Any]]:
        """actions: whole numbers [N] -> observations [N, ...], rewards float64 [N], two masks bool [N], info"""
        actions = np.asarray(actions)
        if not self.action_space.contains(actions):
            allowed = f"{self.num_envs} whole numbers in 0..{len(self._env._turns) - 1}"
            raise ValueError(f"actions must be {allowed}, got {actions.dtype} {str(actions.tolist())[:60]}")
        step = self._env.step(torch.from_numpy(actions.astype(np.int64)))
        terminated, truncated, round_end = (
            mask.numpy().copy() for mask in (step.terminated, step.truncated, step.round_end)
        )
        info: dict[str, Any] = {"round_end": round_end, "_round_end": np.ones(self.num_envs, bool)}
        ended = np.flatnonzero(terminated | truncated)
        if len(ended):
            final = _arrays(self._env, step.final_obs)
            for row in ended:
                info = self._add_info(info, {"final_obs": final[row], "final_info": {"round_end": True}}, int(row))
        return _arrays(self._env, step.obs), step.reward.double().numpy(), terminated, truncated, info

    def render(self) -> tuple[np.ndarray, ...] | None:
        """The screen of every environment, each uint8 [210, 160, 3]."""
        if self.render_mode is None:
            return None
        if not self._begun:
            raise ValueError("reset() must come before render()")
        return tuple(_screen(_row(self._env._playing, row)) for row in range(self.num_envs))
