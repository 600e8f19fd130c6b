"""Proximal policy optimisation (Schulman et al. 2017): collect, credit, update, again.

The third rung of the ladder. Beside ``actor_critic``: an importance ratio that lets the same samples be learnt from
several times, and what holds it near 1. Read from top to bottom: what can be chosen, the loss, one update, the loop.
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
from recollect.envs.registry import EnvConfig, make_groups
from recollect.nets.agent import Agent, make_agent
from recollect.nets.config import NetConfig
from recollect.ops import policy_loss, value_loss
from recollect.ops.returns import gae
from recollect.ops.schedules import scheduled
from recollect.rng import generator
from recollect.run.folder import RunConfig
from recollect.run.run import Run


@dataclass(frozen=True)
class Config:
    """What can be chosen about PPO; environment, network, episodes, memory and run have their own."""

    env: EnvConfig = field(default_factory=EnvConfig)
    net: NetConfig = field(default_factory=NetConfig)
    episodes: EpisodesConfig = field(default_factory=EpisodesConfig)
    memory: MemoryConfig = field(default_factory=MemoryConfig)
    run: RunConfig = field(default_factory=RunConfig)

    total_timesteps: int = 100_000
    """Agent decisions in all, over all environments."""
    collect: Literal["segments", "episodes"] = "segments"
    """num_steps of each environment between updates, or whole episodes."""
    num_steps: int = 128
    """Steps of each environment between updates, where segments are collected."""
    num_minibatches: int = 4
    """Gradient steps a pass; with memory each takes whole segments of some environments."""
    contiguous: bool = False
    """Minibatches of consecutive steps instead of shuffled ones, as with memory."""
    update_epochs: int = 4
    """Passes over each batch."""
    learning_rate: float = 2.5e-4
    """Adam's step size at the start."""
    lr_schedule: Literal["constant", "linear", "cosine", "exponential"] = "linear"
    """How it goes to final_learning_rate."""
    final_learning_rate: float = 0.0
    """Adam's step size at the end."""
    adam_epsilon: float = 1e-5
    """Adam's epsilon."""
    gamma: float = 0.99
    """Discount a step."""
    credit_by: Literal["episode", "round"] = "episode"
    """Where credit ends: at the episode's end, or at each point, as if it were an episode of its own."""
    gae_lambda: float = 0.95
    """0 trusts the value function, 1 the rewards."""
    clip_coef: float | None = 0.2
    """How far the ratio may move before it earns nothing more; none for a penalty alone."""
    kl_coef: float = 0.0
    """Weight at the start of a penalty on how far the policy moves; it adapts. 0 for the clip alone."""
    kl_target: float = 0.01
    """How far the policy should move in an update, where there is a penalty."""
    value_clip: float | None = None
    """How far a value may move in one update; none for the plain loss."""
    ent_coef: float = 0.01
    """Weight of the entropy bonus."""
    vf_coef: float = 0.5
    """Weight of the value loss."""
    advantage_norm: Literal["mean-std", "std", "none"] = "mean-std"
    """How a batch's advantages are scaled."""
    max_grad_norm: float = 0.5
    """Longest gradient; longer ones are scaled down."""
    target_kl: float | None = None
    """Stop the passes once the policy has moved this far."""
    half_batches: bool = False
    """One half of the environments steps while the agent acts for the other, where their engine steps in threads."""

    def __post_init__(self) -> None:
        limit(self, "total_timesteps", "num_steps", "num_minibatches", "update_epochs", low=1)
        limit(self, "learning_rate", "final_learning_rate", "adam_epsilon", "ent_coef", "vf_coef", "kl_coef", low=0)
        limit(self, "gamma", "gae_lambda", low=0, high=1)
        limit(self, "clip_coef", "kl_target", "value_clip", "max_grad_norm", "target_kl", above=0)
        if self.lr_schedule == "exponential":
            limit(self, "learning_rate", "final_learning_rate", above=0)
        if self.clip_coef is None and not self.kl_coef:
            raise ValueError("clip_coef none needs a kl_coef above 0: something must hold the policy near")
        if self.collect == "segments" and self.batch_size % self.num_minibatches:
            raise ValueError(
                f"num_minibatches {self.num_minibatches} does not divide the batch of {self.batch_size} rows "
                f"(num_envs {self.env.num_envs} x num_steps {self.num_steps})"
            )
        if self.half_batches and self.env.num_envs % 2:
            raise ValueError(f"half_batches needs an even num_envs, got {self.env.num_envs}")
        check_start(self.memory, self.collect)

    @property
    def batch_size(self) -> int:
        """Rows of one segment."""
        return self.env.num_envs * self.num_steps

    @property
    def num_updates(self) -> int:
        """Segments that cover total_timesteps."""
        return -(-self.total_timesteps // self.batch_size)


def loss_terms(config: Config, kl_coef: Tensor) -> list[Term]:
    """L = mean(surrogate) + vf_coef mean(value loss) - ent_coef mean(entropy) [+ kl_coef KL(pi_old || pi)]."""

    def policy(replayed, batch: Minibatch) -> Tensor:
        logp = replayed.policy.logp(batch.action)
        if config.clip_coef is None:
            return batch.mean(policy_loss.surrogate(logp, batch.logp, batch.advantage))
        return batch.mean(policy_loss.ppo_clip(logp, batch.logp, batch.advantage, config.clip_coef))

    def value(replayed, batch: Minibatch) -> Tensor:
        if config.value_clip is None:
            return batch.mean(value_loss.squared(replayed.value, batch.target))
        return batch.mean(value_loss.squared_clipped(replayed.value, batch.value, batch.target, config.value_clip))

    def entropy(replayed, batch: Minibatch) -> Tensor:
        return batch.mean(replayed.policy.entropy())

    def kl(replayed, batch: Minibatch) -> Tensor:
        return batch.mean(policy_loss.approx_kl(replayed.policy.logp(batch.action), batch.logp))

    terms = [
        Term("policy", 1.0, policy),
        Term("value", config.vf_coef, value),
        Term("entropy", -config.ent_coef, entropy),
    ]
    return [*terms, Term("kl", kl_coef, kl)] if config.kl_coef else terms


def credit(rollout: Rollout, config: Config) -> tuple[Tensor, Tensor]:
    """Advantages, scaled over the batch, and value targets. Both [T, N]"""
    terminal_TN, cut_TN = rollout.credit_ends(config.credit_by)
    advantage_TN = gae(
        rollout.reward,
        rollout.value,
        rollout.next_value,
        terminal_TN=terminal_TN,
        cut_TN=cut_TN,
        gamma=config.gamma,
        gae_lambda=config.gae_lambda,
    )
    return rollout.scaled(advantage_TN, config.advantage_norm), advantage_TN + rollout.value


class Learner(GradientLearner):
    """Agent, optimiser and one update."""

    def __init__(self, agent: Agent, config: Config, device: torch.device, compiled: bool, extra: Sequence[Term] = ()):
        self.config, self.kl_coef = config, torch.tensor(config.kl_coef, device=device)
        super().__init__(
            agent,
            [*loss_terms(config, self.kl_coef), *extra],
            device,
            compiled,
            fuse=config.run.compile == "on",
            learning_rate=config.learning_rate,
            adam_epsilon=config.adam_epsilon,
            max_grad_norm=config.max_grad_norm,
        )

    def measure(self, logp: Tensor, batch: Minibatch) -> dict[str, Tensor]:
        """What to log of a minibatch beside its losses. logp: [T, B] of its actions, now."""
        if self.config.clip_coef is None:
            return super().measure(logp, batch)
        outside = batch.mean(policy_loss.outside_clip(logp, batch.logp, self.config.clip_coef))
        return super().measure(logp, batch) | {"policy/clip_fraction": outside}

    def update(self, rollout: Rollout, update: int, progress: float) -> dict[str, float]:
        """All passes over one batch; means over its gradient steps, brought to the host once."""
        config = self.config
        advantage_TN, target_TN = credit(rollout, config)
        rate = scheduled(config.learning_rate, config.final_learning_rate, progress, config.lr_schedule)
        self.learning_rate.fill_(rate)
        stream = generator(config.run.seed, "minibatch", update, device=self.device)
        parts = (config.num_minibatches, config.contiguous, config.episodes.rows_at_once, stream)
        seen: list[dict[str, Tensor]] = []
        passes, moved = 0, torch.zeros(())
        while passes < config.update_epochs:
            passed = list(self.one_pass(rollout, advantage_TN, target_TN, *parts))
            seen, passes = seen + passed, passes + 1
            moved = torch.stack([step["policy/approx_kl"] for step in passed]).mean()
            if config.target_kl is not None and moved > config.target_kl:
                break
        explained = value_loss.explained_variance(rollout.counted(rollout.value), rollout.counted(target_TN))
        extra = rollout.counts(config.credit_by) | {"value/explained_variance": explained, "policy/last_kl": moved}
        values = on_host(seen, extra) | {"optim/learning_rate": rate, "optim/passes": passes}
        if config.kl_coef:
            values["policy/kl_coef"] = float(self.kl_coef)
            self.kl_coef.fill_(
                policy_loss.adapted_kl_coef(float(self.kl_coef), values["policy/last_kl"], config.kl_target)
            )
        return values


def train(config: Config, run: Run, extra_terms: Sequence[Term] = ()) -> Agent:
    """Collect, learn, log, save; again until the steps are done. ``extra_terms`` join the loss, each by its name."""
    envs = make_groups(config.env, 2 if config.half_batches else 1, run.device, run.compiled)
    agent = make_agent(envs[0].obs_spec, envs[0].action_spec, config.net, config.run.seed, run.device)
    if config.collect == "segments":
        check_windows(config, agent)
    learner = Learner(agent, config, run.device, run.compiled, extra_terms)
    if run.resumed:
        learner.resume(run)
        learner.kl_coef.fill_(run.resumed.data.get("kl_coef", config.kl_coef))
    practice = (WholeEpisodes if config.collect == "episodes" else Segments)(config, run, agent, envs)
    for update in practice.updates():
        progress = practice.progress(update)
        rollout, episodes = practice.collect(update)
        start = time.perf_counter()
        values = learner.update(rollout, update, progress)
        learning = time.perf_counter() - start
        values |= practice.measured()
        seconds = practice.collector.take_seconds() | {"learn": learning}
        if config.run.eval_every and run.due(config.run.eval_every, update):
            values |= run.evaluate(agent, config.env)
        run.log(update, episodes, values, seconds)
        if run.due(config.run.checkpoint_every, update):
            learner.save(run, update, practice.state_dict(), kl_coef=float(learner.kl_coef))
    for env in envs:
        env.close()
    return agent


def check_windows(config: Config, agent: Agent) -> None:
    """Raise ValueError where minibatches of whole segments do not divide the environments."""
    if (agent.remembers or config.contiguous) and config.env.num_envs % config.num_minibatches:
        why = f"with memory ({config.net.core})" if agent.remembers else "contiguous,"
        raise ValueError(
            f"num_minibatches {config.num_minibatches} does not divide num_envs {config.env.num_envs}: "
            f"{why} a minibatch is whole segments of some environments"
        )
