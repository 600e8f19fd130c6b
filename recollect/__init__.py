"""Recollect: a fast, readable lab for reinforcement-learning agents that remember.

After ``import recollect``, ``gymnasium.make("recollect/Pong-v0")`` and ``gymnasium.make_vec`` know the game of Pong.
"""

import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from importlib.machinery import ModuleSpec
    from types import ModuleType

    from recollect.api import evaluate, load, train

__version__ = "0.1.0"
__all__ = ["__version__", "evaluate", "load", "train"]


def __getattr__(name: str):
    """The Python API, imported on first use so that ``import recollect`` stays light and without effect."""
    if name in {"train", "evaluate", "load"}:
        from recollect import api

        return getattr(api, name)
    raise AttributeError(f"module 'recollect' has no attribute {name!r}")


def _register(gymnasium: "ModuleType") -> None:
    """Tell Gymnasium where Pong is; nothing of it is imported before it is made.

    No wrappers: Pong counts its own episodes, and checks the order of calls itself.
    """
    if "recollect/Pong-v0" not in gymnasium.registry:
        gymnasium.register(
            "recollect/Pong-v0",
            entry_point="recollect.envs.pong.single:PongSingle",
            vector_entry_point="recollect.envs.pong.single:PongVector",
            order_enforce=False,
            disable_env_checker=True,
        )


class _WithGymnasium:
    """Registers Pong right after Gymnasium's own import, which takes longer than all else that stands here."""

    @classmethod
    def find_spec(cls, name: str, path=None, target=None) -> "ModuleSpec | None":
        """What the other finders find; Gymnasium with its loader made to register Pong."""
        if name != "gymnasium":
            return None
        found = (finder.find_spec(name, path, target) for finder in sys.meta_path if finder is not cls)
        spec = next((spec for spec in found if spec is not None), None)
        if spec is not None and spec.loader is not None:
            _then_register(spec.loader)
        return spec


def _then_register(loader) -> None:
    """Let a loader of Gymnasium register Pong when it is done."""
    load_module = loader.exec_module

    def exec_module(module: "ModuleType") -> None:
        load_module(module)
        if module.__name__ == "gymnasium":  # a loader may serve other modules too
            _register(module)

    loader.exec_module = exec_module


if "gymnasium" in sys.modules:
    _register(sys.modules["gymnasium"])
else:
    sys.meta_path.insert(0, _WithGymnasium)  # type: ignore[arg-type]
