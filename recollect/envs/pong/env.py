"""Pong as a vector environment: N games, decisions of some frames, sticky actions, episodes that begin anew."""

import dataclasses
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from recollect.envs import chance, protocols
from recollect.envs.pong import drawing, physics, ram, rules, seeing
from recollect.envs.pong.physics import Physics, Range
from recollect.envs.pong.rules import Game, select
from recollect.envs.pong.view import View, look, opening
from recollect.envs.vector import Protocol, RawStep, VectorEnv
from recollect.fast import fast
from recollect.types import Discrete, Obs, State, TensorSpec

ENV_ID = "recollect/Pong-v0"
ACTIONS = ("NOOP", "FIRE", "RIGHT", "LEFT", "RIGHTFIRE", "LEFTFIRE")  # as the ALE numbers those that Pong knows
TURNS = {"NOOP": 0.0, "FIRE": 0.0, "RIGHT": -1.0, "LEFT": 1.0, "RIGHTFIRE": -1.0, "LEFTFIRE": 1.0}
STACK = 4
# What chance decides, by number: see ``chance.uniform``.
NOOPS, PHYSICS, NOISE, STICKY = 0, 16, 64, 128


@dataclass(frozen=True)
class Options(protocols.Options):
    """What can be chosen about Pong on tensors, beside the rules that it shares with Atari.

    Physics is a number, or a range as 8..24 from which each episode draws anew.
    """

    obs: Literal["pixels", "binary", "ram", "state"] = "pixels"
    """84x84 grey frames, 80x80 binary ones, the console's 128 bytes, or positions."""
    stack: int = STACK
    """Frames that pixels and binary show at once."""
    velocities: bool = True
    """The state has the ball's speed."""
    opponent: bool = True
    """The state has the opponent's paddle."""
    actions: Literal["six", "three", "two"] = "six"
    """All that the game knows; without FIRE; only up and down."""
    ball_speed: str | None = None
    """Columns a frame at the serve; the ALE's is 1."""
    acceleration: str | None = None
    """Columns a frame that each touch of a paddle adds; 0."""
    gravity: str | None = None
    """Lines a frame that each frame adds, downwards; 0."""
    bounce_loss: str | None = None
    """Share of the vertical speed that a wall takes; 0."""
    paddle_height: str | None = None
    """Lines of the player's paddle; 16."""
    paddle_speed: str | None = None
    """How fast the player's knob turns; 1."""
    opponent_speed: str | None = None
    """Lines a frame; 2."""
    opponent_lag: str | None = None
    """Frames by which the opponent's idea of the ball trails behind; 0."""
    spin: str | None = None
    """Lines a frame that the ball takes from each line a frame of the player's paddle; 0."""
    hidden_from: str | None = None
    """The ball is hidden from this column on (52 to 205 is the field) ..."""
    hidden_to: str | None = None
    """... to this one."""
    noise: str | None = None
    """Standard deviation of what is seen of each position, in lines and columns; 0."""

    def __post_init__(self) -> None:
        if self.stack < 1:
            raise ValueError(f"Pong's stack must be at least 1, got {self.stack}")
        for rule in ("life_loss_ends", "full_actions"):
            if getattr(self, rule):
                raise ValueError(f"Pong on tensors has one life and its own six actions: {rule} cannot be true")
        physics.check_ranges(self.ranges())

    def ranges(self) -> dict[str, Range]:
        """The physics that were given."""
        given = {name: getattr(self, name) for name in physics.DEFAULTS}
        return {name: physics.parse_range(name, str(word)) for name, word in given.items() if word is not None}

    def rules(self) -> dict[str, Any]:
        """The rules on top of the protocol that were given."""
        shared = {field.name for field in dataclasses.fields(protocols.Options)}
        return {name: value for name, value in self.chosen().items() if name in shared}


@dataclass(frozen=True)
class Playing:
    """All that N environments are between two decisions, but for the pictures they have shown. Every field is [N]."""

    game: Game
    turn: Tensor  # float32, what the sticky controller holds
    button: Tensor  # bool
    physics: Physics  # [1] where all share it
    extra: State  # what memory holds besides, where that is observed
    key: Tensor  # int32
    decisions: Tensor  # int32, since the environment was made
    steps: Tensor  # int32, of this episode
    episodes: Tensor  # int32, begun so far


@dataclass(frozen=True)
class Outcome:
    """What one decision brought."""

    reward: Tensor  # [N] float32
    terminated: Tensor  # [N] bool
    truncated: Tensor  # [N] bool
    seen: Tensor  # [N, ...] the observation (for pictures: the newest one) after the decision, before any reset
    first: Tensor  # [N, ...] the first one of the episode that begins where one ended; anything elsewhere


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
    ):
        options = options or Options()
        self.num_envs, self.first_env, self.device = num_envs, first_env, torch.device(device)
        self.options, self.ranges = options, options.ranges()
        self.protocol = _card(protocol, options, self.ranges)
        names = {"six": ACTIONS, "three": ACTIONS[:1] + ACTIONS[2:4], "two": ACTIONS[2:4]}[options.actions]
        self.action_spec = Discrete(len(names), names)
        self.obs_spec = _obs_spec(options)
        skip = self.protocol.frame_skip
        self._fewest, self._most = skip if isinstance(skip, tuple) else (skip, skip)
        self._make_tables(names)
        self._decide = fast(self._decision, self.device, compiled)

    def _make_tables(self, names: tuple[str, ...]) -> None:
        """What never changes, on the device: so that nothing is made or copied while playing."""
        on = {"device": self.device}
        self._turns = torch.tensor([TURNS[name] for name in names], **on)
        self._buttons = torch.tensor(["FIRE" in name for name in names], **on)
        self._whiches = {
            purpose: torch.arange(purpose, purpose + count, dtype=torch.int32, **on)[:, None]
            for purpose, count in ((NOOPS, 1), (PHYSICS, len(self.ranges)), (NOISE, 4), (STICKY, self._most))
        }
        self._skip_draw = torch.tensor([[STICKY - 1]], dtype=torch.int32, **on)
        self._usual = physics.draw({}, torch.zeros(0, 1, **on))
        self._openings = _openings(self.protocol, self._usual)
        self._tables = drawing.Tables.on(self.device)

    # Chance.

    def _uniform(self, key: Tensor, when: Tensor, purpose: int) -> Tensor:
        return chance.uniform(key, when, self._whiches[purpose])

    def _physics(self, key: Tensor, episode: Tensor) -> Physics:
        """What one episode of each environment is played by."""
        if not self.ranges:
            return self._usual
        return physics.draw(self.ranges, self._uniform(key, episode, PHYSICS))

    def _opening(self, key: Tensor, episode: Tensor) -> Game:
        """Where one episode of each environment begins: after some no-ops."""
        count = len(self._openings.clock)
        noops_N = (self._uniform(key, episode, NOOPS)[0] * count).long()
        return rules.at(self._openings, noops_N)

    # What is seen.

    def _noticed(self, playing: Playing) -> Game:
        if "noise" not in self.ranges:
            return playing.game
        uniform = self._uniform(playing.key, playing.decisions, NOISE)
        normal = 2**0.5 * torch.erfinv((2 * uniform - 1).clamp(-1 + 1e-6, 1 - 1e-6))
        return seeing.as_noticed(playing.game, playing.physics, normal)

    def _see(self, playing: Playing, views: tuple[View, View] | None) -> Tensor:
        """One observation of each environment, of pictures the newest. [N, ...]"""
        options = self.options
        if options.obs == "state":
            game = self._noticed(playing)
            return seeing.state_vector(game, playing.physics, options.velocities, options.opponent)
        if options.obs == "ram":
            return ram.memory(playing.game, playing.extra)
        if views is None:
            views = 2 * (opening(self._noticed(playing), playing.physics),)
        if options.obs == "binary":
            newest = seeing.binary(views[1])
            return newest | seeing.binary(views[0]) if self.protocol.max_pool else newest
        return drawing.draw(views[0] if self.protocol.max_pool else views[1], views[1], self._tables)

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
        seen = self._see(playing, views)
        fresh = self._begin(playing)
        ended = terminated | truncated
        return select(ended, fresh, playing), Outcome(reward, terminated, truncated, seen, self._see(fresh, None))

    def _begin(self, playing: Playing) -> Playing:
        """The next episode of every environment."""
        none = torch.zeros_like(playing.steps)
        return Playing(
            game=self._opening(playing.key, playing.episodes),
            turn=torch.zeros_like(playing.turn),
            button=torch.zeros_like(playing.button),
            physics=self._physics(playing.key, playing.episodes),
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
            physics=self._physics(key, zero),
            extra=ram.start(self.num_envs, self.device) if self.options.obs == "ram" else {},
            key=key,
            decisions=zero,
            steps=zero,
            episodes=zero,
        )
        self._playing = self._begin(empty)
        self._stack = self._first_stack(self._see(self._playing, None))
        return self._obs(self._stack)

    def _first_stack(self, first: Tensor) -> Tensor:
        """What an episode opens with: for pictures, older ones are empty. [N, ...] -> [N, stack, ...]"""
        if not self._draws:
            return first
        return torch.nn.functional.pad(first[:, None], (0, 0, 0, 0, self.options.stack - 1, 0))

    def _obs(self, stack: Tensor) -> Obs:
        if self._draws:
            return {"frame": stack}
        return {"vector": stack.float() / 255 if self.options.obs == "ram" else stack}

    def _send(self, action: Tensor) -> None:
        self._action = action

    def _recv(self) -> RawStep:
        self._playing, outcome = self._decide(self._playing, self._action)
        ended = outcome.terminated | outcome.truncated
        final = outcome.seen
        if self._draws:
            final = torch.cat([self._stack[:, 1:], outcome.seen[:, None]], 1)
        # On a CPU it costs nothing to ask; a GPU would make the host wait.
        asks = self.device.type == "cpu"
        if asks and not bool(ended.any()):
            self._stack = final
        else:
            rows = ended.view(-1, *[1] * (final.dim() - 1))
            self._stack = torch.where(rows, self._first_stack(outcome.first), final)
        return RawStep(
            obs=self._obs(self._stack),
            reward=outcome.reward,
            terminated=outcome.terminated,
            truncated=outcome.truncated,
            final_obs=self._obs(final),
            round_end=outcome.reward != 0,
            may_truncate=not asks or bool(outcome.truncated.any()),
        )

    def _state_dict(self) -> dict[str, Tensor]:
        return {"stack": self._stack, **flatten(self._playing)}

    def _load_state_dict(self, state: dict[str, Tensor]) -> Obs:
        self._reset(0)
        self._stack = state["stack"].to(self.device)
        self._playing = unflatten(self._playing, {name: part.to(self.device) for name, part in state.items()})
        return self._obs(self._stack)

    def render(self) -> np.ndarray:
        """The screen of environment 0 in colour, [210, 160, 3]."""
        game = rules.at(self._playing.game, torch.zeros(1, dtype=torch.int64, device=self.device))
        one = _row(self._playing.physics, 0)
        return drawing.screen(look(game, one, game.left, game.right))


def _row(shared: Physics, row: int) -> Physics:
    """The physics of one environment."""
    parts = (getattr(shared, field.name) for field in dataclasses.fields(Physics))
    return Physics(*(part if len(part) == 1 else part[row : row + 1] for part in parts))


def _obs_spec(options: Options) -> dict[str, TensorSpec]:
    if options.obs == "pixels":
        return {"frame": TensorSpec((options.stack, drawing.SIZE, drawing.SIZE), torch.uint8, 0, 255)}
    if options.obs == "binary":
        size = seeing.BINARY_SIZE
        return {"frame": TensorSpec((options.stack, size, size), torch.uint8, 0, 1)}
    width = ram.SIZE if options.obs == "ram" else len(seeing.state_names(options.velocities, options.opponent))
    return {"vector": TensorSpec((width,), torch.float32)}


def _card(protocol: str, options: Options, ranges: dict[str, Range]) -> Protocol:
    """What the rules are, in words for what no field of a protocol says."""
    rules_named = protocols.rules_of(protocol, options.rules())
    seen = {
        "pixels": "grey 84x84 by area mean",
        "binary": "binary 80x80",
        "ram": "128 bytes",
        "state": ", ".join(seeing.state_names(options.velocities, options.opponent)),
    }[options.obs]
    pictures = f", {options.stack} stacked, zeros before a reset" if options.obs in ("pixels", "binary") else ""
    changed = [f"{name} {low:g}" + (f"..{high:g}" if high > low else "") for name, (low, high) in ranges.items()]
    words = f"{seen}{pictures}; {options.actions} actions; physics: {', '.join(changed) or 'as the ALE'}"
    return Protocol(env_id=ENV_ID, engine="tensor", extra=words, **rules_named)


def _openings(protocol: Protocol, usual: Physics) -> Game:
    """Games after 0, 1, ... no-ops, the first of them FIRE where the protocol has a fire reset. Every field is [M]"""
    device = usual.noise.device
    game = rules.start(1, device)
    still, fire = torch.zeros(1, device=device), torch.zeros(1, dtype=torch.bool, device=device)
    games = []
    for number in range(max(protocol.noop_max, int(protocol.fire_reset)) + 1):
        games.append(game)
        game, _, _ = rules.frame(game, still, fire | (protocol.fire_reset and number == 0), usual)
    games = games[int(protocol.fire_reset) :]
    return Game(
        **{field.name: torch.cat([getattr(g, field.name) for g in games]) for field in dataclasses.fields(Game)}
    )


def flatten(value: Any, prefix: str = "") -> dict[str, Tensor]:
    """Every tensor of nested dataclasses and dicts by its dotted name."""
    if isinstance(value, Tensor):
        return {prefix: value}
    parts = value if isinstance(value, dict) else {f.name: getattr(value, f.name) for f in dataclasses.fields(value)}
    flat: dict[str, Tensor] = {}
    for name, part in parts.items():
        flat |= flatten(part, f"{prefix}.{name}" if prefix else name)
    return flat


def unflatten(like: Any, flat: dict[str, Tensor], prefix: str = "") -> Any:
    """The inverse of ``flatten``, in the form of ``like``."""
    if isinstance(like, Tensor):
        return flat[prefix]
    dotted = f"{prefix}." if prefix else ""
    if isinstance(like, dict):
        return {name: unflatten(part, flat, dotted + name) for name, part in like.items()}
    names = [field.name for field in dataclasses.fields(like)]
    return type(like)(**{name: unflatten(getattr(like, name), flat, dotted + name) for name in names})
