"""Policy losses, at ratios that are whole or half numbers: logp = log 3 against log 2 is a ratio of 1.5."""

import math

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.distributions import Categorical, kl_divergence

from recollect.ops.policy_loss import approx_kl, outside_clip, ppo_clip, ratio

repeatable = settings(derandomize=True, deadline=None, max_examples=50)
logps, advantages = st.floats(-3, 0), st.floats(-5, 5)


def numbers(*values: float) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


def logps_of(*ratios: float) -> tuple[Tensor, Tensor]:
    """New and old log-probabilities (of 1/4 before) with these ratios. [B], [B]"""
    old_logp_B = numbers(*[0.25] * len(ratios)).log()
    return old_logp_B + numbers(*ratios).log(), old_logp_B


def test_ratio_is_new_over_old():
    torch.testing.assert_close(ratio(numbers(3, 1).log(), numbers(2, 4).log()), numbers(1.5, 0.25))


# --- ppo_clip --------------------------------------------------------------------------------------------------------


def test_clipped_surrogate_reads_itself():
    """Clip 0.2, advantage +-2. A ratio of 1.5 counts as 1.2 only where that lowers the gain; so does 0.5 as 0.8."""
    logp_B, old_logp_B = logps_of(1.5, 1.5, 0.5, 0.5, 1.0, 1.1)
    advantage_B = numbers(2, -2, 2, -2, 3, 3)
    expected_B = numbers(-1.2 * 2, 1.5 * 2, -0.5 * 2, 0.8 * 2, -3, -1.1 * 3)
    torch.testing.assert_close(ppo_clip(logp_B, old_logp_B, advantage_B, clip_coef=0.2), expected_B)


def test_no_gradient_beyond_the_clip_on_the_favourable_side():
    """The gradient of r A by log pi is r A; beyond the clip only what leads back to it still pulls."""
    logp_B, old_logp_B = logps_of(1.5, 1.5, 0.5, 0.5, 1.1)
    logp_B.requires_grad_()
    ppo_clip(logp_B, old_logp_B, numbers(2, -2, 2, -2, 3), clip_coef=0.2).sum().backward()
    torch.testing.assert_close(logp_B.grad, numbers(0, 1.5 * 2, -0.5 * 2, 0, -1.1 * 3))


@repeatable
@given(logps, logps, advantages)
def test_a_huge_clip_is_the_plain_surrogate(logp: float, old_logp: float, advantage: float):
    loss_B = ppo_clip(numbers(logp), numbers(old_logp), numbers(advantage), clip_coef=1e9)
    torch.testing.assert_close(loss_B, numbers(-math.exp(logp - old_logp) * advantage))


@repeatable
@given(logps, logps, advantages, st.floats(0, 0.5))
def test_clipping_never_promises_more(logp: float, old_logp: float, advantage: float, clip_coef: float):
    rows = numbers(logp), numbers(old_logp), numbers(advantage)
    assert ppo_clip(*rows, clip_coef) >= ppo_clip(*rows, clip_coef=1e9)


@repeatable
@given(logps, advantages, st.floats(0, 0.5))
def test_before_the_first_update_the_loss_is_minus_the_advantage(logp: float, advantage: float, clip_coef: float):
    loss_B = ppo_clip(numbers(logp), numbers(logp), numbers(advantage), clip_coef)
    torch.testing.assert_close(loss_B, numbers(-advantage))


# --- diagnostics -----------------------------------------------------------------------------------------------------


def test_clip_fraction_counts_both_sides():
    """Of these five, 1.5 and 0.5 lie outside 0.8 .. 1.2; 0.82 does not, though 1 / 0.82 would."""
    torch.testing.assert_close(clip_fraction(*logps_of(1.5, 1, 0.5, 1.1, 0.82), clip_coef=0.2), torch.tensor(2 / 5))


def test_a_ratio_on_the_clip_is_not_outside():
    assert clip_fraction(*logps_of(1.0, 1.0), clip_coef=0.0) == 0


def test_approximate_kl_reads_itself():
    """r = 2: (2 - 1) - log 2; r = 1/2: (1/2 - 1) + log 2; their mean (1 - 1/2) / 2."""
    torch.testing.assert_close(approx_kl(*logps_of(2, 0.5)), torch.tensor(0.25, dtype=torch.float64))
    torch.testing.assert_close(approx_kl(*logps_of(2)), torch.tensor(1 - math.log(2), dtype=torch.float64))
    assert approx_kl(*logps_of(1, 1)) == 0


def test_approximate_kl_agrees_with_the_true_one():
    """Four rows drawn exactly as pi_old = (1/4, 3/4) says: their mean is the expectation, the KL of pi_old to pi."""
    old, new, action_B = numbers(0.25, 0.75), numbers(0.6, 0.4), torch.tensor([0, 1, 1, 1])
    true_kl = kl_divergence(Categorical(old), Categorical(new))
    torch.testing.assert_close(approx_kl(new.log()[action_B], old.log()[action_B]), true_kl)


@repeatable
@given(st.lists(st.tuples(logps, logps), min_size=1, max_size=5))
def test_approximate_kl_is_never_negative(rows: list[tuple[float, float]]):
    logp_B, old_logp_B = numbers(*[row[0] for row in rows]), numbers(*[row[1] for row in rows])
    assert approx_kl(logp_B, old_logp_B) >= -1e-15
