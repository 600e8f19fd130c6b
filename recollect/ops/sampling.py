"""Actions from given noise, their log-probability and entropy. Randomness is an argument, never drawn here."""

import math

from torch import Tensor

HALF_LOG_2PI = 0.5 * math.log(2 * math.pi)


def categorical_sample(logits_BA: Tensor, uniform_B: Tensor) -> Tensor:
    """The action at which the cumulative probability first exceeds the uniform draw. int64 [B]

    Inverse transform: one number a row instead of one a row and action. Rounding may leave the last cumulative sum
    off 1; scaling the draw by it keeps every draw inside the action set and off actions of probability zero.
    """
    assert logits_BA.shape[:-1] == uniform_B.shape
    cumulative_BA = logits_BA.softmax(-1).cumsum(-1)
    return (cumulative_BA <= uniform_B[..., None] * cumulative_BA[..., -1:]).sum(-1)


def categorical_logp(logits_BA: Tensor, action_B: Tensor) -> Tensor:
    """log softmax(logits)[action]. [B]"""
    return logits_BA.log_softmax(-1).gather(-1, action_B[..., None]).squeeze(-1)


def categorical_entropy(logits_BA: Tensor) -> Tensor:
    """-sum_a p log p. [B]"""
    logp_BA = logits_BA.log_softmax(-1)
    return -(logp_BA.exp() * logp_BA).sum(-1)


def gaussian_sample(mean_BA: Tensor, log_std_A: Tensor, normal_BA: Tensor) -> Tensor:
    """mean + std * normal. [B, A]"""
    return mean_BA + log_std_A.exp() * normal_BA


def gaussian_logp(mean_BA: Tensor, log_std_A: Tensor, action_BA: Tensor) -> Tensor:
    """Log-density of a diagonal Gaussian, summed over action dimensions. [B]

    log p = sum_a -((x - mean) / std)^2 / 2 - log std - log(2 pi) / 2
    """
    z_BA = (action_BA - mean_BA) * (-log_std_A).exp()
    return (-0.5 * z_BA**2 - log_std_A - HALF_LOG_2PI).sum(-1)


def gaussian_entropy(log_std_A: Tensor) -> Tensor:
    """Entropy of a diagonal Gaussian: sum_a log std + (1 + log(2 pi)) / 2. [] from [A]"""
    return (log_std_A + 0.5 + HALF_LOG_2PI).sum(-1)
