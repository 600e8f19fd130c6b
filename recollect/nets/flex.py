"""The band on a GPU: ``flex_attention`` with a block mask that is written down, not searched for.

Which 128 x 128 blocks the band touches follows from its width, so no T x S mask is ever made.
"""

import functools
from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask, flex_attention

SIZE = 128  # queries and keys of a block

Visible = Callable[[Tensor, Tensor, Tensor, int], Tensor]  # attention.visible, the one definition


@functools.cache
def compiled() -> Callable:
    """Compiled once; uncompiled it would make the whole T x S matrix."""
    return torch.compile(flex_attention, dynamic=False)


def block_mask(steps: int, look_back: int, mask_mod: Callable, device: torch.device) -> BlockMask:
    """Query t stands at key W + t and sees the W keys before it: the blocks from its first to its last key."""
    rows = torch.arange(-(-steps // SIZE), device=device)
    columns = -(-(steps + look_back) // SIZE)
    first, last = rows, ((rows + 1) * SIZE - 1 + look_back).clamp(max=steps + look_back - 1) // SIZE
    count = last - first + 1
    index = (first[:, None] + torch.arange(columns, device=device)).clamp(max=columns - 1)
    return BlockMask.from_kv_blocks(
        count.int()[None, None],
        index.int()[None, None],
        BLOCK_SIZE=SIZE,
        mask_mod=mask_mod,
        seq_lengths=(steps, steps + look_back),
    )


def banded_flex(
    visible: Visible,
    query_NHTd: Tensor,
    key_NHSd: Tensor,
    value_NHSe: Tensor,
    episode_NT: Tensor,
    key_episode_NS: Tensor,
    look_back: int,
) -> Tensor:
    """What ``attention.banded`` computes, without a bias. [N, H, T, e]"""

    def mask_mod(n: Tensor, h: Tensor, t: Tensor, s: Tensor) -> Tensor:
        return visible(look_back + t - s, episode_NT[n, t], key_episode_NS[n, s], look_back)

    mask = block_mask(query_NHTd.shape[2], look_back, mask_mod, query_NHTd.device)
    attention = compiled() if query_NHTd.is_cuda else flex_attention
    return attention(query_NHTd, key_NHSd, value_NHSe, block_mask=mask)
