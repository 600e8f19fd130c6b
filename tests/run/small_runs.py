"""Runs of a few tiny updates, for the tests beside this."""

from pathlib import Path
from typing import Any

import pytest

from recollect import api
from recollect.config import override
from recollect.run.folder import RunFolder
from recollect.run.run import Run

TINY = {"num_envs": 2, "num_steps": 8, "num_minibatches": 2, "update_epochs": 1, "hidden": (8,), "core_width": 8}
AROUND = {"threads": 1, "device": "cpu", "checkpoint_every": 1, "eval_episodes": 0}


def tiny(out: Path, updates: int = 6, **changes: Any) -> Any:
    settings = {**TINY, **AROUND, "out": out, "total_timesteps": 16 * updates, **changes}
    return override(api.experiment_config("cartpole-ppo"), **settings)


def only_run(out: Path) -> RunFolder:
    (path,) = out.iterdir()
    return RunFolder.open(path)


def stopped(out: Path, at: int, **changes: Any) -> RunFolder:
    """A run that was asked to stop in its ``at``-th update."""
    real, calls = Run.log, []

    def log(self: Run, *args: Any) -> None:
        calls.append(1)
        self.stop_asked = len(calls) == at
        real(self, *args)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Run, "log", log)
        api.start("cartpole-ppo", tiny(out, **changes), quiet=True)
    return only_run(out)
