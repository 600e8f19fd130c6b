"""The Python API, which the command line stands on: ``train``, ``evaluate``, ``load``."""

import dataclasses
import shlex
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import torch

from recollect.algos import ALGOS
from recollect.config import flat_fields, from_dict, is_external, load_external, override, resolve, setting
from recollect.envs.registry import EnvConfig, make_env
from recollect.envs.vector import VectorEnv
from recollect.experiments import experiment as find_experiment
from recollect.nets.agent import Agent, make_agent
from recollect.run import attention
from recollect.run.checkpoint import Checkpoint, load_newest, load_weights
from recollect.run.device import pick_device
from recollect.run.evaluate import evaluate as evaluate_agent
from recollect.run.folder import RunFolder
from recollect.run.run import Run
from recollect.types import ActionSpec, Discrete, Obs, ObsSpec, State, obs_map

EXTERNAL_FIELDS = ("core", "encoder", "env_id")  # settings that may name code outside the package
RESUMABLE = ("total_timesteps", "track", "eval_every", "eval_episodes", "checkpoint_every", "capture_video", "device")


def find_algorithm(name: str) -> ModuleType:
    """A registered algorithm, or external code: a file with ``Config`` and ``train(config, run)``."""
    module = load_external(name) if is_external(name) else resolve("algorithm", name, ALGOS)
    for needed in ("Config", "train"):
        if not hasattr(module, needed):
            raise ValueError(f"algorithm {name!r} has no {needed!r}; it needs a Config and a train(config, run)")
    config = module.Config
    parts = {f.name for f in dataclasses.fields(config)} if dataclasses.is_dataclass(config) else set()
    if not {"env", "net", "run"} <= parts:
        raise ValueError(f"algorithm {name!r}: Config must be a dataclass with the fields env, net and run")
    return module


def experiment_config(name: str, algorithm: str | None = None) -> Any:
    """An experiment's configuration; with another algorithm, its settings carry over where that has them."""
    row = find_experiment(name)
    if algorithm is None:
        return row.config()
    config_class = find_algorithm(algorithm).Config
    known = flat_fields(config_class)
    return override(config_class(), **{k: v for k, v in row.overrides.items() if k in known})


def start(experiment: str, config: Any, algorithm: str | None = None, quiet: bool = False) -> tuple[Run, Agent]:
    """Train a configuration in a new run folder."""
    algorithm = algorithm or find_experiment(experiment).algorithm
    module = find_algorithm(algorithm)
    env = make_env(config.env, num_envs=1, render=config.run.capture_video)
    if config.run.capture_video:  # better now than after hours of training
        env.reset(0)
        env.render()
    env.close()
    folder = RunFolder.create(config.run.out, config.env.env_id, experiment, config.run.seed, config)
    try:
        run = Run(folder, config, experiment, algorithm, command_line(experiment, config, algorithm), quiet=quiet)
        with run:
            return run, module.train(config, run)
    except BaseException:
        if not folder.card.exists():  # it never began
            shutil.rmtree(folder.path)
        raise


def command_line(experiment: str, config: Any, algorithm: str) -> str:
    """The command that regenerates a run: the experiment, and every setting that differs from it."""
    row = find_experiment(experiment)
    outside = None if algorithm == row.algorithm else algorithm
    words = ["recollect", "train", experiment, *(["--algo", algorithm] if outside else [])]
    for name, value in changed(experiment_config(experiment, outside), config).items():
        words += flag_words(name, value)
    return shlex.join(words)


def flag_words(name: str, value: Any) -> list[str]:
    """A setting as it is written on the command line."""
    flag = f"--{name.replace('_', '-')}"
    if isinstance(value, bool):
        return [flag if value else f"--no-{flag[2:]}"]
    return [flag, *(map(str, value) if isinstance(value, tuple) else [str(value)])]


def changed(before: Any, after: Any) -> dict[str, Any]:
    """Settings that differ, by flat name."""
    names = flat_fields(type(before))
    return {name: setting(after, name) for name in names if setting(before, name) != setting(after, name)}


def stored_config(folder: RunFolder, given: Mapping[str, str]) -> tuple[Any, str]:
    """A run's configuration and algorithm. ``given``: outside code this call names; a folder's word does not do."""
    algorithm = folder.read_card()["algorithm"]
    algorithm = _allowed("algo", algorithm, given)
    data = folder.read_config()
    config = from_dict(find_algorithm(algorithm).Config, data, str(folder.config))
    known = flat_fields(type(config))
    for name in EXTERNAL_FIELDS:
        if name in known:
            config = override(config, **{name: _allowed(name, setting(config, name), given)})
    return config, algorithm


def _allowed(name: str, stored: str, given: Mapping[str, str]) -> str:
    if name in given and (is_external(given[name]) or is_external(stored)):
        return given[name]
    if is_external(stored):
        flag = f"--{name.replace('_', '-')} {stored}"
        raise ValueError(f"this run uses code from outside the package; if you trust it, give {flag}")
    return stored


def newest_checkpoint(folder: RunFolder) -> tuple[Checkpoint, list[str]]:
    """The newest whole checkpoint; each damaged one in front of it is named at once, and returned."""
    checkpoint, damaged = load_newest(folder.checkpoints)
    for line in damaged:
        print(f"recollect: passed over a damaged checkpoint: {line}", file=sys.stderr)
    return checkpoint, damaged


def go_on(
    folder: RunFolder, changes: Mapping[str, Any], given: Mapping[str, str], restart: bool = False, quiet: bool = False
) -> tuple[Run, Agent, list[str]]:
    """Resume a run from its newest whole checkpoint. The last item: a line for each damaged one passed over."""
    config, algorithm = stored_config(folder, given)
    for name in changes:
        if name not in RESUMABLE:
            allowed = ", ".join(f"--{n.replace('_', '-')}" for n in RESUMABLE)
            raise ValueError(
                f"a resumed run keeps its settings: --{name.replace('_', '-')} cannot change (only {allowed})"
            )
    config = override(config, **changes)
    checkpoint, damaged = newest_checkpoint(folder)
    card = folder.read_card()
    if changes:
        folder.write_config(config)  # or the next resume would fall back to the old settings
    words = [word for name, value in changes.items() for word in flag_words(name, value)]
    went_on = shlex.join(["recollect", "train", "--resume", str(folder.path), *words])
    command = f"{card['command']} && {went_on}" if changes else card["command"]
    run = Run(folder, config, card["experiment"], algorithm, command, checkpoint, restart, quiet)
    with run:
        return run, find_algorithm(algorithm).train(config, run), damaged


@dataclasses.dataclass
class Player:
    """A trained agent that acts and remembers: ``load(run).act(obs)``."""

    agent: Agent
    config: Any
    folder: RunFolder
    checkpoint: Checkpoint
    device: torch.device
    obs_spec: ObsSpec
    action_spec: ActionSpec
    _state: State | None = None

    def reset(self) -> None:
        """Forget: the next observation opens an episode."""
        self._state = None

    @torch.no_grad()
    def act(self, obs: np.ndarray | Obs) -> Any:
        """The likeliest action for one observation, or for a batch of them (one memory each)."""
        name, spec = next(iter(self.obs_spec.items()))
        parts = obs if isinstance(obs, dict) else {name: torch.as_tensor(obs)}
        single = parts[name].dim() == len(spec.shape)
        shape = parts[name].shape if single else parts[name].shape[1:]
        if shape != spec.shape:
            raise ValueError(f"{name} must be {list(spec.shape)} or a batch of it, got {list(parts[name].shape)}")
        parts = obs_map(lambda x: x.to(self.device)[None] if single else x.to(self.device), parts)
        parts = {k: v.to(self.obs_spec[k].dtype) for k, v in parts.items()}
        count = len(parts[name])
        fresh = self._state is None
        state = self.agent.initial_state(count, self.device) if self._state is None else self._state
        reset_N = torch.full((count,), fresh, device=self.device)
        action, self._state = self.agent.act_greedily(parts, state, reset_N)
        return action[0].cpu().numpy() if single else action.cpu().numpy()


def load(run: str | Path, device: str = "auto", **external: str) -> Player:
    """The agent of a run's newest checkpoint. ``external``: code of yours that the run uses, core="mine.py:MyCore"."""
    folder, place = RunFolder.open(run), pick_device(device)
    config, _ = stored_config(folder, external)
    env: VectorEnv = make_env(config.env, num_envs=1, device=place)
    env.close()
    agent = make_agent(env.obs_spec, env.action_spec, config.net, config.run.seed, place)
    checkpoint, _ = newest_checkpoint(folder)
    load_weights(agent, checkpoint.under("agent"), checkpoint.path)
    return Player(agent.eval(), config, folder, checkpoint, place, env.obs_spec, env.action_spec)


def train(experiment: str, *, algo: str | None = None, quiet: bool = True, **settings: Any) -> dict[str, Any]:
    """Train a named experiment, any setting overridden by its flat name: ``train("cartpole-ppo", seed=3)``."""
    run, _ = start(experiment, override(experiment_config(experiment, algo), **settings), algo, quiet)
    return run.result()


def evaluate(run: str | Path, *, episodes: int = 100, seed: int | None = None, **settings: Any) -> dict[str, Any]:
    """Evaluate a run on fresh environments; ``settings`` change the environment (env_id=..., protocol=...)."""
    external = {k: v for k, v in settings.items() if k in ("core", "encoder", "algo", "env_id") and is_external(str(v))}
    player = load(run, **external)
    changes = {k: v for k, v in settings.items() if k not in ("core", "encoder", "algo")}
    env = override(player.config, **changes).env
    _check_fits(player, env)
    chosen = player.config.run.seed if seed is None else seed
    result = evaluate_agent(player.agent, env, episodes, chosen, player.device)
    data = player.checkpoint.data
    return {"run": player.folder.path.name, **result, "env_steps": data["env_steps"], "seconds": data["seconds"]}


def action_size(spec: ActionSpec) -> str:
    """In words: ``6 discrete actions``."""
    return f"{spec.n} discrete actions" if isinstance(spec, Discrete) else f"{spec.dim} continuous actions"


def _check_fits(player: Player, env: EnvConfig) -> None:
    """An agent can only play what it was made for: the same observations and actions."""
    other = make_env(env, num_envs=1)
    other.close()
    shown, seen = ({name: list(part.shape) for name, part in of.items()} for of in (other.obs_spec, player.obs_spec))
    if shown != seen:
        raise ValueError(f"this agent observes {seen}, but {env.env_id} shows {shown}")
    if action_size(other.action_spec) != action_size(player.action_spec):
        has, takes = action_size(player.action_spec), action_size(other.action_spec)
        raise ValueError(f"this agent chooses of {has}, but {env.env_id} takes {takes}")


@torch.no_grad()
def film(player: Player, seed: int | None, max_steps: int) -> list[np.ndarray]:
    """Pictures of one sampled episode, uint8 [H, W, 3] each: one before each decision."""
    env, key = _stage(player, seed, render=True)
    frames: list[np.ndarray] = []
    attention.play_one(player.agent, env, key, max_steps, lambda *_: frames.append(env.render()))
    env.close()
    return frames


def attended(player: Player, seed: int | None, max_steps: int) -> dict[str, Any] | None:
    """What an agent attends to in the episode that ``film`` shows; None where its core does not."""
    if not player.agent.attends:
        return None
    env, key = _stage(player, seed, render=False)
    watched = attention.watch(player.agent, env, key, max_steps)
    env.close()
    about = {"env_id": player.config.env.env_id, "core": player.config.net.core}
    return {"run": player.folder.path.name, **about, "env_steps": player.checkpoint.data["env_steps"], **watched}


def _stage(player: Player, seed: int | None, render: bool) -> tuple[VectorEnv, int]:
    """One fresh environment, and the seed of what is played in it."""
    env = make_env(player.config.env, num_envs=1, device=player.device, render=render)
    return env, player.config.run.seed if seed is None else seed
