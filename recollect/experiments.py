"""The table of named experiments: a base, what differs from it, what its source reported. One row each."""

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from recollect.algos import ALGOS
from recollect.config import choose, override


@dataclass(frozen=True)
class Experiment:
    """``algorithm`` with ``overrides`` of its Config's defaults, named flat."""

    name: str
    about: str
    overrides: dict[str, Any] = field(default_factory=dict)
    algorithm: str = "ppo"
    reported: str = "-"

    def config(self) -> Any:
        """The resolved configuration."""
        return override(ALGOS[self.algorithm].Config(), **self.overrides)


ROWS = [
    Experiment(
        "cartpole-ppo",
        "the smallest check that everything works",
        dict(
            env_id="CartPole-v1",
            num_envs=8,
            num_steps=64,
            num_minibatches=2,
            update_epochs=10,
            shared=False,
            learning_rate=1e-3,
            gae_lambda=0.9,
            gamma=0.98,
            ent_coef=0.0,
            total_timesteps=99_840,
            threads=1,
        ),
    ),
    Experiment(
        "pendulum-ppo",
        "continuous actions; every episode ends by truncation",
        dict(
            env_id="Pendulum-v1",
            num_envs=8,
            num_steps=256,
            num_minibatches=16,
            update_epochs=10,
            shared=False,
            learning_rate=1e-3,
            gamma=0.9,
            gae_lambda=0.95,
            ent_coef=0.0,
            total_timesteps=300_000,
            threads=1,
        ),
    ),
    Experiment(
        "darkroom-ppo",
        "one hidden goal in the corner of a 9x9 room, on tensors",
        dict(
            env_id="recollect/DarkRoom-v0",
            env_options=("goal=0,0",),
            num_envs=256,
            num_steps=20,
            num_minibatches=4,
            update_epochs=4,
            learning_rate=2.5e-3,
            ent_coef=0.02,
            total_timesteps=400_000,
            threads=1,
        ),
    ),
    Experiment(
        "pong-state-ppo",
        "Pong on tensors from positions and speeds, as the ALE plays it",
        dict(
            env_id="recollect/Pong-v0",
            env_options=("obs=state",),
            protocol="v5-pooled",
            encoder="fourier",
            num_envs=1024,
            num_steps=32,
            num_minibatches=8,
            update_epochs=4,
            hidden=(256, 256),
            learning_rate=1e-3,
            clip_coef=0.1,
            ent_coef=0.003,
            total_timesteps=12_000_000,
            checkpoint_every=100,
            compile="on",
            threads=1,
        ),
    ),
    Experiment(
        "pong-ppo",
        "Pong on tensors from pixels, as the ALE plays it, Nature CNN; made for a GPU",
        dict(
            env_id="recollect/Pong-v0",
            protocol="v5-pooled",
            encoder="nature",
            background=87,
            precision="auto",
            num_envs=512,
            num_steps=32,
            num_minibatches=16,
            update_epochs=4,
            learning_rate=5e-4,
            clip_coef=0.1,
            ent_coef=0.003,
            total_timesteps=8_000_000,
            checkpoint_every=1000,
            compile="on",
        ),
    ),
    Experiment(
        "pong-v5-ppo",
        "Pong from pixels as the ALE plays it, Nature CNN",
        dict(
            env_id="ALE/Pong-v5",
            protocol="v5-pooled",
            encoder="nature",
            background=87,
            precision="auto",
            num_envs=256,
            num_steps=32,
            num_minibatches=16,
            update_epochs=4,
            half_batches=True,
            learning_rate=5e-4,
            clip_coef=0.1,
            ent_coef=0.003,
            total_timesteps=8_000_000,
            checkpoint_every=200,
        ),
    ),
]

EXPERIMENTS = {row.name: row for row in ROWS}


def experiment(name: str) -> Experiment:
    """The row of that name, or an error that names the nearest."""
    return choose("experiment", name, EXPERIMENTS)


def measured(name: str) -> str:
    """What we measured, from the results that stand beside the code; ``-`` where there is none."""
    here = Path(__file__).parent
    for folder in (here.parent / "results", here / "_results"):
        path = folder / f"{name}.json"
        if path.is_file():
            return json.loads(path.read_text())["headline"]
    return "-"
