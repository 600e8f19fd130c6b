"""Physics that is changed does what it says, what is not changed is the ALE's, and nonsense is refused."""

import dataclasses
from typing import Any

import pytest
import torch
from contract import draw_actions, play, random_action, rows, same, same_obs
from side_by_side import CPU, LEFT, NOOP, TABLES
from torch import Tensor

from recollect.envs.pong import drawing, physics, rules, seeing
from recollect.envs.pong.env import PongEnv
from recollect.envs.pong.options import Options
from recollect.envs.pong.physics import DEFAULTS, LIMITS, Physics
from recollect.envs.pong.rules import Events, Game
from recollect.envs.pong.view import View, look

UP, STILL, DOWN = -1.0, 0.0, 1.0
FLYING = {"clock": 1_001, "wait": 0, "ball_x": 128, "ball_y": 128, "speed_x": 1, "speed_y": 1}
PADDLES = {"opponent": 100, "paddle": 100, "aim": 100}
AT_RIGHT = {"ball_x": 190, "speed_x": -1, "ball_y": 105}  # the ball touches the player's paddle
AT_LEFT = {"ball_x": 66, "speed_x": 1, "ball_y": 105}


def world(**numbers: float) -> Physics:
    ranges = {name: (value, value) for name, value in numbers.items()}
    return physics.draw(ranges, torch.zeros(len(physics.DEFAULTS), 1), physics.usual(torch.device("cpu")))


def game(**numbers: float) -> Game:
    """A ball in the middle of the field, flying to the lower left, but for what is given."""
    start = rules.start(1, CPU)
    given = {name: torch.full_like(getattr(start, name), value) for name, value in (FLYING | PADDLES | numbers).items()}
    return dataclasses.replace(start, **given)


def frame(now: Game, by: Physics, turn: float = STILL, button: bool = False) -> tuple[Game, Events]:
    """One frame of all games with the same action."""
    count = len(now.clock)
    after, _, events = rules.frame(now, torch.full((count,), turn), torch.full((count,), button), by)
    return after, events


def later(now: Game, by: Physics, frames: int, turn: float = STILL) -> Game:
    for _ in range(frames):
        now, _ = frame(now, by, turn)
    return now


def speed(now: Game) -> tuple[float, float]:
    return now.speed_x.item(), now.speed_y.item()


# The ball.


@pytest.mark.parametrize(("before", "served"), [(1, 2.5), (-1, -2.5), (4, 2.5)])
def test_ball_speed_is_the_serves(before, served):
    """128 - 2.5 after the serve, and as much further with each frame."""
    after, events = frame(game(wait=1, speed_x=before), world(ball_speed=2.5))
    assert events.serve.all()
    assert speed(after) == (served, 1.0)
    assert after.ball_x.item() == 128 - served
    assert later(after, world(ball_speed=2.5), 3).ball_x.item() == 128 - 4 * served


def test_acceleration_is_added_by_each_touch():
    """1 + 0.5; with FIRE another 1; never over 4; and the opponent's touch adds as well."""
    faster = world(acceleration=0.5)
    assert frame(game(**AT_RIGHT), faster)[0].speed_x.item() == 1.5
    assert frame(game(**AT_RIGHT, fire=True), faster)[0].speed_x.item() == 2.5
    assert frame(game(**{**AT_RIGHT, "speed_x": -3.75}), faster)[0].speed_x.item() == 4.0
    assert frame(game(**AT_LEFT), faster)[0].speed_x.item() == -1.5
    assert frame(game(), faster)[0].speed_x.item() == 1.0, "flight alone adds nothing"


def test_gravity_curves_the_flight():
    """60 + (1 + 1/8) + (1 + 2/8) + ... + (1 + 8/8) = 60 + 8 + 36/8 = 72.5, and 128 - 8 columns."""
    after = later(game(ball_y=60), world(gravity=0.125), 8)
    assert speed(after) == (1.0, 2.0)
    assert after.ball_y.item() == 72.5
    assert after.ball_x.item() == 120
    assert later(game(ball_y=160), world(gravity=-0.125), 8).ball_y.item() == 160 + 8 - 4.5


def test_gravity_waits_for_the_serve():
    after, _ = frame(game(wait=1), world(gravity=0.5))
    assert speed(after) == (1.0, 1.0)
    assert later(game(wait=20), world(gravity=0.5), 10).speed_y.item() == 1.0


@pytest.mark.parametrize(("loss", "left"), [(0.0, 2.0), (0.25, 1.5), (1.0, 0.0)])
def test_bounce_loss_is_taken_by_walls(loss, left):
    """A wall turns 2 into 2 - 2 * loss, and sets the ball one line off."""
    dull = world(bounce_loss=loss)
    top, events = frame(game(ball_y=45, speed_y=-2), dull)
    assert events.top.all()
    assert (top.speed_y.item(), top.ball_y.item()) == (left, 45 + 1 + left)
    bottom, events = frame(game(ball_y=206, speed_y=2), dull)
    assert events.bottom.all()
    assert (bottom.speed_y.item(), bottom.ball_y.item()) == (-left, 206 - 1 - left)
    assert frame(game(**AT_LEFT), dull)[0].speed_y == frame(game(**AT_LEFT), world())[0].speed_y, "paddles take none"


def test_a_wall_never_turns_a_ball_outwards():
    """206 + 3 with speed 4 loses half and comes to 209 - 1 - 2 = 206: at the wall still, on its way back."""
    dull = world(bounce_loss=0.5)
    after, _ = frame(game(ball_y=209, speed_y=4), dull)
    assert (after.ball_y.item(), after.speed_y.item()) == (206, -2)
    after, _ = frame(after, dull)
    assert after.speed_y.item() <= 0


# The paddles.


def touched(by: Physics, **where: float) -> dict[int, float]:
    """Which lines of the ball, less 100, touch a paddle at 100, and the vertical speed that each gives."""
    offsets = range(-10, 40)
    told = {}
    for offset in offsets:
        after, events = frame(game(**{**where, "ball_y": 100 + offset}), by)
        if (events.hit_left | events.hit_right).all():
            told[offset] = after.speed_y.item()
    return told


@pytest.mark.parametrize("height", [8, 16, 24])
def test_paddle_height_is_felt(height):
    """From 2 lines above to height - 1 below; each quarter of the height gives another speed, -2 at the top."""
    told = touched(world(paddle_height=height), **AT_RIGHT)
    assert list(told) == list(range(-2, height))
    assert told == {offset: (offset + 3) // (height / 4) - 2 for offset in told}
    assert set(told.values()) >= {-2, -1, 0, 1, 2}
    assert touched(world(paddle_height=height), **AT_LEFT) == touched(world(), **AT_LEFT), "the opponent's stays"


def seen(now: Game, by: Physics) -> View:
    return look(now, by, now.left, now.right)


@pytest.mark.parametrize("height", [8, 16, 25])
def test_paddle_height_is_drawn(height):
    """Columns 140 to 143 of the screen hold all of column 74 of the picture, whose rows are 2.5 lines each."""
    by = world(paddle_height=height)
    view = seen(game(), by)
    assert view.right_lines.tolist() == [[100 - 14, 100 - 14 + height]]
    assert view.left_lines.tolist() == [[100 - 15, 100 + 1]]
    picture = drawing.draw(view, view, TABLES)[0].float()
    ground, paddle = drawing.GREYS[drawing.GROUND >> 1], drawing.GREYS[drawing.RIGHT >> 1]
    field = picture[20:70, 74]
    lines = 2.5 * ((field - ground) / (paddle - ground)).sum().item()
    assert abs(lines - height) < 0.1
    binary = seeing.binary(view)[0, :, 70]
    assert binary.sum().item() in (height // 2, (height + 1) // 2), "every second line"


@pytest.mark.parametrize("times", [0.0, 0.5, 2.0])
def test_paddle_speed_turns_the_knob(times):
    """23,000 a frame is the ALE's."""
    for turn in (UP, DOWN):
        after = later(game(), world(paddle_speed=times), 5, turn)
        assert after.knob.item() == rules.KNOB_START + turn * 5 * 23_000 * times


@pytest.mark.parametrize(("lines", "moved"), [(2, 14), (3, 21), (0.5, 3.5), (0, 0)])
def test_opponent_speed_is_lines_a_frame_in_seven_frames_of_eight(lines, moved):
    far_below = game(ball_y=190, speed_y=0, opponent=60)
    assert later(far_below, world(opponent_speed=lines), 8).opponent.item() == 60 + moved


@pytest.mark.parametrize("lag", [0, 4])
def test_opponent_lag_trails_behind(lag):
    """A ball that falls a line a frame is seen ``lag`` lines higher; the paddle is within a step of what is seen."""
    after = later(game(ball_y=60, seen_y=60, speed_x=0.25), world(opponent_lag=lag), 100)
    assert after.ball_y.item() == 160
    assert abs(after.ball_y.item() - lag - after.seen_y.item()) < 1e-3
    assert abs(after.opponent.item() - after.seen_y.item()) <= 2


@pytest.mark.parametrize(("spin", "given"), [(0.0, 0.0), (0.5, 2.0), (-0.25, -1.0)])
def test_spin_is_taken_from_the_moving_paddle(spin, given):
    """The ball is 5 lines below the paddle's line: (5 + 3) / 4 - 2 = 0. The paddle goes on 4 lines in this frame."""
    after, events = frame(game(**AT_RIGHT, aim=104), world(spin=spin))
    assert events.hit_right.all()
    assert after.paddle.item() == 104
    assert after.speed_y.item() == given
    assert frame(game(**AT_RIGHT), world(spin=spin))[0].speed_y.item() == 0.0, "a paddle at rest gives none"


# What is seen.

HIDDEN = {"hidden_from": 100.0, "hidden_to": 140.0}


def named(now: Game, by: Physics) -> dict[str, float]:
    """The state by name."""
    values = seeing.state_vector(now, by, velocities=True, opponent=True)[0].tolist()
    return dict(zip(seeing.state_names(velocities=True, opponent=True), values, strict=True))


@pytest.mark.parametrize(("column", "visible"), [(99, True), (100, False), (140, False), (141, True)])
def test_a_hidden_ball_is_not_seen(column, visible):
    now, gone = game(ball_x=column), game(ball_x=column, ball_y=0)
    state, usual = named(now, world(**HIDDEN)), named(now, world())
    assert usual["ball_visible"] == 1
    assert usual["ball_speed_x"] == -0.25
    ball = [name for name in state if "ball" in name]
    assert len(ball) == 5
    assert all(state[name] == (usual[name] if visible else 0) for name in ball)
    assert all(state[name] == usual[name] for name in state if name not in ball)
    for draw in (lambda view: drawing.draw(view, view, TABLES), seeing.binary):
        shown = draw(seen(now, world(**HIDDEN)))
        assert torch.equal(shown, draw(seen(now if visible else gone, world())))
        assert torch.equal(shown, draw(seen(now, world()))) == visible


def test_a_hidden_ball_is_still_there():
    now, then = game(ball_x=150), game(ball_x=150)
    for _ in range(90):
        now, _ = frame(now, world(**HIDDEN), UP)
        then, _ = frame(then, world(), UP)
        assert all(torch.equal(getattr(now, f.name), getattr(then, f.name)) for f in dataclasses.fields(Game))
    assert now.ball_x.item() < 150


def both(one: PongEnv, other: PongEnv, steps: int) -> list[tuple[Any, Any, Game, Game]]:
    """Both played alike, with what each game was."""
    assert one.reset(0).keys() == other.reset(0).keys()
    told = []
    for action in draw_actions(one, random_action, steps):
        a, b = one.step(action), other.step(action)
        told.append((a, b, one._playing.game, other._playing.game))
    return told


def test_noise_is_seen_and_nothing_else():
    """Standard deviation 2, drawn anew for each position, environment and decision; the game knows nothing of it."""
    count, sigma = 2_000, 2.0
    noisy, clear = (PongEnv(count, Options(obs="state", noise=noise)) for noise in (f"{sigma}", None))
    names = seeing.state_names(velocities=True, opponent=True)
    positions = [names.index(name) for name in ("ball_x", "ball_y", "opponent", "paddle")]
    off = []
    for ours, theirs, now, then in both(noisy, clear, 25):
        assert all(torch.equal(getattr(now, f.name), getattr(then, f.name)) for f in dataclasses.fields(Game))
        assert torch.equal(ours.reward, theirs.reward)
        off.append(80 * (ours.obs["vector"] - theirs.obs["vector"])[:, positions])
    off = torch.stack(off)  # [decisions, environments, positions]
    assert not off[:5, :, :2].any(), "before the serve there is no ball to be seen"
    off = off[18:]
    assert abs(off.mean()) < 5 * sigma / off.numel() ** 0.5
    assert abs(off.std() / sigma - 1) < 5 / (2 * off.numel()) ** 0.5
    beyond = (off.abs() > 2 * sigma).float().mean()
    assert abs(beyond - 0.0455) < 0.005, "a normal number lies beyond two deviations in 4.55 of 100"
    between = torch.corrcoef(off.flatten(0, 1).T) - torch.eye(4)
    assert between.abs().max() < 5 / (off.shape[0] * count) ** 0.5
    in_time = torch.corrcoef(torch.stack([off[1:].flatten(), off[:-1].flatten()]))[0, 1]
    assert abs(in_time) < 5 / off[1:].numel() ** 0.5


@pytest.mark.parametrize("obs", ["pixels", "binary"])
def test_noise_moves_what_pictures_show(obs):
    noisy, clear = (PongEnv(4, Options(obs=obs, noise=noise)) for noise in ("3", None))
    for ours, theirs, now, then in both(noisy, clear, 10):
        assert torch.equal(now.paddle, then.paddle)
        assert not torch.equal(ours.obs["frame"], theirs.obs["frame"])


# Who plays by what.


def test_ranges_are_drawn_for_each_environment_and_episode():
    ranges = {"ball_speed": (0.5, 1.5), "gravity": (-0.1, 0.1), "paddle_height": (8.0, 24.0)}
    words = {name: f"{low}..{high}" for name, (low, high) in ranges.items()}
    env = PongEnv(400, Options(obs="state", max_episode_steps=3, **words))
    env.reset(0)
    drawn = [env._playing.physics]
    for step in play(env, draw_actions(env, random_action, 6)):
        ended = bool(step.truncated.all())
        kept = all(torch.equal(getattr(env._playing.physics, name), getattr(drawn[-1], name)) for name in ranges)
        assert kept != ended, "another draw at an episode's end, and only there"
        if ended:
            drawn.append(env._playing.physics)
    assert len(drawn) == 3
    for name, (low, high) in ranges.items():
        values = torch.stack([getattr(by, name) for by in drawn])
        assert low <= values.min() < low + 0.02 * (high - low)
        assert high - 0.02 * (high - low) < values.max() <= high
        assert len(values.unique()) > 1_150, "1,200 draws"
        assert abs(values.mean() - (low + high) / 2) < 5 * (high - low) / (12 * 1_200) ** 0.5
    assert all((getattr(drawn[-1], name) == value).all() for name, value in DEFAULTS.items() if name not in ranges)
    heights, speeds = drawn[0].paddle_height, drawn[0].ball_speed
    assert abs(torch.corrcoef(torch.stack([heights, speeds]))[0, 1]) < 0.25, "each number is a draw of its own"


@pytest.mark.parametrize("obs", ["pixels", "binary", "ram", "state"])
def test_default_physics_is_no_physics(obs):
    """Given word for word, and to the bit: rewards, observations, scores."""
    given = {name: f"{value:g}" for name, value in DEFAULTS.items()}
    rules_of_both = {"obs": obs, "noop_max": 5, "max_episode_steps": 70}
    one, other = PongEnv(3, Options(**rules_of_both, **given)), PongEnv(3, Options(**rules_of_both))
    assert same_obs(one.reset(2), other.reset(2))
    assert all(same(rows(one.step(a)), rows(other.step(a))) for a in draw_actions(one, random_action, 90))


def test_physics_from_a_tensor():
    """A column for each number, in order."""
    values = torch.tensor([list(DEFAULTS.values())] * 3)
    values[:, list(DEFAULTS).index("gravity")] = torch.tensor([0.0, 0.25, -0.25])
    by = physics.from_tensor(values, len(values))
    assert by.gravity.tolist() == [0.0, 0.25, -0.25]
    assert by.paddle_height.tolist() == [16.0] * 3
    three = dataclasses.replace(game(), **{f.name: getattr(game(), f.name).repeat(3) for f in dataclasses.fields(Game)})
    assert frame(three, by)[0].speed_y.tolist() == [1.0, 1.25, 0.75]


def test_no_physics_loses_the_ball():
    """Anything within the limits: numbers stay numbers, and every game goes on to its points."""
    torch.manual_seed(0)
    low, high = torch.tensor(list(LIMITS.values())).T
    extreme = torch.rand(500, len(LIMITS))
    extreme = torch.where(torch.rand(500, len(LIMITS)) < 0.2, extreme.round(), extreme)
    by = physics.from_tensor(low + (high - low) * extreme, len(extreme))
    now, points = rules.start(500, CPU), torch.zeros(500)
    for _ in range(2_000):
        turn, button = torch.randint(-1, 2, (500,)).float(), torch.rand(500) < 0.5
        now, reward, _ = rules.frame(now, turn, button, by)
        points += reward.abs()
    assert all(torch.isfinite(getattr(now, f.name)).all() for f in dataclasses.fields(Game))
    assert (points > 0).all()


# What is refused.


def values_with(name: str, value: float) -> Tensor:
    values = torch.tensor([list(DEFAULTS.values())] * 2)
    values[1, list(DEFAULTS).index(name)] = value
    return values


@pytest.mark.parametrize(
    ("nonsense", "words"),
    [
        (lambda: physics.from_tensor(torch.ones(2, 11), 2), r"\[2, 12\]: ball_speed, .*, noise; got \[2, 11\]"),
        (lambda: physics.from_tensor(torch.ones(12), 1), r"got \[12\]"),
        (
            lambda: physics.from_tensor(values_with("paddle_height", -1), 2),
            "paddle_height must lie in 2..160, got -1..16",
        ),
        (lambda: physics.from_tensor(values_with("gravity", float("nan")), 2), "gravity must lie in -1..1, got nan"),
        (lambda: physics.check_ranges({"paddle_heigth": (8, 8)}), "'paddle_heigth'; did you mean 'paddle_height'"),
        (lambda: Options(paddle_height="24..8"), r"paddle_height must lie in 2..160, got 24\.\.8"),
        (lambda: Options(paddle_height="-3"), "paddle_height must lie in 2..160, got -3"),
        (lambda: Options(gravity="0..2"), r"gravity must lie in -1..1, got 0\.\.2"),
        (lambda: Options(ball_speed="fast"), "'ball_speed' is a number or a range as 8..24, got 'fast'"),
        (lambda: Options(ball_speed="1..2..3"), "a number or a range"),
        (lambda: Options(noise="inf"), "noise must lie in 0..50, got inf"),
    ],
)
def test_nonsense_is_refused_in_a_line(nonsense, words):
    with pytest.raises(ValueError, match=words) as refused:
        nonsense()
    assert "\n" not in str(refused.value)


def test_physics_is_on_the_card():
    env = PongEnv(1, Options(obs="state", gravity="0.1", paddle_height="8..24"))
    assert env.protocol.extra.endswith("physics: gravity 0.1, paddle_height 8..24")
    assert PongEnv(1).protocol.extra.endswith("physics: as the ALE")


def test_a_changed_world_is_another_game():
    """Each number matters: an environment that knows it is set plays otherwise than one that does not."""
    changed = {
        "ball_speed": "2",
        "acceleration": "0.5",
        "gravity": "0.05",
        "bounce_loss": "0.5",
        "paddle_height": "48",
        "paddle_speed": "0.5",
        "opponent_speed": "1",
        "opponent_lag": "8",
        "spin": "1",
        "hidden_from": "100",
        "noise": "1",
    }
    assert changed.keys() | {"hidden_to"} == DEFAULTS.keys()
    usual = history(PongEnv(4, Options(obs="state")))
    for name, word in changed.items():
        more = {"hidden_to": "150"} if name == "hidden_from" else {}
        assert not torch.equal(usual, history(PongEnv(4, Options(obs="state", **{name: word}, **more)))), name


def history(env: PongEnv) -> Tensor:
    """What 90 decisions show of a player that follows the ball."""
    told = [env.reset(0)["vector"]]
    for _ in range(90):
        now = env._playing.game
        gap = now.ball_y - 6 - now.aim
        told.append(env.step(torch.where(gap < -4, LEFT - 1, torch.where(gap > 4, LEFT, NOOP))).obs["vector"])
    return torch.stack(told)


def test_one_range_more_changes_no_other_draw():
    def heights(**more: str) -> Tensor:
        env = PongEnv(16, Options(obs="state", paddle_height="8..24", **more))
        env.reset(3)
        return env._playing.physics.paddle_height

    assert torch.equal(heights(), heights(gravity="0..0.1", ball_speed="1..2"))


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"hidden_from": "100"}, "hidden_from and hidden_to go together"),
        ({"noop_max": 59}, "noop_max must be less, got 59"),
    ],
)
def test_options_that_would_do_nothing_or_harm_are_refused(settings, words):
    with pytest.raises(ValueError, match=words):
        Options(**settings)


@pytest.mark.parametrize("obs", ["pixels", "state"])
def test_each_environment_may_have_a_world_of_its_own(obs):
    """Row 1 of a tensor of worlds plays as an environment that was given its numbers as options."""
    worlds = torch.tensor([list(DEFAULTS.values())]).repeat(3, 1)
    columns = [list(DEFAULTS).index(name) for name in ("gravity", "paddle_height")]
    worlds[1, columns] = torch.tensor([0.05, 24.0])
    many = PongEnv(3, Options(obs=obs), worlds=worlds)
    alone = PongEnv(1, Options(obs=obs, gravity="0.05", paddle_height="24"), first_env=1)
    (part,) = many.reset(4)
    assert torch.equal(many.reset(4)[part][1:2], alone.reset(4)[part])
    for action in range(100):
        one, other = many.step(torch.full((3,), action % 6)), alone.step(torch.tensor([action % 6]))
        assert torch.equal(one.obs[part][1:2], other.obs[part])
    assert not torch.equal(one.obs[part][0], one.obs[part][1])
    with pytest.raises(ValueError, match=r"physics must be \[2, 12\]"):
        PongEnv(2, Options(obs=obs), worlds=worlds)
