"""DarkRoom on tensors: a grid, a start at its centre, one goal that is not shown. Any size, all goals at once.

Moves: stay, up, right, down, left; walls stop a move. Reward 1 on reaching the goal, which ends the episode when
``terminate_on_goal``; otherwise every step spent on the goal pays 1 until the step limit. The observation is the
one-hot cell, and on request the episode's clock.
"""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from recollect.envs.vector import Protocol, RawStep, VectorEnv
from recollect.types import Discrete, Obs, TensorSpec

MOVES = ("stay", "up", "right", "down", "left")
DELTA_M2 = torch.tensor([[0, 0], [-1, 0], [0, 1], [1, 0], [0, -1]])  # (row, column) of each move


@dataclass(frozen=True)
class Options:
    """What can be chosen about a DarkRoom."""

    size: int = 9
    """Cells along each side."""
    goal: str = "all"
    """``all``: environment i seeks the i-th cell that is not the start, round and round; or ``row,column``."""
    max_steps: int = 20
    """Decisions until an episode is truncated."""
    terminate_on_goal: bool = True
    """Whether reaching the goal ends the episode."""
    clock: bool = False
    """Add the episode's own clock to the observation."""


def goals(options: Options) -> Tensor:
    """Every goal that the options allow. int64 [G, 2]"""
    size, start = options.size, options.size // 2
    if size < 2:
        raise ValueError(f"DarkRoom's size must be at least 2, got {size}")
    if options.max_steps < 1:
        raise ValueError(f"DarkRoom's max_steps must be at least 1, got {options.max_steps}")
    if options.goal == "all":
        cells = [(r, c) for r in range(size) for c in range(size) if (r, c) != (start, start)]
        return torch.tensor(cells)
    try:
        row, column = (int(part) for part in options.goal.split(","))
    except ValueError:
        raise ValueError(f"DarkRoom's goal is 'all' or 'row,column', got {options.goal!r}") from None
    if not (0 <= row < size and 0 <= column < size) or (row, column) == (start, start):
        raise ValueError(f"DarkRoom's goal must lie in 0..{size - 1} and off the start, got {options.goal!r}")
    return torch.tensor([(row, column)])


def move(cell_N2: Tensor, action_N: Tensor, delta_M2: Tensor, size: int) -> Tensor:
    """Where a move leads; walls stop it. int64 [N, 2]"""
    return (cell_N2 + delta_M2[action_N]).clamp(0, size - 1)


def observe(cell_N2: Tensor, clock_N: Tensor, options: Options) -> Obs:
    """The one-hot cell and, on request, the clock in 0..1. {vector: [N, size*size], clock: [N, 1]}"""
    index_N = cell_N2[:, 0] * options.size + cell_N2[:, 1]
    obs = {"vector": torch.nn.functional.one_hot(index_N, options.size**2).float()}
    if options.clock:
        obs["clock"] = (clock_N.float() / options.max_steps)[:, None]
    return obs


class DarkRoom(VectorEnv):
    """N rooms, each with its own goal. It has no randomness, so its state is all there is to resume."""

    resume = "state"

    def __init__(self, num_envs: int, options: Options, device: str | torch.device = "cpu", first_env: int = 0):
        self.num_envs, self.options, self.device, self.first_env = num_envs, options, torch.device(device), first_env
        every = goals(options)
        self.goal_N2 = every[(torch.arange(num_envs) + first_env) % len(every)].to(self.device)
        self.tasks = len(every)
        self.delta_M2 = DELTA_M2.to(self.device)
        self.start_N2 = torch.full((num_envs, 2), options.size // 2, device=self.device)
        self.obs_spec = {"vector": TensorSpec((options.size**2,), torch.float32, 0.0, 1.0)}
        if options.clock:
            self.obs_spec["clock"] = TensorSpec((1,), torch.float32, 0.0, 1.0)
        self.action_spec = Discrete(len(MOVES), MOVES)
        words = f"size {options.size}, goal {options.goal}, starts at the centre, "
        words += f"terminate_on_goal {options.terminate_on_goal}, clock {options.clock}"
        self.protocol = Protocol("recollect/DarkRoom-v0", "tensor", max_episode_steps=options.max_steps, extra=words)

    def _reset(self, seed: int) -> Obs:
        self.cell_N2, self.clock_N = self.start_N2, torch.zeros_like(self.start_N2[:, 0])
        return observe(self.cell_N2, self.clock_N, self.options)

    def _send(self, action: Tensor) -> None:
        self._action_N = action

    def _recv(self) -> RawStep:
        options = self.options
        cell_N2, clock_N = move(self.cell_N2, self._action_N, self.delta_M2, options.size), self.clock_N + 1
        at_goal_N = (cell_N2 == self.goal_N2).all(-1)
        terminated_N = at_goal_N & options.terminate_on_goal
        truncated_N = (clock_N >= options.max_steps) & ~terminated_N
        ended_N = terminated_N | truncated_N
        final_obs = observe(cell_N2, clock_N, options)
        self.cell_N2 = torch.where(ended_N[:, None], self.start_N2, cell_N2)
        self.clock_N = clock_N.masked_fill(ended_N, 0)
        obs = observe(self.cell_N2, self.clock_N, options)
        # On a GPU asking would make the host wait; there, every step may have been a truncation.
        may_truncate = self.device.type != "cpu" or bool(truncated_N.any())
        return RawStep(obs, at_goal_N.float(), terminated_N, truncated_N, final_obs, may_truncate=may_truncate)

    def _state_dict(self) -> dict[str, Tensor]:
        return {"cell": self.cell_N2, "clock": self.clock_N}

    def _load_state_dict(self, state: dict[str, Tensor]) -> Obs:
        self.cell_N2, self.clock_N = state["cell"].to(self.device), state["clock"].to(self.device)
        return observe(self.cell_N2, self.clock_N, self.options)

    def render(self) -> np.ndarray:
        """Environment 0: floor dark, goal green, agent orange, 24 pixels a cell."""
        size = self.options.size
        picture = np.full((size, size, 3), (28, 30, 38), np.uint8)
        picture[tuple(self.goal_N2[0].tolist())] = (46, 160, 67)
        picture[tuple(self.cell_N2[0].tolist())] = (240, 136, 62)
        picture = picture.repeat(24, 0).repeat(24, 1)
        picture[::24], picture[:, ::24] = (50, 54, 66), (50, 54, 66)
        return picture
