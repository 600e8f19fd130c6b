"""Memory between encoder and heads: one file a core, one line here.

A core is built from (width, config) and keeps this contract:

``width``                                features it gives out
``initial_state(N, device)``             {name: [N, ...]}, empty without memory
``step(x_ND, state, reset_N)``           acting, one step: (y_ND, state); where reset, the state is cleared *first*
``forward(x_TND, state, reset_TN)``      learning, a whole segment from its first step's state: y_TND

Both paths compute the same thing; ``tests/nets/test_cores.py`` holds every registered core to it. Ours also have

``reach``                                how many past steps an output depends on; None where that has no bound
``after(x_TND, state, reset_TN)``        the state after a segment, to build a cache anew with new weights: exact from
                                         the true state, or from ``initial_state`` and ``reach`` steps, or from an
                                         episode's start on

In every layer of an attention core a step sees itself and ``look_back`` steps of its own episode before it. No core
lets gradients into the stored state. ``core_detached`` also keeps them out of keys and values within a segment, so
that a past step is never changed for what a later one reads of it; gru and lstm learn through a segment's time.
"""

from recollect.nets.cores.gau import GAU
from recollect.nets.cores.gru import GRU
from recollect.nets.cores.gtrxl import GTrXL
from recollect.nets.cores.lookback import LookBack
from recollect.nets.cores.lstm import LSTM
from recollect.nets.cores.none import NoMemory
from recollect.nets.cores.transformer import Transformer

CORES = {
    "none": NoMemory,
    "lookback": LookBack,
    "transformer": Transformer,
    "gtrxl": GTrXL,
    "gau": GAU,
    "gru": GRU,
    "lstm": LSTM,
}
