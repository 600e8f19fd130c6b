"""From a name to an engine: the one place that knows which ids go where. ``make_env`` is all that others call."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import torch

from recollect.config import choose, free_options, is_file, limit, parse_options
from recollect.envs import darkroom
from recollect.envs.external import make_external
from recollect.envs.gymnasium import GymnasiumEnv, make_single
from recollect.envs.pong.env import PongEnv
from recollect.envs.pong.options import ENV_ID as PONG
from recollect.envs.pong.options import Options as PongOptions
from recollect.envs.protocols import PROTOCOLS, AtariOptions
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
    """Single rules on top, as key=value: sticky=0.1 clip_reward=true (Atari, Pong), obs=state
    paddle_height=8..24 (Pong), size=9 goal=0,0 (DarkRoom).

    Your own class gets them as keyword arguments."""
    env_threads: int = 0
    """Threads of an engine that steps in threads; 0 lets it choose."""

    def __post_init__(self) -> None:
        limit(self, "num_envs", low=1)
        limit(self, "env_threads", low=0)


@dataclass(frozen=True)
class GymnasiumOptions:
    """What can be chosen about any Gymnasium id."""

    max_episode_steps: int | None = None
    """Another limit of decisions per episode."""


Maker = Callable[..., VectorEnv]

TENSOR_ENVS: dict[str, tuple[type, type[VectorEnv]]] = {  # id: (Options, class made as (num_envs, options, ...))
    "recollect/DarkRoom-v0": (darkroom.Options, darkroom.DarkRoom),
}


def make_env(
    config: EnvConfig,
    *,
    num_envs: int | None = None,
    device: str | torch.device = "cpu",
    first_env: int = 0,
    render: bool = False,
    compiled: bool = False,
    fuse: bool = True,
) -> VectorEnv:
    """The environments that ``config`` names; ``num_envs`` and ``first_env`` pick a slice of a larger batch.

    ``compiled``: engines on tensors whose step is long enough compile it, or on a GPU capture it too; there ``fuse``
    says whether to compile, which takes a while.
    """
    count = config.num_envs if num_envs is None else num_envs
    assert count >= 1
    choose("protocol", config.protocol, PROTOCOLS)
    if config.env_id == PONG and config.engine == "auto":
        return _pong(config, count, device, first_env, compiled, fuse)
    return engine_of(config)(config, count, device, first_env, render)


def make_groups(config: EnvConfig, groups: int, device: str | torch.device, compiled: bool = False) -> list[VectorEnv]:
    """``num_envs`` environments as equal slices; environment i has the same stream whatever slice it is in."""
    each = config.num_envs // groups
    return [
        make_env(config, num_envs=each, device=device, first_env=g * each, compiled=compiled) for g in range(groups)
    ]


def engine_of(config: EnvConfig) -> Maker:
    """Which engine an id belongs to."""
    if is_file(config.env_id):
        return _external
    if config.engine == "envpool":
        return _envpool
    if config.engine == "gymnasium":
        return _gymnasium
    namespace = config.env_id.partition("/")[0]
    return {"ALE": _atari, "recollect": _tensor}.get(namespace, _gymnasium)


def _tensor(config: EnvConfig, count: int, device: Any, first_env: int, render: bool) -> VectorEnv:
    options_class, made = choose("environment", config.env_id, {**TENSOR_ENVS, PONG: None})
    options = parse_options(options_class, config.env_options, f"{made.__name__} option")
    return made(count, options, device, first_env)  # type: ignore[call-arg]


def _pong(config: EnvConfig, count: int, device: Any, first_env: int, compiled: bool, fuse: bool) -> VectorEnv:
    options = parse_options(PongOptions, config.env_options, "Pong option")
    return PongEnv(count, options, device, first_env, protocol=config.protocol, compiled=compiled, fuse=fuse)


def _gymnasium(config: EnvConfig, count: int, device: Any, first_env: int, render: bool) -> VectorEnv:
    options = parse_options(GymnasiumOptions, config.env_options, "Gymnasium option")
    make = lambda: make_single(config.env_id, options.max_episode_steps, render)  # noqa: E731
    return GymnasiumEnv(config.env_id, make, count, device, first_env)


def _atari(config: EnvConfig, count: int, device: Any, first_env: int, render: bool) -> VectorEnv:
    from recollect.envs.atari import make_atari  # needs the extra

    options = parse_options(AtariOptions, config.env_options, "Atari option")
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

    where = {"device": device, "num_threads": config.env_threads, "first_env": first_env}
    return make_envpool(config.env_id, count, **where, **free_options(config.env_options, "EnvPool option"))


def _external(config: EnvConfig, count: int, device: Any, first_env: int, render: bool) -> VectorEnv:
    return make_external(config.env_id, config.env_options, count, device, first_env, render)
