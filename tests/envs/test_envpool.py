"""EnvPool: the contract, and CartPole against its own equations."""

import sys

import pytest
import torch
from contract import check_contract, draw_actions, play, random_action
from torch import Tensor

from recollect.envs.envpool import make_envpool
from recollect.types import Continuous, Discrete


@pytest.mark.parametrize(
    ("env_id", "options", "steps"),
    [
        ("CartPole-v1", {}, 80),
        ("CartPole-v1", {"clip_reward": True, "max_episode_steps": 12}, 30),
        ("Pendulum-v1", {}, 210),
        ("HalfCheetah-v5", {"max_episode_steps": 20}, 50),
        ("FrozenLake-v1", {}, 60),
        ("Pong-v5", {"max_episode_steps": 20}, 30),
    ],
)
def test_contract(env_id, options, steps):
    def make(num_envs, first_env):
        return make_envpool(env_id, num_envs, first_env=first_env, **options)

    check_contract(make, random_action, steps, num_envs=2 if env_id == "Pong-v5" else 4)  # Pong loads slowly


def cartpole(state: Tensor, action: Tensor) -> Tensor:
    """One Euler step of Barto, Sutton & Anderson's cart and pole. [N, 4] and [N] -> [N, 4]

    Cart 1 kg, pole 0.1 kg of half length 0.5 m, force 10 N, 0.02 s.
    """
    x, v, theta, omega = state.double().unbind(-1)
    force = 20.0 * action - 10.0
    push = (force + 0.05 * omega**2 * theta.sin()) / 1.1
    alpha = (9.8 * theta.sin() - theta.cos() * push) / (0.5 * (4 / 3 - 0.1 * theta.cos() ** 2 / 1.1))
    a = push - 0.05 * alpha * theta.cos() / 1.1
    return torch.stack((x + 0.02 * v, v + 0.02 * a, theta + 0.02 * omega, omega + 0.02 * alpha), -1)


def test_cartpole_obeys_its_equations():
    """Through ends too: final_obs is where the action led, obs a fresh start, and the next step goes on from there."""
    env = make_envpool("CartPole-v1", 6, max_episode_steps=30)
    before = env.reset(0)["vector"]
    assert before.abs().max() <= 0.05
    seen = torch.zeros(2)
    for action, step in zip(actions := draw_actions(env, random_action, 200), play(env, actions), strict=True):
        obs, final = step.obs["vector"], step.final_obs["vector"]
        torch.testing.assert_close(final, cartpole(before, action).float(), rtol=0, atol=1e-5)
        fell = (final[:, 0].abs() > 2.4) | (final[:, 2].abs() > 12 * torch.pi / 180)
        assert torch.equal(step.terminated, fell)
        assert torch.equal(step.truncated, ~fell & (step.stats.episode_length == 30))
        ended = step.terminated | step.truncated
        assert obs[ended].numel() == 0 or obs[ended].abs().max() <= 0.05
        assert not ended.any() or not (obs[ended] == final[ended]).all(1).any()
        before, seen = obs, seen + torch.stack((step.terminated.sum(), step.truncated.sum()))
    assert seen.min() > 3, "both kinds of end must occur"


def test_an_end_at_the_limit_is_an_end():
    """EnvPool alone would call it truncated, and learners would bootstrap from a fallen pole."""

    def first_end(limit: int) -> tuple[int, bool, bool, bool]:
        env = make_envpool("CartPole-v1", 1, max_episode_steps=limit)
        env.reset(0)
        for t in range(1, 100):
            step = env.step(torch.ones(1, dtype=torch.int64))
            if step.terminated or step.truncated:
                return t, bool(step.terminated), bool(step.truncated), step.may_truncate
        raise AssertionError("the pole never fell")

    falls, *ending = first_end(99)
    assert ending == [True, False, False]
    assert first_end(falls) == (falls, True, False, False)
    assert first_end(falls - 1) == (falls - 1, False, True, True)


def test_without_an_end_nothing_is_copied():
    env = make_envpool("CartPole-v1", 2)
    env.reset(0)
    step = env.step(torch.zeros(2, dtype=torch.int64))
    assert step.final_obs["vector"].data_ptr() == step.obs["vector"].data_ptr()


def test_pong_frames_and_rounds():
    """A new game's stack is its first frame four times: EnvPool's way, and the card says so."""
    env = make_envpool("Pong-v5", 2, max_episode_steps=70)
    before, points = env.reset(1)["frame"], 0
    for step in play(env, draw_actions(env, random_action, 150)):
        obs, final = step.obs["frame"], step.final_obs["frame"]
        assert torch.equal(final[:, :3], before[:, 1:])
        ended = step.terminated | step.truncated
        assert torch.equal(obs[ended], obs[ended][:, 3:].expand(-1, 4, -1, -1))
        assert torch.equal(step.round_end, ended | (step.reward != 0))
        before, points = obs, points + int(step.reward.abs().sum())
    assert points
    assert "first frame four times" in env.protocol.extra
    assert (env.protocol.sticky, env.protocol.frame_skip, env.protocol.max_pool) == (0.25, 4, True)


def test_specs_and_card():
    cheetah = make_envpool("HalfCheetah-v5", 1, ctrl_cost_weight=0.5)
    assert cheetah.action_spec == Continuous(6, (-1.0,) * 6, (1.0,) * 6)
    assert cheetah.obs_spec["vector"].shape == (17,)
    assert cheetah.protocol.max_episode_steps == 1000
    assert "ctrl_cost_weight=0.5" in cheetah.protocol.extra
    assert make_envpool("FrozenLake-v1", 1).action_spec == Discrete(4)


def test_continuous_actions_are_clipped():
    """The cheetah pays for its effort: beyond the bound of 1 it pays no more."""
    first = []
    for effort in (1.0, 50.0):
        env = make_envpool("HalfCheetah-v5", 1)
        env.reset(0)
        first.append(env.step(torch.full((1, 6), effort)))
    assert torch.equal(first[0].obs["vector"], first[1].obs["vector"])
    assert torch.equal(first[0].reward, first[1].reward)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"env_id": "CartPol-v1"}, "did you mean 'CartPole"),
        ({"max_episode_steps": 0}, "at least 1, got 0"),
        ({"sutton_barto_rewards": True}, "unknown option of EnvPool's CartPole-v1"),
        ({"env_id": "Pong-v5", "episodic_life": True}, "unknown option"),
    ],
)
def test_mistakes_are_named(given, said):
    with pytest.raises(ValueError, match=said):
        make_envpool(**{"env_id": "CartPole-v1", "num_envs": 1, **given})


def test_wrong_actions_are_refused():
    env = make_envpool("CartPole-v1", 2)
    env.reset(0)
    with pytest.raises(ValueError, match=r"0\.\.1, got 0\.\.2"):
        env.step(torch.tensor([0, 2]))
    env = make_envpool("Pendulum-v1", 2)
    env.reset(0)
    with pytest.raises(ValueError, match=r"float32 \[2, 1\]"):
        env.step(torch.zeros(2))


def test_without_envpool(monkeypatch):
    monkeypatch.setitem(sys.modules, "envpool", None)
    with pytest.raises(ValueError, match=r"install recollect\[envpool\]"):
        make_envpool("CartPole-v1", 1)
