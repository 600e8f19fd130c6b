"""What becomes of a memory where segments begin in mid-episode and the weights have changed since.

It is rebuilt before the next segment from the steps before it, and learning takes it up as acting had it then, which
is exact until the first gradient step; or, with burn-in, every gradient step replays those steps and learns through
them, which stays exact. What is kept instead is wrong by as much as is measured here.
"""

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from recollect.data.history import History
from recollect.data.rollout import Rollout
from recollect.fast import fast
from recollect.nets.agent import Agent
from recollect.run.run import Run
from recollect.types import Obs, ObsSpec, State, obs_map

MEASURED = 8  # environments, the first ones, that staleness is measured on
ROWS_AT_ONCE = 8192  # steps that go through the network together while memories are rebuilt


@dataclass(frozen=True)
class MemoryConfig:
    """What a memory holds where a segment begins in mid-episode. Of no effect without memory."""

    segment_start: Literal["stored", "burn-in"] = "stored"
    """Learning starts a segment from the memory that acting had, or replays the steps before at every gradient step."""
    rebuild_memory: bool = True
    """After each update attention's memory is rebuilt by the new weights; gru and lstm always keep theirs."""


def check_start(config: MemoryConfig, collect: str) -> None:
    """Raise ValueError where burn-in is asked for and there is nothing to burn in."""
    if config.segment_start == "burn-in" and collect == "episodes":
        raise ValueError("segment_start burn-in is of segments; whole episodes (collect episodes) have nothing before")


class Upkeep:
    """The memory of all environments from update to update: rebuilds, burns in, measures."""

    def __init__(self, config: MemoryConfig, num_steps: int, num_envs: int, agent: Agent, obs_spec: ObsSpec, run: Run):
        self.agent, self.bounded = agent, agent.reach is not None
        self.rebuilds = config.rebuild_memory and self.bounded
        self.burns_in = config.segment_start == "burn-in"
        if self.burns_in and not self.bounded:
            raise ValueError(
                "segment_start burn-in needs a core that looks back over a bounded number of steps, as attention does"
            )
        # What is only measured needs few environments.
        envs = num_envs if self.rebuilds or self.burns_in else min(num_envs, MEASURED)
        self.history = self.before = History.empty(agent.reach or num_steps, envs, obs_spec, run.device)
        # The memory before the first step of each; empty where their length is enough.
        self.start = self.before_start = agent.initial_state(envs, run.device)
        self.columns = self._columns()
        self.errors: dict[str, float] = {}
        # Once an update: on a CPU compiling takes longer than it saves.
        on_gpu = run.device.type == "cuda"
        self.after = fast(agent.after, run.device, run.compiled and on_gpu, fuse=run.config.compile == "on")

    def _columns(self) -> int:
        """How many environments are rebuilt together: equal parts of ROWS_AT_ONCE steps at most."""
        steps, envs = self.history.reset.shape
        return max(c for c in range(1, envs + 1) if envs % c == 0 and (c == 1 or c * steps <= ROWS_AT_ONCE))

    @torch.no_grad()
    def rebuilt(self) -> State:
        """The memory that the present weights would have by now, had they played all along. {name: [N, ...]}"""
        parts = []
        for first in range(0, self.history.reset.shape[1], self.columns):
            some = slice(first, first + self.columns)
            part = self.history.of(some)
            parts.append(self.after(part.obs, obs_map(lambda each, some=some: each[some], self.start), part.reset))
        return {name: torch.cat([part[name] for part in parts]) for name in parts[0]}

    def take(self, rollout: Rollout) -> None:
        """Remember the steps of a segment just played and measure what it began with."""
        some = slice(0, self.history.reset.shape[1])
        obs_TN = obs_map(lambda part: part[:, some], rollout.obs)
        self.before, self.history = self.history, self.history.then(obs_TN, rollout.reset[:, some])
        self.before_start = self.start
        if not self.bounded:
            self.start = obs_map(lambda part: part[some], rollout.state)
        self.errors = self._measured("memory/stale_error", rollout)
        if self.burns_in:
            rollout.before, rollout.state = self.before, {}

    def measured(self, rollout: Rollout) -> dict[str, float]:
        """The error before an update's first gradient step and, where memory is stored, after its last one."""
        if self.burns_in:
            return self.errors
        return self.errors | self._measured("memory/stale_error_end", rollout)

    def _measured(self, name: str, rollout: Rollout) -> dict[str, float]:
        """The mean error by its name; nothing where all measured environments open an episode."""
        some = slice(0, MEASURED)
        obs_N = obs_map(lambda part: part[0, some], rollout.obs)
        stored, start = (obs_map(lambda part: part[some], state) for state in (rollout.state, self.before_start))
        error_N = stale_error(self.agent, obs_N, stored, start, self.before.of(some))[~rollout.reset[0, some]]
        return {name: float(error_N.mean())} if len(error_N) else {}

    def state_dict(self) -> dict[str, Tensor]:
        """What the next segment's memory is rebuilt from, or measured against."""
        start = {} if self.bounded else {f"start.{name}": part for name, part in self.start.items()}
        return self.history.state_dict() | start

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        """Go on from ``state_dict``."""
        state = {name: part.to(self.history.reset.device) for name, part in state.items()}
        self.history = History.from_state_dict({k: v for k, v in state.items() if not k.startswith("start.")})
        self.start |= {k.removeprefix("start."): v for k, v in state.items() if k.startswith("start.")}


@torch.no_grad()
def stale_error(agent: Agent, obs_N: Obs, state: State, start: State, before: History) -> Tensor:
    """|f - f*| / |f*| of the feature f at a segment's first step, where all that is remembered was stored. [N]

    f* is of the memory that the present weights build from ``start`` and the steps ``before`` the segment.
    obs: {name: [N, ...]}, state and start: {name: [N, ...]}
    """
    never_1N = torch.zeros_like(before.reset[:1])
    fresh = agent.after(before.obs, start, before.reset)
    first_1N = obs_map(lambda part: part[None], obs_N)
    stale_ND, fresh_ND = (agent.replay(first_1N, each, never_1N).feature[0] for each in (state, fresh))
    return (stale_ND - fresh_ND).norm(dim=-1) / fresh_ND.norm(dim=-1).clamp_min(1e-12)
