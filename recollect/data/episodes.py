"""Whole episodes: played to their end before anything is learnt, of different lengths, learnt in equal pieces.

Every environment starts afresh and plays a fixed number of episodes; taking the first so many to finish would favour
the short ones. Who has finished waits for the others: what the engine plays for it meanwhile is dropped, and because
the next batch starts afresh, too, no episode is ever half old policy, and there is nothing to store between updates.

Steps are stored window after window, each with the memory before it, so that a window is a segment like any other:
a fixed shape, whatever the lengths of the episodes. Of stacked frames only the newest is stored.
"""

import functools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from recollect.config import limit
from recollect.data.rollout import Act, Collector, Episodes, Peek, Rollout
from recollect.envs.vector import VectorEnv
from recollect.ops.returns import normalise
from recollect.types import Obs, State


@dataclass(frozen=True)
class EpisodesConfig:
    """How whole episodes are collected and cut into gradient steps."""

    episodes_per_env: int = 1
    """Whole episodes that each environment plays between updates."""
    max_steps: int = 10_000
    """Decisions of each environment between updates, at most (in whole windows); what is open then is truncated."""
    window_steps: int = 128
    """Consecutive steps that are stored, and where they are not shuffled learnt, together."""
    rows_at_once: int = 1024
    """Steps that go through the network at once; a gradient step of more sums their gradients."""

    def __post_init__(self) -> None:
        limit(self, "episodes_per_env", "max_steps", "window_steps", "rows_at_once", low=1)

    @property
    def max_windows(self) -> int:
        """Windows that cover max_steps."""
        return -(-self.max_steps // self.window_steps)


@dataclass(frozen=True)
class Piece:
    """Steps that go through the network together, by their number t * N + n. L is 1 or a window's length."""

    index: Tensor  # int64 [L, B]
    weight: Tensor  # [L, B] sums to 1 over the pieces of a minibatch; 0 for what only fills up
    state: State  # {name: [B, ...]} before the window; empty where rows are shuffled, which nothing remembers


@dataclass
class EpisodeRollout(Rollout):
    """K windows of ``window`` steps, one after the other: T = K * window. Of ``frame`` the newest is stored.

    ``state``: {name: [K, N, ...]}, the memory before each window. What an environment played after its last episode
    is in here, too, and not ``kept``.
    """

    kept: Tensor  # bool [T, N]
    cut_off: Tensor  # bool [N] stopped by ``max_steps``
    window: int
    stack: int

    def counted(self, part_TN: Tensor) -> Tensor:
        """The rows to learn from, those of whole episodes. [M, ...]"""
        return part_TN[self.kept]

    def scaled(self, credit_TN: Tensor, how: str) -> Tensor:
        """Credit as ``ops.returns.normalise`` scales it, over the rows to learn from; 0 on the others. [T, N]"""
        scaled_TN = torch.zeros_like(credit_TN)
        scaled_TN[self.kept] = normalise(credit_TN[self.kept], how)
        return scaled_TN

    def rounds(self, credit_by: str) -> Tensor:
        """How many rounds, or episodes, the batch holds; one cut short counts. []"""
        _, cut_TN = self.credit_ends(credit_by)
        return (cut_TN & self.kept).sum()

    def counts(self, credit_by: str) -> dict[str, Tensor]:
        """Steps and rounds learnt from, environments cut off by ``max_steps``, the share of steps played in vain."""
        steps = self.kept.sum()
        return {
            "batch/steps": steps,
            "batch/rounds": self.rounds(credit_by),
            "batch/cut_off": self.cut_off.sum(),
            "batch/surplus_share": 1 - steps / self.kept.numel(),
        }

    def observed(self, index: Tensor) -> Obs:
        """Whole observations of steps by their number. index: int64 [...] -> {name: [..., ...]}"""
        obs = {name: part.flatten(0, 1)[index] for name, part in self.obs.items() if name != "frame"}
        if "frame" in self.obs:
            obs["frame"] = self._frames(index)
        return obs

    def _frames(self, index: Tensor) -> Tensor:
        """The newest ``stack`` frames of each step's own episode, oldest first. uint8 [..., stack * C, H, W]"""
        frames = self.obs["frame"].flatten(0, 1)
        if self.stack == 1:
            return frames[index]
        envs = self.reset.shape[1]
        back = torch.arange(self.stack - 1, -1, -1, device=index.device)
        seen = frames[(index[..., None] - back * envs).clamp_min(0)]  # [..., stack, C, H, W]
        before_it = self._age.flatten()[index][..., None] < back
        return seen.masked_fill(before_it[..., None, None, None], 0).flatten(-4, -3)

    @functools.cached_property
    def _age(self) -> Tensor:
        """Steps since the episode began. [T, N]"""
        step_TN = torch.arange(len(self.reset), device=self.reset.device)[:, None].expand_as(self.reset)
        return step_TN - torch.where(self.reset, step_TN, 0).cummax(0).values

    # Minibatches.

    def minibatches(
        self, count: int, contiguous: bool, at_once: int, full: bool, stream: torch.Generator
    ) -> Iterator[list[Piece]]:
        """One pass in ``count`` minibatches: every kept row once, shuffled, or in shuffled ``contiguous`` windows.

        Each is handed out in pieces of ``at_once`` rows; ``full`` fills the last one up, where shapes must not change.
        Fewer rows (or windows) than ``count`` make as many minibatches as there are.
        """
        number = self._window_numbers() if contiguous else self.kept.flatten().nonzero().flatten()
        shuffled = number[torch.randperm(len(number), generator=stream, device=number.device)]
        columns = max(1, at_once // self.window) if contiguous else at_once
        for chosen_B in shuffled.tensor_split(min(count, len(shuffled))):
            yield list(self._pieces(chosen_B, contiguous, columns, full))

    def _window_numbers(self) -> Tensor:
        """The windows k * N + n that hold anything to learn from. int64 [M]"""
        return self.kept.unflatten(0, (-1, self.window)).any(1).flatten().nonzero().flatten()

    def _pieces(self, chosen_B: Tensor, contiguous: bool, columns: int, full: bool) -> Iterator[Piece]:
        """The steps of these rows or windows, ``columns`` of them at a time."""
        envs, index_LB = self.reset.shape[1], chosen_B[None]
        if contiguous:
            first_B = chosen_B // envs * self.window * envs + chosen_B % envs
            index_LB = first_B + envs * torch.arange(self.window, device=first_B.device)[:, None]
        weight_LB = self.kept.flatten()[index_LB].float()
        weight_LB /= weight_LB.sum()
        for start in range(0, len(chosen_B), columns):
            part = slice(start, start + columns)
            chosen, index, weight = chosen_B[part], index_LB[:, part], weight_LB[:, part]
            missing = columns - len(chosen)
            if full and missing:
                chosen = torch.cat([chosen, chosen[:1].expand(missing)])
                index = torch.cat([index, index[:, :1].expand(-1, missing)], 1)
                weight = torch.cat([weight, weight.new_zeros(len(weight), missing)], 1)
            state = {name: part.flatten(0, 1)[chosen] for name, part in self.state.items()} if contiguous else {}
            # Clones: a slice would keep the strides of its minibatch, and compiled code is made for given strides.
            yield Piece(
                index.clone(memory_format=torch.contiguous_format),
                weight.clone(memory_format=torch.contiguous_format),
                state,
            )


class EpisodeCollector:
    """Plays whole episodes in all environments with the current agent, window after window."""

    def __init__(self, envs: Sequence[VectorEnv], config: EpisodesConfig):
        first = envs[0]
        count = sum(env.num_envs for env in envs)
        room = Rollout.empty(config.window_steps, count, first.obs_spec, first.action_spec, first.device)
        self.config, self.stack = config, first.stack
        self.windows, self.store = Collector(envs, room), Store()

    def collect(
        self,
        act: Act,
        peek: Peek,
        draw: Callable[[tuple[int, int]], Tensor],
        seed: int,
        initial_state: Callable[[int, torch.device], State],
    ) -> tuple[EpisodeRollout, Episodes]:
        """A batch of episodes from the stream ``seed``. ``draw``: noise for [window, N] actions.

        The rollout shows the store itself, which the next batch overwrites.
        """
        windows, config = self.windows, self.config
        windows.start(seed, initial_state)
        states: list[State] = []
        while len(states) < config.max_windows:
            rollout, _ = windows.collect(act, peek, draw((config.window_steps, windows.rollout.reward.shape[1])))
            self.store.put(len(states), self._parts(rollout))
            states.append(rollout.state)
            over_TN = self.store.shown(len(states) * config.window_steps, "score.over")
            if bool((over_TN.sum(0) >= config.episodes_per_env).all()):  # the one wait a window
                break
        return self._whole(states)

    def take_seconds(self) -> dict[str, float]:
        """Time spent in the environment and in acting since this was last asked."""
        return self.windows.take_seconds()

    def _parts(self, rollout: Rollout) -> dict[str, Tensor]:
        """What is stored of a window: everything by its step, of frames the newest."""
        obs = {f"obs.{name}": part for name, part in rollout.obs.items()}
        if "frame" in rollout.obs and self.stack > 1:
            channels = rollout.obs["frame"].shape[2] // self.stack
            obs["obs.frame"] = rollout.obs["frame"][:, :, -channels:]
        score = {f"score.{name}": part for name, part in vars(self.windows.score_TN).items()}
        return obs | {name: getattr(rollout, name) for name in BY_STEP} | score

    def _whole(self, states: list[State]) -> tuple[EpisodeRollout, Episodes]:
        steps, each = len(states) * self.config.window_steps, self.config.episodes_per_env
        stored = {name: self.store.shown(steps, name) for name in self.store.parts}
        over_TN = stored["score.over"]
        kept_TN = over_TN.cumsum(0) - over_TN.long() < each
        last_value_N = self.windows.rollout.last_value.clone()
        # Whoever is still playing was stopped by us: a truncation, which bootstraps from what it would have seen next.
        open_N = (over_TN.sum(0) < each) & ~stored["terminated"][-1] & ~stored["truncated"][-1]
        stored["truncated"][-1] |= open_N
        stored["final_value"][-1] = torch.where(open_N, last_value_N, stored["final_value"][-1])
        rollout = EpisodeRollout(
            obs={name.removeprefix("obs."): part for name, part in stored.items() if name.startswith("obs.")},
            **{name: stored[name] for name in BY_STEP},
            last_value=last_value_N,
            state={name: torch.stack([state[name] for state in states]) for name in states[0]},
            before=None,
            kept=kept_TN,
            cut_off=open_N,
            window=self.config.window_steps,
            stack=self.stack,
        )
        finished_TN = over_TN & kept_TN
        returns, lengths = stored["score.episode_return"][finished_TN], stored["score.episode_length"][finished_TN]
        return rollout, Episodes(returns.tolist(), lengths.tolist())


BY_STEP = ("action", "logp", "value", "reward", "terminated", "truncated", "round_end", "reset", "final_value")


class Store:
    """Room for windows one after the other: it grows as episodes do, and stays for the next batch."""

    def __init__(self) -> None:
        self.parts: dict[str, Tensor] = {}

    def put(self, number: int, parts: dict[str, Tensor]) -> None:
        """Copy window ``number``. parts: {name: [window, N, ...]}"""
        for name, part in parts.items():
            start, room = number * len(part), self.parts.get(name)
            if room is None or len(room) < start + len(part):
                self.parts[name] = part.new_empty(max(1, 2 * number) * len(part), *part.shape[1:])
                if room is not None:
                    self.parts[name][:start] = room[:start]
            self.parts[name][start : start + len(part)] = part

    def shown(self, steps: int, name: str) -> Tensor:
        """The first steps of a part, in place. [steps, N, ...]"""
        return self.parts[name][:steps]
