"""What one frame shows, before any pixel is drawn: where things are, in the screen's own columns and lines.

The screen is 160 columns by 210 lines: a scoreboard, a wall, the field (lines 34 to 193), a wall.
"""

import dataclasses
from dataclasses import dataclass

import torch
from torch import Tensor

from recollect.envs.pong import rules
from recollect.envs.pong.physics import Physics
from recollect.envs.pong.rules import Game

SCREEN_WIDTH = 160
FIELD_TOP, FIELD_BOTTOM = 34.0, 194.0
BLANK = 22  # on the scoreboard, the number that is not shown
COLUMN_OF_BALL = 49.0  # the ball's position less its column on the screen
BALL_LINES, BALL_ABOVE = 4.0, 14.0  # its height, and how far its position lies below its first line

FIRST_CLOCK, FIRST_TINT = rules.START_CLOCK + 1, 60  # the title screen's colours stay for a frame after a reset

# The console draws while its processor runs, and switches the ball on and off in the middle of a line: how late
# depends on what else it does in that line. Right of the switch the ball is seen a line early.
SWITCH_ODD, SWITCH_EVEN = 139.0, 158.0  # columns
EARLIER_FOR_PADDLE, EARLIER_WHEN_READ = 3.0, 6.0


@dataclass(frozen=True)
class View:
    """One frame of N games. Lines run from the first to the one behind the last; an empty span shows nothing."""

    ball_columns: Tensor  # [N, 2], as it is two columns wide
    ball_lines: Tensor  # [N, 2, 2] for each of its columns: first, end
    left_lines: Tensor  # [N, 2] of the opponent's paddle
    right_lines: Tensor  # [N, 2] of the player's
    left_score: Tensor  # [N] int32, BLANK for none
    right_score: Tensor  # [N]
    tint: Tensor  # [N] int, 0 in play; the title screen walks through all colours


def look(after: Game, physics: Physics, left_N: Tensor, right_N: Tensor) -> View:
    """What a frame shows that led to ``after``. left, right: int32 [N] the points before it; the board lags behind."""
    left, right = rules.even_line(after.opponent), rules.even_line(after.paddle)
    title = after.clock - (rules.LAST_CLOCK + 2)
    hidden = (after.ball_x >= physics.hidden_from) & (after.ball_x <= physics.hidden_to)
    columns = ball_columns(after)
    lines = ball_lines(after, columns, left, right, physics)
    return View(
        ball_columns=columns,
        ball_lines=torch.where(hidden[:, None, None], 0.0, lines),
        left_lines=_span(left - 15, left + 1),
        right_lines=_span(right - 14, right - 14 + physics.paddle_height),
        left_score=left_N,
        right_score=torch.where(title >= -1, BLANK, right_N),
        tint=torch.where(title >= 0, (title // 256 + 1) & 255, torch.where(after.clock <= FIRST_CLOCK, FIRST_TINT, 0)),
    )


def _span(first: Tensor, end: Tensor) -> Tensor:
    """Lines inside the field: [..., 2]"""
    return torch.stack([first, end], -1).clamp(FIELD_TOP, FIELD_BOTTOM)


def ball_columns(game: Game) -> Tensor:
    """Its two columns; past the right edge the screen goes on at the left. [N, 2]"""
    first_N = game.ball_x.floor() - COLUMN_OF_BALL
    return torch.stack([first_N, first_N + 1], -1).remainder(SCREEN_WIDTH)


def ball_lines(game: Game, columns_N2: Tensor, left: Tensor, right: Tensor, physics: Physics) -> Tensor:
    """The ball's lines in each of its two columns. [N, 2, 2]

    left, right: [N] the paddles' even lines.
    """
    line_N = game.ball_y.floor()
    edge_N2 = torch.stack([line_N, line_N + BALL_LINES], -1)  # what the processor compares at the first and end lines
    odd_N1 = (line_N.remainder(2) == 1)[:, None]
    # Even frames read the knob and have more to do until it has charged; odd ones wait for the knob nobody holds.
    read_N = torch.where((game.clock & 1) == 0, rules.read_knob(game.knob), rules.FAR_PADDLE)
    charged_N2 = edge_N2 - read_N[:, None] >= torch.where(odd_N1, 3.0, 2.0)
    from_right_N2 = edge_N2 - right[:, None] - odd_N1.float()
    at_right_N2 = (from_right_N2 >= 0) & (from_right_N2 <= (physics.paddle_height - 2)[:, None])
    from_left_N2 = edge_N2 - left[:, None]
    at_left_N2 = odd_N1 & (from_left_N2 >= -1) & (from_left_N2 <= 13)
    busy_N2 = at_right_N2.float() + at_left_N2.float()
    switch_N2 = torch.where(odd_N1, SWITCH_ODD, SWITCH_EVEN)
    switch_N2 = switch_N2 - EARLIER_FOR_PADDLE * busy_N2 - EARLIER_WHEN_READ * charged_N2.float()
    early_N22 = columns_N2[:, :, None] >= switch_N2[:, None, :]  # column, edge
    return (edge_N2[:, None, :] - BALL_ABOVE - early_N22.float()).clamp(FIELD_TOP, FIELD_BOTTOM)


def opening(game: Game, physics: Physics) -> View:
    """What the screen shows where an episode begins. Right after a reset the title screen's ball is still there."""
    view = look(game, physics, game.left, game.right)
    zero = torch.zeros_like(view.ball_columns)  # filled on the device: a captured graph may copy nothing to it
    columns, lines = torch.stack([zero[:, 0] + 2, zero[:, 0] + 3], -1), torch.stack([zero + 45, zero + 49], -1)
    reset = (game.clock == rules.START_CLOCK)[:, None]
    return dataclasses.replace(
        view,
        ball_columns=torch.where(reset, columns, view.ball_columns),
        ball_lines=torch.where(reset[..., None], lines, view.ball_lines),
    )
