"""Environments, memory and actions that say whose they are.

Every observation says which environment, episode and step it is; the action repeats it, the reward repeats the action,
the memory counts along. Whatever then stands in the wrong place shows.
"""

import math
from dataclasses import dataclass, field

import torch
from torch import Tensor

from recollect.data.rollout import Collector, Rollout
from recollect.envs.vector import Protocol, RawStep, VectorEnv
from recollect.types import Acted, Continuous, Obs, State, TensorSpec

STEPS, ENVS, SEGMENTS = 7, 6, 3


def length_of(env: int, episode: int) -> int:
    """Steps of an episode: 1 to 8, so that some fit a segment several times and some span two."""
    return 1 + (5 * env + 3 * episode) % 8


def truncates(env: int, episode: int) -> bool:
    return (env + episode) % 2 == 0


def code(part: Tensor) -> Tensor:
    """(environment, episode, step) as one number that float32 holds exactly. [..., 3] -> [...]"""
    return (part * torch.tensor([10_000.0, 100.0, 1.0])).sum(-1)


class Coded(VectorEnv):
    """Observes (environment, episode, step), pays the code of the action that it was sent."""

    resume = "state"

    def __init__(self, num_envs: int, first_env: int = 0, tells: bool = True, log: list[str] | None = None):
        self.num_envs, self.first_env, self.device, self.tells = num_envs, first_env, torch.device("cpu"), tells
        self.obs_spec = {"vector": TensorSpec((3,), torch.float32)}
        self.action_spec = Continuous(3, (-math.inf,) * 3, (math.inf,) * 3)
        self.protocol = Protocol("coded", "test")
        self.log = [] if log is None else log

    def _obs(self) -> Obs:
        return {"vector": torch.stack([self.index, self.episode, self.clock], 1).float()}

    def _reset(self, seed: int) -> Obs:
        self.index = torch.arange(self.num_envs) + self.first_env
        self.episode, self.clock = torch.zeros_like(self.index), torch.zeros_like(self.index)
        return self._obs()

    def _send(self, action: Tensor) -> None:
        self.log.append(f"send {self.first_env}")
        assert torch.equal(action, self._obs()["vector"]), "an action reached another environment, episode or step"
        self.action = action

    def _recv(self) -> RawStep:
        self.log.append(f"receive {self.first_env}")
        self.clock = self.clock + 1
        final_obs, episodes = self._obs(), list(zip(self.index.tolist(), self.episode.tolist(), strict=True))
        ended = self.clock == torch.tensor([length_of(*e) for e in episodes])
        cut = torch.tensor([truncates(*e) for e in episodes])
        self.episode, self.clock = self.episode + ended, self.clock.masked_fill(ended, 0)
        truncated = ended & cut
        told = bool(truncated.any()) if self.tells else True
        return RawStep(self._obs(), code(self.action), ended & ~cut, truncated, final_obs, may_truncate=told)

    def _state_dict(self) -> dict[str, Tensor]:
        return {"index": self.index, "episode": self.episode, "clock": self.clock}

    def _load_state_dict(self, state: dict[str, Tensor]) -> Obs:
        self.index, self.episode, self.clock = state["index"], state["episode"], state["clock"]
        return self._obs()


def initial_state(num_envs: int, device: torch.device) -> State:
    """What the memory holds: (environment, episode, steps seen), recognisably wrong before the first step."""
    return {"seen": torch.full((num_envs, 3), -7.0)}


@dataclass
class Reader:
    """An agent that reads the code, and complains where its memory belongs to something else."""

    log: list[str] = field(default_factory=list)
    peeks: int = 0

    def act(self, obs: Obs, state: State, reset_N: Tensor, noise_N: Tensor) -> tuple[Acted, State]:
        said_N3, seen_N3 = obs["vector"], state["seen"]
        self.log.append(f"act {int(said_N3[0, 0])}")
        assert torch.equal(reset_N, said_N3[:, 2] == 0), "reset is true exactly at an episode's first observation"
        assert torch.equal(seen_N3[~reset_N], said_N3[~reset_N]), "memory belongs to another environment or episode"
        assert torch.equal(noise_N[:, 0], said_N3[:, 0]), "noise belongs to another environment"
        after_N3 = said_N3 + torch.tensor([0.0, 0.0, 1.0])
        return Acted(said_N3.clone(), code(said_N3) + 0.5, code(said_N3) + 0.25), {"seen": after_N3}

    def peek(self, obs: Obs, state: State) -> Tensor:
        """The code plus 1/8; NaN where the memory is not that of this very episode and step."""
        self.peeks += 1
        own_N = (state["seen"] == obs["vector"]).all(-1)
        return torch.where(own_N, code(obs["vector"]) + 0.125, torch.nan)


def collector_of(*sizes: int, tells: bool = True, log: list[str] | None = None) -> Collector:
    """Environments 0..5 in groups of these sizes."""
    starts = [sum(sizes[:g]) for g in range(len(sizes))]
    envs = [Coded(size, start, tells, log) for size, start in zip(sizes, starts, strict=True)]
    rollout = Rollout.empty(STEPS, ENVS, envs[0].obs_spec, envs[0].action_spec, torch.device("cpu"))
    return Collector(envs, rollout)


def noise() -> Tensor:
    """[T, N, 1] each environment's own number."""
    return torch.arange(float(ENVS)).expand(STEPS, ENVS)[..., None]


def walk(env: int) -> list[tuple[int, int, bool]]:
    """The oracle, one environment: (episode, step, whether it ends there), step after step."""
    seen = []
    for episode in range(STEPS * SEGMENTS + 1):
        length = length_of(env, episode)
        seen += [(episode, step, step == length - 1) for step in range(length)]
    return seen[: STEPS * SEGMENTS + 1]
