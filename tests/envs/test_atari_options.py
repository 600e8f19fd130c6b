"""What can be chosen about a game of the ALE beside its rules: frames stacked, actions, Pong's binary frames."""

import numpy as np
import pytest
import torch
from contract import check_contract, random_action

from recollect.envs.atari import AtariOptions, make_atari
from recollect.envs.atari_base import binary
from recollect.envs.pong.env import PongEnv
from recollect.envs.pong.options import Options as PongOptions
from recollect.envs.registry import EnvConfig, make_env
from recollect.types import Discrete

PONG = "ALE/Pong-v5"
RANDOM_SKIP = {"frame_skip": (4, 4)}  # the engine of random skips, with nothing left to chance


def drawn(actions: int, num_envs: int = 2, steps: int = 120) -> torch.Tensor:
    return torch.randint(actions, (steps, num_envs), generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("rules", [{}, RANDOM_SKIP], ids=["vector", "one by one"])
@pytest.mark.parametrize(("fewer", "numbers"), [("two", (2, 3)), ("three", (0, 2, 3)), ("six", (0, 1, 2, 3, 4, 5))])
def test_fewer_actions_are_some_of_all(fewer: str, numbers: tuple[int, ...], rules: dict):
    chosen = make_atari(PONG, 2, protocol="no-sticky", options=AtariOptions(actions=fewer), overrides=rules)
    every = make_atari(PONG, 2, protocol="no-sticky", overrides=rules)
    names = ("NOOP", "FIRE", "RIGHT", "LEFT", "RIGHTFIRE", "LEFTFIRE")
    assert chosen.action_spec == Discrete(len(numbers), tuple(names[n] for n in numbers))
    assert f"{fewer} actions" in chosen.protocol.extra
    chosen.reset(0)
    every.reset(0)
    for action in drawn(len(numbers), steps=40):
        few, all_of_them = chosen.step(action), every.step(torch.tensor(numbers)[action])
        assert torch.equal(few.obs["frame"], all_of_them.obs["frame"])
    with pytest.raises(ValueError, match=f"must lie in 0..{len(numbers) - 1}"):
        chosen.step(torch.full((2,), len(numbers)))


@pytest.mark.parametrize("rules", [{}, RANDOM_SKIP], ids=["vector", "one by one"])
@pytest.mark.parametrize("stack", [1, 6])
def test_any_number_of_frames_is_stacked(stack: int, rules: dict):
    """The same newest frames as of the usual four, and none from before a reset."""
    limit = {"max_episode_steps": 9, **rules}
    usual = make_atari(PONG, 2, overrides=limit)
    other = make_atari(PONG, 2, overrides=limit, options=AtariOptions(stack=stack))
    assert other.obs_spec["frame"].shape == (stack, 84, 84)
    assert f"{stack} stacked" in other.protocol.extra
    shared = min(stack, 4)
    first = other.reset(3)["frame"]
    assert torch.equal(first[:, -shared:], usual.reset(3)["frame"][:, -shared:])
    for t, action in enumerate(drawn(6, steps=20), 1):
        step, expected = other.step(action), usual.step(action)
        for mine, theirs in ((step.obs, expected.obs), (step.final_obs, expected.final_obs)):
            assert torch.equal(mine["frame"][:, -shared:], theirs["frame"][:, -shared:])
        assert step.truncated.all() == (t % 9 == 0)
        shown = min(stack, t % 9 + 1)
        assert (step.obs["frame"][:, : stack - shown] == 0).all()
        assert (step.obs["frame"][:, stack - shown :].flatten(2).amax(-1) > 0).all()


@pytest.mark.parametrize("rules", [{}, RANDOM_SKIP, {"max_pool": False}], ids=["vector", "one by one", "unpooled"])
def test_binary_frames_are_those_of_pong_on_tensors(rules: dict):
    """Two games, to the pixel, through points and resets: which are the ALE's when nothing is left to chance."""
    shape = {"obs": "binary", "stack": 3, "actions": "two"}
    ale = make_atari(PONG, 2, protocol="no-sticky", options=AtariOptions(**shape), overrides=rules)
    pool = rules.get("max_pool")
    ours = PongEnv(2, PongOptions(**shape, max_pool=pool), protocol="no-sticky")
    assert ale.obs_spec == ours.obs_spec
    assert ale.action_spec == ours.action_spec
    assert torch.equal(ale.reset(0)["frame"], ours.reset(0)["frame"])
    points = 0
    for action in drawn(2, steps=200):
        theirs, mine = ale.step(action), ours.step(action)
        assert torch.equal(theirs.obs["frame"], mine.obs["frame"])
        assert torch.equal(theirs.final_obs["frame"], mine.final_obs["frame"])
        points += int(theirs.round_end.sum())
    assert points > 2


def test_binary_frames_through_the_end_of_a_game():
    """Of the decision that ends it, ale-py shows the frames before the newest; the next game begins alike."""
    shape = {"obs": "binary", "stack": 3, "actions": "two"}
    ale = make_atari(PONG, 1, protocol="no-sticky", options=AtariOptions(**shape))
    ours = PongEnv(1, PongOptions(**shape), protocol="no-sticky")
    ale.reset(0)
    ours.reset(0)
    for _ in range(1500):
        theirs, mine = (env.step(torch.tensor([0])) for env in (ale, ours))
        assert torch.equal(theirs.obs["frame"], mine.obs["frame"])
        assert theirs.terminated.equal(mine.terminated)
        if theirs.terminated:
            break
    assert theirs.terminated and theirs.stats.episode_length > 700
    assert torch.equal(theirs.final_obs["frame"][:, :-1], mine.final_obs["frame"][:, :-1])
    assert theirs.final_obs["frame"][:, -1].sum() > 16


def test_binary_keeps_the_contract():
    def make(num_envs: int, first_env: int):
        options = AtariOptions(obs="binary", stack=2, actions="two", max_episode_steps=30)
        return make_atari(PONG, num_envs, options=options, first_env=first_env)

    check_contract(make, random_action, 45, num_envs=2)


@pytest.mark.parametrize("ground", [87, 107])
def test_binary_erases_the_ground_and_nothing_else(ground: int):
    screen = np.full((1, 210, 160), ground, np.uint8)
    screen[0, 35, 0], screen[0, 37, 2], screen[0, 36, 4], screen[0, 34, 6], screen[0, 193, 158] = 236, 147, 236, 236, 74
    seen = binary(screen)
    assert seen.shape == (1, 80, 80)
    assert sorted(map(tuple, np.argwhere(seen[0]).tolist())) == [(0, 0), (1, 1), (79, 79)]
    assert binary(np.zeros((210, 160), np.uint8)).sum() == 0


@pytest.mark.parametrize(
    ("env_id", "options", "words"),
    [
        (PONG, "obs=state", "obs=state is shown by recollect/Pong-v0"),
        (PONG, "obs=ram", "obs=ram is shown by recollect/Pong-v0"),
        ("ALE/Breakout-v5", "obs=binary", "ALE/Breakout-v5 shows pixels"),
        ("ALE/Breakout-v5", "actions=six", "ALE/Breakout-v5 does not know the action RIGHTFIRE, only NOOP, FIRE"),
        (PONG, "stack=0", "stack must be at least 1, got 0"),
        (PONG, "actions=four", "'actions'.*'six', 'three', 'two'"),
    ],
)
def test_what_cannot_be_chosen_is_said_in_words(env_id: str, options: str, words: str):
    with pytest.raises(ValueError, match=words) as caught:
        make_env(EnvConfig(env_id, 1, env_options=(options,)))
    assert "\n" not in str(caught.value)
