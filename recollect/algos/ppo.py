"""Proximal policy optimisation on fixed segments (Schulman et al. 2017): collect, credit, update, again.

Read from top to bottom: what can be chosen, the loss, one update, the loop.
"""

import functools
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Literal

import torch
from torch import Tensor

from recollect.algos.loss import Minibatch, Term, total
from recollect.config import limit
from recollect.data.rollout import Collector, Rollout, rows_of, shuffled_rows, windows_of
from recollect.envs.registry import EnvConfig, make_groups
from recollect.fast import fast
from recollect.nets.agent import Agent, make_agent
from recollect.nets.config import NetConfig
from recollect.ops import policy_loss, value_loss
from recollect.ops.returns import gae, normalise
from recollect.ops.schedules import scheduled
from recollect.rng import generator, stream_seed
from recollect.run.checkpoint import load_optimizer, load_weights, optimizer_tensors
from recollect.run.folder import RunConfig
from recollect.run.run import Run
from recollect.types import obs_map


@dataclass(frozen=True)
class Config:
    """What can be chosen about PPO; environment, network and run have their own."""

    env: EnvConfig = field(default_factory=EnvConfig)
    net: NetConfig = field(default_factory=NetConfig)
    run: RunConfig = field(default_factory=RunConfig)

    total_timesteps: int = 100_000
    """Agent decisions in all, over all environments."""
    num_steps: int = 128
    """Steps of each environment between updates."""
    num_minibatches: int = 4
    """Gradient steps a pass; with memory each takes whole segments of some environments."""
    update_epochs: int = 4
    """Passes over each segment."""
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
    gae_lambda: float = 0.95
    """0 trusts the value function, 1 the rewards."""
    clip_coef: float = 0.2
    """How far the ratio may move before it earns nothing more."""
    value_clip: float | None = None
    """How far a value may move in one update; none for the plain loss."""
    ent_coef: float = 0.01
    """Weight of the entropy bonus."""
    vf_coef: float = 0.5
    """Weight of the value loss."""
    advantage_norm: Literal["mean-std", "std", "none"] = "mean-std"
    """How a segment's advantages are scaled."""
    max_grad_norm: float = 0.5
    """Longest gradient; longer ones are scaled down."""
    target_kl: float | None = None
    """Stop the passes once the policy has moved this far."""
    half_batches: bool = False
    """One half of the environments steps while the agent acts for the other, where their engine steps in threads."""

    def __post_init__(self) -> None:
        limit(self, "total_timesteps", "num_steps", "num_minibatches", "update_epochs", low=1)
        limit(self, "learning_rate", "final_learning_rate", "adam_epsilon", "ent_coef", "vf_coef", low=0)
        limit(self, "gamma", "gae_lambda", low=0, high=1)
        limit(self, "clip_coef", "value_clip", "max_grad_norm", "target_kl", above=0)
        if self.lr_schedule == "exponential":
            limit(self, "learning_rate", "final_learning_rate", above=0)
        if self.batch_size % self.num_minibatches:
            raise ValueError(
                f"num_minibatches {self.num_minibatches} does not divide the batch of {self.batch_size} rows "
                f"(num_envs {self.env.num_envs} x num_steps {self.num_steps})"
            )
        if self.half_batches and self.env.num_envs % 2:
            raise ValueError(f"half_batches needs an even num_envs, got {self.env.num_envs}")

    @property
    def batch_size(self) -> int:
        """Rows of one segment."""
        return self.env.num_envs * self.num_steps

    @property
    def num_updates(self) -> int:
        """Segments that cover total_timesteps."""
        return -(-self.total_timesteps // self.batch_size)


def loss_terms(config: Config) -> list[Term]:
    """L = mean(clipped surrogate) + vf_coef mean(value loss) - ent_coef mean(entropy)."""

    def policy(replayed, batch: Minibatch) -> Tensor:
        logp = replayed.policy.logp(batch.action)
        return policy_loss.ppo_clip(logp, batch.logp, batch.advantage, config.clip_coef).mean()

    def value(replayed, batch: Minibatch) -> Tensor:
        if config.value_clip is None:
            return value_loss.squared(replayed.value, batch.target).mean()
        return value_loss.squared_clipped(replayed.value, batch.value, batch.target, config.value_clip).mean()

    def entropy(replayed, batch: Minibatch) -> Tensor:
        return replayed.policy.entropy().mean()

    return [
        Term("policy", 1.0, policy),
        Term("value", config.vf_coef, value),
        Term("entropy", -config.ent_coef, entropy),
    ]


def credit(rollout: Rollout, config: Config) -> tuple[Tensor, Tensor]:
    """Advantages, scaled over the segment, and value targets. Both [T, N]"""
    advantage_TN = gae(
        rollout.reward,
        rollout.value,
        rollout.next_value,
        terminal_TN=rollout.terminated,
        cut_TN=rollout.ended,
        gamma=config.gamma,
        gae_lambda=config.gae_lambda,
    )
    return normalise(advantage_TN, config.advantage_norm), advantage_TN + rollout.value


def minibatches(
    rollout: Rollout, advantage_TN: Tensor, target_TN: Tensor, count: int, remembers: bool, stream: torch.Generator
) -> Iterator[Minibatch]:
    """One pass: shuffled rows, or with memory whole segments of shuffled environments."""
    steps, envs = advantage_TN.shape
    cut = windows_of if remembers else rows_of
    for index in shuffled_rows(envs if remembers else steps * envs, count, stream):
        pick = functools.partial(cut, index_B=index)
        yield Minibatch(
            obs=obs_map(pick, rollout.obs),
            state={name: part[index] for name, part in rollout.state.items()},
            reset=pick(rollout.reset),
            action=pick(rollout.action),
            logp=pick(rollout.logp),
            value=pick(rollout.value),
            advantage=pick(advantage_TN),
            target=pick(target_TN),
        )


class Learner:
    """Agent, optimiser and the gradient step, in its fastest form."""

    def __init__(self, agent: Agent, config: Config, device: torch.device, compiled: bool, extra: Sequence[Term] = ()):
        self.agent, self.config, self.device = agent, config, device
        self.terms = [*loss_terms(config), *extra]
        self.parameters = list(agent.parameters())
        self.learning_rate = torch.tensor(config.learning_rate, device=device)
        self.optimizer = torch.optim.Adam(
            self.parameters, self.learning_rate, eps=config.adam_epsilon, fused=True, capturable=device.type == "cuda"
        )
        if compiled and device.type == "cuda":
            self._allocate_moments()
        self.gradient_step = fast(self._gradient_step, device, compiled, self._changed, config.run.compile == "on")

    def _allocate_moments(self) -> None:
        """Give Adam its state before a graph is captured: a step on zero gradients leaves the weights alone."""
        for parameter in self.parameters:
            parameter.grad = torch.zeros_like(parameter)
        self.optimizer.step()
        for tensor in self._moments():
            tensor.zero_()

    def _moments(self) -> list[Tensor]:
        return [value for slot in self.optimizer.state.values() for value in slot.values()]

    def _changed(self) -> list[Tensor]:
        return [*self.parameters, *self.agent.buffers(), *self._moments()]

    def _gradient_step(self, batch: Minibatch) -> dict[str, Tensor]:
        """Loss, gradient, step; what to log, measured before the step."""
        replayed = self.agent.replay(batch.obs, batch.state, batch.reset)
        loss, values = total(self.terms, replayed, batch)
        self.optimizer.zero_grad(set_to_none=True)
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(self.parameters, self.config.max_grad_norm)
        self.optimizer.step()
        logp = replayed.policy.logp(batch.action).detach()
        return values | {
            "optim/grad_norm": norm.detach(),
            "policy/approx_kl": policy_loss.approx_kl(logp, batch.logp),
            "policy/clip_fraction": policy_loss.clip_fraction(logp, batch.logp, self.config.clip_coef),
            "parity/max_ratio_error": (policy_loss.ratio(logp, batch.logp) - 1).abs().max(),
        }

    def update(self, rollout: Rollout, update: int) -> dict[str, float]:
        """All passes over one segment; means over its gradient steps, brought to the host once."""
        config = self.config
        advantage_TN, target_TN = credit(rollout, config)
        rate = scheduled(
            config.learning_rate, config.final_learning_rate, update / config.num_updates, config.lr_schedule
        )
        self.learning_rate.fill_(rate)
        stream = generator(config.run.seed, "minibatch", update, device=self.device)
        seen: list[dict[str, Tensor]] = []
        for _ in range(config.update_epochs):
            parts = (rollout, advantage_TN, target_TN, config.num_minibatches, self.agent.remembers, stream)
            passed = [self.gradient_step(batch) for batch in minibatches(*parts)]
            seen += passed
            if config.target_kl is not None:
                moved = torch.stack([step["policy/approx_kl"] for step in passed]).mean()
                if moved > config.target_kl:
                    break
        values = {name: torch.stack([step[name] for step in seen]).mean() for name in seen[0]}
        # Before the first step the learner's weights are the actor's: its minibatch shows whether the two agree.
        values["parity/max_ratio_error"] = seen[0]["parity/max_ratio_error"]
        values["value/explained_variance"] = value_loss.explained_variance(rollout.value, target_TN)
        on_host = dict(zip(values, torch.stack(list(values.values())).tolist(), strict=True))
        return on_host | {"optim/learning_rate": rate, "optim/passes": len(seen) / config.num_minibatches}


def resume(run: Run, learner: Learner, collector: Collector) -> None:
    """Put everything back as the checkpoint has it."""
    checkpoint, agent = run.resumed, learner.agent
    assert checkpoint is not None
    load_weights(agent, checkpoint.under("agent"), checkpoint.path)
    load_optimizer(learner.optimizer, checkpoint.under("optimizer"), checkpoint.data["optimizer"])
    if run.restart_episodes:
        collector.start(stream_seed(run.config.seed, "restart", run.first_update), agent.initial_state)
    else:
        collector.load_state_dict(checkpoint.under("collector"), agent.initial_state)


def train(config: Config, run: Run, extra_terms: Sequence[Term] = ()) -> Agent:
    """Collect, learn, log, save; again until the steps are done. ``extra_terms`` join the loss, each by its name."""
    device, seed = run.device, config.run.seed
    envs = make_groups(config.env, 2 if config.half_batches else 1, device, run.compiled)
    agent = make_agent(envs[0].obs_spec, envs[0].action_spec, config.net, seed, device)
    if agent.remembers and config.env.num_envs % config.num_minibatches:
        raise ValueError(
            f"num_minibatches {config.num_minibatches} does not divide num_envs {config.env.num_envs}: "
            f"with memory ({config.net.core}) a minibatch is whole segments of some environments"
        )
    learner = Learner(agent, config, device, run.compiled, extra_terms)
    spec = (envs[0].obs_spec, envs[0].action_spec)
    collector = Collector(envs, Rollout.empty(config.num_steps, config.env.num_envs, *spec, device))
    if run.resumed:
        resume(run, learner, collector)
    else:
        collector.start(seed, agent.initial_state)
    fuse = config.run.compile == "on"
    act, peek = (fast(f, device, run.compiled, fuse=fuse) for f in (agent.act, agent.peek))

    for update in run.updates(
        config.num_updates, config.batch_size, envs[0], sum(map(torch.numel, learner.parameters))
    ):
        stream = generator(seed, "action", update, device=device)
        noise_TN = agent.policy.noise((config.num_steps, config.env.num_envs), stream)
        rollout, episodes = collector.collect(act, peek, noise_TN)
        start = time.perf_counter()
        values = learner.update(rollout, update)
        seconds = collector.take_seconds() | {"learn": time.perf_counter() - start}
        if config.run.eval_every and run.due(config.run.eval_every, update):
            values |= run.evaluate(agent, config.env)
        run.log(update, episodes, values, seconds)
        if run.due(config.run.checkpoint_every, update):
            optimizer, groups = optimizer_tensors(learner.optimizer)
            run.save(
                update,
                agent.state_dict(),
                {"optimizer": optimizer, "collector": collector.state_dict()},
                {"optimizer": groups},
            )
    for env in envs:
        env.close()
    return agent
