"""From a name to an engine: the one place that knows which ids go where. ``make_env`` is all that others call."""

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import gymnasium
import torch

from recollect.config import is_external, load_external, parse_options
from recollect.envs import darkroom
from recollect.envs.gymnasium import GymnasiumEnv, make_single
from recollect.envs.vector import VectorEnv


@dataclass(frozen=True)
class EnvConfig:
    """Which environment, how many of it, by which rules."""

    env_id: str = "CartPole-v1"
    """ALE/..., recollect/..., any Gymnasium id, or your own as mine.py:MyEnv."""
    num_envs: int = 8
    """How many run side by side."""
    engine: Literal["auto", "gymnasium", "envpool"] = "auto"
    """Who steps it; auto takes the fastest that keeps every promise."""
    protocol: str = "v5-pooled"
    """Atari's named rules: v5, v5-pooled, deterministic, no-sticky, v0-random-skip."""
    env_options: tuple[str, ...] = ()
    """Single rules on top, as key=value: sticky=0.1 clip_reward=true (Atari), size=9 goal=0,0 (DarkRoom)."""
    env_threads: int = 0
    """Threads of an engine that steps in threads; 0 lets it choose."""


@dataclass(frozen=True)
class GymnasiumOptions:
    """What can be chosen about any Gymnasium id."""

    max_episode_steps: int | None = None
    """Another limit of decisions per episode."""


Maker = Callable[..., VectorEnv]


def make_env(
    config: EnvConfig,
    *,
    num_envs: int | None = None,
    device: str | torch.device = "cpu",
    first_env: int = 0,
    render: bool = False,
) -> VectorEnv:
    """The environments that ``config`` names; ``num_envs`` and ``first_env`` pick a slice of a larger batch."""
    count = config.num_envs if num_envs is None else num_envs
    if count < 1:
        raise ValueError(f"num_envs must be at least 1, got {count}")
    return engine_of(config)(config, count, device, first_env, render)


def make_groups(config: EnvConfig, groups: int, device: str | torch.device) -> list[VectorEnv]:
    """``num_envs`` environments as equal slices; environment i has the same stream whatever slice it is in."""
    each = config.num_envs // groups
    return [make_env(config, num_envs=each, device=device, first_env=g * each) for g in range(groups)]


def engine_of(config: EnvConfig) -> Maker:
    """Which engine an id belongs to."""
    if is_external(config.env_id):
        return _external
    if config.engine == "envpool":
        return _envpool
    if config.engine == "gymnasium":
        return _gymnasium
    namespace = config.env_id.partition("/")[0]
    return {"ALE": _atari, "recollect": _tensor}.get(namespace, _gymnasium)


def _tensor(config: EnvConfig, count: int, device: Any, first_env: int, render: bool) -> VectorEnv:
    if config.env_id != "recollect/DarkRoom-v0":
        raise ValueError(f"unknown environment {config.env_id!r}; did you mean 'recollect/DarkRoom-v0'?")
    options = parse_options(darkroom.Options, config.env_options, "DarkRoom option")
    return darkroom.DarkRoom(count, options, device, first_env)


def _gymnasium(config: EnvConfig, count: int, device: Any, first_env: int, render: bool) -> VectorEnv:
    options = parse_options(GymnasiumOptions, config.env_options, "Gymnasium option")
    make = lambda: make_single(config.env_id, options.max_episode_steps, render)  # noqa: E731
    return GymnasiumEnv(config.env_id, make, count, device, first_env)


def _atari(config: EnvConfig, count: int, device: Any, first_env: int, render: bool) -> VectorEnv:
    from recollect.envs.atari import Options, make_atari  # needs the extra

    options = parse_options(Options, config.env_options, "Atari option")
    return make_atari(
        config.env_id,
        count,
        protocol=config.protocol,
        options=options,
        device=device,
        num_threads=config.env_threads,
        first_env=first_env,
        render=render,
    )


def _envpool(config: EnvConfig, count: int, device: Any, first_env: int, render: bool) -> VectorEnv:
    from recollect.envs.envpool import make_envpool  # needs the extra

    return make_envpool(config.env_id, count, device=device, num_threads=config.env_threads, first_env=first_env)


def _external(config: EnvConfig, count: int, device: Any, first_env: int, render: bool) -> VectorEnv:
    """Your own class: a VectorEnv is made as MyEnv(num_envs, device=, first_env=), a gymnasium.Env once each."""
    made = load_external(config.env_id)
    if isinstance(made, type) and issubclass(made, VectorEnv):
        return made(count, device=device, first_env=first_env)  # type: ignore[call-arg]
    if isinstance(made, type) and issubclass(made, gymnasium.Env):
        settings = {"render_mode": "rgb_array"} if render else {}
        return GymnasiumEnv(config.env_id, functools.partial(made, **settings), count, device, first_env)
    raise ValueError(f"{config.env_id!r} is neither a gymnasium.Env class nor a recollect VectorEnv class")
