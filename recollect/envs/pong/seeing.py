"""Observations: what an agent is given of a game, each a pure function of it."""

import dataclasses

import torch
from torch import Tensor

from recollect.envs.pong import drawing, rules
from recollect.envs.pong.physics import Physics
from recollect.envs.pong.rules import Game
from recollect.envs.pong.view import View

BINARY_SIZE, BINARY_TOP = 80, 35  # every second pixel of 160 columns and, from here on, of 160 lines
PLACE, SPREAD = 128.0, 80.0  # positions are seen around 0, about within -1..1
SPEED, PADDLE_SPEED = 4.0, 8.0


def on_field(game: Game) -> Tensor:
    """Whether there is a ball: none between two points, and what a reset leaves at the edge is none. bool [N]"""
    return (game.ball_y > 0) & (game.ball_x > 0)


def hidden(game: Game, physics: Physics) -> Tensor:
    """Whether the ball, if there is one, is where it cannot be seen. bool [N]"""
    return (game.ball_x >= physics.hidden_from) & (game.ball_x <= physics.hidden_to)


def visible(game: Game, physics: Physics) -> Tensor:
    """Whether there is a ball to be seen. bool [N]"""
    return on_field(game) & ~hidden(game, physics)


def as_noticed(game: Game, physics: Physics, normal_4N: Tensor) -> Game:
    """The game with every position off by ``physics.noise`` times a standard normal number. normal: [4, N]"""
    off = (physics.noise * normal_4N).unbind(0)
    there = on_field(game)
    return dataclasses.replace(
        game,
        ball_x=torch.where(there, game.ball_x + off[0], game.ball_x),
        ball_y=torch.where(there, game.ball_y + off[1], game.ball_y),
        opponent=game.opponent + off[2],
        paddle=game.paddle + off[3],
    )


def state_names(velocities: bool, opponent: bool) -> tuple[str, ...]:
    """What the numbers of the state vector are, in order."""
    speeds = ("paddle_speed", "ball_speed_x", "ball_speed_y") if velocities else ()
    return ("paddle", "ball_visible", "ball_x", "ball_y", *speeds, *(("opponent",) if opponent else ()))


def state_vector(game: Game, physics: Physics, velocities: bool, opponent: bool) -> Tensor:
    """Positions, and on request speeds, about within -1..1; x to the right, y downwards. float32 [N, F]

    A ball that is not there, or hidden, has zeros.
    """
    seen = visible(game, physics).float()

    def place(position: Tensor) -> Tensor:
        return (position - PLACE) * (1 / SPREAD)

    parts = [place(game.paddle), seen, place(game.ball_x) * seen, place(game.ball_y) * seen]
    if velocities:
        # Every other frame the paddle goes half the way to where its knob points.
        paddle_speed = (rules.read_knob(game.knob) - game.paddle) * 0.25
        across, down = -game.speed_x * (1 / SPEED), game.speed_y * (1 / SPEED)
        parts += [paddle_speed * (1 / PADDLE_SPEED), across * seen, down * seen]
    if opponent:
        parts.append(place(game.opponent))
    return torch.stack(parts, -1)


def binary(view: View) -> Tensor:
    """Paddles and ball on nothing: every second line from 35 and every second column. uint8 0 or 1, [N, 80, 80]"""
    device = view.left_lines.device
    at = torch.arange(BINARY_SIZE, device=device)
    line, column = BINARY_TOP + 2 * at, 2 * at

    def within(lines_N2: Tensor) -> Tensor:
        return (line >= lines_N2[:, :1]) & (line < lines_N2[:, 1:])  # [N, 80]

    def paddle(lines_N2: Tensor, first: int) -> Tensor:
        there = (column >= first) & (column < first + drawing.PADDLE_WIDTH)
        return within(lines_N2)[:, :, None] & there

    seen = paddle(view.left_lines, drawing.LEFT_PADDLE) | paddle(view.right_lines, drawing.RIGHT_PADDLE)
    for k in range(2):
        there = column == view.ball_columns[:, k, None]
        seen = seen | (within(view.ball_lines[:, k])[:, :, None] & there[:, None, :])
    return seen.to(torch.uint8)
