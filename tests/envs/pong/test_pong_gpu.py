"""On a GPU, captured as a graph: the same game, to the pixel, as on a CPU."""

import pytest
import torch

from recollect.envs.pong.env import PongEnv
from recollect.envs.pong.options import Options
from recollect.rng import generator

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")

SETTINGS = {
    "pixels": {},
    "pixels, other worlds": {"paddle_height": "8..24", "noop_max": 5},
    "binary": {"obs": "binary"},
    "ram": {"obs": "ram"},
    "state": {"obs": "state", "gravity": "0..0.05"},
}


@pytest.mark.parametrize("name", SETTINGS)
def test_a_captured_step_on_a_gpu_is_the_cpu_s(name: str):
    options = Options(**SETTINGS[name], max_episode_steps=60)
    here, there = PongEnv(4, options), PongEnv(4, options, "cuda", compiled=True)
    (part,) = here.reset(7)
    assert torch.equal(here.reset(7)[part], there.reset(7)[part].cpu())
    draw = generator(0, "test actions")
    for _ in range(200):
        action = torch.randint(6, (4,), generator=draw)
        one, other = here.step(action), there.step(action.cuda())
        for field in ("reward", "terminated", "truncated", "round_end"):
            assert torch.equal(getattr(one, field), getattr(other, field).cpu())
        assert torch.equal(one.obs[part], other.obs[part].cpu())
        assert torch.equal(one.final_obs[part], other.final_obs[part].cpu())
