"""The legend: what travels between environments, agents and learners, and in which shape.

T steps, N environments, B rows, A actions or action dimensions. Where layouts mix, a name carries its own as a
suffix: ``reward_TN``, ``logp_B``. Time follows the action: ``reward[t]``, ``terminated[t]`` and ``truncated[t]``
belong to the transition that ``action[t]`` caused; ``reset[t]`` is true where ``obs[t]`` opens an episode.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

Obs = dict[str, Tensor]
"""A named observation, batch first. Keys in use:

``frame``   uint8   [..., C, H, W]  stacked grey frames, oldest first
``vector``  float32 [..., F]        positions, RAM, one-hot cells
``clock``   float32 [..., 1]        the episode's own clock in 0..1, on request
"""

State = dict[str, Tensor]
"""Recurrent state of a core, batch first: ``{name: [N, ...]}``. Empty for a core without memory."""


def obs_map(fn: Callable[[Tensor], Tensor], obs: Obs) -> Obs:
    """Apply ``fn`` to every part of an observation (or of a recurrent state)."""
    return {name: fn(part) for name, part in obs.items()}


@dataclass(frozen=True)
class TensorSpec:
    """Shape (without batch), dtype and range of one part of an observation."""

    shape: tuple[int, ...]
    dtype: torch.dtype
    low: float = float("-inf")
    high: float = float("inf")


@dataclass(frozen=True)
class Discrete:
    """``n`` actions; an action is int64 [N]."""

    n: int
    names: tuple[str, ...] = ()


@dataclass(frozen=True)
class Continuous:
    """``dim`` real actions, clipped to [low, high] by the environment; an action is float32 [N, dim]."""

    dim: int
    low: tuple[float, ...]
    high: tuple[float, ...]


ActionSpec = Discrete | Continuous
ObsSpec = dict[str, TensorSpec]


@dataclass(frozen=True)
class EpisodeStats:
    """The running score of each environment's episode, this step included, from the *raw* reward.

    Never touched by clipping or shaping. On a row that ends its episode these are the episode's final figures.
    """

    episode_return: Tensor  # [N] float32
    episode_length: Tensor  # [N] int64, agent decisions
    over: Tensor  # [N] bool, the scored episode ended (with life_loss_ends a training episode may end sooner)


@dataclass(frozen=True)
class Step:
    """One transition of N environments."""

    obs: Obs  # [N, ...] what the next action sees; where an episode ended, the next one's first observation
    reward: Tensor  # [N] float32, what training sees (perhaps clipped)
    terminated: Tensor  # [N] bool, the task ended: nothing follows
    truncated: Tensor  # [N] bool, a limit cut the episode: bootstrap from final_obs
    round_end: Tensor  # [N] bool, a point in Pong; at least every episode's end
    final_obs: Obs  # [N, ...] the observation after the action, before any reset; defined on every row
    stats: EpisodeStats
    may_truncate: bool = True  # False: the host already knows that no row was truncated, final_obs is not needed


@dataclass(frozen=True)
class Acted:
    """What an agent says at one step."""

    action: Tensor  # [N] int64 or [N, A] float32
    logp: Tensor  # [N] float32
    value: Tensor  # [N] float32
