"""Memory between encoder and heads: one file a core, one line here.

A core is built from (width, config) and keeps this contract:

``width``                                features it gives out
``initial_state(N, device)``             {name: [N, ...]}, empty without memory
``step(x_ND, state, reset_N)``           acting, one step: (y_ND, state); where reset, the state is cleared *first*
``forward(x_TND, state, reset_TN)``      learning, a whole segment from its first step's state: y_TND

Both paths compute the same thing; ``tests/nets/test_cores.py`` holds every registered core to it.
"""

from recollect.nets.cores.gru import GRU
from recollect.nets.cores.none import NoMemory

CORES = {"none": NoMemory, "gru": GRU}
