"""The rules, the pictures and the memory are ale-py's, frame by frame, over whole episodes."""

from collections import Counter

import numpy as np
import pytest
import torch
from side_by_side import (
    COLOUR,
    KNOB,
    LEFT,
    NOOP,
    RIGHT,
    Frame,
    Policy,
    Random,
    SideBySide,
    Tracker,
    differences,
    join,
    pictures,
    play,
    wrong_bytes,
)

from recollect.envs.pong import rules

AT_ONCE = 250  # frames whose pictures are drawn together


def compare(games: SideBySide, policies: list[Policy], frames: int) -> Counter:
    """Play, and hold everything against ale-py; how often what happened."""
    kept, seen = [], Counter()
    for number, frame in enumerate(play(games, policies, frames)):
        kept.append(frame)
        if len(kept) > AT_ONCE or number == frames - 1:
            check(kept, f"in the {len(kept)} frames up to {number}")
            seen += happened(join(kept[1:]))
            kept = kept[-1:]
    return seen


def check(frames: list[Frame], where: str = "") -> None:
    """Hold consecutive frames against ale-py; the pictures from the second one on."""
    joined = join(frames)
    assert differences(joined) == [], where
    assert wrong_bytes(joined) == set(), where
    ours, theirs = pictures(frames)
    assert np.array_equal(ours, theirs), f"a picture {where}"


def happened(frame: Frame) -> Counter:
    """What frames brought, over all games."""
    events, after = frame.events, frame.after
    seen = Counter({name: int(getattr(events, name).sum()) for name in ("top", "bottom", "lost", "won", "serve")})
    seen += Counter(f"the player returns at {int(v)}" for v in after.speed_y[events.hit_right])
    seen += Counter(f"the opponent returns at {int(v)}" for v in after.speed_y[events.hit_left])
    seen += Counter(f"speed {int(v)}" for v in after.speed_x[events.hit_right])
    seen["upper end"] = int((after.knob == rules.KNOB_LOW).sum())
    seen["lower end"] = int((after.knob == rules.KNOB_HIGH).sum())
    seen["over"] = int(frame.over.sum())
    return seen


EVENTS = ("top", "bottom", "lost", "won", "serve", "upper end", "lower end")
SPEEDS = tuple(f"speed {v}" for v in (1, 2, 3, 4))
RETURNS = tuple(f"the player returns at {v}" for v in (-2, -1, 0, 1, 2))
OPPONENTS = tuple(f"the opponent returns at {v}" for v in (-3, -2, -1, 0, 1, 2))


def missing(seen: Counter, wanted: tuple[str, ...]) -> list[str]:
    return [name for name in wanted if not seen[name]]


def test_random_play():
    seen = compare(SideBySide(2), [Random(2), Random(4)], 3_450)
    assert not missing(seen, ("top", "bottom", "lost", "serve", "over")), seen


def test_every_return_at_every_speed():
    seen = compare(SideBySide(2), [Tracker(0, fire=0.2), Tracker(1, fire=1.0)], 3_000)
    assert not missing(seen, EVENTS + SPEEDS + RETURNS), seen


@pytest.mark.slow
def test_long_random_play():
    seen = compare(SideBySide(4), [Random(seed) for seed in range(10, 14)], 5_000)
    assert seen["over"] >= 4, seen


@pytest.mark.slow
def test_long_play():
    policies = [Tracker(seed, fire) for seed, fire in ((10, 0.1), (11, 0.3), (12, 0.6), (3, 1.0))]
    seen = compare(SideBySide(4), policies, 10_000)
    assert not missing(seen, (*EVENTS, *SPEEDS, *RETURNS, *OPPONENTS, "over")), seen


NOTHING_MOVES = ("top", "bottom", "lost", "won", "serve", "over")


@pytest.mark.parametrize(("before", "behind"), [(90, 400), (1_201, 3_000)])
def test_the_frame_counter_overflows(before, behind):
    """At frame 65,536 the machine shows its title screen: the score jumps once, nothing moves and nothing ends."""
    games, policies = SideBySide(2), [Random(3), Tracker(3, fire=0.5)]
    compare(games, policies, before)
    games.put(clock=rules.LAST_CLOCK - 50)
    compare(games, policies, 50)
    left = games.game.left
    jump = games.frame(torch.tensor([NOOP, NOOP]))
    assert differences(jump) == []
    assert jump.events.ends.all()
    assert torch.equal(jump.reward, left - 1), "the opponent's points become the number of the game, 1"
    assert before < 1_000 or (left > 1).any(), "this should have been a jump"
    seen = compare(games, policies, behind)
    assert missing(seen, NOTHING_MOVES) == list(NOTHING_MOVES)
    assert not missing(seen, ("lower end",)), "the knob still turns"


def walk(games: SideBySide, action: int, until: float) -> list[tuple[float, float, float]]:
    """Turn the knob to its end, each step held for two frames, so that it is read: (resistance, ours, ale-py's)."""
    read = []
    while games.game.knob.item() != until:
        for press in (action, NOOP):
            frame = games.frame(torch.tensor([press]))
            assert differences(frame) == []
            if frame.after.clock.item() % 2 == 0:
                knob = frame.after.knob
                read.append((knob.item(), rules.read_knob(knob).item(), float(frame.memory[0, KNOB])))
    return read


def test_every_reachable_resistance_reads_as_the_console_reads_it():
    """From the start to either end, and from each end to the other: the ends stop the knob between two steps."""
    low, high, step, start = rules.KNOB_LOW, rules.KNOB_HIGH, rules.KNOB_STEP, rules.KNOB_START
    read = walk(SideBySide(1), RIGHT, low)
    games = SideBySide(1)
    read += walk(games, LEFT, high) + walk(games, RIGHT, low) + walk(games, LEFT, high)
    steps = np.arange(-34, 35)
    reachable = {k for origin in (start, low, high) for k in (origin + step * steps).tolist() if low <= k <= high}
    assert len(reachable) == 33 + 34 + 34
    assert {knob for knob, _, _ in read} == reachable - {start}, "the start is left before it is read"
    assert [ours for _, ours, _ in read] == [theirs for _, _, theirs in read]


# Moments so rare that play does not meet them, set up by hand.


def played(frames: int) -> SideBySide:
    """A game in which some time has passed."""
    games = SideBySide(1)
    assert all(differences(frame) == [] for frame in play(games, [Random(0)], frames))
    return games


def hold(games: SideBySide, action: int, frames: int) -> list[Frame]:
    """The same action in all games."""
    return [games.frame(torch.full((len(games.consoles),), action)) for _ in range(frames)]


OFFSETS = list(range(-11, 22))  # lines of a ball against a paddle's


@pytest.fixture(scope="module")
def targets() -> SideBySide:
    return SideBySide(len(OFFSETS))


@pytest.mark.parametrize("speed", [1, 2, 3, 4])
@pytest.mark.parametrize("turn", [RIGHT, LEFT])
def test_every_line_of_the_players_paddle(targets, turn, speed):
    """Balls that fly straight at, above and below it. It rests on an even line if it went up, else on an odd one."""
    hold(targets, turn, 1)
    hold(targets, NOOP, 20)
    line = int(targets.game.paddle[0])
    touched = shoot(targets, speed, -1, 190, line)
    assert line % 2 == (turn == LEFT)
    assert {touched.min().item(), touched.max().item()} == {-2, 15}


@pytest.mark.parametrize("speed", [1, 2, 3, 4])
@pytest.mark.parametrize("line", [130, 131])
def test_every_line_of_the_opponents_paddle(targets, line, speed):
    """Likewise; but this one goes after the ball before it is there."""
    touched = shoot(targets, speed, 1, 66, line)
    assert {touched.min().item(), touched.max().item()} == {-4, 14}


def shoot(games: SideBySide, speed: int, way: int, face: int, line: int) -> torch.Tensor:
    """One ball a game, each at another line, from 2 frames before it is at a paddle. way: 1 towards the left.

    Which lines of them touched, against the paddle's even one.
    """
    games.put(wait=0, ball_x=128, left=0, right=0)
    hold(games, NOOP, 1)  # the console feels what its last picture showed: no ball may have been at a paddle there
    games.put(ball_x=face + way * (2 + 2 * speed), speed_x=way * speed, speed_y=0)
    games.put(ball_y=[line + offset for offset in OFFSETS], opponent=line)
    frames = join(hold(games, NOOP, 5))
    assert differences(frames) == []
    events, before = frames.events, frames.before
    hits, paddles = (events.hit_left, before.opponent) if way > 0 else (events.hit_right, before.paddle)
    return (before.ball_y - rules.even_line(paddles))[hits]


def test_a_point_in_the_last_frame_before_the_overflow():
    """200 + 4 + 4 is out, which the third frame sees: the last that counts."""
    games = played(120)
    games.put(clock=rules.LAST_CLOCK - 3, wait=0, ball_x=200, ball_y=150, speed_x=-4, speed_y=1)
    frames = hold(games, NOOP, 7)
    assert frames[2].events.lost.all()
    assert frames[3].events.ends.all()
    check(frames[1:])


def test_the_frames_around_a_reset():
    """There the colours are the title screen's, whose ball is darker than its ground."""
    games = played(3)
    games.restart(torch.ones(1, dtype=torch.bool))
    first = hold(games, NOOP, 1)
    ours, theirs = pictures(first + first)
    assert np.array_equal(ours, theirs)


def test_the_title_screen_goes_on_for_ever():
    """Its colours change every 256 frames and begin again after 256 changes."""
    games = played(120)
    games.put(clock=rules.LAST_CLOCK - 5)
    check(hold(games, NOOP, 20))
    games.put(clock=rules.LAST_CLOCK + 254 * 256 + 250)
    games.consoles[0].setRAM(COLOUR, 255)
    check(hold(games, NOOP, 12)[6:])
    check(hold(games, NOOP, 300))


def test_a_byte_of_the_title_screen():
    games = played(120)
    games.put(clock=rules.LAST_CLOCK - 1)
    frames = hold(games, NOOP, 8)
    for block in (3, 4, 6, 7, 20, 23):  # of 256 frames, from their last ones on
        games.put(clock=rules.LAST_CLOCK + 256 * block - 5)
        games.consoles[0].setRAM(COLOUR, block)
        frames += hold(games, NOOP, 12)
    assert wrong_bytes(join(frames)) == set()


@pytest.mark.parametrize(
    ("ball", "then"),
    [
        ({"ball_x": 199, "speed_x": -3, "ball_y": 205, "speed_y": 2}, "lost"),
        ({"ball_x": 74, "speed_x": 4, "ball_y": 205, "speed_y": 2, "opponent": 190}, "hit_left"),
        ({"ball_x": 74, "speed_x": 4, "ball_y": 47, "speed_y": -2, "opponent": 40}, "hit_left"),
        ({"ball_x": 74, "speed_x": 4, "ball_y": 46, "speed_y": -2, "opponent": 40}, "hit_left"),
    ],
)
def test_a_point_or_a_paddle_right_after_a_wall(ball, then):
    games = played(120)
    games.put(wait=0, **ball)
    frames = hold(games, NOOP, 70)
    assert (frames[1].events.top | frames[1].events.bottom).all()
    assert getattr(frames[2].events, then).all()
    assert wrong_bytes(join(frames)) == set()
