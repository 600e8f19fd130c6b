"""What pulls a value towards its target. Every loss is per row ``[B]``; the caller takes the mean."""

import torch
from torch import Tensor


def squared(value_B: Tensor, target_B: Tensor) -> Tensor:
    """L = (V - target)^2 / 2. [B]"""
    assert value_B.shape == target_B.shape
    return 0.5 * (value_B - target_B) ** 2


def squared_clipped(value_B: Tensor, old_value_B: Tensor, target_B: Tensor, clip_coef: float) -> Tensor:
    """The squared loss with the value held within ``clip_coef`` of its old self. [B]

    L = max((V - target)^2, (V_old + clip(V - V_old, -c, c) - target)^2) / 2
    """
    assert value_B.shape == old_value_B.shape == target_B.shape
    held_B = old_value_B + (value_B - old_value_B).clamp(-clip_coef, clip_coef)
    return torch.maximum(squared(value_B, target_B), squared(held_B, target_B))


def explained_variance(value: Tensor, target: Tensor) -> Tensor:
    """1 - Var(target - value) / Var(target): 1 is perfect, 0 is a constant's worth. []"""
    assert value.shape == target.shape
    variance = target.var(correction=0)
    return 1 - (target - value).var(correction=0) / variance.clamp_min(1e-8)
