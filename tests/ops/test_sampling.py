"""Actions from given noise: exact at chosen draws, in distribution over a fine grid of them. Densities: as torch's."""

import math

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.distributions import Categorical, Independent, Normal

from recollect.ops.sampling import (
    categorical_entropy,
    categorical_logp,
    categorical_sample,
    gaussian_entropy,
    gaussian_logp,
    gaussian_sample,
)

repeatable = settings(derandomize=True, deadline=None, max_examples=30)
shapes = st.lists(st.integers(1, 3), max_size=2).map(tuple)  # of the batch: none, B, or T and N
widths, seeds = st.integers(1, 5), st.integers(0, 2**32 - 1)


def numbers(*values: object) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


# --- categorical -----------------------------------------------------------------------------------------------------


def test_a_draw_close_to_one_never_chooses_the_impossible():
    """The last action is masked; a rounded cumulative sum below 1 must not let a draw of 1 - 2^-24 fall on it."""
    logits_BA = torch.cat([normal(1000, 5).float(), torch.full([1000, 1], -math.inf)], -1)
    action_B = categorical_sample(logits_BA, torch.full([1000], 1 - 2**-24))
    assert categorical_logp(logits_BA, action_B).isfinite().all()


def test_each_draw_falls_to_its_share():
    """Probabilities 1/4, 1/2, 1/4: the shares are [0, 0.25), [0.25, 0.75), [0.75, 1)."""
    uniform_B = numbers(0, 0.2, 0.3, 0.7, 0.8, 0.99)
    logits_BA = numbers(1, 2, 1).log().expand(6, 3)
    assert categorical_sample(logits_BA, uniform_B).tolist() == [0, 0, 1, 1, 2, 2]


def test_a_draw_on_a_boundary_falls_to_the_next_share():
    """So that 0, which a uniform draw can be, never chooses an action of probability zero."""
    assert categorical_sample(numbers(-math.inf, 0, 0), numbers(0).squeeze()) == 1
    assert categorical_sample(numbers([0, 0]), numbers(0.5)).tolist() == [1]


def test_a_draw_close_to_one_stays_inside_the_action_set():
    """Float32 rounding leaves many rows' cumulative sum below the largest draw under one, 1 - 2^-24."""
    logits_BA = normal(1000, 6).float()
    uniform_B = torch.full([1000], 1 - 2**-24)
    assert (logits_BA.softmax(-1).cumsum(-1)[:, -1] <= uniform_B).any(), "no row puts it to the test"
    assert categorical_sample(logits_BA, uniform_B).tolist() == [5] * 1000


def test_frequencies_are_the_softmax():
    logits_A, draws = normal(4), 10_000
    uniform_B = (torch.arange(draws, dtype=torch.float64) + 0.5) / draws
    frequency_A = categorical_sample(logits_A.expand(draws, 4), uniform_B).bincount(minlength=4) / draws
    torch.testing.assert_close(frequency_A.double(), logits_A.softmax(-1), rtol=0, atol=1.5 / draws)


@repeatable
@given(shapes, widths, seeds)
def test_every_row_is_drawn_by_itself(shape: tuple[int, ...], A: int, seed: int):
    logits_BA = normal(*shape, A, seed=seed)
    uniform_B = torch.rand(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    action_B = categorical_sample(logits_BA, uniform_B)
    assert action_B.shape == shape
    assert action_B.dtype == torch.int64
    for row, uniform, action in zip(logits_BA.reshape(-1, A), uniform_B.ravel(), action_B.ravel(), strict=True):
        below = row.softmax(-1)[:action].sum()
        assert below <= uniform < below + row.softmax(-1)[action] + 1e-12


def test_categorical_logp_and_entropy_read_themselves():
    """Of 1/4, 3/4 the second has log 3/4; the entropy of n equal actions is log n, of a sure one 0."""
    torch.testing.assert_close(categorical_logp(numbers([1, 3]).log(), torch.tensor([1])), numbers(0.75).log())
    torch.testing.assert_close(categorical_entropy(numbers([2, 2, 2, 2])), numbers(4).log())
    torch.testing.assert_close(categorical_entropy(numbers([0, 100])), numbers(0))


@repeatable
@given(shapes, widths, seeds)
def test_categorical_logp_and_entropy_are_those_of_torch(shape: tuple[int, ...], A: int, seed: int):
    logits_BA = normal(*shape, A, seed=seed)
    action_B = torch.randint(A, shape, generator=torch.Generator().manual_seed(seed))
    oracle = Categorical(logits=logits_BA)
    torch.testing.assert_close(categorical_logp(logits_BA, action_B), oracle.log_prob(action_B))
    torch.testing.assert_close(categorical_entropy(logits_BA), oracle.entropy())


# --- Gaussian --------------------------------------------------------------------------------------------------------


def test_gaussian_sample_reads_itself():
    """Means 1 and 2, deviations 2 and 3, noise 10 and -1: 1 + 20 and 2 - 3."""
    action_BA = gaussian_sample(numbers([1, 2]), numbers(2, 3).log(), numbers([10, -1]))
    torch.testing.assert_close(action_BA, numbers([21, -1]))


def test_gaussian_logp_and_entropy_read_themselves():
    """At the mean of a standard normal -log(2 pi) / 2 a dimension, one deviation away 1/2 less."""
    half_log_2pi = math.log(2 * math.pi) / 2
    zeros = numbers([0, 0])
    torch.testing.assert_close(gaussian_logp(zeros, zeros[0], zeros), numbers(-2 * half_log_2pi))
    torch.testing.assert_close(gaussian_logp(zeros, zeros[0], numbers([1, 0])), numbers(-2 * half_log_2pi - 0.5))
    torch.testing.assert_close(gaussian_entropy(zeros[0]), numbers(1 + 2 * half_log_2pi).squeeze())


@repeatable
@given(shapes, widths, seeds)
def test_gaussian_logp_and_entropy_are_those_of_torch(shape: tuple[int, ...], A: int, seed: int):
    mean_BA, action_BA, log_std_A = normal(*shape, A, seed=seed), normal(*shape, A, seed=seed + 1), normal(A, seed=seed)
    oracle = Independent(Normal(mean_BA, log_std_A.exp()), 1)
    torch.testing.assert_close(gaussian_logp(mean_BA, log_std_A, action_BA), oracle.log_prob(action_BA))
    torch.testing.assert_close(gaussian_entropy(log_std_A).expand(shape), oracle.entropy())


def test_each_row_may_bring_its_own_deviations():
    mean_BA, action_BA, log_std_BA = normal(4, 3, seed=1), normal(4, 3, seed=2), normal(4, 3, seed=3)
    oracle = Independent(Normal(mean_BA, log_std_BA.exp()), 1)
    torch.testing.assert_close(gaussian_logp(mean_BA, log_std_BA, action_BA), oracle.log_prob(action_BA))
    torch.testing.assert_close(gaussian_entropy(log_std_BA), oracle.entropy())


def test_gradients_reach_mean_and_deviation():
    """Of log p by the mean z / std, by log std z^2 - 1; at std 2 and z = 3 these are 1.5 and 8."""
    mean_BA, log_std_A = numbers([1]).requires_grad_(), numbers(2).log().requires_grad_()
    gaussian_logp(mean_BA, log_std_A, numbers([7])).sum().backward()
    torch.testing.assert_close(mean_BA.grad, numbers([1.5]))
    torch.testing.assert_close(log_std_A.grad, numbers(8))
