"""What pulls a policy towards better actions. Every loss is per row ``[B]``; the caller takes the mean."""

import torch
from torch import Tensor


def ratio(logp_B: Tensor, old_logp_B: Tensor) -> Tensor:
    """Importance ratio pi(a|s) / pi_old(a|s) = exp(logp - old_logp). [B]"""
    assert logp_B.shape == old_logp_B.shape
    return (logp_B - old_logp_B).exp()


def ppo_clip(logp_B: Tensor, old_logp_B: Tensor, advantage_B: Tensor, clip_coef: float) -> Tensor:
    """Clipped surrogate loss (Schulman et al. 2017, eq. 7). [B]

    L = -min(r A, clip(r, 1 - c, 1 + c) A): past the clip, going further in the advantage's direction earns nothing.
    """
    assert logp_B.shape == advantage_B.shape
    r_B = ratio(logp_B, old_logp_B)
    return -torch.minimum(r_B * advantage_B, r_B.clamp(1 - clip_coef, 1 + clip_coef) * advantage_B)


def clip_fraction(logp_B: Tensor, old_logp_B: Tensor, clip_coef: float) -> Tensor:
    """Share of rows whose ratio lies outside the clip. []"""
    return ((ratio(logp_B, old_logp_B) - 1).abs() > clip_coef).float().mean()


def approx_kl(logp_B: Tensor, old_logp_B: Tensor) -> Tensor:
    """KL(pi_old || pi) from samples of pi_old, low in variance and never negative (Schulman, "Approximating KL"). []

    k3 = mean((r - 1) - log r)
    """
    log_ratio_B = logp_B - old_logp_B
    return (log_ratio_B.exp() - 1 - log_ratio_B).mean()
