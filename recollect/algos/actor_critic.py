"""An actor and its critic (A2C, Mnih et al. 2016): the policy gradient with an advantage in place of the return.

The second rung of the ladder. Beside ``policy_gradient``: a value function, more ways to give credit, and fixed
segments as well as whole episodes, since a value tells what an open episode is still worth.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

import torch
from torch import Tensor

from recollect.algos.learner import GradientLearner, on_host
from recollect.algos.loss import Minibatch, Term
from recollect.algos.memory import MemoryConfig, check_start
from recollect.algos.practice import Segments, WholeEpisodes
from recollect.config import limit
from recollect.data.episodes import EpisodesConfig
from recollect.data.rollout import Rollout
from recollect.envs.registry import EnvConfig, make_env
from recollect.nets.agent import Agent, make_agent
from recollect.nets.config import NetConfig
from recollect.ops import policy_loss, value_loss
from recollect.ops.returns import discounted, gae, longest, n_step
from recollect.rng import generator
from recollect.run.folder import RunConfig
from recollect.run.run import Run


@dataclass(frozen=True)
class Config:
    """What can be chosen about the actor-critic; environment, network, episodes, memory and run have their own."""

    env: EnvConfig = field(default_factory=EnvConfig)
    net: NetConfig = field(default_factory=NetConfig)
    episodes: EpisodesConfig = field(default_factory=EpisodesConfig)
    memory: MemoryConfig = field(default_factory=MemoryConfig)
    run: RunConfig = field(default_factory=RunConfig)

    total_timesteps: int = 100_000
    """Agent decisions in all, over all environments."""
    collect: Literal["episodes", "segments"] = "episodes"
    """Whole episodes between updates, or num_steps of each environment."""
    num_steps: int = 16
    """Steps of each environment between updates, where segments are collected."""
    learning_rate: float = 1e-4
    """Adam's step size."""
    adam_epsilon: float = 1e-8
    """Adam's epsilon."""
    max_grad_norm: float | None = 0.5
    """Longest gradient; longer ones are scaled down. none leaves them."""
    gamma: float = 0.99
    """Discount a step."""
    credit_by: Literal["round", "episode"] = "round"
    """Where credit ends: at each point, as if it were an episode of its own, or at the episode's end."""
    credit: Literal["monte-carlo", "td", "n-step", "longest", "gae"] = "monte-carlo"
    """What a value is compared with: the return that was seen; one reward and the next value; n_step rewards and the
    value behind them; all rewards up to the segment's end and the value there; the mean of all these by gae_lambda."""
    n_step: int = 4
    """Rewards of n-step credit."""
    gae_lambda: float = 0.95
    """0 trusts the value function, 1 the rewards."""
    advantage_norm: Literal["mean-std", "std", "none"] = "none"
    """How a batch's advantages are scaled."""
    ent_coef: float = 0.0
    """Weight of the entropy bonus."""
    vf_coef: float = 0.5
    """Weight of the value loss."""

    def __post_init__(self) -> None:
        limit(self, "total_timesteps", "num_steps", "n_step", low=1)
        limit(self, "learning_rate", "adam_epsilon", "ent_coef", "vf_coef", low=0)
        limit(self, "max_grad_norm", above=0)
        limit(self, "gamma", "gae_lambda", low=0, high=1)
        if self.credit == "monte-carlo" and self.collect == "segments":
            raise ValueError("credit monte-carlo needs whole returns: collect episodes, or choose longest")
        check_start(self.memory, self.collect)

    @property
    def batch_size(self) -> int:
        """Rows of one segment."""
        return self.env.num_envs * self.num_steps

    @property
    def num_updates(self) -> int:
        """Segments that cover total_timesteps."""
        return -(-self.total_timesteps // self.batch_size)


def loss_terms(config: Config) -> list[Term]:
    """L = mean(-log pi(a|s) A) + vf_coef mean(value loss) - ent_coef mean(entropy)."""

    def policy(replayed, batch: Minibatch) -> Tensor:
        return batch.mean(policy_loss.reinforce(replayed.policy.logp(batch.action), batch.advantage))

    def value(replayed, batch: Minibatch) -> Tensor:
        return batch.mean(value_loss.squared(replayed.value, batch.target))

    def entropy(replayed, batch: Minibatch) -> Tensor:
        return batch.mean(replayed.policy.entropy())

    return [
        Term("policy", 1.0, policy),
        Term("value", config.vf_coef, value),
        Term("entropy", -config.ent_coef, entropy),
    ]


def targets(rollout: Rollout, config: Config) -> Tensor:
    """What the value of each step should have been. [T, N]"""
    terminal_TN, cut_TN = rollout.credit_ends(config.credit_by)
    reward_TN, next_value_TN, gamma = rollout.reward, rollout.next_value, config.gamma
    if config.credit == "monte-carlo":  # a truncated round counts as what was seen of it
        return discounted(reward_TN, cut_TN, torch.zeros_like(rollout.last_value), gamma)
    if config.credit == "longest":
        return longest(reward_TN, next_value_TN, terminal_TN, cut_TN, gamma)
    if config.credit == "gae":
        values = (reward_TN, rollout.value, next_value_TN)
        return gae(*values, terminal_TN, cut_TN, gamma, config.gae_lambda) + rollout.value
    steps = 1 if config.credit == "td" else config.n_step
    return n_step(reward_TN, next_value_TN, terminal_TN, cut_TN, gamma, steps)


class Learner(GradientLearner):
    """Agent, optimiser and one update."""

    def __init__(self, agent: Agent, config: Config, device: torch.device, compiled: bool, extra: Sequence[Term] = ()):
        self.config = config
        super().__init__(
            agent,
            [*loss_terms(config), *extra],
            device,
            compiled,
            fuse=config.run.compile == "on",
            learning_rate=config.learning_rate,
            adam_epsilon=config.adam_epsilon,
            max_grad_norm=config.max_grad_norm,
        )

    def update(self, rollout: Rollout, update: int) -> dict[str, float]:
        """One gradient step on the whole batch; what to log."""
        config = self.config
        target_TN = targets(rollout, config)
        advantage_TN = rollout.scaled(target_TN - rollout.value, config.advantage_norm)
        stream = generator(config.run.seed, "minibatch", update, device=self.device)
        seen = list(self.one_pass(rollout, advantage_TN, target_TN, 1, False, config.episodes.rows_at_once, stream))
        explained = value_loss.explained_variance(rollout.counted(rollout.value), rollout.counted(target_TN))
        return on_host(seen, rollout.counts(config.credit_by) | {"value/explained_variance": explained})


def train(config: Config, run: Run, extra_terms: Sequence[Term] = ()) -> Agent:
    """Collect, learn, log, save; again until the steps are done. ``extra_terms`` join the loss, each by its name."""
    env = make_env(config.env, device=run.device, compiled=run.compiled)
    agent = make_agent(env.obs_spec, env.action_spec, config.net, config.run.seed, run.device)
    learner = Learner(agent, config, run.device, run.compiled, extra_terms)
    if run.resumed:
        learner.resume(run)
    practice = (WholeEpisodes if config.collect == "episodes" else Segments)(config, run, agent, [env])
    for update in practice.updates():
        rollout, episodes = practice.collect(update)
        start = time.perf_counter()
        values = learner.update(rollout, update)
        learning = time.perf_counter() - start
        values |= practice.measured()
        seconds = practice.collector.take_seconds() | {"learn": learning}
        if config.run.eval_every and run.due(config.run.eval_every, update):
            values |= run.evaluate(agent, config.env)
        run.log(update, episodes, values, seconds)
        if run.due(config.run.checkpoint_every, update):
            learner.save(run, update, practice.state_dict())
    env.close()
    return agent
