"""``recollect bench env``: decisions a second of each engine under random actions, and what our contract costs."""

import importlib.util
import os
import shlex
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from recollect.bench.measure import Ratio, Side, interleave, rate_of, report
from recollect.envs.registry import EnvConfig, make_env
from recollect.envs.vector import VectorEnv
from recollect.types import Discrete

UNIT = "decisions/s"


@dataclass(frozen=True)
class Bench:
    """Raw engines, side by side."""

    num_envs: int = 16
    """Environments of each engine."""
    seconds: float = 1.0
    """Time of one measurement."""
    repeats: int = 5
    """Measurements of each engine, taken in turn."""
    json: bool = False
    """Print one JSON object."""
    out: Path | None = None
    """Write the result here as well."""


def random_actions(env: VectorEnv, count: int) -> list[torch.Tensor]:
    """Actions drawn beforehand, so that drawing them is not measured. [N] or [N, A] each"""
    spec, stream = env.action_spec, torch.Generator().manual_seed(0)
    if isinstance(spec, Discrete):
        return [torch.randint(spec.n, (env.num_envs,), generator=stream) for _ in range(count)]
    return [torch.rand(env.num_envs, spec.dim, generator=stream) * 2 - 1 for _ in range(count)]


def through_contract(config: EnvConfig, seconds: float) -> Side:
    """One of our engines."""
    env = make_env(config)
    env.reset(0)
    actions = random_actions(env, 64)

    def work() -> int:
        for action in actions:
            env.step(action)
        return len(actions) * env.num_envs

    return lambda: rate_of(work, seconds)


def bare_ale(num_envs: int, num_threads: int, seconds: float, game: str = "pong") -> Side:
    """ale-py's own vector environment by the rules of v5-pooled, nothing of ours around it."""
    import ale_py
    from ale_py.vector_env import AtariVectorEnv

    ale_py.ALEInterface.setLoggerMode(ale_py.LoggerMode.Error)
    rules: dict[str, Any] = {"noop_max": 0, "use_fire_reset": False, "reward_clipping": False}
    env = AtariVectorEnv(game, num_envs, num_threads=num_threads, repeat_action_probability=0.25, maxpool=True, **rules)
    env.reset(seed=0)
    draw = np.random.default_rng(0)
    actions = [draw.integers(6, size=num_envs) for _ in range(64)]

    def work() -> int:
        for action in actions:
            env.step(action)
        return len(actions) * num_envs

    return lambda: rate_of(work, seconds)


def best_ale(num_envs: int, seconds: float) -> tuple[str, Side]:
    """ale-py at the thread count that steps fastest here."""
    cores = os.cpu_count() or 1
    counts = sorted({max(1, cores // 2), cores, min(2 * cores, num_envs)})
    tried = {count: bare_ale(num_envs, count, seconds) for count in counts}
    for side in tried.values():
        side()
    best = max(tried, key=lambda count: tried[count]())
    return f"ale-py alone, {best} threads", tried[best]


def main(bench: Bench) -> int:
    """Measure every engine that is installed."""
    n, seconds = bench.num_envs, bench.seconds
    pairs: list[tuple[str, Callable[[], Side], str | None]] = []
    sides: dict[str, Side] = {}
    alone = None
    if importlib.util.find_spec("ale_py"):
        alone, sides_of_ale = best_ale(n, seconds)
        sides[alone] = sides_of_ale
        pairs.append(("recollect ALE/Pong-v5", lambda: through_contract(EnvConfig("ALE/Pong-v5", n), seconds), alone))
    if importlib.util.find_spec("envpool"):
        pool = EnvConfig("CartPole-v1", n, engine="envpool")
        pairs.append(("recollect CartPole-v1 (EnvPool)", lambda: through_contract(pool, seconds), None))
    pairs.append(
        ("recollect CartPole-v1 (Gymnasium)", lambda: through_contract(EnvConfig("CartPole-v1", n), seconds), None)
    )
    many = EnvConfig("recollect/DarkRoom-v0", 4096)
    pairs.append(("recollect DarkRoom, 4,096 environments", lambda: through_contract(many, seconds), None))
    for name, make, _ in pairs:
        sides[name] = make()
    rows = interleave(sides, bench.repeats, UNIT)
    ratios = [
        Ratio(f"{name} / {against}", rows[name].value / rows[against].value) for name, _, against in pairs if against
    ]
    command = shlex.join(["recollect", "bench", "env", "--num-envs", str(n), "--seconds", f"{seconds:g}"])
    headline = f"{rows[pairs[0][0]].value:,.0f} {UNIT} of {pairs[0][0]}"
    report("env", command, {"num_envs": n}, list(rows.values()), ratios, bench.json, bench.out, headline)
    return 0
