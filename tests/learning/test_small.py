"""The other small experiments learn: a hidden goal on tensors, and continuous actions that always end by truncation."""

from pathlib import Path

import pytest

import recollect

pytestmark = pytest.mark.learning


def test_darkroom_walks_the_shortest_path(tmp_path: Path):
    """The corner is 8 moves from the centre of 9x9; the greedy policy takes 8."""
    run = recollect.train("darkroom-ppo", out=tmp_path)["run"]
    score = recollect.evaluate(run, episodes=20)
    assert score["mean"] == 1.0
    assert score["greedy"]["length_mean"] == 8


def test_pendulum_swings_up(tmp_path: Path):
    """Hanging down costs about -1,200 an episode; a policy that swings up and balances pays 150 to 200."""
    run = recollect.train("pendulum-ppo", out=tmp_path)["run"]
    assert recollect.evaluate(run, episodes=100)["mean"] >= -250


def test_a_memory_learns_where_none_can(tmp_path: Path):
    """Blind CartPole: positions without speeds. A core that remembers infers the speeds, the control cannot."""
    blind = tmp_path / "blind.py"
    blind.write_text(BLIND)
    means = {}
    for core in ("none", "gru"):
        settings = {"env_id": f"{blind}:Blind", "core": core, "num_minibatches": 2, "out": tmp_path}
        run = recollect.train("cartpole-ppo", **settings)["run"]
        means[core] = recollect.evaluate(run, episodes=40, env_id=f"{blind}:Blind")["mean"]
    assert means["gru"] > 2 * means["none"]


BLIND = '''
import gymnasium
import numpy as np


class Blind(gymnasium.Env):
    """CartPole that shows where things are and hides how fast they move."""

    observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (2,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self, render_mode=None):
        self.inner = gymnasium.make("CartPole-v1", render_mode=render_mode)

    def reset(self, *, seed=None, options=None):
        obs, info = self.inner.reset(seed=seed)
        return obs[[0, 2]], info

    def step(self, action):
        obs, *rest = self.inner.step(action)
        return obs[[0, 2]], *rest
'''
