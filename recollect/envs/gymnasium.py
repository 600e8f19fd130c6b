"""Any Gymnasium id, discrete or continuous, stepped in this process.

Episode k of environment i starts from a seed derived from (run, i, k), so an environment that is a function of seed
and actions is a function of the run's seed: a resumed run plays the open episode's actions again and stands where it
stood. Whether that held is checked against the stored observation; where it did not, resume refuses to pretend.
"""

import warnings
from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np
import torch
from torch import Tensor

from recollect.config import nearest
from recollect.envs.vector import Protocol, RawStep, VectorEnv
from recollect.rng import stream_seed
from recollect.types import ActionSpec, Continuous, Discrete, Obs, ObsSpec, TensorSpec

CURES = {  # what is missing -> what brings it
    "mujoco": "recollect[mujoco]",
    "pygame": "recollect[classic]",
    "ale_py": "recollect[atari]",
    "Box2D": "gymnasium[box2d]",
}


def make_single(env_id: str, max_episode_steps: int | None, render: bool) -> gymnasium.Env:
    """One Gymnasium environment; unknown or not installed becomes one clear line."""
    if max_episode_steps is not None and max_episode_steps < 1:
        raise ValueError(f"max_episode_steps must be at least 1, got {max_episode_steps}")
    mode = "rgb_array" if render else None
    try:
        with warnings.catch_warnings():
            warnings.simplefilter(
                "ignore"
            )  # Gymnasium warns about older versions of an id; the id is the user's choice
            return gymnasium.make(
                env_id, max_episode_steps=max_episode_steps, render_mode=mode, disable_env_checker=True
            )
    except (gymnasium.error.NameNotFound, gymnasium.error.VersionNotFound, gymnasium.error.NamespaceNotFound):
        raise ValueError(f"unknown environment {env_id!r}{nearest(env_id, gymnasium.registry)}") from None
    except (gymnasium.error.DependencyNotInstalled, ImportError) as error:
        raise ValueError(not_installed(env_id, error)) from None
    except gymnasium.error.Error as error:
        raise ValueError(f"environment {env_id!r}: {error}") from None


def not_installed(env_id: str, error: Exception) -> str:
    """The line that names the extra which brings what is missing."""
    text = str(error)
    extra = next((extra for module, extra in CURES.items() if module.lower() in text.lower()), None)
    cure = f"pip install '{extra}'" if extra else text.splitlines()[0]
    return f"environment {env_id!r} is not installed: {cure}"


def to_channels_first(image: np.ndarray) -> np.ndarray:
    """[H, W], [H, W, C] or [C, H, W] -> [C, H, W]. Of the outer axes the shorter one counts channels."""
    if image.ndim == 2:
        return image[None]
    return image if image.shape[0] < image.shape[-1] else np.moveaxis(image, -1, 0)


def obs_spec_of(space: gymnasium.Space, env_id: str) -> ObsSpec:
    """Our names for a Gymnasium observation space."""
    if isinstance(space, gymnasium.spaces.Discrete):
        return {"vector": TensorSpec((int(space.n),), torch.float32, 0.0, 1.0)}
    if isinstance(space, gymnasium.spaces.Box) and len(space.shape) in (2, 3) and space.dtype == np.uint8:
        channels_first = to_channels_first(np.empty(space.shape, np.uint8))
        return {"frame": TensorSpec(channels_first.shape, torch.uint8, 0, 255)}
    if isinstance(space, gymnasium.spaces.Box):
        return {"vector": TensorSpec((int(np.prod(space.shape)),), torch.float32)}
    raise ValueError(f"environment {env_id!r} observes a {type(space).__name__}; known: Box and Discrete")


def action_spec_of(space: gymnasium.Space, env_id: str) -> ActionSpec:
    """Our names for a Gymnasium action space."""
    if isinstance(space, gymnasium.spaces.Discrete):
        return Discrete(int(space.n))
    if isinstance(space, gymnasium.spaces.Box) and len(space.shape) == 1:
        return Continuous(space.shape[0], tuple(space.low.tolist()), tuple(space.high.tolist()))
    raise ValueError(f"environment {env_id!r} takes a {type(space).__name__} action; known: Discrete and flat Box")


class GymnasiumEnv(VectorEnv):
    """N Gymnasium environments, one after another; small ones step faster so than through processes."""

    resume = "replay"

    def __init__(
        self,
        env_id: str,
        make: Callable[[], gymnasium.Env],
        num_envs: int,
        device: str | torch.device = "cpu",
        first_env: int = 0,
    ):
        self.num_envs, self.device, self.first_env = num_envs, torch.device(device), first_env
        self.envs = [make() for _ in range(num_envs)]
        self.obs_space, action_space = self.envs[0].observation_space, self.envs[0].action_space
        self.obs_spec, self.action_spec = obs_spec_of(self.obs_space, env_id), action_spec_of(action_space, env_id)
        self.name, self.part = next(iter(self.obs_spec.items()))
        self.action_start = int(getattr(action_space, "start", 0))
        spec = self.envs[0].spec
        limit = spec.max_episode_steps if spec else None
        self.protocol = Protocol(env_id, f"gymnasium {gymnasium.__version__}", max_episode_steps=limit)

    def _batch(self) -> np.ndarray:
        dtype = np.uint8 if self.part.dtype is torch.uint8 else np.float32
        return np.empty((self.num_envs, *self.part.shape), dtype)

    def _encode(self, raw: Any) -> Any:
        """One observation in our layout: images channels first, discrete states one-hot, the rest flat."""
        if isinstance(self.obs_space, gymnasium.spaces.Discrete):
            return np.eye(self.part.shape[0], dtype=np.float32)[int(raw) - int(self.obs_space.start)]
        return to_channels_first(raw) if self.name == "frame" else np.reshape(raw, -1)

    def _obs(self, batch: np.ndarray) -> Obs:
        return {self.name: torch.from_numpy(batch).to(self.device)}

    def _start_episode(self, i: int) -> Any:
        """Begin the next episode of environment i from its own seed."""
        episode = self.episodes[i]
        self.episodes[i] += 1
        self.actions[i] = []
        obs, _ = self.envs[i].reset(seed=stream_seed(self.seed, "env", self.first_env + i, episode))
        return self._encode(obs)

    def _reset(self, seed: int) -> Obs:
        self.seed, self.episodes = seed, [0] * self.num_envs
        self.actions: list[list[Any]] = [[] for _ in range(self.num_envs)]
        batch = self._batch()
        for i in range(self.num_envs):
            batch[i] = self._start_episode(i)
        self.last = batch
        return self._obs(batch)

    def _send(self, action: Tensor) -> None:
        self._action = action.cpu().numpy()

    def _native(self, action: Any) -> Any:
        """An action as the environment takes it; continuous ones are clipped to its range."""
        if isinstance(self.action_spec, Discrete):
            return int(action) + self.action_start
        return np.clip(action, self.action_spec.low, self.action_spec.high, dtype=np.float32)

    def _recv(self) -> RawStep:
        obs, final = self._batch(), self._batch()
        reward = np.empty(self.num_envs, np.float32)
        terminated, truncated = np.zeros(self.num_envs, bool), np.zeros(self.num_envs, bool)
        for i, env in enumerate(self.envs):
            action = self._action[i]
            self.actions[i].append(action)
            raw, reward[i], ended, cut, _ = env.step(self._native(action))
            obs[i] = final[i] = self._encode(raw)
            terminated[i], truncated[i] = ended, cut and not ended
            if ended or cut:
                obs[i] = self._start_episode(i)
        self.last = obs
        to = lambda x: torch.from_numpy(x).to(self.device)  # noqa: E731
        return RawStep(
            self._obs(obs),
            to(reward),
            to(terminated),
            to(truncated),
            self._obs(final),
            may_truncate=bool(truncated.any()),
        )

    def _state_dict(self) -> dict[str, Tensor]:
        """Which episode each environment is in, its actions so far, and what replaying them must show."""
        lengths = [len(a) for a in self.actions]
        shape = () if isinstance(self.action_spec, Discrete) else (self.action_spec.dim,)
        dtype = np.int64 if isinstance(self.action_spec, Discrete) else np.float32
        flat = np.array([a for open_episode in self.actions for a in open_episode], dtype).reshape(-1, *shape)
        return {
            "seed": torch.tensor(self.seed),
            "episodes": torch.tensor(self.episodes),
            "lengths": torch.tensor(lengths),
            "actions": torch.from_numpy(flat),
            "last": torch.from_numpy(self.last.copy()),
        }

    def _load_state_dict(self, state: dict[str, Tensor]) -> Obs:
        self.seed = int(state["seed"])
        self.episodes = [int(k) - 1 for k in state["episodes"]]  # _start_episode counts the open one again
        self.actions = [[] for _ in range(self.num_envs)]
        batch = self._batch()
        for i, played in enumerate(state["actions"].split(state["lengths"].tolist())):
            batch[i] = self._start_episode(i)
            for action in played.numpy():
                raw = self.envs[i].step(self._native(action))[0]
                self.actions[i].append(action)
                batch[i] = self._encode(raw)
        if not np.array_equal(batch, state["last"].numpy(), equal_nan=True):
            raise ValueError(
                f"{self.protocol.env_id} is not a function of seed and actions: replaying the open episodes led "
                "elsewhere, so this run cannot go on exactly; give --restart-episodes to begin them anew"
            )
        self.last = batch
        return self._obs(batch)

    def render(self) -> Any:
        """Environment 0, when made with ``render``."""
        try:
            picture = self.envs[0].render()
        except (gymnasium.error.DependencyNotInstalled, ImportError) as error:
            raise ValueError(not_installed(self.protocol.env_id, error)) from None
        if not isinstance(picture, np.ndarray):
            raise ValueError(f"{self.protocol.env_id} draws no picture")
        return picture

    def close(self) -> None:
        for env in self.envs:
            env.close()
