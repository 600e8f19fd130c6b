"""Recollect: a fast, readable lab for reinforcement-learning agents that remember.

After ``import recollect``, ``gymnasium.make("recollect/Pong-v0")`` and ``gymnasium.make_vec`` know the game of Pong.
"""

from typing import TYPE_CHECKING

import gymnasium

if TYPE_CHECKING:
    from recollect.api import evaluate, load, train

__version__ = "0.1.0"
__all__ = ["__version__", "evaluate", "load", "train"]


def __getattr__(name: str):
    """The Python API, imported on first use so that ``import recollect`` stays light and without effect."""
    if name in {"train", "evaluate", "load"}:
        from recollect import api

        return getattr(api, name)
    raise AttributeError(f"module 'recollect' has no attribute {name!r}")


if "recollect/Pong-v0" not in gymnasium.registry:  # a reload would warn
    gymnasium.register(
        "recollect/Pong-v0",
        entry_point="recollect.envs.pong.single:PongSingle",
        vector_entry_point="recollect.envs.pong.single:PongVector",
        # No wrappers: Pong counts its own episodes, and checks the order of calls itself.
        order_enforce=False,
        disable_env_checker=True,
    )
