"""``recollect bench train``: the whole loop on ALE Pong, against what its parts allow and against stable-baselines3.

With one minibatch's worth of arithmetic at ``train`` samples/s, acting at ``act`` and stepping at ``env`` decisions/s,
a loop that does one thing after another takes ``passes/train + 1/act + 1/env`` seconds a step. The three rates are
measured in the same run; the bound they give can only be beaten by doing two of them at once.
"""

import importlib.util
import json
import math
import shlex
import tempfile
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from recollect.algos import ppo
from recollect.algos.loss import Minibatch
from recollect.bench.env import best_ale
from recollect.bench.measure import Ratio, Side, interleave, rate_of, report
from recollect.config import override, to_dict
from recollect.envs.registry import make_env
from recollect.experiments import experiment
from recollect.fast import fast
from recollect.nets.agent import make_agent
from recollect.nets.precision import uses_bf16
from recollect.run.device import pick_device, synchronise
from recollect.run.folder import RunFolder
from recollect.run.run import Run
from recollect.types import TensorSpec

UNIT = "steps/s"
BOUND_FLOOR, BASELINES_FLOOR = 0.85, 1.5


@dataclass(frozen=True)
class Bench:
    """Training throughput, side by side with its bound and with stable-baselines3."""

    experiment: str = "pong-v5-ppo"
    """Whose configuration is measured."""
    num_envs: int | None = None
    """Another number of environments than the experiment's."""
    num_steps: int | None = None
    """Another length of a segment than the experiment's."""
    repeats: int = 5
    """Measurements of each side, taken in turn."""
    updates: int = 2
    """Updates of the whole loop in one measurement, after one to warm up."""
    seconds: float = 1.0
    """Time of one measurement of a part."""
    json: bool = False
    """Print one JSON object."""
    out: Path | None = None
    """Write the result here as well."""


def noise_like(part: TensorSpec, rows: int, device: torch.device) -> torch.Tensor:
    """Something of the shape that a network reads. [1, rows, ...]"""
    shape = (1, rows, *part.shape)
    if part.dtype is torch.uint8:
        return torch.randint(0, 256, shape, dtype=torch.uint8, device=device)
    return torch.randn(shape, device=device)


def parts(config: ppo.Config, device: torch.device, seconds: float) -> dict[str, Side]:
    """The rates of the parts alone: gradient steps on a ready minibatch, acting on a ready batch."""
    env = make_env(config.env, num_envs=1)
    agent = make_agent(env.obs_spec, env.action_spec, config.net, 0, device)
    env.close()
    compiled = device.type == "cuda"
    learner = ppo.Learner(agent, config, device, compiled)
    rows = config.batch_size // config.num_minibatches
    obs = {name: noise_like(part, rows, device) for name, part in env.obs_spec.items()}
    zero = torch.zeros(1, rows, device=device)
    batch = Minibatch(obs, {}, zero.bool(), zero.long(), zero - 1.8, zero, torch.randn_like(zero), zero)
    acting = config.env.num_envs // (2 if config.half_batches else 1)
    never = torch.zeros(acting, dtype=torch.bool, device=device)
    act, noise = fast(agent.act, device, compiled), torch.rand(acting, device=device)

    def train() -> int:
        learner.gradient_step(batch)
        synchronise(device)
        return rows

    @torch.no_grad()
    def play() -> int:
        act({name: part[0, :acting] for name, part in obs.items()}, {}, never, noise)
        synchronise(device)
        return acting

    return {"training samples": lambda: rate_of(train, seconds), "acting": lambda: rate_of(play, seconds)}


def whole_loop(config: ppo.Config, updates: int) -> Side:
    """The real ``train()``, folder, metrics and all; its own clock, without the first update."""

    def side() -> float:
        with tempfile.TemporaryDirectory() as out:
            chosen = override(config, total_timesteps=config.batch_size * (updates + 1), out=Path(out))
            folder = RunFolder.create(Path(out), "bench", "bench", 0, chosen)
            run = Run(folder, chosen, "bench", "ppo", "recollect bench train", quiet=True)
            with run:
                ppo.train(chosen, run)
            rows = [json.loads(line) for line in folder.metrics.read_text().splitlines()]
        return config.batch_size * updates / (rows[-1]["seconds"] - rows[0]["seconds"])

    return side


def stable_baselines(config: ppo.Config, device: torch.device) -> Side:
    """stable-baselines3's PPO with the same network, batch and passes, on the same ale-py vector environment.

    It gets the C++ environment through a thin adapter instead of its own Python wrappers, which favours it.
    """
    from stable_baselines3 import PPO

    env = _baselines_env(config)
    model = PPO(
        "CnnPolicy",
        env,
        learning_rate=config.learning_rate,
        n_steps=config.num_steps,
        batch_size=config.batch_size // config.num_minibatches,
        n_epochs=config.update_epochs,
        gamma=config.gamma,
        gae_lambda=config.gae_lambda,
        clip_range=config.clip_coef or math.inf,
        ent_coef=config.ent_coef,
        vf_coef=config.vf_coef,
        device=device,
        seed=0,
    )

    def side() -> float:
        return rate_of(lambda: model.learn(config.batch_size, reset_num_timesteps=False) and config.batch_size, 0.01)

    return side


def _baselines_env(config: ppo.Config) -> Any:
    """Our environment as stable-baselines3 takes one: numpy, actions sent and received."""
    import gymnasium
    from stable_baselines3.common.vec_env import VecEnv

    inner = make_env(config.env)

    class Adapter(VecEnv):
        """A VecEnv on our contract, which already resets in the same step."""

        def reset(self) -> np.ndarray:
            return inner.reset(0)["frame"].numpy()

        def step_async(self, actions: np.ndarray) -> None:
            inner.send(torch.from_numpy(actions))

        def step_wait(self) -> Any:
            step = inner.recv()
            ended = (step.terminated | step.truncated).numpy()
            infos: list[dict[str, Any]] = [{} for _ in ended]
            for i in np.flatnonzero(ended):
                infos[i]["terminal_observation"] = step.final_obs["frame"][i].numpy()
                infos[i]["TimeLimit.truncated"] = bool(step.truncated[i])
            return step.obs["frame"].numpy(), step.reward.numpy(), ended, infos

        def close(self) -> None:
            inner.close()

        def get_attr(self, attr_name: str, indices: Any = None) -> list[Any]:
            return [None] * self.num_envs

        def set_attr(self, attr_name: str, value: Any, indices: Any = None) -> None:
            raise ValueError(f"{attr_name} cannot be set here")

        def env_method(self, method_name: str, *args: Any, indices: Any = None, **kwargs: Any) -> list[Any]:
            return [None] * self.num_envs

        def env_is_wrapped(self, wrapper_class: Any, indices: Any = None) -> list[bool]:
            return [False] * self.num_envs

    frames = gymnasium.spaces.Box(0, 255, (4, 84, 84), np.uint8)
    return Adapter(inner.num_envs, frames, gymnasium.spaces.Discrete(6))


def main(bench: Bench) -> int:
    """Measure parts, whole loops and stable-baselines3 in turn."""
    sizes = {k: v for k in ("num_envs", "num_steps") if (v := getattr(bench, k)) is not None}
    config: ppo.Config = override(experiment(bench.experiment).config(), **sizes)
    if not config.env.env_id.startswith("ALE/") or config.net.core != "none":
        raise ValueError(f"bench train measures Atari without memory; {bench.experiment} is {config.env.env_id}")
    device = pick_device(config.run.device)
    env_name, env_side = best_ale(config.env.num_envs, bench.seconds)
    arithmetic = "bf16" if uses_bf16(config.net.precision, device.type) else "fp32"
    ours, plain = f"recollect, {arithmetic}", "recollect, fp32"
    sides: dict[str, Side] = {env_name: env_side, **parts(config, device, bench.seconds)}
    sides[ours] = whole_loop(config, bench.updates)
    if plain not in sides:
        sides[plain] = whole_loop(override(config, precision="fp32"), bench.updates)
    baselines = "stable-baselines3, fp32"
    if importlib.util.find_spec("stable_baselines3"):
        sides[baselines] = stable_baselines(config, device)
    rows = interleave(sides, bench.repeats, UNIT)
    value: Callable[[str], float] = lambda name: rows[name].value  # noqa: E731
    passes = config.update_epochs
    bound = 1 / (passes / value("training samples") + 1 / value("acting") + 1 / value(env_name))
    ratios = [
        Ratio(f"{ours} / bound of {bound:,.0f} steps/s, its parts in turn", value(ours) / bound, BOUND_FLOOR),
        Ratio(f"{ours} / {env_name}", value(ours) / value(env_name)),
    ]
    if baselines in rows:
        ratios += [
            Ratio(f"{ours} / {baselines}", value(ours) / value(baselines), BASELINES_FLOOR),
            Ratio(f"{plain} / {baselines}", value(plain) / value(baselines)),
        ]
    flags = [word for k, v in sizes.items() for word in (f"--{k.replace('_', '-')}", str(v))]
    command = shlex.join(["recollect", "bench", "train", "--experiment", bench.experiment, *flags])
    words = {**to_dict(config), "passes": passes, "device": str(device), "bench": asdict(bench) | {"out": None}}
    headline = f"{value(ours):,.0f} steps/s, {value(ours) / bound:.2f} of its bound"
    report("train", command, words, list(rows.values()), ratios, bench.json, bench.out, headline)
    return 0
