"""From views to pixels: the 84x84 grey picture that ale-py's vector environment gives, exactly.

It shows the brighter pixel of the last two frames, scaled by the area mean and rounded half to even. All things are
rectangles, so a picture is a sum of products of a line's share and a column's share, in whole numbers: 210 lines onto
84 are spans of 5 halves, 160 columns onto 84 spans of 40 / 21. No large screen is ever drawn.
"""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from recollect.envs.pong.view import BLANK, View

SIZE = 84
LINE_UNIT, LINE_SPAN = 2, 5  # a line is 2 units high, a row of the picture 5
COLUMN_UNIT, COLUMN_SPAN = 21, 40
AREA = LINE_SPAN * COLUMN_SPAN

LEFT_PADDLE, RIGHT_PADDLE, PADDLE_WIDTH = 16, 140, 4  # columns
WALLS = ((24, 34), (194, 210))  # lines
BLACK = (0, 1, 0, 8)  # lines and columns of a corner that stays dark
BOARD_TOP, CELL = 1, 4  # the scoreboard's first line, and the size of the squares that digits are made of
TENS, ONES, RIGHT_BOARD = 5, 9, 20  # cells, from the left edge; the right number stands 20 cells further

DIGITS = (
    "#### ## ## ####",
    " #  #  #  #  # ",
    "###  #####  ###",
    "###  # ##  ####",
    "# ## ####  #  #",
    "####  ###  ####",
    "#  #  #### ####",
    "###  #  #  #  #",
    "#### ##### ####",
    "#### ####  #  #",
)  # five rows of three cells each

# The grey of each of the console's 128 colours, and the colours of ground, walls and ball, left and right things.
# fmt: off
GREYS = (
    0, 74, 111, 142, 170, 192, 214, 236, 64, 95, 122, 148, 172, 193, 214, 233,
    63, 87, 110, 131, 150, 167, 184, 199, 59, 85, 107, 129, 148, 167, 183, 199,
    44, 68, 90, 110, 128, 146, 161, 176, 51, 74, 95, 115, 132, 149, 164, 178,
    39, 63, 85, 107, 125, 143, 159, 174, 22, 49, 73, 96, 116, 136, 153, 169,
    17, 41, 64, 85, 104, 121, 137, 153, 32, 60, 85, 109, 130, 150, 168, 186,
    40, 69, 95, 120, 141, 162, 182, 200, 43, 74, 101, 127, 151, 173, 193, 212,
    40, 71, 98, 124, 147, 169, 189, 207, 41, 74, 104, 132, 157, 181, 203, 223,
    47, 79, 107, 133, 157, 179, 200, 220, 47, 79, 107, 133, 157, 179, 200, 220,
)
# fmt: on
GROUND, WHITE, LEFT, RIGHT = 0x22, 0x0F, 0x38, 0xC8
TINTS = 256


def tint_colour(colour: int, tint: int) -> int:
    """The colour that the title screen makes of one: its hue moves fast, its brightness slowly."""
    return (colour + ((tint & 15) << 4) + (tint >> 4)) & 0xFF


@dataclass(frozen=True)
class Tables:
    """What never changes, on one device."""

    levels: Tensor  # [256, 4] grey of ground, white, left, right by tint
    digits: Tensor  # [23, 5, 40] float32, cells of the left board by number, 22 is blank; the right one's are shifted
    board_columns: Tensor  # [40, 84] share of each cell's columns
    board_rows: Tensor  # [5, 84] share of each cell's lines
    wall_rows: Tensor  # [84]
    black: Tensor  # [84, 84] share of the dark corner
    rows: Tensor  # [84] float32, where each row begins, in units
    columns: Tensor  # [84] likewise

    @staticmethod
    def on(device: torch.device) -> "Tables":
        """Make them."""
        rows, columns = (span * torch.arange(SIZE, dtype=torch.float32) for span in (LINE_SPAN, COLUMN_SPAN))
        cells = CELL * torch.arange(160 // CELL, dtype=torch.float32)
        lines = BOARD_TOP + CELL * torch.arange(5, dtype=torch.float32)
        walls = sum((line_share(torch.tensor([wall], dtype=torch.float32), rows)[0] for wall in WALLS), torch.zeros(1))
        top, bottom, left, right = (torch.tensor([float(edge)]) for edge in BLACK)
        dark = line_share(torch.stack([top, bottom], -1), rows)[0][:, None] * column_share(left, right - left, columns)
        return Tables(
            levels=torch.tensor(
                [[float(GREYS[tint_colour(c, t) >> 1]) for c in (GROUND, WHITE, LEFT, RIGHT)] for t in range(TINTS)]
            ).to(device),
            digits=torch.stack([board(number) for number in range(BLANK + 1)]).to(device),
            board_columns=column_share(cells, CELL, columns).to(device),
            board_rows=line_share(torch.stack([lines, lines + CELL], -1), rows).to(device),
            wall_rows=walls.to(device),
            black=dark.to(device),
            rows=rows.to(device),
            columns=columns.to(device),
        )


def board(number: int) -> Tensor:
    """The cells that show a number on the left board, 22 for none. [5, 40]"""
    cells = torch.zeros(5, 160 // CELL)
    if number < BLANK:
        tens, ones = divmod(number, 10)
        for place, digit in ((ONES, ones), *([(TENS, tens)] if tens else [])):
            filled = [mark == "#" for mark in DIGITS[digit]]
            cells[:, place : place + 3] = torch.tensor(filled).view(5, 3).float()
    return cells


def line_share(span: Tensor, rows: Tensor) -> Tensor:
    """How much of each of the 84 rows a span of lines covers, in units. span: [..., 2] -> [..., 84]"""
    first, end = LINE_UNIT * span[..., :1], LINE_UNIT * span[..., 1:]
    return (torch.minimum(end, rows + LINE_SPAN) - torch.maximum(first, rows)).clamp_min(0)


def column_share(first: Tensor, width: Tensor | int, columns: Tensor) -> Tensor:
    """How much of each of the 84 columns a span of the screen's columns covers, in units. first: [...] -> [..., 84]"""
    left, right = COLUMN_UNIT * first[..., None], COLUMN_UNIT * (first + width)[..., None]
    return (torch.minimum(right, columns + COLUMN_SPAN) - torch.maximum(left, columns)).clamp_min(0)


def meet(one: Tensor, other: Tensor) -> Tensor:
    """The lines that two spans share; an empty span where there are none. [..., 2]"""
    return torch.stack([torch.maximum(one[..., 0], other[..., 0]), torch.minimum(one[..., 1], other[..., 1])], -1)


def overlap(span: Tensor, one: Tensor, other: Tensor, rows: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Shares of the rows where ``span`` meets both spans, only ``one``, only ``other``. spans: [..., 2] -> [..., 84]"""
    both = line_share(meet(span, meet(one, other)), rows)
    return both, line_share(meet(span, one), rows) - both, line_share(meet(span, other), rows) - both


def brightest(older: Tensor, newer: Tensor, ground: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor, Tensor]:
    """The grey of a thing that both frames show in a place, only the older, only the newer. Each [N]"""
    return torch.maximum(older, newer), torch.maximum(older, ground[1]), torch.maximum(ground[0], newer)


def paddles(older: View, newer: View, span: Tensor, greys: Tensor, tables: Tables) -> tuple[Tensor, Tensor]:
    """How much brighter than the ground the paddles make each row of a span, in their own columns. Each [..., 84]

    span: [N, ..., 2] lines; greys: [2, 4, N] of older and newer frame.
    """
    ground = (greys[0, 0], greys[1, 0])
    below = torch.maximum(*ground)
    rows = []
    for k, (one, other) in ((2, (older.left_lines, newer.left_lines)), (3, (older.right_lines, newer.right_lines))):
        one, other = (lines.view(-1, *[1] * (span.dim() - 2), 2) for lines in (one, other))
        shares = overlap(span, one, other, tables.rows)
        levels = brightest(greys[0, k], greys[1, k], ground)
        added = [
            (grey - below).view(-1, *[1] * (span.dim() - 1)) * share for grey, share in zip(levels, shares, strict=True)
        ]
        rows.append(added[0] + added[1] + added[2])
    return rows[0], rows[1]


def draw(older: View, newer: View, tables: Tables) -> Tensor:
    """The picture of two frames, the same one twice for no pooling. uint8 [N, 84, 84]"""
    greys = torch.stack([tables.levels[older.tint], tables.levels[newer.tint]]).transpose(1, 2)  # [2, 4, N]
    ground, white = torch.maximum(greys[0, 0], greys[1, 0]), torch.maximum(greys[0, 1], greys[1, 1])
    field = newer.left_lines.new_tensor([0.0, 210.0]).expand(len(ground), 2)
    left_rows, right_rows = paddles(older, newer, field, greys, tables)
    ball_rows, ball_columns = ball(older, newer, greys, ground, tables)
    board_rows = tables.board_rows.expand(len(ground), 5, SIZE)
    walls = (white - ground)[:, None] * tables.wall_rows
    whole = torch.full_like(tables.columns, COLUMN_SPAN)
    rows = torch.cat([torch.stack([left_rows, right_rows, walls], 1), ball_rows, board_rows], 1)
    fixed = torch.stack([paddle_columns(LEFT_PADDLE, tables), paddle_columns(RIGHT_PADDLE, tables), whole])
    columns = torch.cat([fixed.expand(len(ground), 3, SIZE), ball_columns, boards(older, newer, greys, tables)], 1)
    base = ground[:, None, None] * (AREA - tables.black)
    total = torch.baddbmm(base, rows.transpose(1, 2), columns)
    return (total / AREA).round().to(torch.uint8)  # to even, as the picture's sums are whole numbers


def paddle_columns(first: int, tables: Tables) -> Tensor:
    """[84]"""
    return column_share(torch.full((), float(first), device=tables.columns.device), PADDLE_WIDTH, tables.columns)


def boards(older: View, newer: View, greys: Tensor, tables: Tables) -> Tensor:
    """How much brighter than the ground the two numbers make each column, for each of five rows of cells. [N, 5, 84]"""
    seen = []
    for view, frame_greys in ((older, greys[0]), (newer, greys[1])):
        ground, left, right = (frame_greys[k][:, None, None] for k in (0, 2, 3))
        left_on, right_on = tables.digits[view.left_score], tables.digits[view.right_score].roll(RIGHT_BOARD, -1)
        seen.append(ground + (left - ground) * left_on + (right - ground) * right_on)
    brighter = torch.maximum(*seen) - torch.maximum(greys[0, 0], greys[1, 0])[:, None, None]
    return brighter @ tables.board_columns


def brighten(
    older: View, newer: View, lines: Tensor, column: Tensor, greys: Tensor, ground: Tensor, tables: Tables
) -> Tensor:
    """How much brighter columns of balls are than what is behind them, the ground or a paddle. [N, K, 84]

    lines: [N, K, 2], column: [N, K]
    """
    white = torch.maximum(greys[0, 1], greys[1, 1])
    behind = paddles(older, newer, lines, greys, tables)
    rows = (white - ground)[:, None, None] * line_share(lines, tables.rows)
    for first, paddle_rows in zip((LEFT_PADDLE, RIGHT_PADDLE), behind, strict=True):
        inside = (column >= first) & (column < first + PADDLE_WIDTH)
        rows = rows - inside[..., None] * paddle_rows
    return rows


def ball(older: View, newer: View, greys: Tensor, ground: Tensor, tables: Tables) -> tuple[Tensor, Tensor]:
    """The four columns of two balls: how much each brightens its rows, and where it is. Each [N, 4, 84]

    A ball hides the paddle behind it, and counts once where both frames show it.
    """
    lines = torch.cat([older.ball_lines, newer.ball_lines], 1)  # [N, 4, 2]
    column = torch.cat([older.ball_columns, newer.ball_columns], 1)  # [N, 4]
    rows = brighten(older, newer, lines, column, greys, ground, tables)
    # The same place twice: each of the older ball's columns against each of the newer one's.
    same = (column[:, :2, None] == column[:, None, 2:]).flatten(1)
    shared = meet(lines[:, :2, None], lines[:, None, 2:]).flatten(1, 2)  # [N, 4, 2]
    twice = brighten(older, newer, shared, column[:, :2].repeat_interleave(2, 1), greys, ground, tables)
    twice = (twice * same[..., None]).unflatten(1, (2, 2)).sum(2)
    rows = torch.cat([rows[:, :2] - twice, rows[:, 2:]], 1)
    return rows, column_share(column, 1, tables.columns)


COLOURS = {GROUND: (144, 72, 17), WHITE: (236, 236, 236), LEFT: (213, 130, 74), RIGHT: (92, 186, 92)}


def screen(view: View) -> np.ndarray:
    """The whole screen of the first game in colour, as it looks in play. uint8 [210, 160, 3]"""
    picture = np.empty((210, 160, 3), np.uint8)
    picture[:] = COLOURS[GROUND]
    for first, end in WALLS:
        picture[first:end] = COLOURS[WHITE]
    for side, number, colour in ((0, view.left_score, LEFT), (1, view.right_score, RIGHT)):
        cells = board(int(number[0])).roll(side * RIGHT_BOARD, 1).numpy() > 0
        on = np.kron(cells, np.ones((CELL, CELL))) > 0
        picture[BOARD_TOP : BOARD_TOP + 5 * CELL][on] = COLOURS[colour]
    for lines, first, colour in ((view.left_lines, LEFT_PADDLE, LEFT), (view.right_lines, RIGHT_PADDLE, RIGHT)):
        top, end = (int(edge) for edge in lines[0])
        picture[top:end, first : first + PADDLE_WIDTH] = COLOURS[colour]
    for k in range(2):
        top, end = (int(edge) for edge in view.ball_lines[0, k])
        picture[top:end, int(view.ball_columns[0, k])] = COLOURS[WHITE]
    picture[BLACK[0] : BLACK[1], BLACK[2] : BLACK[3]] = 0
    return picture
