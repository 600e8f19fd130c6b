"""A Transformer over a band of past steps (Vaswani et al. 2017).

The reference is the source's: one block of width 128, 8 heads, rotary positions.
"""

from torch import Tensor, nn

from recollect.nets.config import NetConfig
from recollect.nets.cores.stack import Attention, AttentionCore, feed_forward
from recollect.nets.positions import Memory


class Block(nn.Module):
    """Attention, then a feed-forward layer, each added to what came in.

    pre:  h = h + f(norm(h))    the gradient has a straight way down
    post: h = norm(h + f(h))    as in the original
    """

    def __init__(self, config: NetConfig):
        super().__init__()
        self.pre = config.core_norm == "pre"
        self.attention, self.wide = Attention(config.core_width, config), feed_forward(config.core_width)
        self.first, self.second = nn.LayerNorm(config.core_width), nn.LayerNorm(config.core_width)
        self.ring_shapes = self.attention.ring_shapes

    def forward(self, h_TND: Tensor, memory: Memory, index: int) -> Tensor:
        """[T, N, D] -> the same shape."""
        if self.pre:
            h_TND = h_TND + self.attention(self.first(h_TND), memory, index)
            return h_TND + self.wide(self.second(h_TND))
        h_TND = self.first(h_TND + self.attention(h_TND, memory, index))
        return self.second(h_TND + self.wide(h_TND))


class Transformer(AttentionCore):
    """``core_layers`` blocks, and after pre-norm ones a last norm."""

    def __init__(self, width: int, config: NetConfig):
        blocks: list[nn.Module] = [Block(config) for _ in range(config.core_layers)]
        super().__init__(width, config, blocks, normed=config.core_norm == "pre")
