"""The table of named experiments: a base, what differs from it, what its source reported. One row each.

``small``: quick checks. ``pong_blind``: memory on trial. ``pong_ladder``: from REINFORCE to PPO with memory on Pong.
"""

import json
from pathlib import Path

from recollect.config import choose
from recollect.experiments import pong_blind, pong_ladder, small
from recollect.experiments.row import Experiment

ROWS = [*small.ROWS, *pong_blind.ROWS, *pong_ladder.ROWS]

EXPERIMENTS = {row.name: row for row in ROWS}


def experiment(name: str) -> Experiment:
    """The row of that name, or an error that names the nearest."""
    return choose("experiment", name, EXPERIMENTS)


def recorded(name: str) -> Path | None:
    """The file of what an experiment reached, from the results that stand beside the code, if there is one."""
    package = Path(__file__).parents[1]
    paths = (folder / f"{name}.json" for folder in (package.parent / "results", package / "_results"))
    return next((path for path in paths if path.is_file()), None)


def measured(name: str) -> str:
    """What we measured; ``-`` where nothing is recorded."""
    path = recorded(name)
    return json.loads(path.read_text())["headline"] if path else "-"
