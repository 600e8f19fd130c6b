"""Pong on tensors against ale-py, frame by frame: the same actions into both, nothing ever adjusted.

In each emulator frame all that the rules say is compared with memory (the other bytes are held to it by tests), and
after every fourth frame of an episode the picture of the last two. What was met on the way is counted, so that an
empty cell shows what was never compared.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from recollect.envs.atari_base import import_ale
from recollect.envs.atari_random_skip import shrink
from recollect.envs.pong import drawing, physics, rules
from recollect.envs.pong.options import TURNS
from recollect.envs.pong.rules import Events, Game
from recollect.envs.pong.view import View, look, opening
from recollect.envs.protocols import ACTIONS
from recollect.nested import map_tensors, select

EACH = 8  # games side by side of each kind of play
LIMIT = 108_000  # frames, Atari's usual end of a game
STICKY = 0.25
SKIP = 4  # frames from one comparison of pictures to the next, as an agent sees them

FRAMES, PICTURES, PICTURE = "emulator frames", "pictures", "picture"

Player = Callable[[Game], np.ndarray]  # what EACH games want to do next, int [EACH]


@dataclass
class Report:
    """What was compared, what differed, and what occurred: counts by name, one for each column."""

    columns: int
    wrong: dict[str, np.ndarray] = field(default_factory=dict)
    met: dict[str, np.ndarray] = field(default_factory=dict)

    def add(self, to: dict[str, np.ndarray], name: str, happened: np.ndarray) -> None:
        """Count what happened in some columns. happened: bool [columns]"""
        to[name] = to.get(name, np.zeros(self.columns, dtype=np.int64)) + happened

    def of(self, kind: int) -> tuple[dict[str, int], dict[str, int]]:
        """What differed and what occurred in one kind of play, added up."""
        columns = slice(kind * EACH, (kind + 1) * EACH)
        wrong, met = ({name: int(n[columns].sum()) for name, n in part.items()} for part in (self.wrong, self.met))
        return wrong, met


class Emulators:
    """Games of ale-py side by side, one frame at a time, without chance of their own."""

    def __init__(self, count: int):
        ale_py = import_ale()
        self.games = [ale_py.ALEInterface() for _ in range(count)]
        for game in self.games:
            game.setFloat("repeat_action_probability", 0.0)
            game.setInt("frame_skip", 1)
            game.loadROM(ale_py.roms.get_rom_path("pong"))
        self.actions = self.games[0].getMinimalActionSet()
        assert tuple(action.name for action in self.actions) == ACTIONS

    def act(self, action_N: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """One frame. -> memory [N, 128], reward [N], whether the game is over [N]"""
        reward = np.array([g.act(self.actions[a]) for g, a in zip(self.games, action_N, strict=True)])
        return np.stack([g.getRAM() for g in self.games]), reward, np.array([g.game_over() for g in self.games])


def memory_of(game: Game) -> dict[str, tuple[int, np.ndarray]]:
    """What the rules say of the console's memory: name -> (byte, values [N])."""
    parts = {
        "clock": (8, game.clock),
        "wait": (11, game.wait),
        "opponent's points": (13, game.left),
        "player's points": (14, game.right),
        "ball x": (49, game.ball_x),
        "opponent": (50, game.opponent),
        "player": (51, game.paddle),
        "ball y": (54, game.ball_y),
        "speed y": (56, game.speed_y),
        "speed x": (58, game.speed_x),
        "aim": (60, game.aim),
    }
    return {name: (byte, value.numpy().astype(np.int64) & 255) for name, (byte, value) in parts.items()}


@torch.no_grad()
def compare(players: Sequence[Player], frames: int, seed: int) -> Report:
    """Play about ``frames`` emulator frames with each player, on both sides."""
    count, chance = EACH * len(players), np.random.default_rng(seed)
    report = Report(count)
    emulators, usual = Emulators(count), physics.usual(torch.device("cpu"))
    tables, start = drawing.Tables.on(torch.device("cpu")), rules.start(count, torch.device("cpu"))
    turns, buttons = torch.tensor([TURNS[a] for a in ACTIONS]), torch.tensor(["FIRE" in a for a in ACTIONS])
    game, view, age = start, opening(start, usual), np.zeros(count, dtype=np.int64)
    held, screens = np.zeros(count, dtype=np.int64), [g.getScreenGrayscale() for g in emulators.games]
    for _ in range(frames // EACH):
        parts = (map_tensors(lambda part, k=k: part[k * EACH : (k + 1) * EACH], game) for k in range(len(players)))
        wanted = np.concatenate([player(part) for player, part in zip(players, parts, strict=True)])
        held = np.where(chance.random(count) >= STICKY, wanted, held)
        memory, reward, over = emulators.act(held)
        after, gain, events = rules.frame(game, turns[held], buttons[held], usual)
        shown = look(after, usual, game.left, game.right)
        age += 1
        count_differences(report, after, gain, memory, reward, over)
        count_events(report, game, events, after, age)
        compare_pictures(report, emulators, screens, view, shown, age, over, tables)
        game, view = after, shown
        ended = over | (age >= LIMIT)
        if ended.any():
            for i in np.flatnonzero(ended):
                emulators.games[i].reset_game()
            rows = torch.from_numpy(ended)
            game, view = select(rows, start, game), select(rows, opening(start, usual), view)
            held[ended], age[ended] = 0, 0
    return report


def count_differences(
    report: Report, game: Game, gain: Tensor, memory: np.ndarray, reward: np.ndarray, over: np.ndarray
) -> None:
    """Add one frame of every column."""
    report.add(report.met, FRAMES, np.ones(len(over), dtype=bool))
    for name, (byte, values) in memory_of(game).items():
        report.add(report.wrong, name, values != memory[:, byte])
    report.add(report.wrong, "reward", gain.numpy() != reward)
    report.add(report.wrong, "end", rules.over(game).numpy() != over)


def compare_pictures(
    report: Report,
    emulators: Emulators,
    screens: list[np.ndarray],
    older: View,
    newer: View,
    age: np.ndarray,
    over: np.ndarray,
    tables: drawing.Tables,
) -> None:
    """Where a decision ends now, hold the picture against the screen's; ``screens`` remembers the frame before."""
    due = np.flatnonzero((age % SKIP == 0) & ~over)
    if len(due):
        rows = torch.from_numpy(due)
        one, other = (map_tensors(lambda part: part[rows], view) for view in (older, newer))
        pictures = drawing.draw(one, other, tables).numpy()
        differs = np.zeros(len(age), dtype=bool)
        for i, picture in zip(due, pictures, strict=True):
            wanted = shrink(np.maximum(screens[i], emulators.games[i].getScreenGrayscale()))
            differs[i] = (picture != wanted).any()
        report.add(report.met, PICTURES, np.isin(np.arange(len(age)), due))
        report.add(report.wrong, PICTURE, differs)
    for i in np.flatnonzero(age % SKIP == SKIP - 1):
        screens[i] = emulators.games[i].getScreenGrayscale()


# What occurred.

CELLS = (
    *(f"speed {k} {way}" for way in ("leftwards", "rightwards") for k in (1, 2, 3, 4)),
    *(f"player's paddle gives {v:+d}" for v in range(-2, 3)),
    *(f"opponent's paddle gives {v:+d}" for v in range(-3, 3)),
    *("hit with FIRE", "hit without FIRE", "hit at the upper end", "hit at the lower end", "hit behind the face"),
    *("touched twice", "upper wall", "lower wall", "serve up", "serve down", "serve leftwards", "serve rightwards"),
    *("point won", "point lost", "game of 21-0", "game of 0-21", "frame 65,536", "frame 108,000"),
)


def count_events(report: Report, before: Game, events: Events, after: Game, age: np.ndarray) -> None:
    """Add what one frame brought to every column."""
    hit = events.hit_right
    offset = before.ball_y - rules.even_line(before.paddle)
    flying = (before.wait == 0) & (before.clock < rules.LAST_CLOCK)
    seen: dict[str, Tensor] = {
        "hit with FIRE": hit & before.fire,
        "hit without FIRE": hit & ~before.fire,
        "hit at the upper end": hit & (offset < 0),
        "hit at the lower end": hit & (offset > 13),
        "hit behind the face": hit & (before.ball_x > rules.RIGHT_FACE),
        "touched twice": hit & (before.speed_x > 0),
        "upper wall": events.top,
        "lower wall": events.bottom,
        "serve up": events.serve & (after.speed_y < 0),
        "serve down": events.serve & (after.speed_y > 0),
        "serve leftwards": events.serve & (after.speed_x > 0),
        "serve rightwards": events.serve & (after.speed_x < 0),
        "point won": events.won,
        "point lost": events.lost,
        "game of 21-0": (after.right == rules.POINTS) & (after.left == 0),
        "game of 0-21": (after.left == rules.POINTS) & (after.right == 0),
        "frame 65,536": events.ends,
        "frame 108,000": torch.from_numpy(age == LIMIT),
    }
    for k in (1, 2, 3, 4):
        seen[f"speed {k} leftwards"] = flying & (before.speed_x == k)
        seen[f"speed {k} rightwards"] = flying & (before.speed_x == -k)
    for v in range(-3, 3):
        seen[f"player's paddle gives {v:+d}"] = hit & (after.speed_y == v)
        seen[f"opponent's paddle gives {v:+d}"] = events.hit_left & (after.speed_y == v)
    for cell in CELLS:
        report.add(report.met, cell, seen[cell].numpy())


# Who plays.


def random_player(seed: int) -> Player:
    """Any action, held for a while."""
    chance = np.random.default_rng(seed)
    wanted = np.zeros(EACH, dtype=np.int64)

    def play(game: Game) -> np.ndarray:
        anew = chance.random(EACH) < 0.2
        wanted[anew] = chance.integers(len(ACTIONS), size=anew.sum())
        return wanted.copy()

    return play


def scripted_player(seed: int) -> Player:
    """Columns 0 and 1 keep the ball in play for as long as they can, column 2 stands still, the others attack.

    An attacker foresees where the ball will come and turns a chosen zone of its paddle towards it, mostly with FIRE.
    """
    chance = np.random.default_rng(seed)
    keepers, idle = np.arange(EACH) < 2, np.arange(EACH) == 2
    aim, fire = np.full(EACH, 6.0), np.zeros(EACH, dtype=bool)

    def play(game: Game) -> np.ndarray:
        x, y = game.ball_x.numpy(), game.ball_y.numpy()
        vx, vy, knob = game.speed_x.numpy(), game.speed_y.numpy(), game.knob.numpy()
        left = (vx > 0) & (chance.random(EACH) < 0.05)  # while it flies away, choose how to meet it
        zones = np.where(chance.random(EACH) < 0.6, np.where(y > 110, 2.0, 11.5), chance.uniform(-3, 17, EACH))
        aim[left] = np.where(keepers, chance.uniform(4, 9, EACH), zones)[left]
        fire[left] = (chance.random(EACH) < 0.8)[left]
        coming = vx < 0
        flight = np.where(coming, (rules.RIGHT_FACE - 2 - x) / np.maximum(-vx, 1), 0.0).clip(0)
        target = _fold(y + vy * flight) - aim
        wanted = (target / 2 - rules.READ_OFFSET) / rules.READ_SLOPE
        turn = np.where(np.abs(wanted - knob) > rules.KNOB_STEP / 2, np.sign(wanted - knob), 0)
        press = fire & ~keepers
        action = np.select([turn < 0, turn > 0], [np.where(press, 4, 2), np.where(press, 5, 3)], np.where(press, 1, 0))
        return np.where(idle, 0, action)

    return play


def _fold(line: np.ndarray) -> np.ndarray:
    """Where a ball that bounces between the walls is seen to arrive."""
    top, height = rules.TOP + 1, rules.BOTTOM - rules.TOP - 2
    phase = np.mod(line - top, 2 * height)
    return top + np.minimum(phase, 2 * height - phase)
