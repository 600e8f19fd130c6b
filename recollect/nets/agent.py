"""An agent: encoder -> core -> heads. ``act`` takes one step, ``replay`` a segment, ``peek`` looks without stepping.

State and randomness are arguments; the module itself remembers nothing but its weights.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from recollect.nets import contract
from recollect.nets.config import NetConfig
from recollect.nets.cores import CORES
from recollect.nets.cores.stepwise import walk
from recollect.nets.encoders import ENCODERS
from recollect.nets.heads import Distribution, ValueHead, policy_head
from recollect.nets.precision import uses_bf16
from recollect.nets.watching import attended, attends
from recollect.rng import stream_seed
from recollect.types import Acted, ActionSpec, Obs, ObsSpec, State, obs_map


@dataclass(frozen=True)
class Replayed:
    """What an agent says of a segment: for losses."""

    policy: Distribution  # over [T, N] actions
    value: Tensor  # [T, N]
    feature: Tensor  # [T, N, D] what the policy read, for auxiliary terms


class Torso(nn.Module):
    """Encoder and core: from observations to remembered features, in the chosen precision."""

    def __init__(self, obs_spec: ObsSpec, config: NetConfig):
        super().__init__()
        self.encoder = contract.build("encoder", config.encoder, ENCODERS, obs_spec, config)
        self.core = contract.build("core", config.core, CORES, self.encoder.width, config)
        self.width, self.precision = self.core.width, config.precision

    def _autocast(self, device: torch.device) -> torch.autocast:
        return torch.autocast(device.type, torch.bfloat16, enabled=uses_bf16(self.precision, device.type))

    def step(self, obs_N: Obs, state: State, reset_N: Tensor) -> tuple[Tensor, State]:
        """obs: {name: [N, ...]} -> feature [N, D] fp32 and the state after it."""
        with self._autocast(reset_N.device):
            feature_ND, state = self.core.step(self.encoder(obs_N), state, reset_N)
        return feature_ND.float(), state

    def forward(self, obs_TN: Obs, state: State, reset_TN: Tensor) -> Tensor:
        """obs: {name: [T, N, ...]} from the state before its first step -> feature [T, N, D] fp32"""
        with self._autocast(reset_TN.device):
            feature_TND = self.core(self._encoded(obs_TN, reset_TN), state, reset_TN)
        return feature_TND.float()

    def attended(self, obs_N: Obs, state: State, reset_N: Tensor) -> list[Tensor]:
        """What each layer of the core looks at in this step; nothing is stepped. [N, H, ages 0..W] each"""
        with self._autocast(reset_N.device):
            return attended(self.core, self.encoder(obs_N), state, reset_N)

    def after(self, obs_TN: Obs, state: State, reset_TN: Tensor) -> State:
        """The core's state after a segment; a core that does not say is walked through it."""
        core: Any = self.core
        with self._autocast(reset_TN.device):
            x_TND = self._encoded(obs_TN, reset_TN)
            if hasattr(core, "after"):
                return core.after(x_TND, state, reset_TN)
            return walk(core, x_TND, state, reset_TN)[1]

    def _encoded(self, obs_TN: Obs, reset_TN: Tensor) -> Tensor:
        """Each step by itself. [T, N, D]"""
        return self.encoder(obs_map(lambda x: x.flatten(0, 1), obs_TN)).unflatten(0, reset_TN.shape)


class Agent(nn.Module):
    """Policy and value, on one torso or (``shared=False``) on two."""

    def __init__(self, obs_spec: ObsSpec, action_spec: ActionSpec, config: NetConfig):
        super().__init__()
        self.torso = Torso(obs_spec, config)
        self.critic = None if config.shared else Torso(obs_spec, config)
        self.policy = policy_head(self.torso.width, action_spec, config.initial_log_std)
        self.value = ValueHead(self.torso.width)

    def initial_state(self, num_envs: int, device: torch.device) -> State:
        """The state before the first step. {name: [N, ...]}"""
        state = _over("actor.", self.torso.core.initial_state(num_envs, device))
        if self.critic is not None:
            state |= _over("critic.", self.critic.core.initial_state(num_envs, device))
        return state

    @property
    def remembers(self) -> bool:
        """Whether the core carries any state, so that segments must stay whole."""
        return bool(self.initial_state(1, torch.device("cpu")))

    @property
    def reach(self) -> int | None:
        """How many past steps the state can be rebuilt from; None where no number does, or the core does not say."""
        return getattr(self.torso.core, "reach", None)

    def _step(self, obs_N: Obs, state: State, reset_N: Tensor) -> tuple[Tensor, Tensor, State]:
        """Features for policy and value, each [N, D], and the state after them."""
        feature_ND, actor = self.torso.step(obs_N, _under("actor.", state), reset_N)
        if self.critic is None:
            return feature_ND, feature_ND, _over("actor.", actor)
        critic_ND, critic = self.critic.step(obs_N, _under("critic.", state), reset_N)
        return feature_ND, critic_ND, _over("actor.", actor) | _over("critic.", critic)

    def act(self, obs_N: Obs, state: State, reset_N: Tensor, noise_N: Tensor) -> tuple[Acted, State]:
        """Choose. obs: {name: [N, ...]}, reset_N: [N] bool, noise_N: as the policy head's ``noise`` gives it."""
        feature_ND, critic_ND, state = self._step(obs_N, state, reset_N)
        policy = self.policy(feature_ND)
        action = policy.sample(noise_N)
        return Acted(action, policy.logp(action), self.value(critic_ND)), state

    def act_greedily(self, obs_N: Obs, state: State, reset_N: Tensor) -> tuple[Tensor, State]:
        """The likeliest action. [N] or [N, A]"""
        feature_ND, _, state = self._step(obs_N, state, reset_N)
        return self.policy(feature_ND).mode(), state

    def peek(self, obs_N: Obs, state: State) -> Tensor:
        """The value of an observation that continues the episode of ``state``, which stays as it was. [N]"""
        first = next(iter(obs_N.values()))
        never_N = torch.zeros(first.shape[0], dtype=torch.bool, device=first.device)
        return self.value(self._step(obs_N, state, never_N)[1])

    @property
    def attends(self) -> bool:
        """Whether the policy's core weighs past steps, so that ``attended`` has something to show."""
        return attends(self.torso.core)

    def attended(self, obs_N: Obs, state: State, reset_N: Tensor) -> list[Tensor]:
        """How the policy's core weighs past steps in this one, [N, H, ages 0..W] a layer; ``state`` stays as it was."""
        return self.torso.attended(obs_N, _under("actor.", state), reset_N)

    def replay(self, obs_TN: Obs, state: State, reset_TN: Tensor, burn_in: int = 0) -> Replayed:
        """What it says of a whole segment that starts from ``state``; nothing of its first ``burn_in`` steps."""
        feature_TND = self.torso(obs_TN, _under("actor.", state), reset_TN)
        critic_TND = feature_TND
        if self.critic is not None:
            critic_TND = self.critic(obs_TN, _under("critic.", state), reset_TN)
        if burn_in:
            feature_TND, critic_TND = feature_TND[burn_in:], critic_TND[burn_in:]
        return Replayed(self.policy(feature_TND), self.value(critic_TND), feature_TND)

    def after(self, obs_TN: Obs, state: State, reset_TN: Tensor) -> State:
        """The state after a segment: from an empty one exact once ``reach`` steps, or an episode's start, went by."""
        after = _over("actor.", self.torso.after(obs_TN, _under("actor.", state), reset_TN))
        if self.critic is not None:
            after |= _over("critic.", self.critic.after(obs_TN, _under("critic.", state), reset_TN))
        return after


def _over(prefix: str, state: State) -> State:
    return {prefix + k: v for k, v in state.items()}


def _under(prefix: str, state: State) -> State:
    return {k.removeprefix(prefix): v for k, v in state.items() if k.startswith(prefix)}


def make_agent(obs_spec: ObsSpec, action_spec: ActionSpec, config: NetConfig, seed: int, device: torch.device) -> Agent:
    """A fresh agent whose weights depend on ``seed`` alone, not on what else drew random numbers before."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(stream_seed(seed, "weights"))
        agent = Agent(obs_spec, action_spec, config)
        for torso in (agent.torso, agent.critic):
            if torso is not None:
                contract.check(torso, obs_spec, config)
    return agent.to(device)
