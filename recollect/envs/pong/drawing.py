"""From views to pixels: the 84x84 grey picture that ale-py's vector environment gives, exactly.

It shows the brighter pixel of the last two frames, scaled by the area mean and rounded half to even. All things are
rectangles, so a picture is a sum of products of a line's share and a column's share, in whole numbers: 210 lines onto
84 are spans of 5 halves, 160 columns onto 84 spans of 40 / 21. No large screen is ever drawn.
"""

import dataclasses
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


LEFT_GREY, RIGHT_GREY = 2, 3  # where ``Tables.levels`` has them; 0 is the ground, 1 white


@dataclass(frozen=True)
class Tables:
    """What never changes, on one device. All float32."""

    levels: Tensor  # [256, 4] grey of ground, white, left, right by tint
    left_digits: Tensor  # [23, 5, 40] cells of the scoreboard by number; 22 is blank
    right_digits: Tensor  # [23, 5, 40]
    board_columns: Tensor  # [40, 84] share of each cell's columns
    board_rows: Tensor  # [5, 84] share of each cell's lines
    wall_rows: Tensor  # [84] share of the walls' lines
    ground_rows: Tensor  # [2, 84] all lines, and less those of the corner that stays dark
    fixed_columns: Tensor  # [5, 84] of ground, dark corner, left paddle, right paddle, walls
    rows: Tensor  # [84] where each row begins, in units
    columns: Tensor  # [84] likewise

    @staticmethod
    def on(device: torch.device) -> "Tables":
        """Make them."""
        rows, columns = (span * torch.arange(SIZE, dtype=torch.float32) for span in (LINE_SPAN, COLUMN_SPAN))
        cells = CELL * torch.arange(160 // CELL, dtype=torch.float32)
        lines = BOARD_TOP + CELL * torch.arange(5, dtype=torch.float32)

        def height(first: float, end: float) -> Tensor:
            return line_share(torch.tensor(float(first)), torch.tensor(float(end)), rows)

        def width(first: float, end: float) -> Tensor:
            return column_share(torch.tensor(float(first)), int(end - first), columns)

        paddles = (width(first, first + PADDLE_WIDTH) for first in (LEFT_PADDLE, RIGHT_PADDLE))
        whole, left_digits = width(0, 160), torch.stack([board(number) for number in range(BLANK + 1)])
        colours = (GROUND, WHITE, LEFT, RIGHT)
        levels = [[float(GREYS[tint_colour(c, t) >> 1]) for c in colours] for t in range(TINTS)]
        made = Tables(
            levels=torch.tensor(levels),
            left_digits=left_digits,
            right_digits=left_digits.roll(RIGHT_BOARD, -1),
            board_columns=column_share(cells, CELL, columns),
            board_rows=line_share(lines, lines + CELL, rows),
            wall_rows=height(*WALLS[0]) + height(*WALLS[1]),
            ground_rows=torch.stack([height(0, 210), -height(*BLACK[:2])]),
            fixed_columns=torch.stack([whole, width(*BLACK[2:]), *paddles, whole]),
            rows=rows,
            columns=columns,
        )
        return Tables(**{field.name: getattr(made, field.name).to(device) for field in dataclasses.fields(made)})


def board(number: int) -> Tensor:
    """The cells that show a number on the left board, 22 for none. [5, 40]"""
    cells = torch.zeros(5, 160 // CELL)
    if number < BLANK:
        tens, ones = divmod(number, 10)
        for place, digit in ((ONES, ones), *([(TENS, tens)] if tens else [])):
            filled = [mark == "#" for mark in DIGITS[digit]]
            cells[:, place : place + 3] = torch.tensor(filled).view(5, 3).float()
    return cells


def line_share(first: Tensor, end: Tensor, rows: Tensor) -> Tensor:
    """How much of each of the 84 rows the lines from ``first`` to ``end`` cover, in units. [...] each -> [..., 84]"""

    def above(line: Tensor) -> Tensor:
        return (LINE_UNIT * line[..., None] - rows).clamp(0, LINE_SPAN)

    return above(torch.maximum(first, end)) - above(first)


def column_share(first: Tensor, width: int, columns: Tensor) -> Tensor:
    """How much of each of the 84 columns some of the screen's columns cover, in units. first: [...] -> [..., 84]"""
    left, right = COLUMN_UNIT * first[..., None], COLUMN_UNIT * (first + width)[..., None]
    return (torch.minimum(right, columns + COLUMN_SPAN) - torch.maximum(left, columns)).clamp_min(0)


def draw(older: View, newer: View, tables: Tables) -> Tensor:
    """The picture of two frames, the same one twice for no pooling. uint8 [N, 84, 84]

    A sum over all things of (how much brighter it makes each row) times (which columns it covers).
    """
    greys = tables.levels[torch.stack([older.tint, newer.tint])].movedim(-1, 0)  # [4, 2, N]: thing, frame
    ground = greys[0].amax(0)
    ball_rows, ball_columns = ball(older, newer, greys, ground, tables)
    left = paddle_rows(older.left_lines, newer.left_lines, greys[LEFT_GREY], greys[0], tables)
    right = paddle_rows(older.right_lines, newer.right_lines, greys[RIGHT_GREY], greys[0], tables)
    walls = (greys[1].amax(0) - ground)[:, None] * tables.wall_rows
    ground_and_corner = ground[:, None, None] * tables.ground_rows
    one_each = torch.stack([left, right, walls], 1)
    board_rows = tables.board_rows.expand(len(ground), -1, -1)
    rows = torch.cat([ground_and_corner, one_each, ball_rows, board_rows], 1)  # [N, 14, 84]
    fixed = tables.fixed_columns.expand(len(ground), -1, -1)
    columns = torch.cat([fixed, ball_columns, boards(older, newer, greys, ground, tables)], 1)
    return (sum_of_products(rows, columns) * (1 / AREA)).round().to(torch.uint8)  # whole numbers: a tie stays one


def sum_of_products(rows: Tensor, columns: Tensor) -> Tensor:
    """sum_k rows[k] columns[k]^T. [N, K, 84] each -> [N, 84, 84]"""
    if not torch.compiler.is_compiling():
        return torch.bmm(rows.transpose(1, 2), columns)
    # Compiled for a CPU, the sum and its rounding become one loop that never writes a float32 picture.
    products = [rows[:, k, :, None] * columns[:, k, None, :] for k in range(rows.shape[1])]
    return sum(products[1:], products[0])


def pooled(one: Tensor, other: Tensor, thing: Tensor, ground: Tensor) -> list[tuple[Tensor, Tensor, Tensor]]:
    """Where two frames show a thing, as spans of lines with how much brighter than the pooled ground it is there.

    one, other: [..., 2] lines; thing, ground: [2, ...] greys of the two frames. Three (grey, first, end), to be added
    up: both frames' span counts again what belongs to neither of the others alone.
    """
    first, end = torch.maximum(one[..., 0], other[..., 0]), torch.minimum(one[..., 1], other[..., 1])
    below = ground.amax(0)
    alone = torch.maximum(thing[0], ground[1]) - below, torch.maximum(ground[0], thing[1]) - below
    together = thing.amax(0) - below - alone[0] - alone[1]
    return [(together, first, end), (alone[0], one[..., 0], one[..., 1]), (alone[1], other[..., 0], other[..., 1])]


def paddle_rows(one: Tensor, other: Tensor, thing: Tensor, ground: Tensor, tables: Tables) -> Tensor:
    """How much brighter than the ground a paddle makes each row. one, other: [N, 2] -> [N, 84]"""
    parts = [
        grey[:, None] * line_share(first, end, tables.rows) for grey, first, end in pooled(one, other, thing, ground)
    ]
    return parts[0] + parts[1] + parts[2]


def boards(older: View, newer: View, greys: Tensor, ground: Tensor, tables: Tables) -> Tensor:
    """How much brighter than the ground the two numbers make each column, for each of five rows of cells. [N, 5, 84]"""
    seen = []
    for frame, view in enumerate((older, newer)):
        below, left, right = (greys[thing, frame][:, None, None] for thing in (0, LEFT_GREY, RIGHT_GREY))
        left_on, right_on = tables.left_digits[view.left_score], tables.right_digits[view.right_score]
        seen.append(below + (left - below) * left_on + (right - below) * right_on)
    brighter = torch.maximum(*seen) - ground[:, None, None]
    return (brighter.flatten(0, 1) @ tables.board_columns).unflatten(0, (-1, 5))


def ball(older: View, newer: View, greys: Tensor, ground: Tensor, tables: Tables) -> tuple[Tensor, Tensor]:
    """The four columns of two balls: how much each brightens its rows, and where it is. Each [N, 4, 84]

    A ball hides the paddle behind it, and counts once where both frames show it.
    """
    column = torch.cat([older.ball_columns, newer.ball_columns], 1)  # [N, 4]
    lines = torch.cat([older.ball_lines, newer.ball_lines], 1)  # [N, 4, 2]
    # The same place twice: each of the older ball's columns against each of the newer one's, to be taken off again.
    pairs = column[:, :2].repeat_interleave(2, 1)
    same = (pairs == column[:, 2:].repeat(1, 2)).float()
    shared = intersection(lines[:, :2].repeat_interleave(2, 1), lines[:, 2:].repeat(1, 2, 1))
    # A title screen's ball may be darker than the ground, and then shows only where both frames have it.
    alone = torch.maximum(greys[1, 0], greys[0, 1]) - ground, torch.maximum(greys[0, 0], greys[1, 1]) - ground
    both = alone[0] + alone[1] - (greys[1].amax(0) - ground)
    white = torch.stack([*(level for level in alone for _ in range(2)), both, both, both, both], 1)
    spots, spans = torch.cat([column, pairs], 1), torch.cat([lines, shared], 1)
    rows = brightened(white, spots, spans, older, newer, greys, tables)
    twice = (rows[:, 4:] * same[..., None]).unflatten(1, (2, 2)).sum(2)
    return torch.cat([rows[:, :2] - twice, rows[:, 2:4]], 1), column_share(column, 1, tables.columns)


def intersection(one: Tensor, other: Tensor) -> Tensor:
    """The lines that two spans share; where there are none it ends before it begins. [..., 2]"""
    first, end = torch.maximum(one[..., 0], other[..., 0]), torch.minimum(one[..., 1], other[..., 1])
    return torch.stack([first, end], -1)


def brightened(
    white: Tensor, column: Tensor, lines: Tensor, older: View, newer: View, greys: Tensor, tables: Tables
) -> Tensor:
    """How much columns of balls brighten their rows over what is behind them: ground, or a paddle. [N, K, 84]

    white: [N, K] over the ground, column: [N, K], lines: [N, K, 2]
    """
    in_left = (column >= LEFT_PADDLE) & (column < LEFT_PADDLE + PADDLE_WIDTH)
    in_right = (column >= RIGHT_PADDLE) & (column < RIGHT_PADDLE + PADDLE_WIDTH)
    one, other = (
        torch.where(in_left[..., None], view.left_lines[:, None], view.right_lines[:, None]) for view in (older, newer)
    )
    thing = torch.where(in_left, greys[LEFT_GREY][..., None], greys[RIGHT_GREY][..., None])  # [2, N, K]
    behind = pooled(one, other, thing, greys[0][..., None])
    spans = [(white, lines[..., 0], lines[..., 1])]
    for grey, first, end in behind:
        inner = intersection(lines, torch.stack([first, end], -1))
        spans.append((-grey * (in_left | in_right).float(), inner[..., 0], inner[..., 1]))
    # Stacked once, so that what is the same for all 84 rows is worked out once.
    numbers = torch.stack([number for span in spans for number in span])  # [12, N, K]
    rows = [
        numbers[3 * k, ..., None] * line_share(numbers[3 * k + 1], numbers[3 * k + 2], tables.rows) for k in range(4)
    ]
    return rows[0] + rows[1] + rows[2] + rows[3]


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
