"""Chance: the numbers are uniform and have nothing to do with each other; sticky actions stick as ale-py's do."""

import pytest
import torch
from side_by_side import CLOCK_LOW, KNOB, LEFT, NOOP, RIGHT, RIGHTFIRE, console
from torch import Tensor

from recollect.envs import chance
from recollect.envs.pong import rules
from recollect.envs.pong.env import PongEnv
from recollect.envs.pong.options import Options

COUNT, BINS = 100_000, 64
ONE, MANY = torch.zeros(1, dtype=torch.int32), torch.arange(COUNT, dtype=torch.int32)


def chi_square(counts: Tensor, expected: Tensor) -> float:
    return ((counts - expected) ** 2 / expected).sum().item()


def walks() -> dict[str, Tensor]:
    """Numbers along each of what they depend on, the rest held: float32 [COUNT] each."""
    key = chance.keys(0, 0, 1, torch.device("cpu"))
    envs = chance.keys(0, 0, COUNT, torch.device("cpu"))
    return {
        "environments": chance.uniform(envs, ONE + 7, ONE[:, None])[0],
        "keys": chance.uniform(MANY, ONE + 7, ONE[:, None])[0],
        "counters": chance.uniform(key, MANY, ONE[:, None])[0],
        "purposes": chance.uniform(key, ONE + 7, MANY[:, None])[:, 0],
    }


@pytest.fixture(scope="module")
def numbers() -> dict[str, Tensor]:
    return walks()


@pytest.mark.parametrize("along", ["environments", "keys", "counters", "purposes"])
def test_numbers_are_uniform(numbers, along):
    """Mean 1/2, variance 1/12, and 64 bins alike: 63 degrees of freedom, so 63 give or take 11.2."""
    drawn = numbers[along].double()
    assert 0 <= drawn.min() < 1e-3
    assert 1 - 1e-3 < drawn.max() < 1
    assert abs(drawn.mean() - 1 / 2) < 5 * (1 / 12 / COUNT) ** 0.5
    assert abs(drawn.var() - 1 / 12) < 5 * (1 / 180 / COUNT) ** 0.5  # E (u - 1/2)^4 - 1/12^2 = 1/80 - 1/144
    counts = torch.histc(drawn, BINS, 0, 1)
    assert 20 < chi_square(counts, torch.full_like(counts, COUNT / BINS)) < 130


@pytest.mark.parametrize("apart", [1, 2, 4, 64])
@pytest.mark.parametrize("along", ["environments", "keys", "counters", "purposes"])
def test_neighbours_have_nothing_to_do_with_each_other(numbers, along, apart):
    """No correlation, and no cell of 8 x 8 for a number and its neighbour is fuller than the others."""
    one, other = numbers[along][:-apart], numbers[along][apart:]
    assert abs(torch.corrcoef(torch.stack([one, other]))[0, 1]) < 5 / COUNT**0.5
    cells = torch.bincount((one * 8).long() * 8 + (other * 8).long(), minlength=64).double()
    assert chi_square(cells, torch.full_like(cells, len(one) / 64)) < 130


def test_the_same_moment_of_another_environment_is_another_number():
    """Numbers [counters, purposes, environments] of a whole run are all apart, but for chance: 2^24 of them exist."""
    envs = chance.keys(3, 0, 20, torch.device("cpu"))
    purposes = torch.arange(20, dtype=torch.int32)[:, None]
    drawn = torch.stack([chance.uniform(envs, torch.full_like(envs, when), purposes) for when in range(20)])
    equal = drawn.numel() - len(drawn.unique())
    assert equal < 15  # 8,000^2 / 2 pairs / 2^24 = 1.9


def test_moments_and_keys_are_not_added_up():
    """Of 160,000 neighbouring moments of neighbouring keys no two are alike, but for 2^24 numbers to draw from."""
    keys, moments = torch.meshgrid(MANY[:400], MANY[:400], indexing="ij")
    drawn = chance.uniform(keys.flatten(), moments.flatten(), ONE[:, None])
    equal = drawn.numel() - len(drawn.unique())
    assert abs(equal - 160_000**2 / 2 / 2**24) < 6 * (160_000**2 / 2 / 2**24) ** 0.5  # 763 give or take 28


def test_a_slice_draws_what_the_whole_draws_for_it():
    whole, part = (chance.keys(7, first, count, torch.device("cpu")) for first, count in ((0, 20), (6, 5)))
    assert torch.equal(part, whole[6:11])
    when, which = torch.arange(20, dtype=torch.int32) * 31, torch.arange(9, dtype=torch.int32)[:, None]
    drawn = chance.uniform(whole, when, which)
    assert drawn.shape == (9, 20)
    assert torch.equal(chance.uniform(part, when[6:11], which[2:4]), drawn[2:4, 6:11])
    assert not torch.equal(chance.keys(8, 0, 20, torch.device("cpu")), whole)


# Sticky actions.

STICKY = 0.25
# A new action is taken up in the k-th frame with 0.75 * 0.25^(k-1): of four frames 4, 3, 2, 1 or none have it.
SHARES = torch.tensor([STICKY**4, *((1 - STICKY) * STICKY ** (4 - frames) for frames in (1, 2, 3, 4))])


def games(num_envs: int, protocol: str = "v5", **options) -> PongEnv:
    env = PongEnv(num_envs, Options(obs="state", **options), protocol=protocol)
    env.reset(0)
    return env


def press(env: PongEnv, action: int, times: int = 1) -> None:
    for _ in range(times):
        env.step(torch.full((env.num_envs,), action))


def frames_of_right(knob: Tensor) -> Tensor:
    """In how many frames RIGHT was applied, since the knob stood at its upper end, where LEFT does nothing."""
    return (rules.KNOB_HIGH - knob) / rules.KNOB_STEP


def test_the_shares_are_shares():
    assert SHARES.sum() == 1
    assert SHARES[4] == 0.75
    assert SHARES[3] == 0.75 * 0.25


def test_each_frame_takes_the_new_action_up_by_itself():
    """RIGHT after a long LEFT, in 40,000 games: chi-square, four degrees of freedom."""
    env = games(40_000)
    press(env, LEFT, 12)
    assert env._playing.game.knob.eq(rules.KNOB_HIGH).all()
    press(env, RIGHT)
    frames = frames_of_right(env._playing.game.knob)
    assert torch.equal(frames, frames.round())
    counts = torch.bincount(frames.long(), minlength=5)
    assert chi_square(counts, 40_000 * SHARES) < 25  # passed by chance once in 20,000


def test_ale_py_takes_the_new_action_up_in_the_same_shares():
    """The same in ale-py, read from its memory: the line that the knob asks for."""
    ale = console(sticky=STICKY, seed=1)
    actions = ale.getMinimalActionSet()
    lines = rules.read_knob(rules.KNOB_HIGH - rules.KNOB_STEP * torch.arange(5)).tolist()
    assert len(set(lines)) == 5

    def hold(action: int, frames: int) -> None:
        for _ in range(frames):
            ale.act(actions[action])

    counts = torch.zeros(5)
    hold(LEFT, 45)  # from an odd frame to an even one, which is when the knob is read
    for _ in range(1_000):
        hold(LEFT, 20)  # back to the end, however late it is taken up
        hold(RIGHT, 4)
        if ale.game_over():
            ale.reset_game()
            hold(LEFT, 45)
            continue
        memory = ale.getRAM()
        assert memory[CLOCK_LOW] % 2 == 0
        counts[lines.index(memory[KNOB])] += 1
    assert counts.sum() > 980
    assert chi_square(counts, counts.sum() * SHARES) < 25


def test_what_is_held_is_what_was_applied():
    """RIGHT and LEFT in turn, a frame each. What was applied is what was asked for with probability q, where
    q = 0.75 + 0.25 (1 - q), so 0.8: a LEFT that was not taken up leaves a RIGHT to be held. Were it the action asked
    for before that is held, it would be 0.75."""
    count, turns = 5_000, 40
    env = games(count, frame_skip=1)
    right = torch.zeros(turns)
    for t in range(turns):
        before = env._playing.game.knob
        press(env, (RIGHT, LEFT)[t % 2])
        asked = (-1.0, 1.0)[t % 2]
        right[t] = ((env._playing.game.knob - before) == asked * rules.KNOB_STEP).float().mean()
    assert abs(right[0] - 0.75) < 6 * (0.75 * 0.25 / count) ** 0.5, "before, nothing was held"
    assert abs(right[10:].mean() - 0.8) < 6 * (0.8 * 0.2 / count / 30) ** 0.5


@pytest.mark.parametrize("protocol", ["v5", "v0-random-skip"])
def test_fire_sticks_with_the_direction(protocol):
    """One action is held, not two: no game has the new button without the new direction."""
    env = games(4_000, protocol)
    press(env, NOOP, 4)
    before = env._playing.game.knob
    press(env, RIGHTFIRE)
    now = env._playing.game
    assert torch.equal(now.fire, now.knob < before)
    assert 0 < now.fire.float().mean() < 1


def test_every_episode_sticks_in_its_own_way():
    """The first frames of two episodes are alike, taken up or not, in 0.75^2 + 0.25^2 of games."""
    env = games(4_000, frame_skip=1, max_episode_steps=2)
    first = []
    for _ in range(2):
        press(env, RIGHT)
        first.append(env._playing.game.knob)
        press(env, NOOP)
    assert abs((first[0] == first[1]).float().mean() - 0.625) < 6 * (0.625 * 0.375 / 4_000) ** 0.5


def test_a_new_episode_holds_nothing():
    """LEFT to the last frame, then RIGHT in the next episode: RIGHT or nothing is applied, never LEFT."""
    env = games(2_000, frame_skip=1, max_episode_steps=3)
    press(env, LEFT, 3)
    assert env._playing.game.knob.eq(rules.KNOB_START).all()
    press(env, RIGHT)
    moved = (env._playing.game.knob - rules.KNOB_START) / rules.KNOB_STEP
    assert set(moved.tolist()) == {-1.0, 0.0}
    assert abs((moved == 0).float().mean() - STICKY) < 6 * (STICKY * (1 - STICKY) / 2_000) ** 0.5


@pytest.mark.parametrize(("sticky", "frames"), [(0.0, 4.0), (1.0, 0.0)])
def test_never_and_always(sticky, frames):
    env = games(500, sticky=sticky)
    press(env, RIGHT)
    assert ((rules.KNOB_START - env._playing.game.knob) == frames * rules.KNOB_STEP).all()
