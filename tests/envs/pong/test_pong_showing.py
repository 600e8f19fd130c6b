"""What people are shown: the whole game, with the band that hides the ball; what the agent sees stays as it was."""

import dataclasses

import numpy as np
import pytest
import torch
from contract import draw_actions, random_action
from side_by_side import CPU

from recollect.envs.pong import drawing, physics, rules, showing
from recollect.envs.pong.env import PongEnv
from recollect.envs.pong.options import Options
from recollect.envs.pong.physics import Physics
from recollect.envs.pong.rules import Game
from recollect.envs.pong.view import look

GROUND, BALL = drawing.COLOURS[drawing.GROUND], drawing.COLOURS[drawing.WHITE]
BLIND = {"hidden_from": "148", "hidden_to": "200"}  # columns 99 to 152 of the screen: the ball is two wide
FIELD = slice(34, 194)


def game(ball_x: float, ball_y: float = 130) -> Game:
    given = {"wait": 0, "ball_x": ball_x, "ball_y": ball_y, "opponent": 100, "paddle": 60}
    start = rules.start(1, CPU)
    return dataclasses.replace(start, **{n: torch.full_like(getattr(start, n), v) for n, v in given.items()})


def world(first: float = 148, end: float = 200) -> Physics:
    ranges = {"hidden_from": (first, first), "hidden_to": (end, end)}
    return physics.draw(ranges, torch.zeros(len(physics.DEFAULTS), 1), physics.usual(CPU))


def columns_of(picture: np.ndarray, colour: tuple[int, int, int]) -> list[int]:
    return np.unique(np.nonzero((picture[FIELD] == colour).all(-1))[1]).tolist()


@pytest.mark.parametrize(("ball_x", "is_hidden"), [(147, False), (148, True), (170, True), (200, True), (201, False)])
def test_the_band_is_dark_and_the_ball_in_it_dim(ball_x: int, is_hidden: bool):
    picture = showing.screen(game(ball_x), world())
    usual = drawing.screen(look(game(ball_x), physics.usual(CPU), torch.zeros(1).int(), torch.zeros(1).int()))
    dark = columns_of(picture, showing.DARK_GROUND)
    assert (dark[0], dark[-1]) == (99, 152)
    assert columns_of(picture, showing.DIM_BALL if is_hidden else BALL) == [ball_x - 49, ball_x - 48]
    assert columns_of(picture, BALL if is_hidden else showing.DIM_BALL) == []
    changed = (picture != usual).any(-1)
    was = {tuple(colour) for colour in usual[changed].tolist()}
    assert was == ({GROUND, BALL} if is_hidden else {GROUND}), "paddles in the band are seen, and so look the same"
    assert not changed[: FIELD.start].any()
    assert not changed[FIELD.stop :].any()


def test_without_a_band_the_screen_is_the_screen():
    picture = showing.screen(game(170), physics.usual(CPU))
    assert (columns_of(picture, BALL), columns_of(picture, showing.DARK_GROUND)) == ([121, 122], [])
    crossed = showing.screen(game(170), world(150, 149))
    assert np.array_equal(picture, crossed), "a band that ends before it begins hides nothing"


@pytest.mark.parametrize("obs", ["state", "pixels"])
def test_rendering_changes_nothing_and_shows_what_is_hidden(obs: str):
    drawn, alone = (PongEnv(2, Options(obs=obs, **BLIND), protocol="deterministic") for _ in range(2))
    drawn.reset(1)
    alone.reset(1)
    hidden = 0
    for action in draw_actions(alone, random_action, 60):
        picture, scene = drawn.render(), drawn.scene()
        one, other = drawn.step(action), alone.step(action)
        assert all(torch.equal(one.obs[name], other.obs[name]) for name in one.obs)
        assert scene["ball_there"][0] >= scene["ball_visible"][0]
        is_hidden = bool(scene["ball_there"][0] > scene["ball_visible"][0])
        assert is_hidden == (columns_of(picture, showing.DIM_BALL) != [])
        hidden += is_hidden
    assert 5 < hidden < 55


def test_the_scene_is_where_things_are():
    env = PongEnv(3, Options(obs="state", velocities=False, **BLIND), protocol="deterministic")
    obs = env.reset(0)
    for action in draw_actions(env, random_action, 80):
        scene = env.scene()
        assert {tuple(part.shape) for part in scene.values()} == {(3,)}
        paddle, visible, ball_x, ball_y, opponent = obs["vector"].unbind(-1)
        assert torch.equal(visible, scene["ball_visible"])
        for seen, name in ((paddle, "paddle"), (opponent, "opponent"), (ball_x, "ball_x"), (ball_y, "ball_y")):
            shown = torch.ones(3, dtype=torch.bool) if "ball" not in name else visible > 0
            torch.testing.assert_close((128 + 80 * seen)[shown], scene[name][shown], rtol=0, atol=1e-3)
        obs = env.step(action).obs
