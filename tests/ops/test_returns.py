"""Credit: with gamma = 0.1 the rewards 1, 2, 3 make the returns 1.23, 2.3, 3."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from recollect.ops.returns import discounted, gae, longest, n_step, next_values, normalise, td_error, trajectory

steps, envs, seeds = st.integers(1, 6), st.integers(1, 3), st.integers(0, 2**32 - 1)
repeatable = settings(derandomize=True, deadline=None, max_examples=30)


def same(actual: Tensor, expected: Tensor) -> None:
    """Equal in shape and dtype, and to float64 rounding: a float32 detour would show."""
    torch.testing.assert_close(actual, expected, rtol=0, atol=1e-12)


def numbers(*rows: object) -> Tensor:
    return torch.tensor(rows, dtype=torch.float64)


def column(*per_step: float) -> Tensor:
    """One environment. [T, 1]"""
    return numbers(*per_step)[:, None]


def mask(*per_step: int) -> Tensor:
    """One environment. bool [T, 1]"""
    return torch.tensor(per_step, dtype=torch.bool)[:, None]


def random_segment(T: int, N: int, seed: int) -> dict[str, Tensor]:
    """Rewards, values and masks of a segment in which episodes end either way and rounds end inside episodes."""
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    end_TN = torch.rand(T, N, generator=generator)
    terminal_TN, truncated_TN = end_TN < 0.2, (end_TN >= 0.2) & (end_TN < 0.4)
    value_TN, last_value_N, final_value_TN = normal(T, N), normal(N), normal(T, N)
    return {
        "reward_TN": normal(T, N),
        "value_TN": value_TN,
        "last_value_N": last_value_N,
        "next_value_TN": next_values(value_TN, last_value_N, truncated_TN, final_value_TN),
        "terminal_TN": terminal_TN,
        "cut_TN": terminal_TN | truncated_TN | (end_TN > 0.9),
    }


# --- next_values -----------------------------------------------------------------------------------------------------


def test_next_values_stay_within_the_episode():
    """Values say where they come from: 11 is environment 1, step 1; 91 its final observation; 7 and 8 come last."""
    value_TN = numbers([0, 10], [1, 11], [2, 12])
    final_value_TN = numbers([80, 90], [81, 91], [82, 92])
    truncated_TN = torch.tensor([[False, False], [False, True], [True, False]])
    last_value_N = torch.tensor([7.0, 8.0], dtype=torch.float64)
    expected_TN = numbers([1, 11], [2, 91], [82, 8])
    same(next_values(value_TN, last_value_N, truncated_TN, final_value_TN), expected_TN)


def test_garbage_in_unused_final_values_changes_nothing():
    garbage = column(float("nan"), 5, float("inf"))
    same(next_values(column(1, 2, 3), numbers(4), mask(0, 1, 0), garbage), column(2, 5, 4))


# --- discounted ------------------------------------------------------------------------------------------------------


def test_returns_read_themselves():
    same(discounted(column(1, 2, 3), mask(0, 0, 0), numbers(0), gamma=0.1), column(1.23, 2.3, 3))
    same(discounted(column(1, 2, 3), mask(0, 0, 0), numbers(4), gamma=0.1), column(1.234, 2.34, 3.4))
    same(discounted(column(1, 2, 3), mask(0, 1, 0), numbers(4), gamma=0.1), column(1.2, 2, 3.4))
    same(discounted(column(1, 2, 3), mask(0, 0, 1), numbers(4), gamma=0.1), column(1.23, 2.3, 3))


def test_each_environment_is_cut_at_its_own_steps():
    cut_TN = torch.tensor([[False, True], [True, False], [False, False]])
    reward_TN, last_return_N = numbers([1, 4], [2, 5], [3, 6]), torch.tensor([7.0, 8.0], dtype=torch.float64)
    same(discounted(reward_TN, cut_TN, last_return_N, gamma=0.1), numbers([1.2, 4], [2, 5.68], [3.7, 6.8]))


def test_discounting_leaves_its_inputs_alone():
    reward_TN, last_return_N = column(1, 2), numbers(3)
    discounted(reward_TN, mask(0, 0), last_return_N, gamma=0.1)
    same(reward_TN, column(1, 2))
    same(last_return_N, numbers(3))


@repeatable
@given(steps, envs, seeds)
def test_discounted_is_the_sum_of_later_rewards_up_to_the_cut(T: int, N: int, seed: int):
    segment, gamma = random_segment(T, N, seed), 0.9
    reward_TN, cut_TN, last_N = segment["reward_TN"], segment["cut_TN"], segment["last_value_N"]
    expected_TN = torch.zeros_like(reward_TN)
    for n in range(N):
        for t in range(T):
            for k in range(t, T):
                expected_TN[t, n] += gamma ** (k - t) * reward_TN[k, n]
                if cut_TN[k, n]:
                    break
            else:
                expected_TN[t, n] += gamma ** (T - t) * last_N[n]
    same(discounted(reward_TN, cut_TN, last_N, gamma), expected_TN)


@repeatable
@given(steps, steps, seeds)
def test_a_round_is_discounted_as_if_it_stood_alone(first: int, second: int, seed: int):
    generator = torch.Generator().manual_seed(seed)
    reward_TN = torch.randn(first + second, 2, generator=generator, dtype=torch.float64)
    last_N, unused_N = torch.randn(2, 2, generator=generator, dtype=torch.float64)
    cut_TN = torch.zeros_like(reward_TN, dtype=torch.bool)
    cut_TN[first - 1] = True
    first_TN = discounted(reward_TN[:first], cut_TN[:first], unused_N, gamma=0.9)
    second_TN = discounted(reward_TN[first:], cut_TN[first:], last_N, gamma=0.9)
    same(discounted(reward_TN, cut_TN, last_N, gamma=0.9), torch.cat([first_TN, second_TN]))


# --- td_error --------------------------------------------------------------------------------------------------------


def test_td_error_reads_itself():
    """1 + 0.1 x 3 - 0.5 = 0.8; where nothing follows 1 - 0.5 = 0.5."""
    reward, value, next_value = column(1, 1), column(0.5, 0.5), column(3, 3)
    same(td_error(reward, value, next_value, mask(0, 1), gamma=0.1), column(0.8, 0.5))


# --- trajectory ------------------------------------------------------------------------------------------------------


def test_a_trajectory_pays_each_step_what_its_first_is_worth():
    return_TN = numbers([1, 7], [2, 8], [3, 9], [4, 10])
    cut_TN = torch.tensor([[False, False], [True, False], [False, True], [False, False]])
    same(trajectory(return_TN, cut_TN), numbers([1, 7], [1, 7], [3, 7], [3, 10]))


def test_a_trajectory_that_is_cut_at_every_step_is_the_return_itself():
    same(trajectory(column(1, 2, 3), mask(1, 1, 1)), column(1, 2, 3))
    same(trajectory(column(1), mask(0)), column(1))


def test_a_trajectory_leaves_its_inputs_alone():
    return_TN = column(1, 2)
    trajectory(return_TN, mask(0, 0))
    same(return_TN, column(1, 2))


@repeatable
@given(steps, envs, seeds)
def test_a_trajectorys_return_is_found_by_walking_back_to_its_start(T: int, N: int, seed: int):
    segment = random_segment(T, N, seed)
    return_TN, cut_TN = segment["reward_TN"], segment["cut_TN"]
    expected_TN = torch.zeros_like(return_TN)
    for n in range(N):
        for t in range(T):
            start = t
            while start > 0 and not cut_TN[start - 1, n]:
                start -= 1
            expected_TN[t, n] = return_TN[start, n]
    same(trajectory(return_TN, cut_TN), expected_TN)


# --- n_step, longest -------------------------------------------------------------------------------------------------


def test_n_step_returns_read_themselves():
    """Rewards 1, 2, 3 and values 4, 5, 6 behind them, at gamma = 0.1."""
    reward, following, never = column(1, 2, 3), column(4, 5, 6), mask(0, 0, 0)
    same(n_step(reward, following, never, never, 0.1, 1), column(1.4, 2.5, 3.6))
    same(n_step(reward, following, never, never, 0.1, 2), column(1.25, 2.36, 3.6))
    same(n_step(reward, following, never, never, 0.1, 3), column(1.236, 2.36, 3.6))
    same(n_step(reward, following, never, never, 0.1, 9), column(1.236, 2.36, 3.6))


def test_n_step_returns_stop_at_a_cut():
    """A cut bootstraps from what follows it there, 2 + 0.5; where nothing follows, from nothing, not even NaN."""
    reward, cut = column(1, 2, 3), mask(0, 1, 0)
    same(n_step(reward, column(4, 5, 6), mask(0, 0, 0), cut, 0.1, 3), column(1.25, 2.5, 3.6))
    same(n_step(reward, column(4, float("nan"), 6), cut, cut, 0.1, 3), column(1.2, 2, 3.6))


def test_the_longest_returns_read_themselves():
    reward, following, never = column(1, 2, 3), column(4, 5, 6), mask(0, 0, 0)
    same(longest(reward, following, never, never, 0.1), column(1.236, 2.36, 3.6))
    same(longest(reward, following, never, mask(0, 1, 0), 0.1), column(1.25, 2.5, 3.6))
    same(longest(reward, column(4, float("nan"), 6), mask(0, 1, 0), mask(0, 1, 0), 0.1), column(1.2, 2, 3.6))
    same(longest(reward, column(4, 5, float("nan")), mask(0, 0, 1), mask(0, 0, 1), 0.1), column(1.23, 2.3, 3))


def test_longest_returns_leave_their_masks_alone():
    cut_TN = mask(0, 0)
    longest(column(1, 2), column(1, 2), mask(0, 0), cut_TN, 0.1)
    assert not cut_TN.any()


@repeatable
@given(steps, envs, seeds, st.integers(1, 8))
def test_n_step_is_n_rewards_and_what_follows(T: int, N: int, seed: int, count: int):
    segment, gamma = random_segment(T, N, seed), 0.9
    reward_TN, next_value_TN = segment["reward_TN"], segment["next_value_TN"]
    expected_TN = torch.zeros_like(reward_TN)
    for n in range(N):
        for t in range(T):
            for k in range(t, T):
                expected_TN[t, n] += gamma ** (k - t) * reward_TN[k, n]
                if segment["cut_TN"][k, n] or k == T - 1 or k - t + 1 == count:
                    if not segment["terminal_TN"][k, n]:
                        expected_TN[t, n] += gamma ** (k - t + 1) * next_value_TN[k, n]
                    break
    masks = segment["terminal_TN"], segment["cut_TN"]
    same(n_step(reward_TN, next_value_TN, *masks, gamma, count), expected_TN)


@repeatable
@given(steps, envs, seeds)
def test_credit_choices_meet_their_neighbours(T: int, N: int, seed: int):
    """One step is the TD error plus the value; as many as there are is the longest; GAE's ends are these two."""
    segment = random_segment(T, N, seed)
    reward_TN, value_TN, next_value_TN = segment["reward_TN"], segment["value_TN"], segment["next_value_TN"]
    terminal_TN, cut_TN = segment["terminal_TN"], segment["cut_TN"]
    one_TN = n_step(reward_TN, next_value_TN, terminal_TN, cut_TN, 0.9, 1)
    all_TN = longest(reward_TN, next_value_TN, terminal_TN, cut_TN, 0.9)
    values = reward_TN, value_TN, next_value_TN, terminal_TN
    same(one_TN - value_TN, td_error(*values, 0.9))
    same(n_step(reward_TN, next_value_TN, terminal_TN, cut_TN, 0.9, T), all_TN)
    same(all_TN - value_TN, gae(*values, cut_TN, 0.9, 1.0))


# --- gae -------------------------------------------------------------------------------------------------------------


def test_gae_reads_itself():
    """TD errors 1, 2, 3 and gamma lambda = 0.5 x 0.2 = 0.1: the advantages 1.23, 2.3, 3.

    Each step foresees 4, worth 2 at gamma = 0.5: delta = reward + 2 - value.
    """
    reward, value, following = column(5, 4, 3), column(6, 4, 2), column(4, 4, 4)
    never = mask(0, 0, 0)
    same(gae(reward, value, following, never, never, 0.5, 0.2), column(1.23, 2.3, 3))
    same(gae(reward, value, following, never, mask(0, 1, 0), 0.5, 0.2), column(1.2, 2, 3))
    same(gae(reward, value, following, mask(0, 1, 0), mask(0, 1, 0), 0.5, 0.2), column(1, 0, 3))


def test_gae_of_a_single_step_is_its_td_error():
    same(gae(column(1), column(0.5), column(3), mask(0), mask(0), 0.1, 0.95), column(0.8))


def test_truncation_must_bootstrap_from_its_own_episode():
    """A reward of 1 a step, for ever, is worth 2 at gamma = 0.5. A critic that knows this has nothing to learn.

    A time limit cuts the episode after step 1; the next one opens in a state worth 10, which the first never saw.
    """
    reward, value, never, truncated = column(1, 1, 5), column(2, 2, 10), mask(0, 0, 0), mask(0, 1, 0)
    last_value, final_value = numbers(10), column(2, 2, 10)

    def advantage(next_value: Tensor, terminal: Tensor) -> Tensor:
        return gae(reward, value, next_value, terminal, truncated, gamma=0.5, gae_lambda=1.0)

    right = next_values(value, last_value, truncated, final_value)
    same(advantage(right, never), column(0, 0, 0))
    # From obs[t+1], the next episode's first: 1 + 0.5 x 10 - 2 = 4, of which 0.5 x 4 = 2 reach the step before.
    next_episode = next_values(value, last_value, never, final_value)
    same(advantage(next_episode, never), column(2, 4, 0))
    # Not at all, as if the task had ended: 1 - 2 = -1, of which 0.5 x -1 = -0.5 reach the step before.
    same(advantage(right, truncated), column(-0.5, -1, 0))


@repeatable
@given(steps, envs, seeds, st.floats(0, 1))
def test_gae_is_the_weighted_mean_of_n_step_advantages(T: int, N: int, seed: int, lam: float):
    """Weights (1 - lambda) lambda^(n-1); the longest one, up to the cut, takes what is left (Schulman 2016, eq. 16)."""
    segment, gamma = random_segment(T, N, seed), 0.9
    del segment["last_value_N"]
    reward_TN, value_TN, next_value_TN, terminal_TN, cut_TN = segment.values()
    expected_TN = torch.zeros_like(reward_TN)
    for n in range(N):
        for t in range(T):
            collected, weight_left = 0.0, 1.0
            for k in range(t, T):
                collected += gamma ** (k - t) * reward_TN[k, n]
                ahead = 0.0 if terminal_TN[k, n] else gamma ** (k - t + 1) * next_value_TN[k, n]
                longest = cut_TN[k, n] or k == T - 1
                weight = weight_left if longest else weight_left * (1 - lam)
                expected_TN[t, n] += weight * (collected + ahead - value_TN[t, n])
                weight_left -= weight
                if longest:
                    break
    same(gae(**segment, gamma=gamma, gae_lambda=lam), expected_TN)


@repeatable
@given(steps, envs, seeds)
def test_gae_with_lambda_1_is_the_return_minus_the_value(T: int, N: int, seed: int):
    segment, gamma = random_segment(T, N, seed), 0.9
    last_value_N = segment.pop("last_value_N")
    # Where credit is cut though something follows, what follows counts as part of the reward.
    bootstrapped_TN = segment["cut_TN"] & ~segment["terminal_TN"]
    reward_TN = segment["reward_TN"] + gamma * segment["next_value_TN"] * bootstrapped_TN
    return_TN = discounted(reward_TN, segment["cut_TN"], last_value_N, gamma)
    same(gae(**segment, gamma=gamma, gae_lambda=1.0), return_TN - segment["value_TN"])


@repeatable
@given(steps, envs, seeds)
def test_gae_with_lambda_0_is_the_td_error(T: int, N: int, seed: int):
    segment = random_segment(T, N, seed)
    del segment["last_value_N"]
    advantage_TN = gae(**segment, gamma=0.9, gae_lambda=0.0)
    del segment["cut_TN"]
    same(advantage_TN, td_error(**segment, gamma=0.9))


# --- normalise -------------------------------------------------------------------------------------------------------


def test_normalise_reads_itself():
    """2 and 6: mean 4, deviation 2 (of the batch, not of a population that it samples: that would be 2.83)."""
    same(normalise(numbers(2, 6), "mean-std", epsilon=0), numbers(-1, 1))
    same(normalise(numbers(2, 6), "std", epsilon=0), numbers(1, 3))
    same(normalise(numbers(2, 6), "mean-std", epsilon=2), numbers(-0.5, 0.5))
    same(normalise(numbers(2, 6), "std", epsilon=2), numbers(0.5, 1.5))
    same(normalise(numbers(2, 6), "none"), numbers(2, 6))


def test_normalise_by_default_hardly_damps():
    torch.testing.assert_close(normalise(numbers(2, 6), "mean-std"), numbers(-1, 1))


def test_a_batch_of_one_has_no_spread():
    same(normalise(numbers(5), "mean-std"), numbers(0))


def test_normalise_takes_any_shape_as_one_batch():
    same(normalise(numbers([2, 2], [6, 6]), "mean-std", epsilon=0), numbers([-1, -1], [1, 1]))


def test_normalise_names_its_choices():
    with pytest.raises(ValueError, match="'mean-std', 'std' or 'none', not 'zscore'"):
        normalise(numbers(1, 2), "zscore")


def test_nothing_behind_a_terminal_step_is_read():
    """r = 1, V = 0, and a NaN where the next value would stand: delta = 1."""
    same(td_error(column(1), column(0), column(float("nan")), mask(1), 0.1), column(1))
