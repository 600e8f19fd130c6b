"""From REINFORCE to PPO with a Transformer's memory on Pong: each row as its source ran it, whatever comes of it.

Common: whole episodes of 8 environments, PongDeterministic, 80x80 binary frames, up and down, credit by round; 200
features without an activation after them, 11 frames in the sequence (its program says so, the text does not). Ours,
where both are silent: Adam, one episode an environment, the steps. ``--env-id ALE/Pong-v5`` plays the emulator's game.
"""

from typing import Any

from recollect.experiments.row import Experiment


def frames(stack: int) -> dict[str, Any]:
    """The game as the source saw it, ``stack`` frames at once."""
    return dict(
        env_id="recollect/Pong-v0",
        env_options=("obs=binary", "actions=two", f"stack={stack}"),
        protocol="deterministic",
        num_envs=8,
    )


# The newest frame less the one before it; a sequence of frames; one frame, for what remembers.
DIFFERENCE = dict(**frames(2), difference=True)
SEQUENCE, SINGLE = dict(**frames(11), cnn_width=200), frames(1)
LINEAR = dict(encoder="mlp", hidden=(200,), activation="none")
MLP = dict(**DIFFERENCE, **LINEAR)
CNN = dict(**DIFFERENCE, encoder="cnn", cnn_width=200)
CNN3D = dict(**SEQUENCE, encoder="cnn3d")

PG = dict(gamma=0.99, learning_rate=1e-4, credit_by="round", total_timesteps=20_000_000)
PPO = dict(
    collect="episodes",
    credit_by="round",
    gamma=0.99,
    gae_lambda=1.0,
    learning_rate=1e-4,
    lr_schedule="constant",
    advantage_norm="none",
    update_epochs=10,
    num_minibatches=64,
    rows_at_once=256,
    clip_coef=0.2,
    total_timesteps=8_000_000,
)
EMBEDDED = dict(**SINGLE, encoder="mlp", hidden=(128,), activation="none")
TRANSFORMER = dict(**EMBEDDED, core="transformer", core_layers=1, core_width=128, core_heads=8)


def policy_gradient(name: str, about: str, reported: str, *parts: dict[str, Any], **own: Any) -> Experiment:
    """A row without a value function."""
    return Experiment(name, about, _joined(PG, *parts, own), "policy_gradient", reported)


def actor_critic(name: str, about: str, reported: str, *parts: dict[str, Any], **own: Any) -> Experiment:
    """A row with one."""
    return Experiment(name, about, _joined(PG, *parts, own), "actor_critic", reported)


def ppo(name: str, about: str, reported: str, *parts: dict[str, Any], **own: Any) -> Experiment:
    """A row of PPO on whole episodes."""
    return Experiment(name, about, _joined(PPO, *parts, own), "ppo", reported)


def _joined(*parts: dict[str, Any]) -> dict[str, Any]:
    """Later parts go before earlier ones."""
    return {name: value for part in parts for name, value in part.items()}


ROWS = [
    # No value function: what pays, once.
    policy_gradient(
        "pong-karpathy",
        "the classic: one environment, ten episodes a step, 200 hidden units, discounted by round and normalised",
        "the starting point",
        MLP,
        activation="relu",
        num_envs=1,
        episodes_per_env=10,
        max_steps=100_000,  # of all ten together
        loss_over="steps",
    ),
    policy_gradient(
        "pong-pg-mlp-steps",
        "the loss divided by the number of steps",
        "somewhat worse than by rounds",
        MLP,
        loss_over="steps",
    ),
    policy_gradient(
        "pong-pg-mlp", "the loss divided by the number of rounds", "can reach 10; a day on a GTX 1070", MLP
    ),
    policy_gradient(
        "pong-pg-mlp-unnormalised",
        "discounted, not normalised",
        "the two must be used together",
        MLP,
        return_norm="none",
    ),
    policy_gradient(
        "pong-pg-mlp-normalised-only", "normalised, not discounted", "the two must be used together", MLP, gamma=1.0
    ),
    policy_gradient(
        "pong-pg-mlp-trajectory",
        "each action is paid the whole round's return, not the return from it on",
        "more variance",
        MLP,
        credit_of="trajectory",
    ),
    policy_gradient("pong-pg-cnn", "a CNN on the difference of frames", "below the MLP", CNN),
    policy_gradient(
        "pong-pg-cnn3d",
        "convolutions over time as well",
        "climbs fast by steps, no faster by wall-clock; stays near 0",
        CNN3D,
    ),
    policy_gradient(
        "pong-pg-cnn3d2d",
        "3-D and 2-D features side by side",
        "fast start and keeps the CNN's score",
        SEQUENCE,
        encoder="cnn3d2d",
    ),
    policy_gradient("pong-pg-repeat", "the same samples optimised ten times", "failed", CNN3D, update_epochs=10),
    policy_gradient("pong-pg-minibatch", "each 1/64 optimised on its own", "failed", CNN3D, num_minibatches=64),
    # A value function: the advantage replaces the return.
    actor_critic("pong-ac-cnn3d", "with a value function", "starts faster than without", CNN3D),
    actor_critic("pong-ac-mlp", "the same with the MLP (ours)", "-", MLP),
    # The ratio: the same samples, many times.
    ppo("pong-ppo-mlp", "one frame; 10 passes, 1/64 of the samples a step, clip 0.2", "poor score", SINGLE, LINEAR),
    ppo("pong-ppo-cnn", "a CNN, advantages normalised", "a curve, no words", CNN, advantage_norm="mean-std"),
    ppo(
        "pong-ppo-cnn3d-16",
        "1/16 of the samples a step",
        "about 17 in two hours; ends higher than 1/64",
        CNN3D,
        num_minibatches=16,
        rows_at_once=1024,
    ),
    ppo("pong-ppo-cnn3d-64", "1/64 of the samples a step", "about 17 in two hours; rises earlier than 1/16", CNN3D),
    ppo(
        "pong-ppo-ref",
        "the common way: fixed segments of 256 steps, GAE, normalised advantages",
        "the common way, for reference",
        SEQUENCE,
        encoder="cnn",
        collect="segments",
        credit_by="episode",
        num_steps=256,
        gae_lambda=0.95,
        advantage_norm="mean-std",
    ),
    ppo("pong-ppo-episode-credit", "credit by episode instead of by round", "never run", CNN3D, credit_by="episode"),
    # Memory: one frame, and what came before it.
    ppo("pong-ppo-transformer-10", "a Transformer that looks 10 steps back", "about 15", TRANSFORMER, look_back=10),
    ppo(
        "pong-ppo-transformer-256",
        "a Transformer that looks 256 steps back",
        "about 10, training cut short",
        TRANSFORMER,
        look_back=256,
    ),
]
