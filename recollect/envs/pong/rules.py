"""The rules: one emulator frame of N games as a pure function of tensors. Nothing here draws, resets or is random.

Everything is in the game's own units: positions count pixels and lines as its memory does, speeds are pixels a frame.
Numbers are whole in the ALE's physics and exact in float32, so the default game is the ALE's to the bit; other physics
may be fractions. What is written here was found by watching the game: memory before and after each of a million
frames, in play and from states that were set by hand. ``docs/pong.md`` tells how.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from recollect.envs.pong.physics import Physics

# The knob that steers the player's paddle is a resistor; a button press turns it by a fixed amount a frame.
KNOB_LOW, KNOB_HIGH, KNOB_STEP, KNOB_START = 27_450.0, 790_196.0, 23_000.0, 408_823.0
READ_SLOPE, READ_OFFSET, READ_LOWEST = 0.000125115, 3.9523, 38.0  # lines until it has charged, read in pairs
FAR_PADDLE = 110.0  # what odd frames read: the knob of the paddle that nobody holds

CENTRE = 128.0
TOP, BOTTOM = 45.0, 206.0  # at these lines the ball touches a wall
LEFT_OUT, RIGHT_OUT = 52.0, 205.0  # at these columns a point is won, or lost
LEFT_FACE, RIGHT_FACE, REACH = 66.0, 190.0, 2.0  # the ball touches a paddle up to REACH columns around its face
LEFT_ABOVE, LEFT_BELOW = -4.0, 14.0  # lines of the ball against the left paddle's even line, when they touch
RIGHT_ABOVE = -2.0
FASTEST = 4.0
WAIT = 63  # frames from a point to the next serve
POINTS = 21
LAST_CLOCK = 65_536  # here the frame counter overflows: the machine ends the game and shows its title screen

PADDLE_HEIGHT = 16.0  # of the opponent's; the player's is the physics' to say

START_CLOCK, START_WAIT, START_OPPONENT = 327, 59, 22.0


@dataclass(frozen=True)
class Game:
    """N games between two frames; every field is [N]."""

    clock: Tensor  # int32, frames since the console was switched on
    wait: Tensor  # int32, frames until the serve, 0 in play
    ball_x: Tensor  # float32, as are all below
    ball_y: Tensor
    speed_x: Tensor  # towards the left
    speed_y: Tensor  # downwards
    opponent: Tensor  # the left paddle's line
    seen_y: Tensor  # where the opponent believes the ball to be
    knob: Tensor  # the resistor's value
    aim: Tensor  # the smoothed knob: where the player's paddle is one frame later
    paddle: Tensor  # the player's (right) paddle's line
    fire: Tensor  # bool, whether the button was down in the last frame
    left: Tensor  # int32, the opponent's points
    right: Tensor  # int32, the player's


@dataclass(frozen=True)
class Events:
    """What happened in a frame; every field is bool [N]."""

    lost: Tensor  # the opponent's point
    won: Tensor  # the player's
    top: Tensor  # the ball bounces off the upper wall
    bottom: Tensor
    hit_left: Tensor  # the opponent returns the ball
    hit_right: Tensor  # the player does
    serve: Tensor
    ends: Tensor  # the machine's counter overflows


def start(num_envs: int, device: torch.device) -> Game:
    """Games as the console leaves them after a reset: the first serve is a second away."""

    def whole(value: int) -> Tensor:
        return torch.full((num_envs,), value, dtype=torch.int32, device=device)

    def real(value: float) -> Tensor:
        return torch.full((num_envs,), value, device=device)

    zero = real(0.0)
    return Game(
        clock=whole(START_CLOCK),
        wait=whole(START_WAIT),
        ball_x=zero,
        ball_y=real(60.0),
        speed_x=zero,
        speed_y=zero,
        opponent=real(START_OPPONENT),
        seen_y=zero,
        knob=real(KNOB_START),
        aim=real(109.0),
        paddle=real(109.0),
        fire=torch.zeros(num_envs, dtype=torch.bool, device=device),
        left=whole(0),
        right=whole(0),
    )


def even_line(line_N: Tensor) -> Tensor:
    """Paddles are drawn and felt in pairs of lines: the even line at or below. [N]"""
    return 2 * (line_N * 0.5).ceil()


def read_knob(knob_N: Tensor) -> Tensor:
    """The paddle line that a knob asks for. [N]"""
    return (2 * (READ_SLOPE * knob_N + READ_OFFSET).floor()).clamp_min(READ_LOWEST)


def steer(game: Game, turn_N: Tensor, physics: Physics) -> tuple[Tensor, Tensor]:
    """Knob and aim after a frame. turn_N: [N] -1 up, 0, 1 down. The knob is read every other frame and smoothed."""
    knob = (game.knob + turn_N * (KNOB_STEP * physics.paddle_speed)).clamp(KNOB_LOW, KNOB_HIGH)
    reads = (game.clock & 1) == 1  # the frame that begins now has an even number
    return knob, torch.where(reads, ((game.aim + read_knob(knob)) * 0.5).floor(), game.aim)


def quotient(one: Tensor | float, other: Tensor | float) -> Tensor | float:
    """one / other, float32 [N]. Compiled for a GPU, float32's own division may be off in the last bit."""
    return (one / other.double()).float() if isinstance(other, Tensor) else one / other


def deflect(offset_N: Tensor, height: Tensor | float) -> Tensor:
    """The vertical speed that a paddle gives, in bands of a quarter of its height: -2 to 2 for the ALE's, -3 at the
    upper edge of the opponent's; a short paddle gives more at its lower end. [N]

    offset_N: the ball's line less the paddle's.
    """
    return ((offset_N + 3) * quotient(4, height)).floor() - 2


def touches(game: Game, paddle_N: Tensor, face: float, above: float, below: Tensor | float) -> Tensor:
    """Whether the ball overlaps a paddle: columns around its face, lines around its even line. bool [N]"""
    offset_N = game.ball_y.floor() - even_line(paddle_N)
    near_N = (game.ball_x.floor() - face).abs() <= REACH
    return near_N & (offset_N >= above) & (offset_N <= below)


def happen(game: Game, physics: Physics) -> tuple[Events, Tensor]:
    """What this frame brings, told from where everything stands; and where the ball flies. bool [N]

    A point first, else a wall, else the paddles: a ball in a corner bounces and touches no paddle.
    """
    dead, waiting = game.clock >= LAST_CLOCK, game.wait > 0
    out_right, out_left = game.ball_x >= RIGHT_OUT, game.ball_x < LEFT_OUT + 1
    playing = ~(dead | waiting)
    flying = playing & ~(out_right | out_left)
    top, bottom = game.ball_y < TOP + 1, game.ball_y >= BOTTOM
    inside = flying & ~(top | bottom)
    return Events(
        lost=playing & out_right,
        won=playing & out_left,
        top=flying & top,
        bottom=flying & bottom,
        hit_left=inside & touches(game, game.opponent, LEFT_FACE, LEFT_ABOVE, LEFT_BELOW),
        hit_right=inside & touches(game, game.paddle, RIGHT_FACE, RIGHT_ABOVE, physics.paddle_height - 1),
        serve=waiting & ~dead & (game.wait == 1),
        ends=game.clock == LAST_CLOCK,
    ), flying


def new_speed(game: Game, events: Events, paddle_N: Tensor, physics: Physics) -> tuple[Tensor, Tensor]:
    """The ball's speed after what happened, (towards the left, downwards). paddle_N: the player's, one frame on."""
    along = game.speed_x.abs() + physics.acceleration
    speed_x = torch.where(events.hit_right, (along + game.fire).clamp_max(FASTEST), game.speed_x)
    speed_x = torch.where(events.hit_left, -along.clamp_max(FASTEST), speed_x)
    # A ball that has lost speed may still be at the wall on its way back, and must not be turned again.
    outwards = torch.where(events.top, game.speed_y <= 0, game.speed_y >= 0)
    turns = (events.top | events.bottom) & (outwards | (physics.bounce_loss == 0))
    speed_y = torch.where(turns, game.speed_y * (physics.bounce_loss - 1), game.speed_y)
    line = game.ball_y.floor()
    returned = deflect(line - game.paddle, physics.paddle_height) + physics.spin * (paddle_N - game.paddle)
    speed_y = torch.where(events.hit_right, returned, speed_y)
    speed_y = torch.where(events.hit_left, deflect(line - game.opponent, PADDLE_HEIGHT), speed_y)
    served_x = torch.where(game.speed_x >= 0, physics.ball_speed, -physics.ball_speed)
    served_y = torch.where(game.speed_y >= 0, 1.0, -1.0)
    return torch.where(events.serve, served_x, speed_x), torch.where(events.serve, served_y, speed_y)


def move_opponent(game: Game, events: Events, ball_y: Tensor, physics: Physics) -> tuple[Tensor, Tensor]:
    """The left paddle goes after the ball, and rests in every eighth frame. Its line, and where it sees the ball."""
    seen_y = torch.where(events.serve, ball_y, game.seen_y + quotient(ball_y - game.seen_y, 1 + physics.opponent_lag))
    opponent = torch.where(events.serve, CENTRE, game.opponent)
    step = (seen_y.floor() - opponent).sign() * physics.opponent_speed
    return torch.where((game.clock & 7) == 0, opponent, opponent + step), seen_y


def frame(game: Game, turn_N: Tensor, button_N: Tensor, physics: Physics) -> tuple[Game, Tensor, Events]:
    """One emulator frame. turn_N: [N] float32, -1 up, 0, 1 down; button_N: bool [N] -> game, reward int32 [N], events

    The knob and the button act late: paddle and ball use what the frame before has left of them.
    """
    events, flying = happen(game, physics)
    knob, aim = steer(game, turn_N, physics)
    speed_x, speed_y = new_speed(game, events, game.aim, physics)
    speed_y = torch.where(flying, speed_y + physics.gravity, speed_y)

    nudged_y = game.ball_y + events.top.float() - events.bottom.float()  # one line off the wall
    gone = ((game.wait > 0) & ~events.ends) | (game.clock > LAST_CLOCK)
    ball_y = torch.where(flying, nudged_y + speed_y, torch.where(gone, 0.0, game.ball_y))
    ball_x = torch.where(flying, game.ball_x - speed_x, game.ball_x)
    ball_y = torch.where(events.serve, CENTRE + speed_y, ball_y)
    ball_x = torch.where(events.serve, CENTRE - speed_x, ball_x)
    opponent, seen_y = move_opponent(game, events, ball_y, physics)

    point = events.lost | events.won
    counting = (game.wait > 0) & (game.clock < LAST_CLOCK)
    left = torch.where(events.ends, 1, game.left + events.lost)  # the title screen shows the number of the game
    right = game.right + events.won
    after = Game(
        clock=game.clock + 1,
        wait=torch.where(point, WAIT, game.wait - counting.int()),
        ball_x=ball_x,
        ball_y=ball_y,
        speed_x=speed_x,
        speed_y=speed_y,
        opponent=opponent,
        seen_y=seen_y,
        knob=knob,
        aim=aim,
        paddle=game.aim,
        fire=button_N,
        left=left,
        right=right,
    )
    return after, (right - game.right) - (left - game.left), events


def over(game: Game) -> Tensor:
    """Whether someone has 21 points. bool [N]"""
    return torch.maximum(game.left, game.right) >= POINTS
