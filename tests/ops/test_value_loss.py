"""Value losses, in halves of small squares."""

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from recollect.ops.value_loss import explained_variance, squared, squared_clipped

repeatable = settings(derandomize=True, deadline=None, max_examples=50)
values = st.floats(-5, 5)


def numbers(*values: float) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


def test_squared_reads_itself():
    """3^2 / 2 and (-4)^2 / 2."""
    torch.testing.assert_close(squared(numbers(5, 1), numbers(2, 5)), numbers(4.5, 8))


# --- squared_clipped -------------------------------------------------------------------------------------------------


def test_the_clipped_loss_takes_the_worse_of_two():
    """Clip 1. The value moved by 3 towards a target 2 further on: held at 1, it misses by 4: 4^2 / 2, either way.

    Away from the target it counts in full: 3^2 / 2. Within the clip nothing is held: (1/2)^2 / 2.
    """
    value_B, old_value_B = numbers(13, 7, 13, 10.5), numbers(10, 10, 10, 10)
    target_B = numbers(15, 5, 10, 11)
    torch.testing.assert_close(squared_clipped(value_B, old_value_B, target_B, 1.0), numbers(8, 8, 4.5, 0.125))


def test_a_held_value_gets_no_gradient():
    """The gradient is value - target where the value itself counts, and zero where the clip holds it."""
    value_B = numbers(13, 7, 13, 10.5).requires_grad_()
    squared_clipped(value_B, numbers(10, 10, 10, 10), numbers(15, 5, 10, 11), 1.0).sum().backward()
    torch.testing.assert_close(value_B.grad, numbers(0, 0, 3, -0.5))


@repeatable
@given(values, values, values)
def test_a_huge_clip_is_the_squared_loss(value: float, old_value: float, target: float):
    value_B, target_B = numbers(value), numbers(target)
    torch.testing.assert_close(squared_clipped(value_B, numbers(old_value), target_B, 1e9), squared(value_B, target_B))


@repeatable
@given(values, values, values)
def test_with_no_clip_at_all_the_old_value_counts_too(value: float, old_value: float, target: float):
    loss_B = squared_clipped(numbers(value), numbers(old_value), numbers(target), 0.0)
    expected = max(squared(numbers(value), numbers(target)), squared(numbers(old_value), numbers(target)))
    torch.testing.assert_close(loss_B, expected)


# --- explained_variance ----------------------------------------------------------------------------------------------


def test_explained_variance_reads_itself():
    """Targets 0.2 and 0.6 have variance 0.04; what 0.1 and 0.3 leave over has 0.01: three quarters are explained."""
    target = numbers(0.2, 0.6)
    torch.testing.assert_close(explained_variance(numbers(0.1, 0.3), target), numbers(0.75).squeeze())
    torch.testing.assert_close(explained_variance(target, target), numbers(1).squeeze())
    torch.testing.assert_close(explained_variance(numbers(9, 9), target), numbers(0).squeeze())
    # Twice the target's swing, the wrong way: what is left has 3^2 = 9 times its variance.
    torch.testing.assert_close(explained_variance(numbers(0.6, -0.2), target), numbers(1 - 9).squeeze())


def test_of_a_constant_target_nothing_is_divided_by_zero():
    constant = numbers(2, 2)
    assert explained_variance(numbers(3, 3), constant) == 1
    assert -float("inf") < explained_variance(numbers(1, 3), constant) < 0


def test_explained_variance_takes_any_shape():
    value, target = torch.randn(2, 3, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    torch.testing.assert_close(explained_variance(value, target), explained_variance(value.ravel(), target.ravel()))
