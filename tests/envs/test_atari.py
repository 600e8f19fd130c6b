"""Atari: the contract, the rules, and every pixel against single games played frame by frame."""

import sys

import ale_py
import cv2
import numpy as np
import pytest
import torch
from contract import check_contract, draw_actions, play, random_action
from single_game import SingleGame

from recollect.config import parse_options
from recollect.envs.atari import PROTOCOLS, AtariOptions, make_atari
from recollect.envs.atari_base import AtariBase, Played, atari_protocol
from recollect.rng import stream_seed

PONG, BREAKOUT = "ALE/Pong-v5", "ALE/Breakout-v5"
LIVES = {"life_loss_ends": True, "fire_reset": True}


class Spy:
    """Stands before ale-py's environment and fills whatever a step must not read with noise."""

    def __init__(self, games):
        self.games, self.poisoned = games, 0

    def __getattr__(self, name: str):
        return getattr(self.games, name)

    def recv(self):
        frames, reward, over, cut, info = self.games.recv()
        noise = np.random.default_rng(self.poisoned).integers(1, 255, frames.shape).astype(np.uint8)
        if "final_obs" in info:
            noise[over] = info["final_obs"][over]
            self.poisoned += int((~over).sum())
        return frames, reward, over, cut, {**info, "final_obs": noise}


class Scripted(AtariBase):
    """One game that does as the script says: (lives left, game over) of each decision, five lives after a reset."""

    def __init__(self, script: list[tuple[int, bool]], **rules):
        super().__init__(1, atari_protocol(BREAKOUT, "v5", rules), ("NOOP",), "cpu", 0)
        self.script = iter(script)

    def _begin(self, seeds):
        return self._stack(), np.array([5])

    def _stack(self):
        return np.ones((1, 4, 84, 84), np.uint8)

    def _act(self, action):
        self.lives, self.over = next(self.script)

    def _advance(self):
        return Played(self._stack(), self._stack(), np.ones(1), np.array([self.over]), np.array([self.lives]))

    def _restart(self, played, capped):
        return played.frames, np.array([5]) if self.over or capped else played.lives


@pytest.mark.parametrize(
    ("env_id", "protocol", "rules", "steps"),
    [
        (PONG, "v5-pooled", {"max_episode_steps": 40}, 60),
        (PONG, "deterministic", {"max_episode_steps": 25}, 30),
        (PONG, "v0-random-skip", {"max_episode_steps": 40, "noop_max": 5}, 60),
        (
            BREAKOUT,
            "v5",
            {"life_loss_ends": True, "fire_reset": True, "clip_reward": True, "max_episode_steps": 70},
            80,
        ),
    ],
)
def test_contract(env_id, protocol, rules, steps):
    def make(num_envs, first_env):
        return make_atari(env_id, num_envs, protocol=protocol, overrides=rules, first_env=first_env)

    pooled = protocol == "v5-pooled"  # the rest play in pairs: games take their time to load
    check_contract(make, random_action, steps, num_envs=4 if pooled else 2, distinct=protocol != "deterministic")


@pytest.mark.parametrize("protocol", ["v5", "v5-pooled"])
def test_every_pixel_is_the_single_games(protocol):
    """Steps, ends, truncations and the games after them, against bare games with the same seeds and actions."""
    env = make_atari(BREAKOUT, 3, protocol=protocol, overrides={"max_episode_steps": 150}, first_env=5)
    pool = env.protocol.max_pool
    games = [SingleGame("breakout", stream_seed(11, "env", 5 + i), 0.25) for i in range(3)]
    obs = env.reset(11)["frame"].numpy()
    assert all(np.array_equal(obs[i], game.stack) for i, game in enumerate(games))
    seen = {"terminated": 0, "truncated": 0}
    for action, step in zip(actions := draw_actions(env, random_action, 330), play(env, actions), strict=True):
        for i, game in enumerate(games):
            reward = game.step(int(action[i]), pool=pool)
            assert step.reward[i] == reward
            assert step.terminated[i] == game.ale.game_over()
            final = step.final_obs["frame"][i].numpy()
            # ale-py reads no screen on the frame that ends a game; all else of final_obs is true
            known = slice(0, 3) if step.terminated[i] else slice(0, 4)
            assert np.array_equal(final[known], game.stack[known])
            if step.terminated[i] or step.truncated[i]:
                seen["terminated" if step.terminated[i] else "truncated"] += 1
                game.restart()
            assert np.array_equal(step.obs["frame"][i].numpy(), game.stack)
    assert all(seen.values()), seen


def test_final_obs_is_what_a_next_step_reset_shows():
    """Also the last picture of a game that ended is all that ale-py has of it."""
    env = make_atari(BREAKOUT, 2)
    env.reset(2)
    options = {"frameskip": 4, "maxpool": True, "noop_max": 0, "use_fire_reset": False, "reward_clipping": False}
    late = ale_py.vector_env.AtariVectorEnv(
        "breakout", 2, repeat_action_probability=0.25, autoreset_mode="NextStep", num_threads=1, **options
    )
    late.reset(seed=np.array([stream_seed(2, "env", i) for i in range(2)]))
    waiting, ends = np.zeros(2, bool), np.zeros(2, int)
    for action, step in zip(actions := draw_actions(env, random_action, 250), play(env, actions), strict=True):
        frames, _, terminated, _, _ = late.step(action.numpy())
        compare = ~waiting & (ends == 0)  # from its first reset on, the other is a step behind
        assert np.array_equal(frames[compare], step.final_obs["frame"].numpy()[compare])
        waiting = terminated
        ends += terminated
    assert ends.all()


@pytest.mark.parametrize("rules", [{}, LIVES])
def test_no_transition_crosses_an_episode(rules):
    env = make_atari(BREAKOUT, 4, overrides={**rules, "max_episode_steps": 200})
    before, ends = env.reset(0)["frame"], 0
    for step in play(env, draw_actions(env, random_action, 260)):
        obs, final = step.obs["frame"], step.final_obs["frame"]
        ended = step.terminated | step.truncated
        assert torch.equal(final[:, :3], before[:, 1:])
        assert not obs[ended, :3].any()
        assert obs[ended, 3].flatten(1).any(1).all()
        before, ends = obs, ends + int(ended.sum())
    assert ends >= 4


@pytest.mark.parametrize("rules", [{}, LIVES])
def test_stale_rows_are_never_seen(rules):
    def make():
        return make_atari(BREAKOUT, 2, overrides=rules)

    clean, poisoned = make(), make()
    poisoned._games = spy = Spy(poisoned._games)
    clean.reset(1)
    poisoned.reset(1)
    for action in draw_actions(clean, random_action, 250):
        a, b = clean.step(action), poisoned.step(action)
        assert torch.equal(a.final_obs["frame"], b.final_obs["frame"])
        assert torch.equal(a.obs["frame"], b.obs["frame"])
    assert spy.poisoned, "no game ended, so nothing was poisoned"


def test_without_an_end_nothing_is_copied():
    env = make_atari(PONG, 2)
    env.reset(0)
    step = env.step(torch.zeros(2, dtype=torch.int64))
    assert step.final_obs["frame"].data_ptr() == step.obs["frame"].data_ptr()
    assert not step.may_truncate


def test_a_lost_life_ends_training_but_not_the_game():
    whole = make_atari(BREAKOUT, 2)
    lives = make_atari(BREAKOUT, 2, overrides={"life_loss_ends": True})
    whole.reset(0)
    lives.reset(0)
    deaths, games = torch.zeros(2), torch.zeros(2)
    for action in draw_actions(whole, random_action, 400):
        a, b = whole.step(action), lives.step(action)
        assert torch.equal(a.terminated, b.stats.over), "the game went on as if no life had been lost"
        assert torch.equal(a.reward, b.reward)
        assert torch.equal(a.stats.episode_return, b.stats.episode_return)
        assert torch.equal(a.stats.episode_length, b.stats.episode_length)
        assert torch.equal(a.obs["frame"][:, 3], b.obs["frame"][:, 3])
        deaths += b.terminated
        games += b.stats.over
    assert games.gt(0).all()
    assert deaths.ge(5 * games).all(), "Breakout has five lives"


@pytest.mark.parametrize(
    ("script", "rules", "said"),
    [
        # a life lost; none left but the game runs on, no loss; the game's end
        ([(5, False), (4, False), (0, False), (5, True)], {"life_loss_ends": True}, ["", "T", "", "T over"]),
        # after a truncation the next game's first lost life is seen, though the last game had fewer
        ([(3, False), (3, False), (4, False)], {"life_loss_ends": True, "max_episode_steps": 2}, ["T", "C over", "T"]),
        # a life lost on the limit ends for good, and the game is over
        ([(5, False), (4, False)], {"life_loss_ends": True, "max_episode_steps": 2}, ["", "T over"]),
        # so does a game that ends on the limit, and the next game has the whole limit again
        ([(5, False), (5, True), (5, False), (5, False)], {"max_episode_steps": 2}, ["", "T over", "", "C over"]),
        # the limit counts from the game's start
        ([(5, True), (5, False), (5, False)], {"max_episode_steps": 2}, ["T over", "", "C over"]),
    ],
)
def test_what_ends_when(script, rules, said):
    """T terminated, C truncated, over: the scored game ended."""
    env = Scripted(script, **rules)
    env.reset(0)
    told = []
    for step in play(env, [torch.zeros(1, dtype=torch.int64)] * len(script)):
        words = {"T": step.terminated, "C": step.truncated, "over": step.stats.over}
        told.append(" ".join(word for word, true in words.items() if true))
    assert told == said


def test_clipping_leaves_the_score_alone():
    raw = make_atari("ALE/Seaquest-v5", 2)
    clipped = make_atari("ALE/Seaquest-v5", 2, overrides={"clip_reward": True})
    raw.reset(0)
    clipped.reset(0)
    paid = 0.0
    for action in draw_actions(raw, random_action, 150):
        a, b = raw.step(action), clipped.step(action)
        assert torch.equal(b.reward, a.reward.sign())
        assert torch.equal(a.stats.episode_return, b.stats.episode_return)
        paid = max(paid, float(a.reward.max()))
    assert paid > 1, "Seaquest pays in twenties"


@pytest.mark.parametrize("protocol", ["v5", "v0-random-skip"])
def test_a_limit_truncates(protocol):
    env = make_atari(PONG, 3, protocol=protocol, overrides={"max_episode_steps": 7})
    env.reset(0)
    for t, step in enumerate(play(env, draw_actions(env, random_action, 21)), start=1):
        assert step.truncated.tolist() == [t % 7 == 0] * 3
        assert not step.terminated.any()
        assert step.may_truncate == (t % 7 == 0)
        assert torch.equal(step.stats.over, step.truncated)


def test_a_point_ends_a_round_in_pong_only():
    env = make_atari(PONG, 4)
    env.reset(0)
    points = 0
    for step in play(env, draw_actions(env, random_action, 120)):
        assert torch.equal(step.round_end, step.reward != 0)
        points += int(step.round_end.sum())
    assert points
    env = make_atari(BREAKOUT, 4)
    env.reset(0)
    steps = list(play(env, draw_actions(env, random_action, 120)))
    assert any(step.reward.any() for step in steps)
    assert all(torch.equal(step.round_end, step.terminated | step.truncated) for step in steps)


@pytest.mark.parametrize("skip", [4, (2, 4)])
def test_no_ops_open_a_game(skip):
    env = make_atari(PONG, 10, overrides={"noop_max": 2, "frame_skip": skip})
    frames = env.reset(0)["frame"][:, 3]
    opening = {frame.numpy().tobytes() for frame in frames}
    game, screens = SingleGame("pong", 0, 0.0), []
    for _ in range(3):
        screens.append(game.stack[3].tobytes())
        game.step(0, skip=1)
    assert opening == set(screens), "0, 1 or 2 no-ops, each of them somewhere"


def test_render_follows_environment_0():
    env = make_atari(PONG, 2, protocol="v5", overrides={"max_episode_steps": 60, "noop_max": 5}, render=True)
    env.reset(0)
    for step in play(env, draw_actions(env, random_action, 130)):
        picture = env.render()
        assert picture.shape == (210, 160, 3)
        assert picture.dtype == np.uint8
        grey = (picture @ np.array([0.2989, 0.587, 0.114])).round().astype(np.uint8)
        gap = cv2.resize(grey, (84, 84), interpolation=cv2.INTER_AREA).astype(int) - step.obs["frame"][0, 3].numpy()
        assert abs(gap).max() <= 1
    with pytest.raises(ValueError, match="render=True"):
        make_atari(PONG, 1).render()


def test_the_card_states_the_rules():
    rules = {"sticky": 0.1, "frame_skip": 3, "max_pool": False, "noop_max": 7, "fire_reset": True}
    rules |= {"life_loss_ends": True, "clip_reward": True, "full_actions": True, "max_episode_steps": 500}
    env = make_atari(BREAKOUT, 1, overrides=rules)
    card = env.protocol.card()
    assert {field: card[field] for field in rules} == rules
    assert card["env_id"] == BREAKOUT
    assert card["name"].startswith("v5-pooled (")
    assert env.action_spec.n == 18
    default = make_atari(BREAKOUT, 1)
    assert default.action_spec.names == ("NOOP", "FIRE", "RIGHT", "LEFT")
    assert default.protocol.name == "v5-pooled"
    assert default.protocol.max_episode_steps == 27_000
    assert make_atari(PONG, 1, overrides={"max_episode_steps": 0}).protocol.max_episode_steps is None


def test_named_protocols():
    told = {name: atari_protocol(PONG, name) for name in PROTOCOLS}
    assert [told[n].sticky for n in told] == [0.25, 0.25, 0.0, 0.0, 0.25]
    assert [told[n].max_pool for n in told] == [False, True, False, True, False]
    assert [told[n].frame_skip for n in told] == [4, 4, 4, 4, (2, 4)]
    assert told["v0-random-skip"].max_episode_steps == 36_000
    for protocol in told.values():
        flags = (protocol.fire_reset, protocol.life_loss_ends, protocol.clip_reward, protocol.full_actions)
        assert not any(flags)
        assert protocol.noop_max == 0


def test_options_come_from_the_command_line():
    options = parse_options(AtariOptions, ("sticky=0", "clip_reward=true", "max_episode_steps=9"), "Atari option")
    protocol = make_atari(PONG, 1, options=options).protocol
    assert (protocol.sticky, protocol.clip_reward, protocol.max_episode_steps) == (0.0, True, 9)
    assert protocol.max_pool


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"env_id": "ALE/Pnog-v5"}, "did you mean 'ALE/Pong-v5'"),
        ({"protocol": "v5pooled"}, "allowed: v5, v5-pooled, .*did you mean 'v5-pooled'"),
        ({"overrides": {"stickyness": 0.1}}, "did you mean 'sticky'"),
        ({"overrides": {"sticky": 1.5}}, "0..1, got 1.5"),
        ({"overrides": {"frame_skip": (4, 2)}}, "frame_skip"),
        ({"overrides": {"frame_skip": 0}}, "frame_skip"),
        ({"overrides": {"noop_max": -1}}, "noop_max"),
        ({"overrides": {"max_episode_steps": -5}}, "max_episode_steps"),
    ],
)
def test_mistakes_are_named(given, said):
    with pytest.raises(ValueError, match=said):
        make_atari(**{"env_id": PONG, "num_envs": 1, **given})


def test_wrong_actions_are_refused():
    """ale-py would wait for ever."""
    env = make_atari(PONG, 2)
    with pytest.raises(ValueError, match="reset"):
        env.step(torch.zeros(2, dtype=torch.int64))
    env.reset(0)
    for action in (torch.tensor([0, 6]), torch.tensor([-1, 0]), torch.zeros(3, dtype=torch.int64), torch.zeros(2)):
        with pytest.raises(ValueError, match="actions must"):
            env.step(action)
    assert env.step(torch.tensor([0, 5])).reward.shape == (2,)


def test_without_ale_py(monkeypatch):
    monkeypatch.setitem(sys.modules, "ale_py", None)
    with pytest.raises(ValueError, match=r"install recollect\[atari\]"):
        make_atari(PONG, 1)
