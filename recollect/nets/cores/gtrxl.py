"""GTrXL, the gated Transformer-XL (Parisotto et al. 2019, "Stabilizing Transformers for RL").

Identity map reordering (norms inside the branches), relative positions of Transformer-XL, and gates that let a fresh
network begin as if there were no attention at all. ``core_gated=false`` leaves the gates out: only its memory.
"""

import torch
from torch import Tensor, nn

from recollect.nets.config import NetConfig
from recollect.nets.cores.stack import Attention, AttentionCore, feed_forward
from recollect.nets.init import orthogonal
from recollect.nets.positions import Memory, TransformerXL

GATE_BIAS = 2.0  # the paper's b_g: closed at the start


class Gate(nn.Module):
    """g(x, y) = (1 - z) x + z tanh(W_g y + U_g (r x)), r and z as in a GRU with -b_g in z (sec. 3.2)."""

    def __init__(self, width: int):
        super().__init__()
        self.from_y = orthogonal(nn.Linear(width, 3 * width, bias=False), 1.0)
        self.from_x = orthogonal(nn.Linear(width, 2 * width, bias=False), 1.0)
        self.from_kept = orthogonal(nn.Linear(width, width, bias=False), 1.0)
        self.bias = nn.Parameter(torch.full((width,), GATE_BIAS))

    def forward(self, x_TND: Tensor, y_TND: Tensor) -> Tensor:
        """x: the stream, y: what the branch says; [T, N, D] each -> [T, N, D]"""
        (ry, zy, gy), (rx, zx) = self.from_y(y_TND).float().chunk(3, -1), self.from_x(x_TND).float().chunk(2, -1)
        z = (zy + zx - self.bias).sigmoid()
        new = (gy + self.from_kept((ry + rx).sigmoid() * x_TND)).tanh()
        return (1 - z) * x_TND + z * new


class Sum(nn.Module):
    """No gate: x + y."""

    def forward(self, x_TND: Tensor, y_TND: Tensor) -> Tensor:
        """[T, N, D] each -> [T, N, D]"""
        return x_TND + y_TND


class GatedBlock(nn.Module):
    """h = g1(h, relu(attention(norm(h)))), then h = g2(h, relu(feed_forward(norm(h)))) (eq. 5 to 8)."""

    def __init__(self, config: NetConfig):
        super().__init__()
        width = config.core_width
        self.attention, self.wide = Attention(width, config, TransformerXL), feed_forward(width)
        self.first, self.second = nn.LayerNorm(width), nn.LayerNorm(width)
        self.gates = nn.ModuleList(Gate(width) if config.core_gated else Sum() for _ in range(2))
        self.ring_shapes = self.attention.ring_shapes

    def forward(self, h_TND: Tensor, memory: Memory, index: int) -> Tensor:
        """[T, N, D] -> the same shape."""
        first, second = self.gates
        h_TND = first(h_TND, self.attention(self.first(h_TND), memory, index).relu())
        return second(h_TND, self.wide(self.second(h_TND)).relu())


class GTrXL(AttentionCore):
    """``core_layers`` gated blocks. Past steps' keys take no gradient where ``core_detached``."""

    def __init__(self, width: int, config: NetConfig):
        super().__init__(width, config, [GatedBlock(config) for _ in range(config.core_layers)])
