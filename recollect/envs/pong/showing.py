"""What people are shown of a game, the agent or not: the screen with all that is hidden, and where everything is."""

import dataclasses

import numpy as np
import torch
from torch import Tensor

from recollect.envs.pong import drawing, seeing
from recollect.envs.pong.physics import DEFAULTS, Physics
from recollect.envs.pong.rules import Game
from recollect.envs.pong.view import COLUMN_OF_BALL, FIELD_BOTTOM, FIELD_TOP, SCREEN_WIDTH, look
from recollect.nested import map_tensors

DARK_GROUND, DIM_BALL = (92, 44, 8), (190, 150, 112)  # where the agent sees no ball, and the ball that it does not see
BALL_WIDTH = 2


def screen(game: Game, physics: Physics) -> np.ndarray:
    """The screen of the first game in colour, uint8 [210, 160, 3].

    Where a ball would be hidden the ground is dark, and a ball that is hidden is there, but dim. No agent sees this.
    """
    game, physics = map_tensors(lambda part: part[:1], game), map_tensors(lambda part: part[:1], physics)
    nothing_hidden = {name: torch.full_like(physics.noise, DEFAULTS[name]) for name in ("hidden_from", "hidden_to")}
    picture = drawing.screen(look(game, dataclasses.replace(physics, **nothing_hidden), game.left, game.right))
    columns = (physics.hidden_from.ceil(), physics.hidden_to.floor() + BALL_WIDTH)
    left, right = (int(x.item() - COLUMN_OF_BALL) for x in columns)
    if right - left >= BALL_WIDTH:
        field = picture[int(FIELD_TOP) : int(FIELD_BOTTOM), max(left, 0) : min(max(right, 0), SCREEN_WIDTH)]
        _recolour(field, drawing.GROUND, DARK_GROUND)
        if seeing.hidden(game, physics).item():
            _recolour(field, drawing.WHITE, DIM_BALL)
    return picture


def _recolour(picture: np.ndarray, colour: int, to: tuple[int, int, int]) -> None:
    picture[(picture == drawing.COLOURS[colour]).all(-1)] = to


def scene(game: Game, physics: Physics) -> dict[str, Tensor]:
    """Where everything is, in the game's columns and lines, whatever is seen of it. {name: [N] float32}

    ball_there, ball_visible: 1 or 0; without a ball its position says nothing.
    """
    return {
        "ball_x": game.ball_x,
        "ball_y": game.ball_y,
        "ball_there": seeing.on_field(game).float(),
        "ball_visible": seeing.visible(game, physics).float(),
        "paddle": game.paddle,
        "opponent": game.opponent,
    }
