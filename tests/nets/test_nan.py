"""Where a Transformer with normalised advantages could turn to NaN, and why none of those ways is open here.

The source's way was the first: its minibatches for the Transformer, and only for it, are cut where an episode ends, so
that one is now and then a single row; it scaled each by the deviation with n - 1 in the denominator, 0 / 0. A softmax
over nothing is the second; test_attention.py shows that every row, padding too, sees itself. The third is features
that run away.
"""

import pytest
import torch
from parity import ATTENTION, CPU, build, inputs

from recollect.nets.config import NetConfig
from recollect.nets.cores import CORES
from recollect.ops.returns import normalise


@pytest.mark.filterwarnings("ignore:std")
@pytest.mark.parametrize("how", ["mean-std", "std"])
@pytest.mark.parametrize("rows", [1, 2, 64])
def test_rows_without_spread_have_finite_advantages(how: str, rows: int):
    if rows == 1:
        assert torch.full((rows,), 0.7).std().isnan(), "what the source divided by"
    scaled = normalise(torch.full((rows,), 0.5), how)
    assert scaled.isfinite().all()
    assert how == "std" or torch.equal(scaled, torch.zeros(rows))


@pytest.mark.parametrize("scale", [1e-6, 1e4, 1e12])
@pytest.mark.parametrize("name", ATTENTION)
def test_features_of_any_size_give_bounded_outputs_and_finite_gradients(name: str, scale: float):
    """The last norm bounds what the heads read: logits cannot overflow, however far the embedding runs away."""
    core = build(name, 2, look_back=6)
    x_TND, reset_TN = inputs(30, 3, resets=0.1)
    y_TND = core(x_TND * scale, core.initial_state(3, CPU), reset_TN)
    assert y_TND.norm(dim=-1).max() < 3 * core.width**0.5
    y_TND.square().sum().backward()
    assert all(weight.grad.isfinite().all() for weight in core.parameters())


@pytest.mark.parametrize("name", ATTENTION)
def test_features_of_nothing_but_zeros_are_no_division_by_zero(name: str):
    core = CORES[name](12, NetConfig(core=name, core_width=32, core_heads=4, core_layers=2, look_back=6))
    x_TND, reset_TN = inputs(20, 2)
    y_TND = core(x_TND * 0, core.initial_state(2, CPU), reset_TN)
    assert y_TND.isfinite().all()
    y_TND.sum().backward()
    assert all(weight.grad is None or weight.grad.isfinite().all() for weight in core.parameters())


def test_the_embedding_is_born_orthogonal_with_gain_root_two():
    """As the source asks: each feature's length is kept, times sqrt(2)."""
    weight = CORES["transformer"](12, NetConfig(core="transformer")).embed.weight
    torch.testing.assert_close(weight.T @ weight, 2 * torch.eye(12), rtol=1e-5, atol=1e-5)
