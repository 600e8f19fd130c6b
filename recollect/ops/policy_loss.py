"""What pulls a policy towards better actions. Every loss is per row ``[B]``; the caller takes the mean."""

import torch
from torch import Tensor


def ratio(logp_B: Tensor, old_logp_B: Tensor) -> Tensor:
    """Importance ratio pi(a|s) / pi_old(a|s) = exp(logp - old_logp). [B]"""
    assert logp_B.shape == old_logp_B.shape
    return (logp_B - old_logp_B).exp()


def reinforce(logp_B: Tensor, credit_B: Tensor) -> Tensor:
    """L = -log pi(a|s) G, whose gradient is the policy gradient's (Williams 1992). [B]

    ``credit``: the return, or the advantage of an actor-critic. True to the gradient only for actions that the
    present policy drew: after one step the samples belong to another.
    """
    assert logp_B.shape == credit_B.shape
    return -logp_B * credit_B


def surrogate(logp_B: Tensor, old_logp_B: Tensor, advantage_B: Tensor) -> Tensor:
    """L = -r A: what the importance ratio makes of old samples, with nothing that holds it near 1. [B]"""
    assert logp_B.shape == advantage_B.shape
    return -ratio(logp_B, old_logp_B) * advantage_B


def ppo_clip(logp_B: Tensor, old_logp_B: Tensor, advantage_B: Tensor, clip_coef: float) -> Tensor:
    """Clipped surrogate loss (Schulman et al. 2017, eq. 7). [B]

    L = -min(r A, clip(r, 1 - c, 1 + c) A): past the clip, going further in the advantage's direction earns nothing.
    """
    assert logp_B.shape == advantage_B.shape
    r_B = ratio(logp_B, old_logp_B)
    return -torch.minimum(r_B * advantage_B, r_B.clamp(1 - clip_coef, 1 + clip_coef) * advantage_B)


def outside_clip(logp_B: Tensor, old_logp_B: Tensor, clip_coef: float) -> Tensor:
    """1 where the ratio lies outside the clip, else 0; the mean is the clip fraction. float [B]"""
    return ((ratio(logp_B, old_logp_B) - 1).abs() > clip_coef).float()


def approx_kl(logp_B: Tensor, old_logp_B: Tensor) -> Tensor:
    """KL(pi_old || pi) from samples of pi_old, low in variance and never negative (Schulman, "Approximating KL"). [B]

    k3 = (r - 1) - log r. Its mean's gradient is that of the KL, so it serves as the penalty too.
    """
    log_ratio_B = logp_B - old_logp_B
    return log_ratio_B.exp() - 1 - log_ratio_B


def adapted_kl_coef(kl_coef: float, kl: float, kl_target: float) -> float:
    """The penalty's next weight (Schulman et al. 2017, sec. 4): doubled where the policy moved 1.5 times too far.

    Halved where it moved less than 1 / 1.5 of the target. Held in 1e-6..1e6, from where it can still come back.
    """
    if kl > 1.5 * kl_target:
        return min(2 * kl_coef, 1e6)
    if 1.5 * kl < kl_target:
        return max(kl_coef / 2, 1e-6)
    return kl_coef
