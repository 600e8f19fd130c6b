"""Pong through Gymnasium: one game and many, seeds, ends, pictures, keyword arguments, learners from outside."""

import importlib
import subprocess
import sys
import warnings

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium.utils.env_checker import check_env
from gymnasium.vector import AutoresetMode

import recollect
from recollect.envs.pong import ram
from recollect.envs.pong.env import PongEnv
from recollect.envs.pong.options import ENV_ID, Options
from recollect.envs.pong.physics import LIMITS
from recollect.envs.pong.single import PongSingle, PongVector, options_of

OBSERVATIONS = ("pixels", "binary", "ram", "state")


def single(**settings) -> PongSingle:
    env = gymnasium.make(ENV_ID, **settings)
    assert isinstance(env, PongSingle), "no wrapper stands before it"
    return env


def vector(num_envs: int, **settings) -> PongVector:
    env = gymnasium.make_vec(ENV_ID, num_envs=num_envs, vectorization_mode="vector_entry_point", **settings)
    assert isinstance(env, PongVector)
    return env


def draw_actions(steps: int, *shape: int, seed: int = 0) -> np.ndarray:
    """int64 [steps, ...]"""
    return np.random.default_rng(seed).integers(6, size=(steps, *shape))


def play(env: PongSingle, actions: np.ndarray, seed: int | None) -> list:
    """All that is seen and told, episode after episode."""
    obs, info = env.reset(seed=seed)
    told: list = [obs.tobytes(), info]
    for action in actions:
        obs, *rest = env.step(action)
        told += [obs.tobytes(), *rest]
        if rest[1] or rest[2]:
            told.append(env.reset()[0].tobytes())
    return told


def as_bytes(env: PongEnv, obs: dict) -> np.ndarray:
    (seen,) = obs.values()
    return ((seen * 255).round().byte() if env.options.obs == "ram" else seen).numpy()


# Registration


@pytest.mark.parametrize("order", ["recollect, gymnasium", "gymnasium, recollect", "recollect, gymnasium.vector"])
def test_gymnasium_knows_pong_in_whatever_order_both_are_imported(order: str):
    """And nothing of Pong, nor torch, is imported for it."""
    code = f"import {order}; import sys, gymnasium, importlib.util; assert importlib.util.find_spec('gymnasium')\n"
    code += f"spec = gymnasium.spec({ENV_ID!r}); assert spec.max_episode_steps is None\n"
    code += "assert not {'torch', 'recollect.envs'} & set(sys.modules)"
    subprocess.run([sys.executable, "-W", "error", "-c", code], check=True, timeout=60)


def test_importing_twice_says_nothing():
    before = gymnasium.spec(ENV_ID)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        importlib.reload(recollect)
    assert gymnasium.spec(ENV_ID) is before


# The interface


@pytest.mark.parametrize("obs", OBSERVATIONS)
def test_gymnasium_finds_nothing_to_complain_about(obs: str):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        check_env(single(obs=obs).unwrapped)


@pytest.mark.parametrize(
    ("settings", "shape", "dtype", "high"),
    [
        ({}, (4, 84, 84), np.uint8, 255),
        ({"obs": "pixels", "stack": 1}, (1, 84, 84), np.uint8, 255),
        ({"obs": "binary", "stack": 2}, (2, 80, 80), np.uint8, 1),
        ({"obs": "ram"}, (128,), np.uint8, 255),
        ({"obs": "state", "velocities": False, "opponent": False}, (4,), np.float32, 64),
    ],
)
def test_what_is_observed(settings: dict, shape: tuple, dtype: type, high: int):
    env = single(**settings)
    space = env.observation_space
    assert (space.shape, space.dtype) == (shape, dtype)
    assert space.high.max() <= high
    obs, _ = env.reset(seed=0)
    assert space.contains(obs)
    seen = {space.contains(env.step(action)[0]) for action in draw_actions(60)}
    assert seen == {True}


@pytest.mark.parametrize("noise", [None, "50"])
def test_the_state_stays_in_its_bounds_under_any_physics(noise: str | None):
    """The widest ranges that are allowed, all at once."""
    wide = {name: f"{low}..{high}" for name, (low, high) in LIMITS.items() if not name.startswith("hidden")}
    envs = vector(512, obs="state", **{**wide, "noise": noise})
    envs.reset(seed=0)
    low, high = envs.observation_space.low, envs.observation_space.high
    for actions in draw_actions(120, 512):
        obs = envs.step(actions)[0]
        assert (obs >= low).all()
        assert (obs <= high).all()


@pytest.mark.parametrize(("actions", "n"), [("six", 6), ("three", 3), ("two", 2)])
def test_actions_and_what_is_none(actions: str, n: int):
    env = single(obs="state", actions=actions)
    assert env.action_space.n == n
    env.reset(seed=0)
    env.step(n - 1)
    for wrong in (n, -1, 0.5, "up"):
        with pytest.raises(ValueError, match=f"0..{n - 1}"):
            env.step(wrong)


def test_the_calls_come_in_order():
    env = single(obs="state", render_mode="rgb_array")
    for call in (lambda: env.step(0), env.render, env.state_dict):
        with pytest.raises(ValueError, match="must come before"):
            call()


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"paddle_hight": 3}, "unknown Pong option 'paddle_hight'; did you mean 'paddle_height'"),
        ({"paddle_height": -3}, "paddle_height must lie in 2..160, got -3"),
        ({"paddle_height": (24, 8)}, "got 24..8"),
        ({"paddle_height": (8,)}, "a number or a range"),
        ({"paddle_height": (8, 16, 24)}, "a number or a range"),
        ({"paddle_height": True}, "a number or a range"),
        ({"gravity": "1..down"}, "a number or a range"),
        ({"obs": "pixel"}, "'pixel' is not one of 'pixels', 'binary', 'ram', 'state'; did you mean 'pixels'"),
        ({"actions": 6}, "6 is not one of"),
        ({"velocities": 1}, "expected true or false, got 1"),
        ({"stack": 0}, "at least 1"),
        ({"stack": 2.5}, "expected a whole number, got 2.5"),
        ({"sticky": "often"}, "expected a number, got 'often'"),
        ({"sticky": 2}, "probability"),
        ({"full_actions": True}, "full_actions cannot be true"),
        ({"protocol": "v6"}, "unknown protocol 'v6'; known: deterministic"),
        ({"render_mode": "ansi"}, "render_mode must be None or 'rgb_array', got 'ansi'"),
    ],
)
def test_bad_arguments_are_one_clear_line(settings: dict, words: str):
    for made in (PongSingle, PongVector):
        with pytest.raises(ValueError, match=words) as caught:
            made(**settings)
        assert "\n" not in str(caught.value)


def test_a_vector_of_none_is_refused():
    with pytest.raises(ValueError, match="num_envs must be a whole number from 1, got 0"):
        PongVector(0)


def test_physics_is_a_number_a_word_or_a_range():
    assert options_of({"paddle_height": 12, "gravity": np.float32(0.5)}).ranges() == {
        "gravity": (0.5, 0.5),
        "paddle_height": (12.0, 12.0),
    }
    for eight_to_24 in ("8..24", (8, 24), [8.0, 24]):
        assert options_of({"paddle_height": eight_to_24}).ranges() == {"paddle_height": (8.0, 24.0)}
    assert options_of({"paddle_height": None}) == Options()


def test_rules_and_protocol_reach_the_game():
    env = single(obs="state", protocol="v5", sticky=0.5, frame_skip=2, noop_max=30, paddle_height=(8, 24))
    card = env._env.protocol
    assert (card.sticky, card.frame_skip, card.noop_max, card.max_pool) == (0.5, 2, 30, False)
    assert "paddle_height 8..24" in card.extra
    assert env.metadata["render_fps"] == 30


# Seeds


@pytest.mark.parametrize("obs", OBSERVATIONS)
def test_it_is_a_row_of_the_tensor_game(obs: str):
    """Same seed, same actions: what one sees, gets and is told, over the ends of episodes."""
    settings = {"obs": obs, "max_episode_steps": 25}
    env, batch = PongSingle(**settings), PongEnv(3, Options(**settings))
    seen, first = env.reset(seed=5)[0], batch.reset(5)
    assert np.array_equal(seen, as_bytes(batch, first)[0])
    for action in draw_actions(60):
        told = env.step(action)
        step = batch.step(torch.full((3,), action))
        assert np.array_equal(told[0], as_bytes(batch, step.final_obs)[0])
        assert told[1:4] == (step.reward[0].item(), step.terminated[0].item(), step.truncated[0].item())
        assert told[4] == {"round_end": step.round_end[0].item()}
        if told[2] or told[3]:
            assert np.array_equal(env.reset()[0], as_bytes(batch, step.obs)[0])


def test_the_ram_is_the_raw_bytes():
    env = single(obs="ram")
    obs, _ = env.reset(seed=0)
    for action in draw_actions(60):
        playing = env._env._playing
        assert np.array_equal(obs, ram.memory(playing.game, playing.extra)[0].numpy())
        obs = env.step(action)[0]
    assert obs[127] == 240


def test_seeds_tell_episodes_apart():
    env, actions = PongSingle(obs="state", max_episode_steps=20), draw_actions(50)
    first = play(env, actions, 1)
    assert play(env, actions, 1) == first
    assert play(PongSingle(obs="state", max_episode_steps=20), actions, 1) == first
    assert play(env, actions, 2) != first, "actions stick by chance"


def test_a_reset_without_a_seed_is_a_new_episode_that_the_last_seed_decides():
    env, actions = single(obs="state", noop_max=30), draw_actions(40)
    openings = []
    for _ in range(2):
        env.reset(seed=3)
        openings.append([play(env, actions, None), play(env, actions, None)])
    assert openings[0] == openings[1]
    assert openings[0][0] != openings[0][1], "abandoned in the middle, it does not begin again alike"


def test_what_is_handed_out_is_the_callers():
    for obs in OBSERVATIONS:
        env, other = single(obs=obs), single(obs=obs)
        scribbled, kept = env.reset(seed=0)[0], other.reset(seed=0)[0]
        for action in draw_actions(6):
            scribbled[:] = 0
            scribbled, kept = env.step(action)[0], other.step(action)[0]
            assert np.array_equal(scribbled, kept)


# Ends


def test_the_last_observation_is_the_episodes_own_and_reset_goes_on():
    """A limit of 5 against none: all that is seen is the same up to the end."""
    actions = draw_actions(5)
    short, long = PongSingle(obs="state", max_episode_steps=5), PongSingle(obs="state")
    short.reset(seed=4)
    long.reset(seed=4)
    for t, action in enumerate(actions):
        obs, reward, terminated, truncated, info = short.step(action)
        free = long.step(action)
        assert np.array_equal(obs, free[0])
        assert (reward, terminated, truncated) == (free[1], False, t == 4)
        assert info["round_end"] is (t == 4)
    with pytest.raises(ValueError, match="again after an episode's end"):
        short.step(0)
    opening, _ = short.reset()
    assert not np.array_equal(opening, obs)
    assert np.array_equal(opening, long.reset(seed=4)[0]), "without no-ops all openings look alike"
    assert short.step(0)[3] is False


def test_a_seed_begins_anew_at_an_end_too():
    """Although the next episode has already begun there."""
    env, actions = PongSingle(obs="state", max_episode_steps=5, noop_max=30), draw_actions(4)
    first = play(env, actions, 0)
    assert env.step(0)[3] is True
    assert play(env, actions, 0) == first
    assert env.step(0)[3] is True
    assert env.reset()[0].tobytes() != first[0], "the next one would have been told apart"


def test_gymnasiums_own_limit_truncates_too():
    env = gymnasium.make(ENV_ID, obs="state", max_episode_steps=5)
    env.reset(seed=4)
    ends = [env.step(0)[2:4] for _ in range(5)]
    assert ends == [(False, False)] * 4 + [(False, True)]
    env.reset()
    assert env.step(0)[3] is False


def test_a_game_that_is_lost_terminates():
    """Who stays in the lower corner returns no serve."""
    env = single(obs="state", ball_speed=4, frame_skip=32, protocol="deterministic")
    env.reset(seed=0)
    told = [env.step(3)[1:]]
    while not (told[-1][1] or told[-1][2]) and len(told) < 200:
        told.append(env.step(3)[1:])
    assert told[-1] == (-1.0, True, False, {"round_end": True})
    assert sum(reward for reward, *_ in told) == -21
    assert sum(info["round_end"] for *_, info in told) == 21


# Pictures


def test_the_picture_at_an_end_is_the_last_ones():
    actions = draw_actions(30)
    short = PongSingle(obs="state", max_episode_steps=30, render_mode="rgb_array")
    long = PongSingle(obs="state", render_mode="rgb_array")
    short.reset(seed=0)
    long.reset(seed=0)
    opening = short.render()
    assert opening.shape == (210, 160, 3)
    assert opening.dtype == np.uint8
    for action in actions:
        short.step(action)
        long.step(action)
    assert np.array_equal(short.render(), long.render())
    assert not np.array_equal(short.render(), opening)
    short.reset()
    assert np.array_equal(short.render(), opening)
    assert single(obs="state").render() is None


def test_a_vector_draws_every_game():
    envs = vector(3, obs="state", render_mode="rgb_array", paddle_height=(4, 40), protocol="no-sticky")
    envs.reset(seed=1)
    for _ in range(20):
        envs.step(np.array([2, 3, 0]))
    pictures = envs.render()
    assert [picture.shape for picture in pictures] == [(210, 160, 3)] * 3
    assert np.array_equal(pictures[0], envs._env.render())
    assert len({picture.tobytes() for picture in pictures}) == 3


# Saving


@pytest.mark.parametrize("steps", [0, 17, 30])
def test_it_goes_on_from_a_saved_state_to_the_bit(steps: int):
    """At an opening, in the middle and at an end, resets without a seed included."""
    settings = {"obs": "pixels", "max_episode_steps": 30, "noop_max": 30, "render_mode": "rgb_array"}
    actions = draw_actions(50, seed=1)
    env, other = PongSingle(**settings), PongSingle(**settings)
    env.reset(seed=7)
    for action in actions[:steps]:
        env.step(action)
    state = env.state_dict()
    other.load_state_dict(state)
    assert np.array_equal(env.render(), other.render())
    if steps == 30:
        assert np.array_equal(env.reset()[0], other.reset()[0])
    for action in actions[: 30 - steps % 30]:
        one, two = env.step(action), other.step(action)
        assert np.array_equal(one[0], two[0])
        assert one[1:] == two[1:]
    for each in (env, other):
        each.reset()
        each.step(0)  # the next reset abandons an episode: it draws a seed
    assert play(env, actions, None) == play(other, actions, None)


# Many at once


def test_a_vector_is_the_tensor_games_rows():
    settings = {"obs": "ram", "max_episode_steps": 25, "noop_max": 5}
    envs, batch = vector(4, **settings), PongEnv(4, Options(**settings))
    assert envs.metadata["autoreset_mode"] is AutoresetMode.SAME_STEP
    assert np.array_equal(envs.reset(seed=9)[0], as_bytes(batch, batch.reset(9)))
    for t, actions in enumerate(draw_actions(60, 4)):
        obs, reward, terminated, truncated, info = envs.step(actions)
        step = batch.step(torch.from_numpy(actions))
        assert envs.observation_space.contains(obs)
        assert np.array_equal(obs, as_bytes(batch, step.obs))
        assert np.array_equal(reward, step.reward.numpy())
        assert np.array_equal(terminated, step.terminated.numpy())
        assert np.array_equal(truncated, step.truncated.numpy())
        assert np.array_equal(info["round_end"], step.round_end.numpy())
        assert truncated.all() == (t in (24, 49))
        assert ("final_obs" in info) == truncated.any()
        if truncated.any():
            assert np.array_equal(np.stack(info["final_obs"]), as_bytes(batch, step.final_obs))
            assert not np.array_equal(obs, np.stack(info["final_obs"]))


def test_a_vector_tells_ends_in_gymnasiums_own_form():
    """Beside Gymnasium's vector of single games: the same keys, and None where nothing ended."""
    settings = {"obs": "state", "max_episode_steps": 12}
    envs, own = (
        vector(2, **settings),
        gymnasium.vector.SyncVectorEnv([lambda: PongSingle(**settings)] * 2, autoreset_mode=AutoresetMode.SAME_STEP),
    )
    for each in (envs, own):
        each.reset(seed=0)
        infos = [each.step(np.zeros(2, np.int64))[4] for _ in range(12)]
        assert infos[0].keys() == {"round_end", "_round_end"}
        assert infos[-1].keys() >= {"final_obs", "_final_obs", "final_info", "_final_info"}
        assert infos[-1]["final_obs"].dtype == object
        assert infos[-1]["_final_obs"].tolist() == [True, True]
        assert infos[-1]["final_info"]["round_end"].tolist() == [True, True]
    assert envs.single_observation_space == own.single_observation_space
    assert envs.action_space == own.action_space
    envs._env._playing.steps[1] -= 3  # so that one ends alone
    info = [envs.step(np.zeros(2, np.int64))[4] for _ in range(12)][-1]
    assert info["_final_obs"].tolist() == [True, False]
    assert info["final_obs"][1] is None


def test_a_vector_draws_its_own_seed_and_refuses_what_it_cannot_do():
    envs = vector(2, obs="state", noop_max=30)
    with pytest.raises(ValueError, match="must come before step"):
        envs.step(np.zeros(2, np.int64))
    envs.reset(seed=0)
    openings = [envs.reset()[0].tobytes() for _ in range(4)]
    assert len(set(openings)) > 1
    assert envs.reset(seed=0) and envs.reset()[0].tobytes() == openings[0]
    for wrong in (np.array([0, 6]), np.array([0, -1]), np.array([0]), np.array([0.0, 1.0])):
        with pytest.raises(ValueError, match="must be 2 whole numbers in"):
            envs.step(wrong)
    with pytest.raises(ValueError, match="reset_mask"):
        envs.reset(options={"reset_mask": np.ones(2, bool)})


# Learners from outside


def test_stable_baselines_learns_from_the_state():
    sb3 = pytest.importorskip("stable_baselines3")
    env = gymnasium.make(ENV_ID, obs="state")
    model = sb3.PPO("MlpPolicy", env, n_steps=64, batch_size=64, device="cpu").learn(128)
    assert model.num_timesteps == 128


def test_stable_baselines_learns_from_pixels():
    sb3 = pytest.importorskip("stable_baselines3")
    model = sb3.PPO("CnnPolicy", gymnasium.make(ENV_ID), n_steps=16, batch_size=16, n_epochs=1, device="cpu").learn(16)
    assert model.num_timesteps == 16
    assert model.policy.features_extractor.cnn[0].in_channels == 4, "the stack is taken for channels"
