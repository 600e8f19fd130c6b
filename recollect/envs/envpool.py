"""Environments of EnvPool: classic control, MuJoCo, Atari and more, stepped in C++ threads.

What was measured of EnvPool 1.2 and is relied on here:

- Its own autoreset comes a step late. Resetting the finished rows by their ids at once makes a same-step autoreset
  of it, and the step after does not reset again.
- It calls a step truncated whenever it meets the limit, even where the task ended on it. The limit is therefore
  counted here: an end at the limit is an end, and nothing bootstraps from it.
- Seeds are fixed when a pool is made (one each), so every ``reset(seed)`` makes a new pool.
- Every ``recv`` hands out new memory, so an observation may be held for as long as one likes.
"""

import warnings
from collections.abc import Mapping
from types import ModuleType
from typing import Any

import numpy as np
import torch
from gymnasium.spaces import Box, Discrete, Space
from torch import Tensor

from recollect.config import choose
from recollect.envs.gymnasium import action_spec_of
from recollect.envs.host import HostEnv, Upload
from recollect.envs.vector import Protocol, RawStep, VectorEnv
from recollect.types import Continuous, Obs, ObsSpec, TensorSpec

NEVER = 2**30  # EnvPool's own limit, out of reach

ATARI = {
    "stack_num": 4,
    "frame_skip": 4,
    "noop_max": 1,  # the least it can do: it draws from 1..noop_max
    "zero_discount_on_life_loss": False,
    "episodic_life": False,
    "reward_clip": False,
    "use_fire_reset": False,
    "img_height": 84,
    "img_width": 84,
    "gray_scale": True,
    "full_action_space": False,
    "repeat_action_probability": 0.25,
    "use_inter_area_resize": True,
}
"""EnvPool's Atari options, stated and not inherited: as near to our ``v5-pooled`` as it comes."""
NOT_OFFERED = {
    *("num_envs", "batch_size", "num_threads", "max_num_players", "thread_affinity_offset", "base_path", "task"),
    *("seed", "env_seed", "gym_reset_return_info", "max_episode_steps", "reward_threshold"),
    *("reward_clip", "episodic_life", "zero_discount_on_life_loss"),  # they would hide the raw score
}


def import_envpool() -> ModuleType:
    """EnvPool, which is an extra."""
    try:
        import envpool
    except ImportError:
        raise ValueError("this engine needs EnvPool, which is not installed: install recollect[envpool]") from None
    return envpool


def make_envpool(
    env_id: str,
    num_envs: int,
    *,
    device: torch.device | str = "cpu",
    num_threads: int = 0,
    first_env: int = 0,
    max_episode_steps: int | None = None,
    clip_reward: bool = False,
    **options: Any,
) -> VectorEnv:
    """N environments of an EnvPool id; ``options`` are EnvPool's own for that id, ``max_episode_steps`` decisions."""
    envpool = import_envpool()
    choose("EnvPool id", env_id, dict.fromkeys(envpool.list_all_envs()))
    config = envpool.make_spec(env_id).config._asdict()
    for option in options:
        choose(f"option of EnvPool's {env_id}", option, dict.fromkeys(config.keys() - NOT_OFFERED))
    if "repeat_action_probability" in config:
        options = {**ATARI, **options}
    limit = config["max_episode_steps"] if max_episode_steps is None else max_episode_steps
    if limit < 1:
        raise ValueError(f"max_episode_steps must be at least 1, got {limit}")
    protocol = _card(env_id, {**config, **options}, limit, clip_reward)
    return EnvPoolEnv(num_envs, protocol, options, device=device, num_threads=num_threads, first_env=first_env)


def _card(env_id: str, config: Mapping[str, Any], limit: int, clip_reward: bool) -> Protocol:
    """The rules that ``config`` stands for, the task's own options in words."""
    own = ", ".join(f"{name}={value}" for name, value in config.items() if name not in NOT_OFFERED)
    common = {"env_id": env_id, "engine": "envpool", "max_episode_steps": limit, "clip_reward": clip_reward}
    if "repeat_action_probability" not in config:
        return Protocol(**common, extra=own)
    return Protocol(
        **common,
        frame_skip=config["frame_skip"],
        sticky=config["repeat_action_probability"],
        max_pool=config["frame_skip"] > 1,
        noop_max=config["noop_max"],
        fire_reset=config["use_fire_reset"],
        full_actions=config["full_action_space"],
        extra=f"at least one no-op; after a reset the stack is the first frame four times; {own}",
    )


class EnvPoolEnv(HostEnv):
    """A pool of N environments; ``send`` returns at once, so two halves of a batch can take turns with acting."""

    _pool: Any

    def __init__(
        self,
        num_envs: int,
        protocol: Protocol,
        options: Mapping[str, Any],
        *,
        device: torch.device | str = "cpu",
        num_threads: int = 0,
        first_env: int = 0,
    ):
        self.num_envs, self.first_env, self.protocol = num_envs, first_env, protocol
        self.device = torch.device(device)
        self._options = {**options, "num_threads": num_threads}
        self._pool = self._make_pool(np.zeros(num_envs, dtype=np.int64))
        self.obs_spec = obs_spec_of(self._space, protocol.env_id)
        self.action_spec = action_spec_of(self._action_space, protocol.env_id)
        self._part = next(iter(self.obs_spec))
        self._first_action = int(getattr(self._action_space, "start", 0))
        self._limit = protocol.max_episode_steps or NEVER
        self._has_rounds = protocol.env_id == "Pong-v5"  # each nonzero reward is a point
        self._upload = Upload(self.device)

    def _make_pool(self, seeds: np.ndarray) -> Any:
        """A new pool, since an old one cannot be seeded again. seeds: [N] int64"""
        pool = import_envpool().make(
            self.protocol.env_id,
            env_type="gymnasium",
            num_envs=self.num_envs,
            batch_size=self.num_envs,  # all of them, in order
            seed=seeds.tolist(),
            max_episode_steps=NEVER,
            **self._options,
        )
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # float32 spaces with float64 bounds, read here once: no news
            self._space, self._action_space = pool.observation_space, pool.action_space
        return pool

    def _start(self, seeds: np.ndarray) -> Obs:
        self._pool = self._make_pool(seeds)
        self._steps = np.zeros(self.num_envs, dtype=np.int64)
        return self._upload({self._part: self._encode(self._pool.reset()[0])})

    def _encode(self, raw: np.ndarray) -> np.ndarray:
        """Observations in our layout: states one-hot, images channels first, the rest flat float32. [N, ...]"""
        if isinstance(self._space, Discrete):
            states = np.arange(self._space.n) + self._space.start
            return (raw.reshape(-1, 1) == states).astype(np.float32)
        if self._part == "frame":
            return np.ascontiguousarray(np.moveaxis(raw, -1, 1)) if _channels_last(self._space.shape) else raw
        return raw.reshape(len(raw), -1).astype(np.float32, copy=False)

    def _send(self, action: Tensor) -> None:
        host = self._host_action(action)
        spec = self.action_spec
        self._pool.send(
            np.clip(host, spec.low, spec.high) if isinstance(spec, Continuous) else host + self._first_action
        )

    def _recv(self) -> RawStep:
        raw, reward, terminated, truncated, _ = self._pool.recv()
        obs = final = self._encode(raw)
        self._steps += 1
        truncated = (truncated | (self._steps >= self._limit)) & ~terminated
        ended = terminated | truncated
        arrays = {"reward": reward.astype(np.float32), "terminated": terminated, "truncated": truncated}
        if ended.any():
            first, info = self._pool.reset(np.flatnonzero(ended).astype(np.int32))
            obs = final.copy()
            obs[info["env_id"]] = self._encode(first)
            self._steps[ended] = 0
            arrays["final"] = final
        parts = self._upload({"obs": obs, **arrays})
        return RawStep(
            obs={self._part: parts["obs"]},
            reward=parts["reward"],
            terminated=parts["terminated"],
            truncated=parts["truncated"],
            final_obs={self._part: parts.get("final", parts["obs"])},
            round_end=parts["reward"] != 0 if self._has_rounds else None,
            may_truncate=bool(truncated.any()),
        )

    def close(self) -> None:
        """Stop the pool's threads."""
        self._pool = None


def obs_spec_of(space: Space, env_id: str) -> ObsSpec:
    """Our names for an EnvPool observation space."""
    if isinstance(space, Discrete):
        return {"vector": TensorSpec((int(space.n),), torch.float32, 0.0, 1.0)}
    if isinstance(space, Box) and len(space.shape) == 3 and space.dtype == np.uint8:
        shape = (space.shape[2], *space.shape[:2]) if _channels_last(space.shape) else space.shape
        return {"frame": TensorSpec(shape, torch.uint8, 0, 255)}
    if isinstance(space, Box):
        return {"vector": TensorSpec((int(np.prod(space.shape)),), torch.float32)}
    raise ValueError(f"environment {env_id!r} observes a {type(space).__name__}; known: Box and Discrete")


def _channels_last(shape: tuple[int, ...]) -> bool:
    """Whether an image of this shape is [H, W, C]; most of EnvPool's are [C, H, W]."""
    return shape[-1] <= 4 < shape[0]
