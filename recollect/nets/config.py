"""What can be chosen about a network."""

from dataclasses import dataclass
from typing import Literal

from recollect.config import limit


@dataclass(frozen=True)
class NetConfig:
    """Encoder, memory core and heads."""

    encoder: str = "mlp"
    """mlp, fourier, cnn, cnn3d, cnn3d2d, nature, small, or your own as mine.py:MyEncoder."""
    hidden: tuple[int, ...] = (64, 64)
    """Widths of the mlp's hidden layers."""
    activation: Literal["tanh", "relu", "none"] = "tanh"
    """What follows each of the mlp's hidden layers."""
    frequencies: int = 4
    """Waves of each number that fourier sees, each half as long as the one before."""
    cnn_width: int = 512
    """Features that a CNN gives out; cnn3d2d gives twice as many."""
    difference: bool = False
    """Encoders see the differences of successive frames instead of the frames."""
    background: int = 0
    """Brightness of frames where nothing is, subtracted before the network sees them: 87 in Pong's grey."""
    core: str = "none"
    """Memory between encoder and heads: none, lookback, transformer, gtrxl, gau, gru, lstm, or mine.py:MyCore."""
    core_width: int = 128
    """Features after the memory core."""
    look_back: int = 64
    """Past steps that an attention layer sees beside the current one."""
    core_layers: int = 1
    """Layers of transformer, gtrxl and gau."""
    core_heads: int = 8
    """Heads of lookback, transformer and gtrxl; they share core_width."""
    core_positions: Literal["rotary", "relative", "learned", "none"] = "rotary"
    """How attention knows a step's distance: turned pairs, a learned bias or a learned vector each; gtrxl has its own.
    """
    core_norm: Literal["pre", "post"] = "pre"
    """Where a transformer's norms stand: before each branch, or after each sum."""
    core_attention: Literal["softmax", "relu2"] = "softmax"
    """How a gau weighs what it sees."""
    core_gated: bool = True
    """Whether gtrxl has its gates; without, only its memory and relative positions are left."""
    core_detached: bool = False
    """Attention's keys and values pass no gradient to the layer below: a past step is not trained for later ones."""
    shared: bool = True
    """Policy and value read the same features; otherwise each has an encoder and a core of its own."""
    initial_log_std: float = 0.0
    """Log of the action noise at the start, for continuous actions; it does not depend on the state."""
    precision: Literal["fp32", "bf16", "auto"] = "fp32"
    """Arithmetic of encoder and core; heads, log-probabilities and losses are always fp32.

    auto is bf16 on devices that multiply it natively; others would emulate it, ten times slower than fp32."""

    def __post_init__(self) -> None:
        limit(self, "hidden", "cnn_width", "core_width", "look_back", "core_layers", "core_heads", low=1)
        limit(self, "background", low=0, high=255)
        limit(self, "frequencies", low=0)
        limit(self, "initial_log_std")
