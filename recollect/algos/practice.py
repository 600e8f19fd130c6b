"""Where experience comes from: fixed segments or whole episodes. A training loop sees no difference."""

from collections.abc import Iterator
from typing import Any

from torch import Tensor

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
        if run.resumed is None:
            self.collector.start(config.run.seed, agent.initial_state)
        elif run.restart_episodes:
            self.collector.start(stream_seed(config.run.seed, "restart", run.first_update), agent.initial_state)
        else:
            self.collector.load_state_dict(run.resumed.under("collector"), agent.initial_state)

    def updates(self) -> Iterator[int]:
        """The numbers of the updates that are left."""
        config = self.config
        return self.run.updates(config.num_updates, config.batch_size, self.envs[0], self.parameters)

    def progress(self, update: int) -> float:
        """How much of the run lies before this update, 0..1."""
        return update / self.config.num_updates

    def collect(self, update: int) -> tuple[Rollout, Episodes]:
        """The next segment."""
        stream = generator(self.config.run.seed, "action", update, device=self.run.device)
        noise_TN = self.agent.policy.noise((self.config.num_steps, self.config.env.num_envs), stream)
        return self.collector.collect(self.act, self.peek, noise_TN)

    def state_dict(self) -> dict[str, Tensor]:
        """What the next segment starts from."""
        return self.collector.state_dict()


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

    def state_dict(self) -> dict[str, Tensor]:
        """Nothing: the next batch starts afresh."""
        return {}
