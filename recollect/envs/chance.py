"""Chance for environments on tensors: numbers that are a function of (environment's key, when, which), not of order.

Every environment has a key of its own, so half a batch draws what the whole one draws for it, on any device, and
nothing needs to be saved but the key and a counter.
"""

import torch
from torch import Tensor

from recollect.rng import stream_seed

GOLDEN = -1640531527  # 2^32 / golden ratio, as int32: spreads neighbouring counters over all bits
RESOLUTION = 2**24  # float32 tells no more numbers in 0..1 apart


def keys(seed: int, first_env: int, num_envs: int, device: torch.device) -> Tensor:
    """One key an environment, from its stream (seed, "env", index). int32 [N]"""
    streams = [stream_seed(seed, "env", env) for env in range(first_env, first_env + num_envs)]
    return torch.tensor(streams, dtype=torch.int32, device=device)


def _shifted(x: Tensor, by: int) -> Tensor:
    """Logical shift to the right; torch's own keeps the sign of int32."""
    return (x >> by) & ((1 << (32 - by)) - 1)


def scramble(x: Tensor) -> Tensor:
    """A permutation of the int32 numbers in which every bit depends on every other (Wellons, "lowbias32")."""
    x = (x ^ _shifted(x, 16)) * 0x7FEB352D
    x = (x ^ _shifted(x, 15)) * -2073254261  # 0x846CA68B
    return x ^ _shifted(x, 16)


def uniform(key_N: Tensor, when_N: Tensor, which_K1: Tensor) -> Tensor:
    """Numbers in [0, 1). key, when: int32 [N]; which: int32 [K, 1], the purposes of the draws -> float32 [K, N]"""
    moment_N = scramble(key_N ^ scramble(when_N * GOLDEN))
    return _shifted(scramble(moment_N + which_K1 * GOLDEN), 8).float() * (1 / RESOLUTION)
