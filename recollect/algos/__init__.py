"""One file an algorithm, read from top to bottom: Config, loss, update(), train()."""

from types import ModuleType

from recollect.algos import ppo

ALGOS: dict[str, ModuleType] = {"ppo": ppo}
