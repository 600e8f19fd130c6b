"""Where experience comes from: fixed segments or whole episodes. A training loop sees no difference."""

from collections.abc import Iterator
from typing import Any

from torch import Tensor

from recollect.algos.memory import Upkeep
from recollect.data.episodes import EpisodeCollector, EpisodeRollout
from recollect.data.rollout import Collector, Episodes, Rollout
from recollect.envs.vector import VectorEnv
from recollect.fast import fast
from recollect.nets.agent import Agent
from recollect.rng import generator, stream_seed
from recollect.run.run import Run


class Practice:
    """Plays with the agent's present weights; ``config`` is the algorithm's. One class below for each way."""

    def __init__(self, config: Any, run: Run, agent: Agent, envs: list[VectorEnv]):
        self.config, self.run, self.agent, self.envs = config, run, agent, envs
        fuse = run.config.compile == "on"
        self.act, self.peek = (fast(f, run.device, run.compiled, fuse=fuse) for f in (agent.act, agent.peek))
        self.parameters = sum(parameter.numel() for parameter in agent.parameters())


class Segments(Practice):
    """``num_steps`` of every environment, wherever its episode stands."""

    def __init__(self, config: Any, run: Run, agent: Agent, envs: list[VectorEnv]):
        super().__init__(config, run, agent, envs)
        spec = (envs[0].obs_spec, envs[0].action_spec)
        room = Rollout.empty(config.num_steps, config.env.num_envs, *spec, run.device)
        self.collector = Collector(envs, room)
        self.upkeep: Upkeep | None = None
        if agent.remembers:
            sizes = (config.num_steps, config.env.num_envs)
            self.upkeep = Upkeep(config.memory, *sizes, agent, envs[0].obs_spec, run)
            self.collector.seconds["memory"] = 0.0
        if run.resumed is None:
            self.collector.start(config.run.seed, agent.initial_state)
        elif run.restart_episodes:
            self.collector.start(stream_seed(config.run.seed, "restart", run.first_update), agent.initial_state)
        else:
            self.collector.load_state_dict(run.resumed.under("collector"), agent.initial_state)
            if self.upkeep and envs[0].resume != "restart":
                self.upkeep.load_state_dict(run.resumed.under("collector/history"))

    def updates(self) -> Iterator[int]:
        """The numbers of the updates that are left."""
        config = self.config
        return self.run.updates(config.num_updates, config.batch_size, self.envs[0], self.parameters)

    def progress(self, update: int) -> float:
        """How much of the run lies before this update, 0..1."""
        return update / self.config.num_updates

    def collect(self, update: int) -> tuple[Rollout, Episodes]:
        """The next segment."""
        if self.upkeep and self.upkeep.rebuilds:
            self.collector.remember(self.collector.timed("memory", self.upkeep.rebuilt))
        stream = generator(self.config.run.seed, "action", update, device=self.run.device)
        noise_TN = self.agent.policy.noise((self.config.num_steps, self.config.env.num_envs), stream)
        rollout, episodes = self.collector.collect(self.act, self.peek, noise_TN)
        if self.upkeep:
            self.collector.timed("memory", self.upkeep.take, rollout)
        return rollout, episodes

    def measured(self) -> dict[str, float]:
        """What to log of the memory that the segment began with, after it was learnt from."""
        return self.upkeep.measured(self.collector.rollout) if self.upkeep else {}

    def state_dict(self) -> dict[str, Tensor]:
        """What the next segment starts from. A memory that is rebuilt is not in it: the steps before are."""
        if not self.upkeep:
            return self.collector.state_dict()
        history = {f"history/{name}": part for name, part in self.upkeep.state_dict().items()}
        return self.collector.state_dict(memories=not self.upkeep.rebuilds) | history


class WholeEpisodes(Practice):
    """``episodes_per_env`` of every environment, each batch from a start of its own: there is nothing to resume."""

    def __init__(self, config: Any, run: Run, agent: Agent, envs: list[VectorEnv]):
        super().__init__(config, run, agent, envs)
        self.collector = EpisodeCollector(envs, config.episodes)

    def updates(self) -> Iterator[int]:
        """Numbers of updates until the steps are done."""
        return self.run.updates_until(self.config.total_timesteps, self.envs[0], self.parameters)

    def progress(self, update: int) -> float:
        """How much of the run lies before this update, 0..1."""
        return self.run.env_steps / self.config.total_timesteps

    def collect(self, update: int) -> tuple[EpisodeRollout, Episodes]:
        """The next batch. Its steps are those of the episodes kept."""
        seed = self.config.run.seed
        stream = generator(seed, "action", update, device=self.run.device)
        rollout, episodes = self.collector.collect(
            self.act,
            self.peek,
            lambda shape: self.agent.policy.noise(shape, stream),
            stream_seed(seed, "episodes", update),
            self.agent.initial_state,
        )
        self.run.took(update, int(rollout.kept.sum()))
        return rollout, episodes

    def measured(self) -> dict[str, float]:
        """Nothing: no memory outlives an update."""
        return {}

    def state_dict(self) -> dict[str, Tensor]:
        """Nothing: the next batch starts afresh."""
        return {}
