"""What every attention core shares: an embedding, layers that read a band of past steps, and the memory's contract.

A layer is a module with ``ring_shapes`` = ((H, d), (H, e)), the heads of its keys and values, and
``forward(h_TND, memory, index) -> h_TND``; it is written once, for acting (T = 1) and for learning alike.

Gradients never reach the stored state: it belongs to the weights that acted.
"""

from typing import Any

import torch
from torch import Tensor, nn

from recollect.nets.attention import Acting, Segment
from recollect.nets.config import NetConfig
from recollect.nets.init import orthogonal
from recollect.nets.positions import POSITIONS, Memory, NoPositions
from recollect.nets.precision import uses_bf16
from recollect.types import State


class Attention(nn.Module):
    """Multi-head attention over the band (Vaswani et al. 2017). Three projections a step, whatever W is."""

    def __init__(self, width: int, config: NetConfig, positions: type[NoPositions] | None = None):
        super().__init__()
        heads, inner = config.core_heads, config.core_width
        if inner % heads:
            raise ValueError(f"core_heads {heads} does not divide core_width {inner}")
        self.heads, self.detached = heads, config.core_detached
        self.query, self.key, self.value = (orthogonal(nn.Linear(width, inner), 1.0) for _ in range(3))
        self.out = orthogonal(nn.Linear(inner, inner), 1.0)
        kind = positions or POSITIONS[config.core_positions]
        self.positions = kind(heads, inner // heads, config.look_back)
        self.ring_shapes = ((heads, inner // heads),) * 2

    def forward(self, x_TND: Tensor, memory: Memory, index: int) -> Tensor:
        """x: [T, N, D] -> [T, N, core_width]"""
        remembered_TND = x_TND.detach() if self.detached else x_TND
        query, key, value = (
            project(part).unflatten(-1, (self.heads, -1))
            for project, part in ((self.query, x_TND), (self.key, remembered_TND), (self.value, remembered_TND))
        )
        query, key, by_age = self.positions(query, key, memory)
        return self.out(memory.read(index, query, key, value, by_age).flatten(-2))


def feed_forward(width: int) -> nn.Sequential:
    """Four times as wide inside, as in the original Transformer."""
    return nn.Sequential(orthogonal(nn.Linear(width, 4 * width)), nn.ReLU(), orthogonal(nn.Linear(4 * width, width), 1))


class AttentionCore(nn.Module):
    """Embedding, layers, last norm; see ``cores/__init__.py`` for the contract."""

    def __init__(self, width: int, config: NetConfig, layers: list[nn.Module], normed: bool = True):
        super().__init__()
        self.width, self.look_back, self.precision = config.core_width, config.look_back, config.precision
        self.embed = orthogonal(nn.Linear(width, config.core_width))
        self.layers = nn.ModuleList(layers)
        # The last norm bounds what the heads read, however large the weights below grow.
        self.last = nn.LayerNorm(config.core_width) if normed else nn.Identity()

    @property
    def reach(self) -> int:
        """Each layer looks ``look_back`` steps further than the one above it."""
        return len(self.layers) * self.look_back

    def initial_state(self, num_envs: int, device: torch.device) -> State:
        """{"clock": int64 [N], "key.0": [N, H, W + 1, d], "value.0": ...}"""
        dtype = torch.bfloat16 if uses_bf16(self.precision, torch.device(device).type) else torch.float32
        state = {"clock": torch.zeros(num_envs, dtype=torch.int64, device=device)}
        for i, layer in enumerate(self.layers):
            shapes: Any = layer.ring_shapes
            for name, (heads, width) in zip(("key", "value"), shapes, strict=True):
                shape = (num_envs, heads, self.look_back + 1, width)
                state[f"{name}.{i}"] = torch.zeros(shape, dtype=dtype, device=device)
        return state

    def step(self, x_ND: Tensor, state: State, reset_N: Tensor) -> tuple[Tensor, State]:
        """One step against the rings. x_ND: [N, D], reset_N: [N] bool -> y_ND: [N, width]"""
        memory = Acting(state, reset_N, self.look_back)
        return self.through(x_ND[None], memory)[0], memory.next_state

    def forward(self, x_TND: Tensor, state: State, reset_TN: Tensor) -> Tensor:
        """A segment at once. x_TND: [T, N, D], reset_TN: [T, N] bool -> [T, N, width]"""
        return self.through(x_TND, Segment(state, reset_TN, self.look_back))

    def after(self, x_TND: Tensor, state: State, reset_TN: Tensor) -> State:
        """The state after a segment; from an empty one exact once ``reach`` steps, or an episode's start, went by."""
        memory = Segment(state, reset_TN, self.look_back)
        self.through(x_TND, memory)
        return memory.state_after()

    def through(self, x_TND: Tensor, memory: Memory) -> Tensor:
        """All layers against one memory. [T, N, D] -> [T, N, width]"""
        h_TND = self.embed(x_TND).float()  # the stream that layers add to stays fp32
        for i, layer in enumerate(self.layers):
            h_TND = layer(h_TND, memory, i)
        return self.last(h_TND)
