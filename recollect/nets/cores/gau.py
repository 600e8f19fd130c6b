"""Gated attention units (Hua et al. 2022, "Transformer Quality in Linear Time"): attention and feed-forward in one.

Its one head has weak keys, a scale and a shift of one shared projection: the gate does the rest.
"""

import torch
from torch import Tensor, nn

from recollect.nets.config import NetConfig
from recollect.nets.cores.stack import AttentionCore
from recollect.nets.init import orthogonal
from recollect.nets.positions import POSITIONS, Memory

EXPANSION = 2  # the paper's e = 2 d


class Unit(nn.Module):
    """h + W_o (u * attention(q, k, v)), with u, v, z = silu(W norm(h)), q and k a scale and a shift of z.

    Weights are softmax(q k) or the mean over what is seen of relu(q k)^2, the paper's own, which has no exponentials.
    """

    def __init__(self, config: NetConfig):
        super().__init__()
        width, inner = config.core_width, EXPANSION * config.core_width
        self.squared, self.detached = config.core_attention == "relu2", config.core_detached
        self.norm = nn.LayerNorm(width)
        self.gate, self.value, self.shared = (orthogonal(nn.Linear(width, n)) for n in (inner, inner, width))
        self.out = orthogonal(nn.Linear(inner, width), 1.0)
        self.scale, self.shift = nn.Parameter(torch.ones(2, width)), nn.Parameter(torch.zeros(2, width))
        self.positions = POSITIONS[config.core_positions](1, width, config.look_back)
        self.ring_shapes = ((1, width), (1, inner))

    def forward(self, h_TND: Tensor, memory: Memory, index: int) -> Tensor:
        """[T, N, D] -> the same shape."""
        x_TND = self.norm(h_TND)
        remembered_TND = x_TND.detach() if self.detached else x_TND
        silu = nn.functional.silu
        gate, value = silu(self.gate(x_TND)), silu(self.value(remembered_TND))
        query, key = (
            (silu(self.shared(part)) * self.scale[i] + self.shift[i]).to(value.dtype)
            for i, part in enumerate((x_TND, remembered_TND))
        )
        query, key, by_age = self.positions(query[:, :, None], key[:, :, None], memory)
        found = memory.read(index, query, key, value[:, :, None], by_age, self.squared)
        return h_TND + self.out(gate * found.flatten(-2))


class GAU(AttentionCore):
    """``core_layers`` units."""

    def __init__(self, width: int, config: NetConfig):
        super().__init__(width, config, [Unit(config) for _ in range(config.core_layers)])
