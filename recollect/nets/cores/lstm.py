"""Long short-term memory (Hochreiter & Schmidhuber 1997). Segments start from the state stored while acting.

Gradients do not flow into that stored state: it belongs to the weights that acted.
"""

import torch
from torch import Tensor, nn

from recollect.nets.config import NetConfig
from recollect.nets.cores.stepwise import walk
from recollect.types import State


class LSTM(nn.Module):
    """(h[t], c[t]) = LSTMCell(x[t], (h[t-1], c[t-1])), both 0 where an episode begins."""

    reach = None  # a state may hold something of every step before

    def __init__(self, width: int, config: NetConfig):
        super().__init__()
        self.width = config.core_width
        self.cell = nn.LSTMCell(width, config.core_width)
        for name, weight in self.cell.named_parameters():
            nn.init.zeros_(weight) if "bias" in name else nn.init.orthogonal_(weight)
        with torch.no_grad():  # the forget gate begins open (Jozefowicz et al. 2015)
            self.cell.bias_ih[self.width : 2 * self.width] = 1.0

    def initial_state(self, num_envs: int, device: torch.device) -> State:
        """{"h": [N, width], "c": [N, width]} of zeros."""
        return {name: torch.zeros(num_envs, self.width, device=device) for name in ("h", "c")}

    def step(self, x_ND: Tensor, state: State, reset_N: Tensor) -> tuple[Tensor, State]:
        """One step. x_ND: [N, D], reset_N: [N] bool -> y_ND: [N, width]"""
        before = tuple(state[name].masked_fill(reset_N[:, None], 0.0) for name in ("h", "c"))
        # Always fp32: in bf16 a gate near 1 rounds to 1 and slow memory would never move.
        with torch.autocast(x_ND.device.type, enabled=False):
            h_ND, c_ND = self.cell(x_ND.float(), before)
        return h_ND, {"h": h_ND, "c": c_ND}

    def forward(self, x_TND: Tensor, state: State, reset_TN: Tensor) -> Tensor:
        """A segment, step by step. x_TND: [T, N, D] -> [T, N, width]"""
        return walk(self, x_TND, state, reset_TN)[0]

    def after(self, x_TND: Tensor, state: State, reset_TN: Tensor) -> State:
        """The state after a segment."""
        return walk(self, x_TND, state, reset_TN)[1]
