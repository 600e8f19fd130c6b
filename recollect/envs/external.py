"""An environment class of the user's own, from a file outside the package: made, and tried before it is trained on."""

import functools
import inspect
from typing import Any

import gymnasium
import torch

from recollect.config import described, free_options, resolve
from recollect.envs.gymnasium import GymnasiumEnv
from recollect.envs.vector import VectorEnv
from recollect.types import Discrete, Step


def make_external(
    name: str, pairs: tuple[str, ...], num_envs: int, device: str | torch.device, first_env: int, render: bool
) -> VectorEnv:
    """``mine.py:MyEnv``: a VectorEnv is made as MyEnv(num_envs, device=, first_env=), a gymnasium.Env once each.

    ``pairs``: options as key=value, which the class gets as keyword arguments.
    """
    made = resolve("environment class", name, {})
    _try_out(name, made, pairs)
    return _build(name, made, pairs, num_envs, device, first_env, render)


def _build(
    name: str, made: Any, pairs: tuple[str, ...], num_envs: int, device: Any, first_env: int = 0, render: bool = False
) -> VectorEnv:
    options = free_options(pairs, "environment option")
    if isinstance(made, type) and issubclass(made, VectorEnv):
        return _call(name, made, num_envs, device=device, first_env=first_env, **options)
    if isinstance(made, type) and issubclass(made, gymnasium.Env):
        settings = options | ({"render_mode": "rgb_array"} if render else {})
        return GymnasiumEnv(name, lambda: _call(name, made, **settings), num_envs, device, first_env)
    raise ValueError(f"{name!r} is neither a gymnasium.Env class nor a recollect VectorEnv class")


def _call(name: str, made: type, *args: Any, **settings: Any) -> Any:
    """An object of the user's class; a class that cannot be made so, or lacks a part, is one clear line."""
    if missing := sorted(getattr(made, "__abstractmethods__", ())):
        raise ValueError(f"{name} must write {', '.join(missing)}")
    try:
        inspect.signature(made).bind(*args, **settings)
    except TypeError as error:
        raise ValueError(f"{name} cannot be made: {error}") from None
    env = made(*args, **settings)
    needed = ["observation_space", "action_space"]
    if issubclass(made, VectorEnv):
        needed = [part for part in VectorEnv.__annotations__ if not part.startswith("_")]
    if lacking := [part for part in needed if not hasattr(env, part)]:
        raise ValueError(f"{name} must set {', '.join(lacking)}")
    return env


@functools.cache
def _try_out(name: str, made: Any, pairs: tuple[str, ...]) -> None:
    """Play one step, once for each class: what breaks the contract is one clear line and not a crash in training."""
    env = _build(name, made, pairs, 1, "cpu")
    spec = env.action_spec
    action = torch.zeros(1, dtype=torch.int64) if isinstance(spec, Discrete) else torch.zeros(1, spec.dim)
    try:
        first = env.reset(0)
        step = env.step(action)
    except Exception as error:  # whatever the user's class raises belongs in that line
        raise ValueError(f"{name} fails at its first step: {described(error)}") from error
    finally:
        env.close()
    _check_shapes(name, env, {"reset": first, "obs": step.obs, "final_obs": step.final_obs}, step)


def _check_shapes(name: str, env: VectorEnv, observations: dict[str, Any], step: Step) -> None:
    """Raise ValueError unless one environment's step has the shapes and dtypes that it promises."""
    found = {"reward": step.reward, "terminated": step.terminated, "truncated": step.truncated}
    wanted = {"reward": ((1,), torch.float32), "terminated": ((1,), torch.bool), "truncated": ((1,), torch.bool)}
    for where, obs in observations.items():
        if obs.keys() != env.obs_spec.keys():
            raise ValueError(f"{name}: {where} has {', '.join(obs)}, but obs_spec has {', '.join(env.obs_spec)}")
        found |= {f"{where}[{key!r}]": part for key, part in obs.items()}
        wanted |= {f"{where}[{key!r}]": ((1, *spec.shape), spec.dtype) for key, spec in env.obs_spec.items()}
    for part, (shape, dtype) in wanted.items():
        if found[part].shape != shape or found[part].dtype is not dtype:
            have = f"{list(found[part].shape)} {found[part].dtype}"
            raise ValueError(f"{name}: {part} of one environment must be {list(shape)} {dtype}, got {have}")
