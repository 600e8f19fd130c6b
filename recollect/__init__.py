"""Recollect: a fast, readable lab for reinforcement-learning agents that remember."""

from typing import TYPE_CHECKING

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
