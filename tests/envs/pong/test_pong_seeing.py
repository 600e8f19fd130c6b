"""The binary picture is what the textbook makes of the real screen; the state says where things are."""

import numpy as np
import torch
from side_by_side import USUAL, SideBySide, Tracker, join, play

from recollect.envs.pong import seeing
from recollect.envs.pong.view import look


def textbook(screen: np.ndarray) -> np.ndarray:
    """Karpathy's: the field's rows, every second pixel, background erased, all else 1. uint8 [80, 80]"""
    field = screen[35:195][::2, ::2].copy()
    values, counts = np.unique(field, return_counts=True)
    field[field == values[counts.argmax()]] = 0
    field[field != 0] = 1
    return field


def test_binary_is_the_textbooks():
    frames = list(play(SideBySide(2), [Tracker(0, fire=0.5), Tracker(1, fire=1.0)], 500))
    joined = join(frames)
    views = look(joined.after, USUAL, joined.before.left, joined.before.right)
    ours = seeing.binary(views).numpy()
    theirs = np.stack([textbook(screen) for screen in joined.screen.numpy()])
    assert np.array_equal(ours, theirs)
    lit = ours.sum((1, 2))
    assert len(set(lit.tolist())) > 5, "two paddles, with and without a ball, whole and cut by the walls"
    assert (joined.events.hit_left.any(), joined.events.hit_right.any()) == (True, True)


def test_the_state_is_where_things_are():
    """Around the middle of the screen's columns and lines 128, in units of 80; speeds in the fastest."""
    frames = list(play(SideBySide(1), [Tracker(0, fire=1.0)], 600))
    joined = join(frames)
    names = seeing.state_names(velocities=True, opponent=True)
    state = seeing.state_vector(joined.after, USUAL, velocities=True, opponent=True)
    seen = dict(zip(names, state.unbind(-1), strict=True))
    memory = joined.memory.float()
    there = memory[:, 54] > 0
    there &= memory[:, 49] > 0  # what a reset leaves at the left edge is no ball
    assert torch.equal(seen["ball_visible"], there.float())
    assert 0 < there.float().mean() < 1
    for name, at in (("paddle", 51), ("opponent", 50), ("ball_x", 49), ("ball_y", 54)):
        expected = (memory[:, at] - 128) / 80
        torch.testing.assert_close(seen[name], expected * there if "ball" in name else expected, msg=name)
    signed = memory - 256 * (memory > 127)
    assert torch.equal(seen["ball_speed_x"], -signed[:, 58] / 4 * there)
    assert torch.equal(seen["ball_speed_y"], signed[:, 56] / 4 * there)


def test_parts_of_the_state_can_be_left_out():
    joined = join(list(play(SideBySide(1), [Tracker(0, fire=1.0)], 200)))
    every = seeing.state_names(velocities=True, opponent=True)
    whole = seeing.state_vector(joined.after, USUAL, velocities=True, opponent=True)
    for velocities in (True, False):
        for opponent in (True, False):
            names = seeing.state_names(velocities, opponent)
            assert any("speed" in name for name in names) == velocities
            assert ("opponent" in names) == opponent
            part = seeing.state_vector(joined.after, USUAL, velocities, opponent)
            assert torch.equal(part, whole[:, [every.index(name) for name in names]])
