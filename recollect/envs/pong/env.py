"""Pong as a vector environment: N games, decisions of some frames, sticky actions, episodes that begin anew."""

import dataclasses
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from recollect.envs import chance
from recollect.envs.pong import drawing, openings, physics, ram, rules, seeing, showing
from recollect.envs.pong.options import TURNS, Options, card, obs_spec
from recollect.envs.pong.physics import Physics
from recollect.envs.pong.rules import Game
from recollect.envs.pong.view import View, look, opening
from recollect.envs.protocols import FEWER
from recollect.envs.vector import RawStep, VectorEnv
from recollect.fast import Graphed, fused
from recollect.nested import flatten, select, unflatten
from recollect.types import Discrete, Obs, State

# What chance decides, by number: see ``chance.uniform``.
NOOPS, PHYSICS, NOISE, STICKY = 0, 16, 64, 128

CAPTURED_PICTURES = 4096  # environments whose pictures are shown by a graph, at most


@dataclass(frozen=True)
class Playing:
    """All that N environments are between two decisions, but for the pictures they have shown: fields are [N]."""

    game: Game
    turn: Tensor  # float32, what the sticky controller holds
    button: Tensor  # bool
    physics: Physics  # [1] where all share it
    extra: State  # what memory holds besides, where that is observed
    key: Tensor  # int32
    decisions: Tensor  # int32, since the environments were reset
    steps: Tensor  # int32, of this episode
    episodes: Tensor  # int32, begun so far


@dataclass(frozen=True)
class Outcome:
    """What one decision brought."""

    reward: Tensor  # [N] float32
    terminated: Tensor  # [N] bool
    truncated: Tensor  # [N] bool
    obs: Tensor | None  # [N, ...] what the next action sees; None for pictures
    final_obs: Tensor | tuple[View, View]  # [N, ...] the same before any reset; of pictures what they are to show


class PongEnv(VectorEnv):
    """N games of Pong. All that they are is tensors, so a run resumes to the bit."""

    resume = "state"

    def __init__(
        self,
        num_envs: int,
        options: Options | None = None,
        device: str | torch.device = "cpu",
        first_env: int = 0,
        *,
        protocol: str = "v5-pooled",
        compiled: bool = False,
        fuse: bool = True,
        worlds: Tensor | None = None,
    ):
        """``worlds``: physics of each environment, [N, P] as ``physics.from_tensor`` reads it; ranges go before.

        ``compiled``: a step is made fast at its first call; ``fuse``: on a GPU by a compiler too, which takes a while.
        """
        options = options or Options()
        self.num_envs, self.first_env, self.device = num_envs, first_env, torch.device(device)
        self.options, self.ranges = options, options.ranges()
        self.protocol = card(protocol, options, self.ranges, worlds is not None)
        names = FEWER[options.actions]
        self.action_spec = Discrete(len(names), names)
        self.obs_spec = obs_spec(options)
        self.stack = options.stack if self._draws else 1
        skip = self.protocol.frame_skip
        self._fewest, self._most = skip if isinstance(skip, tuple) else (skip, skip)
        self._make_tables(names, worlds)
        self._make_fast(compiled, fuse)

    def _make_fast(self, compiled: bool, fuse: bool) -> None:
        """Compile and capture what a step consists of."""
        captured, compiled = compiled and self.device.type == "cuda", compiled and (fuse or self.device.type == "cpu")
        self._decide, self._draw, self._show = (
            fused(function, self.device, compiled) for function in (self._decision, self._picture, self._shown)
        )
        self._lends = captured
        if captured:
            self._decide = Graphed(self._decide, carries=True)
        # In a graph inputs and outputs have places of their own: launches cost more for few pictures, copies for many.
        if captured and (not compiled or self.num_envs <= CAPTURED_PICTURES):
            self._show = Graphed(self._show)

    def _make_tables(self, names: tuple[str, ...], worlds: Tensor | None) -> None:
        """What never changes, on the device: so that nothing is made or copied while playing."""
        device = self.device
        self._turns = torch.tensor([TURNS[name] for name in names], device=device)
        self._buttons = torch.tensor(["FIRE" in name for name in names], device=device)
        self._whiches = {
            purpose: torch.arange(purpose, purpose + count, dtype=torch.int32, device=device)[:, None]
            for purpose, count in ((NOOPS, 1), (PHYSICS, len(physics.DEFAULTS)), (NOISE, 4), (STICKY, self._most))
        }
        self._skip_draw = torch.tensor([[STICKY - 1]], dtype=torch.int32, device=device)
        usual = physics.usual(device)
        self._shared = usual if worlds is None else physics.from_tensor(worlds.to(device), self.num_envs)
        self._noisy = "noise" in self.ranges or worlds is not None
        self._openings = openings.openings(self.protocol, usual)
        self._tables = drawing.Tables.on(self.device)
        # On a CPU it costs nothing to ask whether an episode ended, and most often none did; a GPU would have to wait.
        self._asks = self.device.type == "cpu"
        self._opening_pictures = None
        if self._draws and worlds is None and not {"paddle_height", "noise"} & self.ranges.keys():
            view = opening(self._openings, usual)
            self._opening_pictures = self._picture(view, view)

    # Chance.

    def _uniform(self, key: Tensor, when: Tensor, purpose: int) -> Tensor:
        return chance.uniform(key, when, self._whiches[purpose])

    def _physics(self, key: Tensor, episode: Tensor, before: Physics) -> Physics:
        """What one episode of each environment is played by; what is not drawn stays as it was before."""
        if not self.ranges:
            return before
        return physics.draw(self.ranges, self._uniform(key, episode, PHYSICS), before)

    def _opening(self, key: Tensor, episode: Tensor) -> Game:
        """Where one episode of each environment begins: after some no-ops."""
        return openings.pick(self._openings, self._noops(key, episode))

    def _noops(self, key: Tensor, episode: Tensor) -> Tensor:
        """How many no-ops open an episode, counted from the fewest that there may be. int64 [N]"""
        return (self._uniform(key, episode, NOOPS)[0] * len(self._openings.clock)).long()

    # What is seen.

    def _noticed(self, playing: Playing) -> Game:
        if not self._noisy:
            return playing.game
        uniform = self._uniform(playing.key, playing.decisions, NOISE)
        normal = 2**0.5 * torch.erfinv((2 * uniform - 1).clamp(-1 + 1e-6, 1 - 1e-6))
        return seeing.as_noticed(playing.game, playing.physics, normal)

    def _see(self, playing: Playing) -> Tensor:
        """One observation of each environment, where that is no picture. [N, ...]"""
        options = self.options
        if options.obs == "ram":
            return ram.memory(playing.game, playing.extra)
        game = self._noticed(playing)
        return seeing.state_vector(game, playing.physics, options.velocities, options.opponent)

    def _picture(self, older: View, newer: View) -> Tensor:
        """What two frames show together, or the newer one alone. uint8 [N, H, W]"""
        if not self.protocol.max_pool:
            older = newer
        if self.options.obs == "binary":
            return seeing.binary(older) | seeing.binary(newer)
        return drawing.draw(older, newer, self._tables)

    def _first(self, playing: Playing) -> Tensor:
        """The observation that opens the episode which each environment has just begun. [N, ...]"""
        if not self._draws:
            return self._see(playing)
        if self._opening_pictures is None:
            view = opening(self._noticed(playing), playing.physics)
            return self._picture(view, view)
        return self._opening_pictures[self._noops(playing.key, playing.episodes - 1)]

    def _shown(
        self, stack: Tensor, views: tuple[View, View], playing: Playing, ended_N: Tensor
    ) -> tuple[Tensor, Tensor]:
        """The newest pictures after a decision, and the same before any reset. uint8 [N, stack, H, W] each"""
        final = torch.cat([stack[:, 1:], self._picture(*views)[:, None]], 1)
        return select(ended_N, self._first_stack(self._first(playing)), final), final

    @property
    def _draws(self) -> bool:
        return self.options.obs in ("pixels", "binary")

    # One decision.

    def _decision(self, playing: Playing, action_N: Tensor) -> tuple[Playing, Outcome]:
        """Some frames of each game, then the next episode where one has ended. Tensors in, tensors out."""
        before = playing
        playing, reward, views = self._frames(playing, self._turns[action_N], self._buttons[action_N])
        steps = before.steps + 1
        terminated = rules.over(playing.game)
        limit = self.protocol.max_episode_steps
        truncated = (steps >= limit) & ~terminated if limit else torch.zeros_like(terminated)
        playing = dataclasses.replace(playing, decisions=before.decisions + 1, steps=steps)
        fresh = self._begin(playing)
        ended = terminated | truncated
        after = select(ended, fresh, playing)
        if views is not None:
            return after, Outcome(reward, terminated, truncated, None, views)
        final = self._see(playing)
        return after, Outcome(reward, terminated, truncated, select(ended, self._see(fresh), final), final)

    def _begin(self, playing: Playing) -> Playing:
        """The next episode of every environment."""
        none = torch.zeros_like(playing.steps)
        return Playing(
            game=self._opening(playing.key, playing.episodes),
            turn=torch.zeros_like(playing.turn),
            button=torch.zeros_like(playing.button),
            physics=self._physics(playing.key, playing.episodes, playing.physics),
            extra=ram.start(len(none), none.device) if playing.extra else {},
            key=playing.key,
            decisions=playing.decisions,
            steps=none,
            episodes=playing.episodes + 1,
        )

    def _frames(
        self, playing: Playing, turn_N: Tensor, button_N: Tensor
    ) -> tuple[Playing, Tensor, tuple[View, View] | None]:
        """The frames of one decision: the games after them, the reward, and what the last two show.

        In every frame the controller takes the new action up or, with the sticky probability, holds the old one. A
        game that is over stands still.
        """
        game, held_turn, held_button, extra = playing.game, playing.turn, playing.button, playing.extra
        adopts_KN = self._uniform(playing.key, playing.decisions, STICKY) >= self.protocol.sticky
        skip_N = self._skips(playing)
        reward = torch.zeros_like(game.wait)
        left, right, views = game.left, game.right, None
        for k in range(self._most):
            runs = torch.ones_like(button_N) if k == 0 else ~rules.over(game) & (k < skip_N)
            held_turn = torch.where(runs & adopts_KN[k], turn_N, held_turn)
            held_button = torch.where(runs & adopts_KN[k], button_N, held_button)
            after, gain, events = rules.frame(game, held_turn, held_button, playing.physics)
            if extra:
                extra = select(runs, ram.follow(extra, game, events), extra)
            left, right = torch.where(runs, game.left, left), torch.where(runs, game.right, right)
            reward = reward + gain * runs
            game = select(runs, after, game)
            if self._draws and k >= max(0, self._fewest - 2):
                noticed = self._noticed(dataclasses.replace(playing, game=game))
                view = look(noticed, playing.physics, left, right)
                views = (view, view) if views is None else (select(runs, views[1], views[0]), view)
        after = dataclasses.replace(playing, game=game, turn=held_turn, button=held_button, extra=extra)
        return after, reward.float(), views

    def _skips(self, playing: Playing) -> Tensor | int:
        """How many frames this decision lasts, in each environment where chance decides."""
        if self._fewest == self._most:
            return self._most
        uniform_N = chance.uniform(playing.key, playing.decisions, self._skip_draw)[0]
        return self._fewest + (uniform_N * (self._most - self._fewest + 1)).int()

    # The contract.

    def _reset(self, seed: int) -> Obs:
        key = chance.keys(seed, self.first_env, self.num_envs, self.device)
        zero = torch.zeros_like(key)
        empty = Playing(
            game=self._opening(key, zero),
            turn=zero.float(),
            button=zero.bool(),
            physics=self._shared,
            extra=ram.start(self.num_envs, self.device) if self.options.obs == "ram" else {},
            key=key,
            decisions=zero,
            steps=zero,
            episodes=zero,
        )
        self._playing = self._begin(empty)
        self._stack = self._first_stack(self._first(self._playing))
        return self._obs(self._stack)

    def _first_stack(self, first: Tensor) -> Tensor:
        """What an episode opens with: for pictures, older ones are empty. [N, ...] -> [N, stack, ...]"""
        if not self._draws:
            return first
        return torch.nn.functional.pad(first[:, None], (0, 0, 0, 0, self.options.stack - 1, 0))

    def _obs(self, stack: Tensor) -> Obs:
        if self._draws:
            return {"frame": stack}
        return {"vector": stack.float() * (1 / 255) if self.options.obs == "ram" else stack}

    def _send(self, action: Tensor) -> None:
        self._action = action

    def _recv(self) -> RawStep:
        self._playing, outcome = self._decide(self._playing, self._action)
        if self._lends:
            kept = {name: getattr(outcome, name).clone() for name in ("reward", "terminated", "truncated")}
            outcome = dataclasses.replace(outcome, **kept)
        ended = outcome.terminated | outcome.truncated
        if outcome.obs is None:
            self._stack, final = self._pictures(outcome.final_obs, ended)
        else:
            self._stack, final = (part.clone() if self._lends else part for part in (outcome.obs, outcome.final_obs))
        return RawStep(
            obs=self._obs(self._stack),
            reward=outcome.reward,
            terminated=outcome.terminated,
            truncated=outcome.truncated,
            final_obs=self._obs(final),
            round_end=outcome.reward != 0,
            may_truncate=not self._asks or bool(outcome.truncated.any()),
        )

    def _pictures(self, views: tuple[View, View], ended_N: Tensor) -> tuple[Tensor, Tensor]:
        """What the next action sees, and what there was to see before any reset. uint8 [N, stack, H, W] each"""
        if not self._asks:
            return self._show(self._stack, views, self._playing, ended_N)
        final = torch.cat([self._stack[:, 1:], self._draw(*views)[:, None]], 1)
        if not bool(ended_N.any()):
            return final, final
        return select(ended_N, self._first_stack(self._first(self._playing)), final), final

    def _state_dict(self) -> dict[str, Tensor]:
        return {"stack": self._stack, **{name: part.clone() for name, part in flatten(self._playing).items()}}

    def _load_state_dict(self, state: dict[str, Tensor]) -> Obs:
        self._reset(0)
        self._stack = state["stack"].to(self.device)
        self._playing = unflatten(self._playing, {name: part.to(self.device) for name, part in state.items()})
        return self._obs(self._stack)

    def render(self) -> np.ndarray:
        """The screen of environment 0 in colour, [210, 160, 3], with what is hidden from the agent."""
        return showing.screen(self._playing.game, self._playing.physics)

    def scene(self) -> dict[str, Tensor]:
        """Ball and paddles, in columns and lines."""
        return showing.scene(self._playing.game, self._playing.physics)
