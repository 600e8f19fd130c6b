"""One row of the table."""

from dataclasses import dataclass, field
from typing import Any

from recollect.algos import ALGOS
from recollect.config import override


@dataclass(frozen=True)
class Experiment:
    """``algorithm`` with ``overrides`` of its Config's defaults, named flat."""

    name: str
    about: str
    overrides: dict[str, Any] = field(default_factory=dict)
    algorithm: str = "ppo"
    reported: str = "-"
    control: str = ""  # the experiment whose recorded result stands beside its own

    def config(self) -> Any:
        """The resolved configuration."""
        return override(ALGOS[self.algorithm].Config(), **self.overrides)
