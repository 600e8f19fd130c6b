"""DarkRoom keeps the contract and its own rules, for any size and all goals at once."""

import pytest
import torch
from contract import check_contract

from recollect.envs.darkroom import MOVES, DarkRoom, Options, goals

STAY, UP, RIGHT, DOWN, LEFT = range(len(MOVES))


def room(num_envs: int = 1, **options: object) -> DarkRoom:
    env = DarkRoom(num_envs, Options(**options))
    env.reset(0)
    return env


def cell(obs: dict, size: int) -> tuple[int, int]:
    return divmod(int(obs["vector"][0].argmax()), size)


def walk(env: DarkRoom, *moves: int):
    return [env.step(torch.full((env.num_envs,), move)) for move in moves]


@pytest.mark.parametrize("clock", [True, False])
def test_it_keeps_the_contract(clock: bool):
    """Nothing here is left to chance, so environments with one goal and the same actions are alike."""
    options = Options(size=5, goal="0,2", max_steps=7, clock=clock)
    check_contract(lambda n, first: DarkRoom(n, options, first_env=first), steps=60, distinct=False)


def test_every_move_and_every_wall():
    env = room(size=3, goal="0,0", max_steps=100)
    assert [cell(step.obs, 3) for step in walk(env, RIGHT, RIGHT, DOWN, DOWN, STAY, UP, LEFT)] == [
        (1, 2),
        (1, 2),  # the wall
        (2, 2),
        (2, 2),  # the other wall
        (2, 2),
        (1, 2),
        (1, 1),
    ]


def test_the_goal_pays_one_and_ends_the_episode():
    env = room(size=3, goal="0,0")
    before, at_goal = walk(env, UP, LEFT)
    assert (before.reward.item(), at_goal.reward.item()) == (0.0, 1.0)
    assert at_goal.terminated.item()
    assert not at_goal.truncated.item()
    assert cell(at_goal.final_obs, 3) == (0, 0)
    assert cell(at_goal.obs, 3) == (1, 1), "the next episode starts at the centre"
    assert (at_goal.stats.episode_return.item(), at_goal.stats.episode_length.item()) == (1.0, 2)


def test_without_termination_every_step_on_the_goal_pays():
    env = room(size=3, goal="0,0", terminate_on_goal=False, max_steps=5)
    steps = walk(env, UP, LEFT, STAY, STAY, STAY)
    assert [s.reward.item() for s in steps] == [0, 1, 1, 1, 1]
    assert [s.truncated.item() for s in steps] == [False] * 4 + [True]
    assert steps[-1].stats.episode_return.item() == 4


def test_the_goal_on_the_last_step_is_an_end_and_no_truncation():
    env = room(size=3, goal="0,0", max_steps=2)
    last = walk(env, UP, LEFT)[-1]
    assert last.terminated.item()
    assert not last.truncated.item()


def test_the_clock_counts_the_episode_in_the_final_observation_too():
    env = room(size=3, goal="0,0", max_steps=4, clock=True)
    steps = walk(env, STAY, STAY, STAY, STAY)
    assert [s.final_obs["clock"].item() for s in steps] == [0.25, 0.5, 0.75, 1.0]
    assert [s.obs["clock"].item() for s in steps] == [0.25, 0.5, 0.75, 0.0]


@pytest.mark.parametrize("size", [2, 3, 9, 13])
def test_all_goals_at_once_are_all_cells_but_the_start(size: int):
    every = goals(Options(size=size))
    assert len({tuple(g.tolist()) for g in every}) == size * size - 1
    assert (size // 2, size // 2) not in {tuple(g.tolist()) for g in every}
    envs = room(2 * len(every), size=size)
    assert torch.equal(envs.goal_N2[: len(every)], every)
    assert torch.equal(envs.goal_N2[len(every) :], every), "round and round"


def test_a_slice_has_the_goals_of_its_place_in_the_batch():
    whole = room(10)
    half = DarkRoom(5, Options(), first_env=5)
    assert torch.equal(whole.goal_N2[5:], half.goal_N2)


def test_the_random_walk_reaches_a_neighbour_as_often_as_it_should():
    """Goal next to the start, one step: one move of five leads there. Binomial, 6 sigma of 20,000 draws."""
    env = room(20_000, size=3, goal="0,1", max_steps=1)
    action = torch.randint(5, (20_000,), generator=torch.Generator().manual_seed(0))
    rate = env.step(action).reward.mean().item()
    assert abs(rate - 0.2) < 6 * (0.2 * 0.8 / 20_000) ** 0.5


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"size": 1}, "at least 2"),
        ({"max_steps": 0}, "at least 1"),
        ({"goal": "9,0"}, "0..8"),
        ({"goal": "4,4"}, "off the start"),
        ({"goal": "corner"}, "'all' or 'row,column'"),
    ],
)
def test_impossible_rooms_are_refused_in_words(options: dict, words: str):
    with pytest.raises(ValueError, match=words):
        DarkRoom(1, Options(**options))


def test_the_picture_shows_agent_and_goal():
    env = room(size=3, goal="0,0")
    picture = env.render()
    assert picture.shape == (72, 72, 3)
    assert picture[12, 12].tolist() == [46, 160, 67]
    assert picture[36, 36].tolist() == [240, 136, 62]
