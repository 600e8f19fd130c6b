"""How a query knows how old a key is: by distance only, so that a step means the same in any segment or buffer.

Each way maps (query, key, memory) to (query, key, by_age): keys and queries as they are attended with, and a bias for
each age 0..W or None. Shapes as in ``attention.py``: [T, N, H, d] and [N or 1, H, T or 1, W + 1].
"""

import math

import torch
from torch import Tensor, nn

from recollect.nets.attention import Acting, Segment, rotate, rotation
from recollect.nets.init import orthogonal

Memory = Acting | Segment
Placed = tuple[Tensor, Tensor, Tensor | None]


class NoPositions(nn.Module):
    """A set of past steps, in no order."""

    def __init__(self, heads: int, head_width: int, look_back: int):
        super().__init__()

    def forward(self, query: Tensor, key: Tensor, memory: Memory) -> Placed:
        """[T, N, H, d] each, unchanged."""
        return query, key, None


class Rotary(NoPositions):
    """Queries and keys turned by the episode's clock (Su et al. 2021): their product knows the difference."""

    def __init__(self, heads: int, head_width: int, look_back: int):
        super().__init__(heads, head_width, look_back)
        if head_width % 2:
            raise ValueError(f"core_positions 'rotary' turns pairs of features: a head's width {head_width} is odd")

    def forward(self, query: Tensor, key: Tensor, memory: Memory) -> Placed:
        """[T, N, H, d] each, turned."""
        turn = rotation(memory.clock_TN, query.shape[-1])
        return rotate(query, turn), rotate(key, turn), None


class RelativeBias(NoPositions):
    """A learned number for each head and distance (Raffel et al. 2020, T5, without its buckets)."""

    def __init__(self, heads: int, head_width: int, look_back: int):
        super().__init__(heads, head_width, look_back)
        self.bias = nn.Parameter(torch.zeros(1, heads, 1, look_back + 1))

    def forward(self, query: Tensor, key: Tensor, memory: Memory) -> Placed:
        """by_age: [1, H, 1, A]"""
        return query, key, self.bias


class LearnedDistance(NoPositions):
    """A learned vector for each distance, added to the key (Shaw et al. 2018)."""

    def __init__(self, heads: int, head_width: int, look_back: int):
        super().__init__(heads, head_width, look_back)
        self.distance = nn.Parameter(torch.randn(heads, look_back + 1, head_width) * 0.02)

    def forward(self, query: Tensor, key: Tensor, memory: Memory) -> Placed:
        """by_age: [N, H, T, A]"""
        return query, key, _by_age(query, self.distance)


class TransformerXL(NoPositions):
    """(q + u) k + (q + v) R[age], R from sinusoids of the distance (Dai et al. 2019, eq. 5), as GTrXL has it."""

    def __init__(self, heads: int, head_width: int, look_back: int):
        super().__init__(heads, head_width, look_back)
        width = heads * head_width
        self.heads = heads
        self.content = nn.Parameter(torch.zeros(heads, head_width))
        self.place = nn.Parameter(torch.zeros(heads, head_width))
        self.project = orthogonal(nn.Linear(width, width, bias=False), 1.0)
        age_A1 = torch.arange(look_back + 1)[:, None]
        angle = age_A1 * 10_000.0 ** (-torch.arange(0, width, 2) / width)
        waves_AD = torch.cat([angle.sin(), angle.cos()], -1)[:, :width]
        self.register_buffer("waves_AD", waves_AD, persistent=False)

    def forward(self, query: Tensor, key: Tensor, memory: Memory) -> Placed:
        """by_age: [N, H, T, A]"""
        distance_HAd = self.project(self.waves_AD).unflatten(-1, (self.heads, -1)).transpose(0, 1)
        return query + self.content.to(query.dtype), key, _by_age(query + self.place.to(query.dtype), distance_HAd)


def _by_age(query_TNHd: Tensor, distance_HAd: Tensor) -> Tensor:
    """Each query's product with each distance, scaled as attention's own. fp32 [N, H, T, A]"""
    query_NHTd = query_TNHd.permute(1, 2, 0, 3).float()
    return query_NHTd @ distance_HAd.float().transpose(-1, -2) / math.sqrt(query_TNHd.shape[-1])


POSITIONS = {"none": NoPositions, "rotary": Rotary, "relative": RelativeBias, "learned": LearnedDistance}
