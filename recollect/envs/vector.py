"""The one contract that every vector environment keeps.

``reset(seed) -> obs`` and ``step(action) -> Step``: tensors on one device, batch first, same-step autoreset. After an
episode's end ``Step.obs`` is already the next episode's first observation while ``Step.final_obs`` still shows the
last one; no transition crosses the border. N environments draw from N different streams, keyed by
(seed, "env", index of the environment): ``first_env`` lets a group be a slice of a larger batch.

An engine writes two methods, ``_reset`` and ``_send``/``_recv``; the score keeping, the clipping of the *training*
reward and the order of calls live here once.
"""

from abc import ABC, abstractmethod
from dataclasses import asdict, dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from recollect.types import ActionSpec, EpisodeStats, Obs, ObsSpec, Step

ResumeKind = Literal["state", "replay", "restart"]
"""How a run goes on in the middle of an episode.

``state``: the whole environment is tensors and is stored. ``replay``: it is a function of seed and actions, so the
open episode's actions are played again. ``restart``: neither; open episodes begin anew, and resume says so.
"""


@dataclass(frozen=True)
class Protocol:
    """The card: everything about an environment that moves a score. It goes into every result."""

    env_id: str
    engine: str
    name: str = "default"
    frame_skip: int | tuple[int, int] = 1  # emulator frames per decision, or the inclusive range drawn from
    sticky: float = 0.0  # probability that an emulator frame repeats the last applied action
    max_pool: bool = False  # pixel maximum over the last two frames of a skip
    noop_max: int = 0  # random number of no-ops at an episode's start, at most
    fire_reset: bool = False  # FIRE is pressed at an episode's start
    life_loss_ends: bool = False  # a lost life ends the training episode
    clip_reward: bool = False  # training sees the sign of the reward; the reported return never does
    max_episode_steps: int | None = None  # decisions, then truncated
    full_actions: bool = False
    extra: str = ""  # whatever else this engine must state, in words

    @property
    def frames_per_step(self) -> float:
        """Emulator frames per decision, on average."""
        skip = self.frame_skip
        return float(skip) if isinstance(skip, int) else (skip[0] + skip[1]) / 2

    def card(self) -> dict[str, Any]:
        """The card as plain data."""
        return asdict(self)


@dataclass(frozen=True)
class RawStep:
    """What an engine hands up: as ``Step``, with the raw reward and without the score."""

    obs: Obs
    reward: Tensor  # [N] float32, raw
    terminated: Tensor
    truncated: Tensor
    final_obs: Obs
    round_end: Tensor | None = None  # None: rounds are episodes
    may_truncate: bool = True
    game_over: Tensor | None = None  # [N] bool, ends of the *scored* episode where a training episode ends sooner


class VectorEnv(ABC):
    """N environments behind one contract (see the module's docstring)."""

    num_envs: int
    device: torch.device
    obs_spec: ObsSpec
    action_spec: ActionSpec
    protocol: Protocol
    resume: ResumeKind
    first_env: int = 0
    stack: int = 1  # pictures that ``frame`` shows, oldest first, zeros from before the episode: one need be stored
    tasks: int = 1  # environment i plays task i % tasks; an evaluation gives every task its episodes

    _episode_return: Tensor | None = None
    _episode_length: Tensor | None = None

    # What an engine writes.

    @abstractmethod
    def _reset(self, seed: int) -> Obs:
        """Start every environment's first episode."""

    @abstractmethod
    def _send(self, action: Tensor) -> None:
        """Start stepping; engines that step elsewhere (threads) return at once."""

    @abstractmethod
    def _recv(self) -> RawStep:
        """Wait for what ``_send`` started."""

    def _state_dict(self) -> dict[str, Tensor]:
        """All that is needed to go on, as the engine's ``resume`` promises."""
        return {}

    def _load_state_dict(self, state: dict[str, Tensor]) -> Obs:
        """Go on from ``_state_dict``; the observation that the next action sees."""
        raise ValueError(f"{type(self).__name__} writes no _load_state_dict, so it cannot resume")

    def render(self) -> Any:
        """The picture of environment 0, uint8 numpy [H, W, 3], for video."""
        raise ValueError(f"{self.protocol.env_id} on engine {self.protocol.engine} cannot be drawn")

    def scene(self) -> dict[str, Tensor]:
        """Where things are, in the game's own units, whether the agent sees them or not: for people. {name: [N]}"""
        return {}

    def close(self) -> None:  # noqa: B027 - most engines hold nothing
        """Free what the engine holds."""

    # What everyone calls.

    def reset(self, seed: int) -> Obs:
        """Start N episodes from N streams of ``seed``. obs: {name: [N, ...]}"""
        self._episode_return = torch.zeros(self.num_envs, device=self.device)
        self._episode_length = torch.zeros(self.num_envs, dtype=torch.int64, device=self.device)
        return self._reset(seed)

    def send(self, action: Tensor) -> None:
        """Start a step. action: [N] int64 or [N, A] float32 on this environment's device."""
        if self._episode_return is None:
            raise ValueError("reset(seed) must come before step(action)")
        self._send(action)

    def recv(self) -> Step:
        """Finish the step that ``send`` started."""
        raw = self._recv()
        assert self._episode_return is not None and self._episode_length is not None
        returns, lengths = self._episode_return + raw.reward, self._episode_length + 1
        ended = raw.terminated | raw.truncated
        over = ended if raw.game_over is None else raw.game_over
        self._episode_return = returns.masked_fill(over, 0.0)
        self._episode_length = lengths.masked_fill(over, 0)
        return Step(
            obs=raw.obs,
            reward=raw.reward.sign() if self.protocol.clip_reward else raw.reward,
            terminated=raw.terminated,
            truncated=raw.truncated,
            round_end=ended if raw.round_end is None else raw.round_end | ended,
            final_obs=raw.final_obs,
            stats=EpisodeStats(returns, lengths, over),
            may_truncate=raw.may_truncate,
        )

    def step(self, action: Tensor) -> Step:
        """One decision in every environment."""
        self.send(action)
        return self.recv()

    def state_dict(self) -> dict[str, Tensor]:
        """Everything needed to go on from here, scores of the open episodes included."""
        assert self._episode_return is not None and self._episode_length is not None
        scores = {"episode_return": self._episode_return, "episode_length": self._episode_length}
        return {**scores, **{f"engine.{k}": v for k, v in self._state_dict().items()}}

    def load_state_dict(self, state: dict[str, Tensor]) -> Obs:
        """Go on from ``state_dict``. obs: what the next action sees."""
        obs = self._load_state_dict({k[7:]: v for k, v in state.items() if k.startswith("engine.")})
        keep = self.resume != "restart"
        self._episode_return = state["episode_return"].to(self.device) * keep
        self._episode_length = state["episode_length"].to(self.device) * keep
        return obs
