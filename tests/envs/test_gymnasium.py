"""The Gymnasium engine, on an environment that counts and on real ones."""

import gymnasium
import numpy as np
import pytest
import torch
from contract import check_contract

from recollect.envs.gymnasium import GymnasiumEnv
from recollect.envs.registry import EnvConfig, make_env

LIMIT = 9


class Count(gymnasium.Env):
    """Observes (its seed, its clock); ends by itself after ``seed % 5 + 3`` steps, or is cut off at LIMIT."""

    observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (2,), np.float32)
    action_space = gymnasium.spaces.Discrete(3)

    def reset(self, *, seed: int | None = None, options: dict | None = None):
        super().reset(seed=seed)
        self.name, self.clock = float(seed % 10_000), 0
        self.length = seed % 10 + 3
        return np.array([self.name, 0.0], np.float32), {}

    def step(self, action: int):
        self.clock += 1
        ended, cut = self.clock == self.length, self.clock == LIMIT
        return np.array([self.name, self.clock], np.float32), float(action), ended, cut, {}


def counting(num_envs: int, first_env: int = 0) -> GymnasiumEnv:
    return GymnasiumEnv("Count", Count, num_envs, first_env=first_env)


class Forgetful(Count):
    """Not a function of seed and actions."""

    def step(self, action: int):
        obs, *rest = super().step(action)
        return obs + np.float32(np.random.random()), *rest  # hidden randomness is the point


@pytest.mark.parametrize(
    ("make", "steps"),
    [
        (counting, 60),
        (lambda n, first: make_env(EnvConfig("CartPole-v1"), num_envs=n, first_env=first), 80),
        (
            lambda n, first: make_env(
                EnvConfig("Pendulum-v1", env_options=("max_episode_steps=11",)), num_envs=n, first_env=first
            ),
            40,
        ),
        (lambda n, first: make_env(EnvConfig("FrozenLake-v1"), num_envs=n, first_env=first), 60),
    ],
    ids=["count", "cartpole", "pendulum", "frozenlake"],
)
def test_it_keeps_the_contract(make, steps: int):
    # FrozenLake always starts in the same cell; its slipping is what differs between streams.
    check_contract(make, steps=steps)


def test_no_transition_crosses_an_episode_and_the_last_frame_is_the_true_one():
    env = counting(4)
    before = env.reset(0)["vector"].clone()
    ends = {"terminated": 0, "truncated": 0}
    for _ in range(200):
        step = env.step(torch.zeros(4, dtype=torch.int64))
        final, after = step.final_obs["vector"], step.obs["vector"]
        assert torch.equal(final[:, 0], before[:, 0]), "the same episode"
        assert torch.equal(final[:, 1], before[:, 1] + 1), "one step later"
        ended = step.terminated | step.truncated
        assert (after[ended, 1] == 0).all(), "a new episode begins at zero"
        assert (after[ended, 0] != before[ended, 0]).all(), "and from a seed of its own"
        ends["terminated"] += int(step.terminated.sum())
        ends["truncated"] += int(step.truncated.sum())
        before = after
    assert min(ends.values()) > 0, "both kinds of end must have been seen"


def test_an_end_and_a_limit_on_the_same_step_is_an_end():
    """Length 9 meets LIMIT 9: terminated wins, nothing is bootstrapped."""
    env = counting(64)
    env.reset(0)
    both = 0
    for _ in range(LIMIT):
        lengths = torch.tensor([e.length for e in env.envs])
        step = env.step(torch.zeros(64, dtype=torch.int64))
        at_limit = (step.stats.episode_length == LIMIT) & (lengths == LIMIT)
        assert step.terminated[at_limit].all()
        both += int(at_limit.sum())
    assert both


def test_episode_seeds_are_all_different():
    env = counting(8)
    env.reset(0)
    seen = [env.envs[i].name for i in range(8)]
    for _ in range(60):
        step = env.step(torch.zeros(8, dtype=torch.int64))
        seen += step.obs["vector"][step.terminated | step.truncated, 0].tolist()
    assert len(seen) > 40
    assert len(set(seen)) >= len(seen) - 2  # names are seeds modulo 10,000: a rare clash is chance


def test_replay_that_leads_elsewhere_is_refused():
    env = GymnasiumEnv("Forgetful", Forgetful, 2)
    env.reset(0)
    env.step(torch.zeros(2, dtype=torch.int64))
    other = GymnasiumEnv("Forgetful", Forgetful, 2)
    other.reset(0)
    with pytest.raises(ValueError, match="not a function of seed and actions"):
        other.load_state_dict(env.state_dict())


def test_continuous_actions_are_clipped_to_the_range():
    env = make_env(EnvConfig("Pendulum-v1"), num_envs=2)
    env.reset(0)
    far = env.step(torch.tensor([[50.0], [50.0]]))
    env.reset(0)
    edge = env.step(torch.tensor([[2.0], [2.0]]))
    assert torch.equal(far.obs["vector"], edge.obs["vector"])
    assert torch.equal(far.reward, edge.reward)


def test_images_become_channels_first_and_states_one_hot():
    class Picture(Count):
        observation_space = gymnasium.spaces.Box(0, 255, (6, 5, 3), np.uint8)

        def reset(self, *, seed: int | None = None, options: dict | None = None):
            super().reset(seed=seed)
            return np.arange(90, dtype=np.uint8).reshape(6, 5, 3), {}

    env = GymnasiumEnv("Picture", Picture, 1)
    frame = env.reset(0)["frame"]
    assert frame.shape == (1, 3, 6, 5)
    assert frame[0, :, 0, 0].tolist() == [0, 1, 2]
    lake = make_env(EnvConfig("FrozenLake-v1"), num_envs=1)
    assert lake.reset(0)["vector"].tolist() == [[1.0] + [0.0] * 15]


@pytest.mark.parametrize(
    ("env_id", "words"),
    [
        ("CartPol-v1", "did you mean 'CartPole-v1'"),
        ("CartPole-v99", "did you mean"),
        ("Nowhere/Nothing-v0", "unknown environment"),
        ("Blackjack-v1", "observes a Tuple"),
    ],
)
def test_what_cannot_be_made_is_said_in_words(env_id: str, words: str):
    with pytest.raises(ValueError, match=words):
        make_env(EnvConfig(env_id), num_envs=1)
