"""Atari one game at a time: as the vector environment where both can, and random frame skips."""

import cv2
import numpy as np
import pytest
import torch
from contract import draw_actions, play, random_action
from single_game import SingleGame

from recollect.envs.atari import make_atari
from recollect.envs.atari_random_skip import RandomSkipAtari, shrink
from recollect.rng import stream_seed

PONG, BREAKOUT = "ALE/Pong-v5", "ALE/Breakout-v5"


@pytest.mark.parametrize("pool", [False, True])
def test_one_by_one_shows_what_the_vector_environment_shows(pool):
    """The random-skip engine at a skip that is not random, ends apart: it also shows a game's last picture."""
    rules = {"max_pool": pool, "max_episode_steps": 30}
    fast, slow = make_atari(PONG, 2, overrides=rules), make_atari(PONG, 2, overrides={**rules, "frame_skip": (4, 4)})
    assert isinstance(slow, RandomSkipAtari)
    assert torch.equal(fast.reset(4)["frame"], slow.reset(4)["frame"])
    for action in draw_actions(fast, random_action, 100):
        a, b = fast.step(action), slow.step(action)
        assert torch.equal(a.final_obs["frame"], b.final_obs["frame"])
        assert torch.equal(a.obs["frame"], b.obs["frame"])
        assert torch.equal(a.reward, b.reward)
        assert torch.equal(a.truncated, b.truncated)


def test_random_skips():
    """A decision lasts 2, 3 or 4 frames, drawn for each environment, and shows the last of them."""
    env = make_atari(PONG, 3, protocol="v0-random-skip")
    env.reset(9)
    frames = np.array([game.getEpisodeFrameNumber() for game in env._games])
    single = SingleGame("pong", stream_seed(9, "env", 0), 0.25)
    lasted = []
    for action, step in zip(actions := draw_actions(env, random_action, 150), play(env, actions), strict=True):
        now = np.array([game.getEpisodeFrameNumber() for game in env._games])
        lasted.append(now - frames)
        frames = now
        reward = single.step(int(action[0]), skip=int(lasted[-1][0]))
        assert step.reward[0] == reward
        assert np.array_equal(step.obs["frame"][0].numpy(), single.stack)
    lasted = np.array(lasted)
    for i in range(3):
        counts = np.bincount(lasted[:, i], minlength=5)
        assert counts[[0, 1]].sum() == 0
        assert counts[[2, 3, 4]].min() > 30
    assert not np.array_equal(lasted[:, 0], lasted[:, 1])


def test_one_by_one_shows_the_picture_that_ends_a_game():
    env = make_atari(BREAKOUT, 1, overrides={"frame_skip": (4, 4), "max_pool": False})
    env.reset(0)
    game = SingleGame("breakout", stream_seed(0, "env", 0), 0.25)
    for action, step in zip(actions := draw_actions(env, random_action, 400), play(env, actions), strict=True):
        game.step(int(action[0]))
        assert np.array_equal(step.final_obs["frame"][0].numpy(), game.stack)
        if step.terminated[0]:
            return
    pytest.fail("no game ended")


def test_shrink_is_opencv():
    """Exactly, but for exact ties, which OpenCV's float32 sums may tip to the other side."""
    noise = np.random.default_rng(0).integers(0, 256, (30, 210, 160)).astype(np.uint8)
    ours = np.stack([shrink(screen) for screen in noise]).astype(int)
    theirs = np.stack([cv2.resize(screen, (84, 84), interpolation=cv2.INTER_AREA) for screen in noise]).astype(int)
    assert abs(ours - theirs).max() <= 1
    assert (ours != theirs).mean() < 1e-3
