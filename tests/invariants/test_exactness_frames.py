"""A CNN's run resumes to the bit as well: its weights lie channels last, and so must the optimiser's moments."""

from pathlib import Path

import gymnasium
import numpy as np
import pytest
import torch
from test_exactness import outcome

from recollect import api
from recollect.config import override
from recollect.run.checkpoint import load_optimizer, optimizer_tensors

FLICKER = '''
import gymnasium
import numpy as np


class Flicker(gymnasium.Env):
    """Frames drawn from the seed; the episode ends after 11 steps."""

    observation_space = gymnasium.spaces.Box(0, 255, (36, 40, 2), np.uint8)
    action_space = gymnasium.spaces.Discrete(3)

    def _frame(self):
        return self.np_random.integers(0, 256, (36, 40, 2)).astype(np.uint8)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.clock = 0
        return self._frame(), {}

    def step(self, action):
        self.clock += 1
        return self._frame(), float(action == 1), self.clock == 11, False, {}
'''


def train(tmp_path: Path, name: str, updates: int, resume: bool = False):
    source = tmp_path / "flicker.py"
    source.write_text(FLICKER)
    settings = {
        "env_id": f"{source}:Flicker", "encoder": "small", "cnn_width": 16, "num_envs": 2, "num_steps": 8,
        "num_minibatches": 2, "lr_schedule": "constant", "total_timesteps": updates * 16, "checkpoint_every": 1,
        "threads": 1, "device": "cpu", "out": tmp_path / name,
    }  # fmt: skip
    config = override(api.experiment_config("cartpole-ppo"), **settings)
    run, _ = api.start("cartpole-ppo", config, quiet=True)
    return run.folder


def test_a_cnn_resumes_to_the_bit(tmp_path: Path):
    whole = train(tmp_path, "whole", 6)
    parted = train(tmp_path, "parted", 3)
    given = {"env_id": f"{tmp_path / 'flicker.py'}:Flicker"}
    api.go_on(parted, {"total_timesteps": 6 * 16}, given, quiet=True)
    first, second = outcome(whole), outcome(parted)
    assert first["rows"] == second["rows"]
    assert first["tensors"] == second["tensors"]


def test_moments_take_their_weights_strides():
    layer = torch.nn.Conv2d(3, 4, 2).to(memory_format=torch.channels_last)
    optimizer = torch.optim.Adam(layer.parameters(), fused=True)
    layer(torch.randn(1, 3, 5, 5)).sum().backward()
    optimizer.step()
    tensors, groups = optimizer_tensors(optimizer)
    stored = {name: tensor.contiguous() for name, tensor in tensors.items()}
    load_optimizer(optimizer, stored, groups)
    for slot in optimizer.state.values():
        for name in ("exp_avg", "exp_avg_sq"):
            assert any(slot[name].stride() == p.stride() and slot[name].shape == p.shape for p in layer.parameters())


@pytest.mark.parametrize("shape", [(6, 5), (6, 5, 3), (3, 6, 5)])
def test_images_come_channels_first_however_they_lie(shape: tuple[int, ...]):
    from recollect.envs.gymnasium import obs_spec_of

    space = gymnasium.spaces.Box(0, 255, shape, np.uint8)
    assert obs_spec_of(space, "x")["frame"].shape == ((1, 6, 5) if len(shape) == 2 else (3, 6, 5))
