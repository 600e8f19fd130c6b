"""A Pong that needs memory, and the plain game from positions: a small Transformer beside its memoryless control.

Blind: the agent sees its own paddle and the ball of this step only, no speeds and no opponent, and the ball is
invisible on its last stretch before the paddle. All by the source's rules (PongDeterministic), six actions.
"""

from typing import Any

from recollect.experiments.row import Experiment

BLIND = ("obs=state", "velocities=false", "opponent=false", "hidden_from=148", "hidden_to=200")
POSITIONS = ("obs=state", "velocities=false")

SMALL: dict[str, Any] = dict(
    env_id="recollect/Pong-v0",
    protocol="deterministic",
    encoder="fourier",
    activation="relu",
    hidden=(32,),
    num_envs=64,
    num_steps=64,
    num_minibatches=8,
    update_epochs=4,
    learning_rate=1e-3,
    clip_coef=0.1,
    ent_coef=0.003,
    checkpoint_every=100,
    compile="on",
    threads=2,
)
TRANSFORMER = dict(core="transformer", core_width=32, core_heads=4, look_back=16, total_timesteps=3_000_000)
NONE = dict(total_timesteps=10_000_000)  # its steps are cheaper: about the Transformer's time, see results/

ROWS = [
    Experiment(
        "pong-blind-transformer",
        "the ball is invisible on its last stretch; one block looks 16 steps back",
        SMALL | TRANSFORMER | dict(env_options=BLIND),
        control="pong-blind-none",
    ),
    Experiment(
        "pong-blind-none",
        "the same without memory, three times as many decisions",
        SMALL | NONE | dict(env_options=BLIND),
    ),
    Experiment(
        "pong-state-transformer",
        "the plain game from positions without speeds; one block looks 16 steps back",
        SMALL | TRANSFORMER | dict(env_options=POSITIONS),
        control="pong-state-none",
    ),
    Experiment(
        "pong-state-none",
        "the same without memory, three times as many decisions",
        SMALL | NONE | dict(env_options=POSITIONS),
    ),
]
