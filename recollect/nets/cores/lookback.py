"""Look-back attention: the newest feature queries the last W features and itself; one layer, no depth.

Keys and values come straight from the encoder's features; what is found is added to the newest one.
"""

from torch import Tensor, nn

from recollect.nets.config import NetConfig
from recollect.nets.cores.stack import Attention, AttentionCore
from recollect.nets.positions import Memory


class Look(nn.Module):
    """h + attention(norm(h))."""

    def __init__(self, config: NetConfig):
        super().__init__()
        self.norm, self.attention = nn.LayerNorm(config.core_width), Attention(config.core_width, config)
        self.ring_shapes = self.attention.ring_shapes

    def forward(self, h_TND: Tensor, memory: Memory, index: int) -> Tensor:
        """[T, N, D] -> the same shape."""
        return h_TND + self.attention(self.norm(h_TND), memory, index)


class LookBack(AttentionCore):
    """One look, whatever ``core_layers`` says; the norm keeps its scores finite."""

    def __init__(self, width: int, config: NetConfig):
        super().__init__(width, config, [Look(config)])
