"""Policy losses, at ratios that are whole or half numbers: logp = log 3 against log 2 is a ratio of 1.5."""

import math

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.distributions import Categorical, kl_divergence

from recollect.ops.policy_loss import (
    adapted_kl_coef,
    approx_kl,
    outside_clip,
    ppo_clip,
    ratio,
    reinforce,
    surrogate,
)

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


# --- reinforce, surrogate --------------------------------------------------------------------------------------------


def test_reinforce_reads_itself():
    """log(1/4) paid 2: the loss 2 log 4, its gradient by log pi minus the pay."""
    logp_B = numbers(0.25, 0.5).log().requires_grad_()
    loss_B = reinforce(logp_B, numbers(2, -1))
    torch.testing.assert_close(loss_B, numbers(2 * math.log(4), -math.log(2)))
    loss_B.sum().backward()
    torch.testing.assert_close(logp_B.grad, numbers(-2, 1))


def test_surrogate_reads_itself():
    torch.testing.assert_close(surrogate(*logps_of(1.5, 0.5, 1), numbers(2, 2, -3)), numbers(-3, -1, 3))


@repeatable
@given(logps, advantages)
def test_before_the_first_step_the_surrogate_pulls_as_the_policy_gradient_does(logp: float, advantage: float):
    logp_B, credit_B = numbers(logp).requires_grad_(), numbers(advantage)
    (by_ratio,) = torch.autograd.grad(surrogate(logp_B, logp_B.detach(), credit_B).sum(), logp_B)
    (by_logp,) = torch.autograd.grad(reinforce(logp_B, credit_B).sum(), logp_B)
    torch.testing.assert_close(by_ratio, by_logp)


@repeatable
@given(logps, logps, advantages)
def test_a_huge_clip_is_no_clip(logp: float, old_logp: float, advantage: float):
    rows = numbers(logp), numbers(old_logp), numbers(advantage)
    torch.testing.assert_close(ppo_clip(*rows, clip_coef=1e9), surrogate(*rows))


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


def test_outside_the_clip_on_both_sides():
    """Of these five, 1.5 and 0.5 lie outside 0.8 .. 1.2; 0.82 does not, though 1 / 0.82 would."""
    outside_B = outside_clip(*logps_of(1.5, 1, 0.5, 1.1, 0.82), clip_coef=0.2)
    assert outside_B.tolist() == [1, 0, 1, 0, 0]
    assert outside_B.dtype == torch.float32


def test_a_ratio_on_the_clip_is_not_outside():
    assert outside_clip(*logps_of(1.0, 1.0), clip_coef=0.0).sum() == 0


def test_approximate_kl_reads_itself():
    """r = 2: (2 - 1) - log 2; r = 1/2: (1/2 - 1) + log 2; r = 1: nothing."""
    expected_B = numbers(1 - math.log(2), math.log(2) - 0.5, 0)
    torch.testing.assert_close(approx_kl(*logps_of(2, 0.5, 1)), expected_B)


def test_approximate_kl_agrees_with_the_true_one():
    """Four rows drawn exactly as pi_old = (1/4, 3/4) says: their mean is the expectation, the KL of pi_old to pi."""
    old, new, action_B = numbers(0.25, 0.75), numbers(0.6, 0.4), torch.tensor([0, 1, 1, 1])
    true_kl = kl_divergence(Categorical(old), Categorical(new))
    torch.testing.assert_close(approx_kl(new.log()[action_B], old.log()[action_B]).mean(), true_kl)


def test_its_gradient_is_the_true_ones():
    """So that it may serve as a penalty."""
    old, action_B = numbers(0.25, 0.75), torch.tensor([0, 1, 1, 1])
    logits = numbers(0.3, -0.2).requires_grad_()
    kl_divergence(Categorical(old), Categorical(logits=logits)).backward()
    assert logits.grad is not None
    expected, logits.grad = logits.grad, None
    approx_kl(logits.log_softmax(-1)[action_B], old.log()[action_B]).mean().backward()
    torch.testing.assert_close(logits.grad, expected)


@repeatable
@given(st.lists(st.tuples(logps, logps), min_size=1, max_size=5))
def test_approximate_kl_is_never_negative(rows: list[tuple[float, float]]):
    logp_B, old_logp_B = numbers(*[row[0] for row in rows]), numbers(*[row[1] for row in rows])
    assert (approx_kl(logp_B, old_logp_B) >= -1e-15).all()


# --- the penalty's weight --------------------------------------------------------------------------------------------


def test_the_penalty_doubles_where_the_policy_went_too_far_and_halves_where_it_hardly_moved():
    """Target 2: too far is above 3, hardly is below 4/3."""
    moved = [4.0, 3.0, 2.0, 1.4, 1.3, 0.0]
    assert [adapted_kl_coef(5.0, kl, 2.0) for kl in moved] == [10, 5, 5, 5, 2.5, 2.5]
    assert adapted_kl_coef(8.0, 3.0, 4.5) == 8.0, "on the edge below it stays, too"


def test_the_penalty_keeps_a_weight_from_which_it_can_come_back():
    assert adapted_kl_coef(8e5, 1.0, 0.01) == 1e6
    assert adapted_kl_coef(1e6, 1.0, 0.01) == 1e6
    assert adapted_kl_coef(1.5e-6, 0.0, 0.01) == 1e-6
    assert adapted_kl_coef(1e-6, 0.0, 0.01) == 1e-6
