"""REINFORCE (Williams 1992): play whole episodes, make what paid more likely, once; again. No value function.

The first rung of the ladder, read from top to bottom: what can be chosen, the loss, one update, the loop.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

import torch
from torch import Tensor

from recollect.algos.learner import GradientLearner, on_host
from recollect.algos.loss import Minibatch, Term
from recollect.algos.practice import WholeEpisodes
from recollect.config import limit
from recollect.data.episodes import EpisodeRollout, EpisodesConfig
from recollect.envs.registry import EnvConfig, make_env
from recollect.nets.agent import Agent, make_agent
from recollect.nets.config import NetConfig
from recollect.ops import policy_loss
from recollect.ops.returns import discounted, trajectory
from recollect.rng import generator
from recollect.run.folder import RunConfig
from recollect.run.run import Run


@dataclass(frozen=True)
class Config:
    """What can be chosen about the policy gradient; environment, network, episodes and run have their own."""

    env: EnvConfig = field(default_factory=EnvConfig)
    net: NetConfig = field(default_factory=NetConfig)
    episodes: EpisodesConfig = field(default_factory=EpisodesConfig)
    run: RunConfig = field(default_factory=RunConfig)

    total_timesteps: int = 100_000
    """Agent decisions in all, over all environments."""
    learning_rate: float = 1e-4
    """Adam's step size."""
    adam_epsilon: float = 1e-8
    """Adam's epsilon."""
    max_grad_norm: float | None = None
    """Longest gradient; longer ones are scaled down. none leaves them."""
    gamma: float = 0.99
    """Discount a step; 1 for none."""
    credit_by: Literal["round", "episode"] = "round"
    """Where returns end: at each point, as if it were an episode of its own, or at the episode's end."""
    credit_of: Literal["rest", "trajectory"] = "rest"
    """What an action is paid: the return from it on, or the whole round's (episode's)."""
    return_norm: Literal["mean-std", "std", "none"] = "mean-std"
    """How a batch's returns are scaled."""
    loss_over: Literal["rounds", "steps"] = "rounds"
    """The loss is divided by the number of rounds (episodes, where credit is by episode) or of steps."""
    ent_coef: float = 0.0
    """Weight of the entropy bonus."""
    update_epochs: int = 1
    """Passes over each batch; more than one fails: the samples are another policy's then."""
    num_minibatches: int = 1
    """Gradient steps a pass; more than one fails likewise, and on less than all samples."""
    contiguous: bool = False
    """Minibatches of consecutive steps instead of shuffled ones; with memory they always are."""

    def __post_init__(self) -> None:
        limit(self, "total_timesteps", "update_epochs", "num_minibatches", low=1)
        limit(self, "learning_rate", "adam_epsilon", "ent_coef", low=0)
        limit(self, "max_grad_norm", above=0)
        limit(self, "gamma", low=0, high=1)


def loss_terms(config: Config) -> list[Term]:
    """L = mean(-log pi(a|s) G) - ent_coef mean(entropy)."""

    def policy(replayed, batch: Minibatch) -> Tensor:
        return batch.mean(policy_loss.reinforce(replayed.policy.logp(batch.action), batch.advantage))

    def entropy(replayed, batch: Minibatch) -> Tensor:
        return batch.mean(replayed.policy.entropy())

    return [Term("policy", 1.0, policy), Term("entropy", -config.ent_coef, entropy)]


def credit(rollout: EpisodeRollout, config: Config) -> Tensor:
    """What each action is paid: its return, scaled. [T, N]

    A truncated round counts as what was seen of it: nothing here knows what would have followed.
    """
    _, cut_TN = rollout.credit_ends(config.credit_by)
    return_TN = discounted(rollout.reward, cut_TN, torch.zeros_like(rollout.last_value), config.gamma)
    if config.credit_of == "trajectory":
        return_TN = trajectory(return_TN, cut_TN)
    return_TN = rollout.scaled(return_TN, config.return_norm)
    if config.loss_over == "steps":
        return return_TN
    # Every mean is one over steps: this makes the policy's a sum divided by the number of rounds.
    return return_TN * rollout.kept.sum() / rollout.rounds(config.credit_by)


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

    def update(self, rollout: EpisodeRollout, update: int) -> dict[str, float]:
        """One gradient step on the whole batch (or what the settings ask for); what to log."""
        config = self.config
        return_TN = credit(rollout, config)
        stream = generator(config.run.seed, "minibatch", update, device=self.device)
        parts = (config.num_minibatches, config.contiguous, config.episodes.rows_at_once, stream)
        seen: list[dict[str, Tensor]] = []
        for _ in range(config.update_epochs):
            seen += self.one_pass(rollout, return_TN, return_TN, *parts)
        return on_host(seen, rollout.counts(config.credit_by))


def train(config: Config, run: Run, extra_terms: Sequence[Term] = ()) -> Agent:
    """Collect, learn, log, save; again until the steps are done. ``extra_terms`` join the loss, each by its name."""
    env = make_env(config.env, device=run.device, compiled=run.compiled)
    agent = make_agent(env.obs_spec, env.action_spec, config.net, config.run.seed, run.device)
    learner = Learner(agent, config, run.device, run.compiled, extra_terms)
    if run.resumed:
        learner.resume(run)
    practice = WholeEpisodes(config, run, agent, [env])
    for update in practice.updates():
        rollout, episodes = practice.collect(update)
        start = time.perf_counter()
        values = learner.update(rollout, update)
        seconds = practice.collector.take_seconds() | {"learn": time.perf_counter() - start}
        if config.run.eval_every and run.due(config.run.eval_every, update):
            values |= run.evaluate(agent, config.env)
        run.log(update, episodes, values, seconds)
        if run.due(config.run.checkpoint_every, update):
            learner.save(run, update, practice.state_dict())
    env.close()
    return agent
