"""A segment of T steps in N environments, its collection, and its minibatches."""

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from recollect.data.history import History
from recollect.envs.vector import VectorEnv
from recollect.ops.returns import next_values, normalise
from recollect.types import Acted, ActionSpec, Discrete, EpisodeStats, Obs, ObsSpec, State, Step

Act = Callable[[Obs, State, Tensor, Tensor], tuple[Acted, State]]  # (obs_N, state, reset_N, noise_N)
Peek = Callable[[Obs, State], Tensor]  # (obs_N, state) -> value_N


@dataclass
class Rollout:
    """One segment, time first. ``state`` is the memory before its first step, or ``before`` is what makes it."""

    obs: Obs  # {name: [T, N, ...]}
    action: Tensor  # [T, N] or [T, N, A]
    logp: Tensor  # [T, N]
    value: Tensor  # [T, N]
    reward: Tensor  # [T, N]
    terminated: Tensor  # [T, N]
    truncated: Tensor  # [T, N]
    round_end: Tensor  # [T, N]
    reset: Tensor  # [T, N] true where obs opens an episode
    final_value: Tensor  # [T, N] V(final_obs) where truncated, else 0
    last_value: Tensor  # [N] V of what follows the segment's last step
    state: State  # {name: [N, ...]}
    before: History | None = field(default=None, kw_only=True)  # [H, N] the steps before it, for burn-in

    @staticmethod
    def empty(steps: int, envs: int, obs_spec: ObsSpec, action_spec: ActionSpec, device: torch.device) -> "Rollout":
        """Room for a segment."""

        def room(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
            return torch.zeros(steps, envs, *shape, dtype=dtype, device=device)

        discrete = isinstance(action_spec, Discrete)
        return Rollout(
            obs={name: room(*spec.shape, dtype=spec.dtype) for name, spec in obs_spec.items()},
            action=room(dtype=torch.int64) if discrete else room(action_spec.dim),
            logp=room(),
            value=room(),
            reward=room(),
            terminated=room(dtype=torch.bool),
            truncated=room(dtype=torch.bool),
            round_end=room(dtype=torch.bool),
            reset=room(dtype=torch.bool),
            final_value=room(),
            last_value=torch.zeros(envs, device=device),
            state={},
        )

    @property
    def next_value(self) -> Tensor:
        """The value of what follows each step within its own episode. [T, N]"""
        return next_values(self.value, self.last_value, self.truncated, self.final_value)

    @property
    def ended(self) -> Tensor:
        """True where an episode ended, either way. [T, N]"""
        return self.terminated | self.truncated

    def credit_ends(self, credit_by: str) -> tuple[Tensor, Tensor]:
        """(terminal, cut) [T, N]: where nothing follows, and where credit stops.

        By ``episode``, or by ``round``: a point ends it, and nothing follows unless a limit cut it short.
        """
        if credit_by == "episode":
            return self.terminated, self.ended
        cut_TN = self.round_end | self.ended
        return cut_TN & ~self.truncated, cut_TN

    def counted(self, part_TN: Tensor) -> Tensor:
        """The rows to learn from: of a segment, all. [T, N, ...]"""
        return part_TN

    def counts(self, credit_by: str) -> dict[str, Tensor]:
        """What to log of a batch's size: of a segment nothing, it never changes."""
        return {}

    def scaled(self, credit_TN: Tensor, how: str) -> Tensor:
        """Credit as ``ops.returns.normalise`` scales it, over the rows to learn from; 0 on the others. [T, N]"""
        return normalise(credit_TN, how)


@dataclass
class Group:
    """A slice of the environments that acts and steps on its own, so that one group steps while another acts."""

    env: VectorEnv
    columns: slice
    obs: Obs
    reset_N: Tensor
    state: State
    acted: Acted | None = None


@dataclass(frozen=True)
class Episodes:
    """Episodes that ended during a segment, in order of time: raw returns and lengths in decisions."""

    returns: list[float]
    lengths: list[int]


class Collector:
    """Plays the environments with the current agent, segment after segment.

    With one group a step is act, then step. With two, one group's environments step while the agent acts for the
    other; both act with the same weights, so only the order of the work differs.
    """

    def __init__(self, envs: Sequence[VectorEnv], rollout: Rollout):
        self.envs, self.rollout, self.groups = list(envs), rollout, []
        self.seconds = {"env": 0.0, "act": 0.0}
        score = torch.zeros_like(rollout.reward)
        self.score_TN = EpisodeStats(score, score.long(), score.bool())

    def start(self, seed: int, initial_state: Callable[[int, torch.device], State]) -> None:
        """Begin every environment's first episode."""
        self._begin([env.reset(seed) for env in self.envs], initial_state)

    def _begin(self, observations: list[Obs], initial_state: Callable[[int, torch.device], State]) -> None:
        self.groups, column = [], 0
        for env, obs in zip(self.envs, observations, strict=True):
            columns = slice(column, column + env.num_envs)
            reset_N = torch.ones(env.num_envs, dtype=torch.bool, device=env.device)
            self.groups.append(Group(env, columns, obs, reset_N, initial_state(env.num_envs, env.device)))
            column += env.num_envs

    def remember(self, state: State) -> None:
        """Put this memory in the place of what acting left. {name: [N, ...]}"""
        for group in self.groups:
            group.state = {name: part[group.columns] for name, part in state.items()}

    def state_dict(self, memories: bool = True) -> dict[str, Tensor]:
        """Environments, memories and resets, all that a segment starts from; memories, unless they are rebuilt."""
        state: dict[str, Tensor] = {}
        for g, group in enumerate(self.groups):
            state |= {f"{g}.env.{k}": v for k, v in group.env.state_dict().items()}
            state |= {f"{g}.memory.{k}": v for k, v in group.state.items()} if memories else {}
            state[f"{g}.reset"] = group.reset_N
        return state

    def load_state_dict(self, state: dict[str, Tensor], initial_state: Callable[[int, torch.device], State]) -> None:
        """Go on from ``state_dict``; where an engine restarts its episodes, memory begins anew as well."""

        def under(prefix: str) -> dict[str, Tensor]:
            return {k.removeprefix(prefix): v for k, v in state.items() if k.startswith(prefix)}

        observations = [env.load_state_dict(under(f"{g}.env.")) for g, env in enumerate(self.envs)]
        self._begin(observations, initial_state)
        for g, group in enumerate(self.groups):
            if group.env.resume != "restart":
                group.reset_N = state[f"{g}.reset"].to(group.env.device)
                group.state |= {k: v.to(group.env.device) for k, v in under(f"{g}.memory.").items()}

    @torch.no_grad()
    def collect(self, act: Act, peek: Peek, noise_TN: Tensor) -> tuple[Rollout, Episodes]:
        """Play T steps. noise_TN: [T, N, ...]. The rollout is the same object each time, overwritten."""
        rollout, steps = self.rollout, self.rollout.reward.shape[0]
        states = [group.state for group in self.groups]
        rollout.state = {name: torch.cat([state[name] for state in states]) for name in states[0]}
        for t in range(steps):
            for group in self.groups:
                if t > 0:
                    self._receive(group, t - 1, peek)
                self._act(group, t, act, noise_TN[t, group.columns])
        for group in self.groups:
            self._receive(group, steps - 1, peek)
            # Where an episode just ended this looks with the old one's memory: such a value is never used.
            rollout.last_value[group.columns] = self.timed("act", peek, group.obs, group.state)
        return rollout, self._episodes()

    def _episodes(self) -> Episodes:
        """Brought to the host once a segment, not once a step."""
        score = self.score_TN
        over, returns, lengths = score.over.cpu(), score.episode_return.cpu(), score.episode_length.cpu()
        return Episodes(returns[over].tolist(), lengths[over].tolist())

    def take_seconds(self) -> dict[str, float]:
        """Time spent in the environment, in acting and whatever else was ``timed`` since this was last asked."""
        taken, self.seconds = self.seconds, dict.fromkeys(self.seconds, 0.0)
        return taken

    def timed(self, what: str, function: Callable, *args):
        """The function's result; its time is added to ``seconds``."""
        start = time.perf_counter()
        result = function(*args)
        self.seconds[what] += time.perf_counter() - start
        return result

    def _act(self, group: Group, t: int, act: Act, noise_N: Tensor) -> None:
        rollout, columns = self.rollout, group.columns
        start = time.perf_counter()
        for name, part in group.obs.items():
            rollout.obs[name][t, columns] = part
        rollout.reset[t, columns] = group.reset_N
        acted, group.state = act(group.obs, group.state, group.reset_N, noise_N)
        rollout.action[t, columns], rollout.logp[t, columns] = acted.action, acted.logp
        rollout.value[t, columns] = acted.value
        group.env.send(acted.action)
        self.seconds["act"] += time.perf_counter() - start

    def _receive(self, group: Group, t: int, peek: Peek) -> None:
        rollout, columns = self.rollout, group.columns
        step: Step = self.timed("env", group.env.recv)
        rollout.reward[t, columns], rollout.round_end[t, columns] = step.reward, step.round_end
        rollout.terminated[t, columns], rollout.truncated[t, columns] = step.terminated, step.truncated
        if step.may_truncate:  # the old episode's memory, before any reset
            value_N = self.timed("act", peek, step.final_obs, group.state)
            rollout.final_value[t, columns] = torch.where(step.truncated, value_N, 0.0)
        else:
            rollout.final_value[t, columns] = 0.0
        group.obs, group.reset_N = step.obs, step.terminated | step.truncated
        score, stats = self.score_TN, step.stats
        score.over[t, columns], score.episode_return[t, columns] = stats.over, stats.episode_return
        score.episode_length[t, columns] = stats.episode_length


def shuffled_rows(rows: int, minibatches: int, generator: torch.Generator) -> Iterator[Tensor]:
    """Row numbers of each minibatch of one pass: every row once, in a new order. int64 [rows / minibatches]"""
    yield from torch.randperm(rows, generator=generator, device=generator.device).chunk(minibatches)


def rows_of(part_TN: Tensor, index_B: Tensor) -> Tensor:
    """Rows of a [T, N, ...] tensor, laid out as [1, B, ...]: segments of length one."""
    return part_TN.flatten(0, 1).index_select(0, index_B)[None]


def windows_of(part_TN: Tensor, index_B: Tensor) -> Tensor:
    """Whole segments of some environments. [T, B, ...]"""
    return part_TN.index_select(1, index_B)
