"""PongEnv: the contract, resuming to the bit, and every step as ale-py's own environments take it."""

import dataclasses
import io

import numpy as np
import pytest
import torch
from contract import check_contract, draw_actions, play, random_action, rows, same, same_obs
from side_by_side import FIRE, LEFTFIRE, NOOP, PLACES, RIGHTFIRE, console
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from recollect.envs.atari import make_atari
from recollect.envs.atari_random_skip import shrink
from recollect.envs.pong.env import PongEnv
from recollect.envs.pong.options import Options
from recollect.envs.pong.view import opening
from recollect.fast import can_compile
from recollect.nested import flatten, map_tensors
from recollect.types import Discrete, Step

PONG = "ALE/Pong-v5"
OBSERVATIONS = ("pixels", "binary", "ram", "state")
CHANCE = {"noop_max": 5, "max_episode_steps": 17}
RANGES = {"ball_speed": "0.5..2", "paddle_height": "8..24", "gravity": "-0.05..0.05", "opponent_lag": "0..8"}
BLURRED = {**RANGES, "noise": "1..3"}


@pytest.mark.parametrize("obs", OBSERVATIONS)
def test_it_keeps_the_contract(obs):
    options = Options(obs=obs, **CHANCE)
    check_contract(lambda n, first: PongEnv(n, options, first_env=first), steps=40)


@pytest.mark.parametrize("obs", ["pixels", "state"])
def test_it_keeps_the_contract_under_any_physics(obs):
    options = Options(obs=obs, **CHANCE, **BLURRED)
    check_contract(lambda n, first: PongEnv(n, options, first_env=first, protocol="v0-random-skip"), steps=40)


@pytest.mark.parametrize("physics", [{}, BLURRED], ids=["usual", "ranges"])
@pytest.mark.parametrize("obs", OBSERVATIONS)
def test_it_resumes_to_the_bit(obs, physics):
    """Through a file, into an environment that has never been reset, across the ends of episodes."""
    options = Options(obs=obs, **CHANCE, **physics)
    env, resumed = (PongEnv(3, options, first_env=2) for _ in range(2))
    env.reset(5)
    actions = draw_actions(env, random_action, 50)
    assert any(step.truncated.any() for step in play(env, actions[:25]))
    file = io.BytesIO()
    torch.save(env.state_dict(), file)
    file.seek(0)
    obs_now = resumed.load_state_dict(torch.load(file, weights_only=True))
    assert all(torch.equal(part, env._obs(env._stack)[name]) for name, part in obs_now.items())
    expected = [rows(step) for step in play(env, actions[25:])]
    got = [rows(step) for step in play(resumed, actions[25:])]
    assert all(same(a, b) for a, b in zip(expected, got, strict=True))


@pytest.mark.parametrize("physics", [{}, BLURRED, {"gravity": "0.02"}], ids=["usual", "ranges", "one"])
@pytest.mark.parametrize("obs", ["pixels", "state"])
def test_a_decision_keeps_every_shape(obs, physics):
    """A captured graph is handed copies, and what it made is what it is handed next."""
    env = PongEnv(3, Options(obs=obs, **physics))
    env.reset(0)
    copies = map_tensors(Tensor.clone, env._playing)
    after, _ = env._decision(copies, torch.zeros(3, dtype=torch.int64))
    shapes = {name: part.shape for name, part in flatten(copies).items()}
    assert {name: part.shape for name, part in flatten(after).items()} == shapes


class Uncapturable(TorchDispatchMode):
    """Collects what a graph cannot capture: numbers brought from the host, and numbers read back to it."""

    def __init__(self):
        super().__init__()
        self.found: list[str] = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func in (torch.ops.aten.lift_fresh.default, torch.ops.aten._local_scalar_dense.default):
            self.found.append(str(func))
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("physics", [{}, BLURRED], ids=["usual", "ranges"])
@pytest.mark.parametrize("obs", OBSERVATIONS)
def test_a_decision_could_be_captured(obs, physics):
    env = PongEnv(3, Options(obs=obs, **CHANCE, **physics))
    env._asks = False  # as on a GPU, which would have to wait for the answer
    env.reset(0)
    with Uncapturable() as watch:
        env.step(torch.zeros(3, dtype=torch.int64))
    assert watch.found == []
    with Uncapturable() as watch:
        torch.tensor([1.0]).item()
    assert len(watch.found) == 2, "the watch sees nothing"


@pytest.mark.slow
@pytest.mark.parametrize("obs", ["pixels", "state"])
def test_compiled_is_eager(obs):
    """To the bit, ends of episodes included."""
    if not can_compile():
        pytest.skip("no C++ compiler")
    options = Options(obs=obs, noop_max=5, max_episode_steps=60)
    eager, compiled = PongEnv(6, options), PongEnv(6, options, compiled=True)
    assert same_obs(eager.reset(1), compiled.reset(1))
    for action in draw_actions(eager, random_action, 200):
        assert same(rows(eager.step(action)), rows(compiled.step(action)))
    ours, theirs = eager.state_dict(), compiled.state_dict()
    assert all(torch.equal(part, theirs[name]) for name, part in ours.items())


# As ale-py.


def compare(ours: Step, theirs: Step) -> None:
    """All of a step but the last picture of a game that ended: ale-py shows an older one there."""
    for name in ("reward", "terminated", "truncated", "round_end"):
        assert torch.equal(getattr(ours, name), getattr(theirs, name)), name
    for name in ("episode_return", "episode_length", "over"):
        assert torch.equal(getattr(ours.stats, name), getattr(theirs.stats, name)), name
    assert torch.equal(ours.obs["frame"], theirs.obs["frame"])
    goes_on = ~ours.terminated
    assert torch.equal(ours.final_obs["frame"][goes_on], theirs.final_obs["frame"][goes_on])


def follow(env: PongEnv) -> Tensor:
    """The paddle's lower half goes after the ball, with FIRE. One of six actions, int64 [N]"""
    game = env._playing.game
    gap = (game.ball_y - 9 - game.aim) * (game.wait == 0)
    return torch.where(gap < -5, RIGHTFIRE, torch.where(gap > 5, LEFTFIRE, FIRE))


def test_every_step_is_ale_pys():
    """Four games over several ends, two of them played at random, two well."""
    env, other = PongEnv(4, protocol="no-sticky"), make_atari(PONG, 4, protocol="no-sticky")
    assert same_obs(env.reset(0), other.reset(0))
    rng, well = torch.Generator().manual_seed(0), torch.tensor([False, False, True, True])
    ends, won = 0, 0.0
    for _ in range(1_500):
        at_random = torch.randint(6, (4,), generator=rng)
        follows = well & (torch.rand(4, generator=rng) < 0.9)
        action = torch.where(follows, follow(env), at_random)
        step = env.step(action)
        compare(step, other.step(action))
        ends, won = ends + int(step.terminated.sum()), won + float(step.reward.clamp_min(0).sum())
    assert ends >= 2
    assert won >= 8


@pytest.mark.parametrize(
    ("protocol", "rules"),
    [
        ("deterministic", {}),
        ("deterministic", {"frame_skip": 1}),
        ("no-sticky", {"frame_skip": 2}),
        ("no-sticky", {"frame_skip": 5}),
        ("no-sticky", {"clip_reward": True, "max_episode_steps": 40}),
    ],
)
def test_every_rule_is_ale_pys(protocol, rules):
    env = PongEnv(2, Options(**rules), protocol=protocol)
    other = make_atari(PONG, 2, protocol=protocol, overrides=rules)
    assert same_obs(env.reset(0), other.reset(0))
    for action in draw_actions(env, random_action, 120):
        compare(env.step(action), other.step(action))


def set_score(env: PongEnv, points: int) -> None:
    """Both players' points, in every game."""
    both = torch.full((env.num_envs,), points, dtype=torch.int32)
    env._playing = dataclasses.replace(env._playing, game=dataclasses.replace(env._playing.game, left=both, right=both))


def first_end(limit: int) -> tuple[int, bool, bool]:
    """When a game at 20 to 20 ends of which nobody takes care: (decision, terminated, truncated)."""
    env = PongEnv(2, Options(obs="state", max_episode_steps=limit), protocol="deterministic")
    env.reset(0)
    set_score(env, 20)
    for number in range(1, 200):
        step = env.step(torch.zeros(2, dtype=torch.int64))
        if step.stats.over.any():
            return number, bool(step.terminated.all()), bool(step.truncated.all())
    pytest.fail("nothing ended")


def test_a_game_that_ends_on_the_limit_is_not_truncated():
    number, terminated, truncated = first_end(0)
    assert (terminated, truncated) == (True, False)
    assert first_end(number) == (number, True, False)
    assert first_end(number - 1) == (number - 1, False, True)


@pytest.mark.parametrize("pool", [True, False])
def test_the_picture_that_ends_a_game(pool):
    """ale-py has it too, frame by frame. The games part, then all stand at 20 to 20: the next point ends them."""
    rules = {"max_pool": pool, "max_episode_steps": 0}
    env = PongEnv(6, Options(**rules), protocol="deterministic")
    other = make_atari(PONG, 6, protocol="deterministic", overrides={**rules, "frame_skip": (4, 4)})
    env.reset(0)
    other.reset(0)
    for action in draw_actions(env, random_action, 140):
        both = torch.where(torch.arange(6) < 2, action, follow(env))
        compare(env.step(both), other.step(both))
    set_score(env, 20)
    for ale in other._games:
        ale.setRAM(PLACES["left"], 20)
        ale.setRAM(PLACES["right"], 20)
    playing, lasted = torch.ones(6, dtype=torch.bool), set()
    for action in draw_actions(env, random_action, 200):
        ours, theirs = env.step(action), other.step(action)
        assert torch.equal(ours.terminated, theirs.terminated)
        assert torch.equal(ours.final_obs["frame"][playing], theirs.final_obs["frame"][playing])
        lasted |= set(ours.stats.episode_length[ours.terminated & playing].tolist())
        playing &= ~ours.terminated
        if not playing.any():
            break
    assert not playing.any()
    assert len(lasted) >= 3, "they should have ended apart"


@pytest.mark.parametrize("pool", [True, False])
def test_random_frame_skips(pool):
    """Pictures and rewards of as many single frames as the game's clock went on by."""
    env = PongEnv(2, Options(sticky=0.0, max_pool=pool), protocol="v0-random-skip")
    games = [console(), console()]
    env.reset(4)
    lasted = set()
    for action in draw_actions(env, random_action, 100):
        before = env._playing.game.clock
        step = env.step(action)
        for i, skip in enumerate((env._playing.game.clock - before).tolist()):
            screens, reward = [], 0
            for _ in range(skip):
                reward += games[i].act(games[i].getMinimalActionSet()[int(action[i])])
                screens.append(games[i].getScreenGrayscale())
            seen = np.maximum(*screens[-2:]) if pool else screens[-1]
            assert step.reward[i] == reward
            assert np.array_equal(step.obs["frame"][i, 3].numpy(), shrink(seen))
            lasted.add(skip)
    assert lasted == {2, 3, 4}


def test_two_three_and_four_frames_come_in_equal_shares():
    """Chi-square of 40,000 decisions, two degrees of freedom; neighbours in time and place have nothing to do."""
    env = PongEnv(2_000, Options(obs="state"), protocol="v0-random-skip")
    env.reset(0)
    lasted = []
    for _ in range(20):
        before = env._playing.game.clock
        env.step(torch.zeros(2_000, dtype=torch.int64))
        lasted.append(env._playing.game.clock - before)
    lasted = torch.stack(lasted)
    counts = torch.bincount(lasted.flatten(), minlength=5)
    assert counts[:2].tolist() == [0, 0]
    expected = lasted.numel() / 3
    assert ((counts[2:] - expected) ** 2 / expected).sum() < 20  # passed by chance once in 22,000
    for neighbours in (torch.stack([lasted[1:], lasted[:-1]]), torch.stack([lasted[:, 1:], lasted[:, :-1]])):
        correlation = torch.corrcoef(neighbours.flatten(1).float())[0, 1]
        assert abs(correlation) < 5 / lasted.numel() ** 0.5


@pytest.mark.parametrize(("rules", "first"), [({"noop_max": 3}, NOOP), ({"noop_max": 4, "fire_reset": True}, FIRE)])
def test_what_opens_a_game(rules, first):
    """0 to 3 no-ops; or FIRE and up to 3 after it."""
    env = PongEnv(40, Options(**rules), protocol="no-sticky")
    shown = {frame.numpy().tobytes() for frame in env.reset(0)["frame"][:, 3]}
    game, screens = console(), []
    for number in range(5):
        screens.append(shrink(game.getScreenGrayscale()).tobytes())
        game.act(game.getMinimalActionSet()[first if number == 0 else NOOP])
    assert shown == set(screens[1:] if first == FIRE else screens[:4])


def test_an_episode_opens_with_the_picture_of_its_own_game():
    """Pictures of openings are kept, one for each number of no-ops."""
    env = PongEnv(12, Options(noop_max=30, max_episode_steps=2), protocol="no-sticky")
    shown = env.reset(0)["frame"]
    for _ in range(2):
        assert len(env._playing.game.clock.unique()) > 3
        view = opening(env._playing.game, env._playing.physics)
        assert torch.equal(shown[:, 3], env._picture(view, view))
        assert not shown[:, :3].any()
        for step in play(env, draw_actions(env, random_action, 2)):
            shown = step.obs["frame"]


def test_no_ops_are_the_openings_of_every_episode():
    """Each number of them as often as any other: chi-square, five degrees of freedom."""
    env = PongEnv(3_000, Options(obs="state", noop_max=5, max_episode_steps=1))
    env.reset(0)
    begun = [env._playing.game.clock]
    for _ in range(3):
        env.step(torch.zeros(3_000, dtype=torch.int64))
        begun.append(env._playing.game.clock)
    noops = torch.stack(begun) - 327
    counts = torch.bincount(noops.flatten(), minlength=6)
    assert len(counts) == 6
    assert ((counts - 2_000) ** 2 / 2_000).sum() < 30  # passed by chance once in 68,000
    assert not torch.equal(noops[0], noops[1]), "drawn anew"


def test_render_is_the_screen():
    """But for the frame of a point, when the console's scoreboard is still to follow."""
    env, game = PongEnv(2, Options(obs="state"), protocol="deterministic"), console()
    env.reset(0)
    seen = 0
    for action in draw_actions(env, random_action, 150):
        env.step(action)
        for _ in range(4):
            game.act(game.getMinimalActionSet()[int(action[0])])
        now = env._playing.game
        assert now.wait[0] == 63 or np.array_equal(env.render(), game.getScreenRGB())
        seen += int(now.ball_y[0] > 0)
    assert seen > 50, "there should have been a ball"


@pytest.mark.parametrize(
    ("actions", "names", "turns"),
    [
        ("six", ("NOOP", "FIRE", "RIGHT", "LEFT", "RIGHTFIRE", "LEFTFIRE"), (0, 0, -1, 1, -1, 1)),
        ("three", ("NOOP", "RIGHT", "LEFT"), (0, -1, 1)),
        ("two", ("RIGHT", "LEFT"), (-1, 1)),
    ],
)
def test_fewer_actions(actions, names, turns):
    env = PongEnv(len(names), Options(obs="state", actions=actions), protocol="deterministic")
    env.reset(0)
    assert env.action_spec == Discrete(len(names), names)
    before = env._playing.game.knob
    env.step(torch.arange(len(names)))
    moved = (env._playing.game.knob - before) / (4 * 23_000)
    assert moved.tolist() == list(turns)
    assert env._playing.game.fire.tolist() == ["FIRE" in name for name in names]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"stack": 0}, "stack must be at least 1"),
        ({"life_loss_ends": True}, "life_loss_ends cannot be true"),
        ({"full_actions": True}, "full_actions cannot be true"),
        ({"sticky": 2.0}, "sticky must be a probability"),
    ],
)
def test_impossible_rules_are_refused_in_words(options, words):
    with pytest.raises(ValueError, match=words) as refused:
        PongEnv(1, Options(**options))
    assert "\n" not in str(refused.value)
