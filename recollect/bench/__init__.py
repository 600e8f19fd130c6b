"""Measurements side by side in one run: one file a bench, one line here.

A bench is a module with a ``Bench`` dataclass of flags and ``main(Bench) -> exit code``.
"""

from types import ModuleType

from recollect.bench import encoders, env, memory, pong, train

BENCHES: dict[str, ModuleType] = {"encoders": encoders, "env": env, "memory": memory, "pong": pong, "train": train}
