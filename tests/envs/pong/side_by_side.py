"""Pong on tensors beside ale-py: the same actions, frame by frame, and what either says of each frame.

The two start alike and are never set alike again.
"""

import dataclasses
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import ale_py
import ale_py.roms
import numpy as np
import torch
from torch import Tensor

from recollect.envs.atari_random_skip import shrink
from recollect.envs.pong import drawing, physics, ram, rules
from recollect.envs.pong.options import TURNS
from recollect.envs.pong.rules import Events, Game
from recollect.envs.pong.view import look, opening
from recollect.envs.protocols import ACTIONS
from recollect.nested import map_tensors, select
from recollect.types import State

CPU = torch.device("cpu")
USUAL = physics.usual(torch.device("cpu"))
TABLES = drawing.Tables.on(CPU)
NOOP, FIRE, RIGHT, LEFT, RIGHTFIRE, LEFTFIRE = range(len(ACTIONS))
TURN_OF = torch.tensor([TURNS[name] for name in ACTIONS])
BUTTON_OF = torch.tensor(["FIRE" in name for name in ACTIONS])

# Where the console keeps what the rules are about.
KNOB, CLOCK_LOW, CLOCK_HIGH, COLOUR, OPPONENT_TOO = 4, 8, 9, 10, 21
PLACES = {
    "wait": 11,
    "left": 13,
    "right": 14,
    "ball_x": 49,
    "opponent": 50,
    "paddle": 51,
    "ball_y": 54,
    "speed_y": 56,
    "speed_x": 58,
    "aim": 60,
}
SIGNED = ("speed_x", "speed_y")

Policy = Callable[[np.ndarray], int]  # memory, uint8 [128] -> number of an action


def console(sticky: float = 0.0, seed: int = 0) -> ale_py.ALEInterface:
    """ale-py's Pong, one frame an action, just reset."""
    ale_py.ALEInterface.setLoggerMode(ale_py.LoggerMode.Error)
    ale = ale_py.ALEInterface()
    ale.setInt("frame_skip", 1)
    ale.setFloat("repeat_action_probability", sticky)
    ale.setInt("random_seed", seed)
    ale.loadROM(ale_py.roms.get_rom_path("pong"))
    ale.reset_game()
    assert tuple(action.name for action in ale.getMinimalActionSet()) == ACTIONS
    return ale


@dataclass(frozen=True)
class Frame:
    """One frame of N games as both played it; many frames are one of more games (``join``)."""

    opens: Tensor  # [N] bool, the first frame of an episode
    before: Game  # what is ours
    after: Game
    events: Events
    extra: State  # what our memory holds besides
    reward: Tensor  # [N] int32
    memory: Tensor  # [N, 128] uint8, what is ale-py's
    screen: Tensor  # [N, 210, 160] grey
    last_screen: Tensor  # the one before
    paid: Tensor  # [N]
    over: Tensor  # [N] bool


class SideBySide:
    """N games on both."""

    def __init__(self, num_games: int):
        self.consoles = [console() for _ in range(num_games)]
        self.actions = self.consoles[0].getMinimalActionSet()
        self.game, self.extra = rules.start(num_games, CPU), ram.start(num_games, CPU)
        self.opens = torch.ones(num_games, dtype=torch.bool)
        self.screen = self._screens()

    @property
    def memory(self) -> np.ndarray:
        return np.stack([ale.getRAM() for ale in self.consoles])

    def _screens(self) -> Tensor:
        return torch.from_numpy(np.stack([ale.getScreenGrayscale() for ale in self.consoles]))

    def put(self, **numbers: int | list[int]) -> None:
        """Set some of the game's numbers on both, as if it had come so: one for all games, or one for each."""
        for name, given in numbers.items():
            values = torch.zeros_like(getattr(self.game, name)) + torch.tensor(given)
            self.game = dataclasses.replace(self.game, **{name: values})
            for ale, value in zip(self.consoles, values.int().tolist(), strict=True):
                for at, byte in self._bytes(name, value):
                    ale.setRAM(at, byte & 255)

    @staticmethod
    def _bytes(name: str, value: int) -> list[tuple[int, int]]:
        """Where the console keeps a number: two bytes make the clock, and the opponent is written twice."""
        if name == "clock":
            return [(CLOCK_LOW, value), (CLOCK_HIGH, value >> 8)]
        return [(PLACES[name], value), *([(OPPONENT_TOO, value)] if name == "opponent" else [])]

    def frame(self, action_N: Tensor) -> Frame:
        """One frame on both."""
        before, last_screen, opens = self.game, self.screen, self.opens
        self.game, reward, events = rules.frame(before, TURN_OF[action_N], BUTTON_OF[action_N], USUAL)
        self.extra = ram.follow(self.extra, before, events)
        paid = [ale.act(self.actions[k]) for ale, k in zip(self.consoles, action_N.tolist(), strict=True)]
        over = [ale.game_over() for ale in self.consoles]
        self.screen, self.opens = self._screens(), torch.zeros_like(opens)
        return Frame(
            opens=opens,
            before=before,
            after=self.game,
            events=events,
            extra=self.extra,
            reward=reward,
            memory=torch.from_numpy(self.memory),
            screen=self.screen,
            last_screen=last_screen,
            paid=torch.tensor(paid),
            over=torch.tensor(over),
        )

    def restart(self, over_N: Tensor) -> None:
        """New episodes on both. over: bool [N]"""
        for i in over_N.nonzero().flatten().tolist():
            self.consoles[i].reset_game()
        self.game = select(over_N, rules.start(len(over_N), CPU), self.game)
        self.extra = select(over_N, ram.start(len(over_N), CPU), self.extra)
        self.opens, self.screen = self.opens | over_N, self._screens()


def play(games: SideBySide, policies: list[Policy], frames: int) -> Iterator[Frame]:
    """Frames by policies that read ale-py's memory, one for each game; episodes that end begin anew."""
    for _ in range(frames):
        action = [policy(memory) for policy, memory in zip(policies, games.memory, strict=True)]
        frame = games.frame(torch.tensor(action))
        yield frame
        if frame.over.any():
            games.restart(frame.over)


class Random:
    """Any action in any frame."""

    def __init__(self, seed: int):
        self.rng = np.random.default_rng(seed)

    def __call__(self, memory: np.ndarray) -> int:
        return int(self.rng.integers(len(ACTIONS)))


class Tracker:
    """Meets the ball with any part of the paddle, or just not, now and then with FIRE.

    Between points it goes to either end, so that it also comes late and from everywhere.
    """

    def __init__(self, seed: int, fire: float):
        self.rng, self.fire = np.random.default_rng(seed), fire
        self.comes = self.presses = False
        self.part, self.end = 0, 128

    def __call__(self, memory: np.ndarray) -> int:
        waits, ball_x, ball_y, aim = (int(memory[PLACES[name]]) for name in ("wait", "ball_x", "ball_y", "aim"))
        comes = not waits and memory[PLACES["speed_x"]] >= 128  # a negative byte: towards the right
        if comes != self.comes:
            self.part = int(self.rng.integers(-3, 18))
            self.presses = bool(self.rng.random() < self.fire)
            self.end = int(self.rng.choice([0, 128, 255]))
        self.comes = comes
        gap = (self.end if waits else ball_y - self.part if comes else 128) - aim
        up, down = gap < -3, gap > 3
        presses = comes and self.presses and ball_x > 150
        return (
            (RIGHTFIRE if up else LEFTFIRE if down else FIRE) if presses else (RIGHT if up else LEFT if down else NOOP)
        )


def join(parts: list[Any]) -> Any:
    """Tensors [N, ...], or dataclasses and dicts of them, end to end."""
    first = parts[0]
    if isinstance(first, Tensor):
        return torch.cat(parts)
    if isinstance(first, dict):
        return {name: join([part[name] for part in parts]) for name in first}
    names = [field.name for field in dataclasses.fields(first)]
    return type(first)(**{name: join([getattr(part, name) for part in parts]) for name in names})


def differences(frame: Frame) -> list[str]:
    """What the two say differently about the game after a frame, in words: the first of each kind."""
    bytes_of = {name: frame.memory[:, at].int() for name, at in PLACES.items()}
    theirs = {name: value - 256 * (value > 127) if name in SIGNED else value for name, value in bytes_of.items()}
    theirs |= {"clock": frame.memory[:, CLOCK_HIGH].int() * 256 + frame.memory[:, CLOCK_LOW]}
    pairs = {name: (getattr(frame.after, name), value) for name, value in theirs.items()}
    pairs["clock"] = (frame.after.clock % 65_536, theirs["clock"])
    pairs |= {"reward": (frame.reward, frame.paid), "over": (rules.over(frame.after), frame.over)}
    found = []
    for name, (ours, value) in pairs.items():
        for row in (ours != value).nonzero().flatten().tolist()[:1]:
            found.append(f"{name} in row {row}: {ours[row].item()}, ale-py {value[row].item()}")
    return found


def wrong_bytes(frame: Frame) -> set[int]:
    """Which of the 128 bytes differ, scratch aside."""
    differs = (ram.memory(frame.after, frame.extra) != frame.memory).any(0)
    return set(differs.nonzero().flatten().tolist()) - set(ram.SCRATCH)


def pictures(frames: list[Frame]) -> tuple[np.ndarray, np.ndarray]:
    """What each frame but the first shows together with the one before it, ours and ale-py's. uint8 [M, 84, 84]

    Where an episode opens, the frame before is what its reset shows.
    """
    count, joined = len(frames[0].opens), join(frames)
    views = look(joined.after, USUAL, joined.before.left, joined.before.right)
    earlier, newer = (
        map_tensors(lambda part, rows=rows: part[rows], views) for rows in (slice(-count), slice(count, None))
    )
    resets = map_tensors(lambda part: part[count:], opening(joined.before, USUAL))
    older = select(joined.opens[count:], resets, earlier)
    brighter = torch.maximum(joined.screen, joined.last_screen)[count:].numpy()
    return drawing.draw(older, newer, TABLES).numpy(), np.stack([shrink(screen) for screen in brighter])
