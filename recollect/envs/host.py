"""What engines share that step on the host: hashed seeds, resuming by a fresh start, and the way to the device."""

from abc import abstractmethod

import numpy as np
import torch
from torch import Tensor

from recollect.envs.vector import VectorEnv
from recollect.rng import stream_seed
from recollect.types import Discrete, Obs


class HostEnv(VectorEnv):
    """A vector environment whose emulator keeps its state to itself, so that it resumes by ``restart``.

    An engine writes ``_start`` instead of ``_reset``. Environment i draws from the stream (seed, "env", first_env + i),
    after the r-th resume from (seed, "env", first_env + i, r): the episodes after a resume are new ones.
    """

    resume = "restart"
    _seed: int = 0
    _restarts: int = 0

    @abstractmethod
    def _start(self, seeds: np.ndarray) -> Obs:
        """Start every environment's first episode. seeds: [N] int64, one stream each"""

    def _reset(self, seed: int) -> Obs:
        self._seed, self._restarts = seed, 0
        return self._start(self._seeds())

    def _seeds(self) -> np.ndarray:
        """One 31-bit seed for each environment: [N] int64."""
        again = (self._restarts,) if self._restarts else ()
        envs = range(self.first_env, self.first_env + self.num_envs)
        return np.array([stream_seed(self._seed, "env", env, *again) for env in envs], dtype=np.int64)

    def _state_dict(self) -> dict[str, Tensor]:
        return {"seed": torch.tensor(self._seed), "restarts": torch.tensor(self._restarts)}

    def _load_state_dict(self, state: dict[str, Tensor]) -> Obs:
        self._seed, self._restarts = int(state["seed"]), int(state["restarts"]) + 1
        return self._start(self._seeds())

    def _host_action(self, action: Tensor) -> np.ndarray:
        """The actions as a numpy array [N, ...], discrete ones checked: emulators do not survive a wrong one."""
        host = action.detach().cpu().numpy()
        spec = self.action_spec
        if isinstance(spec, Discrete):
            if host.shape != (self.num_envs,) or host.dtype != np.int64:
                raise ValueError(f"actions must be int64 [{self.num_envs}], got {host.dtype} {list(host.shape)}")
            if host.min() < 0 or host.max() >= spec.n:
                raise ValueError(f"actions must lie in 0..{spec.n - 1}, got {host.min()}..{host.max()}")
        elif host.shape != (self.num_envs, spec.dim):
            raise ValueError(f"actions must be float32 [{self.num_envs}, {spec.dim}], got {list(host.shape)}")
        return host


class Upload:
    """Takes a step's arrays to the device.

    On the CPU nothing is copied: a tensor is the array, so an engine hands over arrays that it never writes again.
    On CUDA they travel through pinned memory and the host does not wait. Two sets of pinned buffers take turns, each
    guarded by an event, so that filling one never races with the copy out of it two steps ago.
    """

    def __init__(self, device: torch.device):
        self._device = device
        self._pinned: tuple[dict[str, Tensor], dict[str, Tensor]] = ({}, {})
        self._copied = tuple(torch.cuda.Event() for _ in range(2)) if device.type == "cuda" else ()
        self._turn = 0

    def __call__(self, arrays: dict[str, np.ndarray]) -> dict[str, Tensor]:
        """{name: array} -> {name: tensor of the same shape on the device}"""
        host = {name: torch.from_numpy(array) for name, array in arrays.items()}
        if self._device.type != "cuda":
            return {name: part.to(self._device) for name, part in host.items()}
        self._turn ^= 1
        pinned, copied = self._pinned[self._turn], self._copied[self._turn]
        copied.synchronize()
        for name, part in host.items():
            if name not in pinned:
                pinned[name] = torch.empty_like(part, pin_memory=True)
            pinned[name].copy_(part)
        out = {name: pinned[name].to(self._device, non_blocking=True) for name in host}
        copied.record(torch.cuda.current_stream(self._device))
        return out
