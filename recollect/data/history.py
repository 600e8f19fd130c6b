"""The last steps of every environment, across segments: what a memory is rebuilt from, and what burn-in replays.

Always of one length, so that shapes never change. Where nothing was played yet stand empty observations, each of
which opens an episode: no memory looks behind those.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from recollect.types import Obs, ObsSpec, obs_map


@dataclass(frozen=True)
class History:
    """H steps of N environments, the newest last. Nothing in it is ever changed in place."""

    obs: Obs  # {name: [H, N, ...]} as the agent saw it
    reset: Tensor  # [H, N] true where obs opens an episode

    @staticmethod
    def empty(steps: int, envs: int, obs_spec: ObsSpec, device: torch.device) -> "History":
        """Before anything was played."""
        obs = {name: torch.zeros(steps, envs, *s.shape, dtype=s.dtype, device=device) for name, s in obs_spec.items()}
        return History(obs, torch.ones(steps, envs, dtype=torch.bool, device=device))

    def then(self, obs_TN: Obs, reset_TN: Tensor) -> "History":
        """With a segment behind it; as many of the oldest steps are dropped. A copy."""
        steps = len(self.reset)

        def newest(old_HN: Tensor, new_TN: Tensor) -> Tensor:
            return torch.cat([old_HN[len(new_TN) :], new_TN[-steps:]])

        obs = {name: newest(part, obs_TN[name]) for name, part in self.obs.items()}
        return History(obs, newest(self.reset, reset_TN))

    def of(self, index_B: Tensor | slice) -> "History":
        """Some environments. [H, B, ...]"""
        return History(obs_map(lambda part: part[:, index_B], self.obs), self.reset[:, index_B])

    def state_dict(self) -> dict[str, Tensor]:
        """By name, for a checkpoint."""
        return {f"obs.{name}": part for name, part in self.obs.items()} | {"reset": self.reset}

    @staticmethod
    def from_state_dict(state: dict[str, Tensor]) -> "History":
        """The inverse of ``state_dict``."""
        obs = {name.removeprefix("obs."): part for name, part in state.items() if name != "reset"}
        return History(obs, state["reset"])
