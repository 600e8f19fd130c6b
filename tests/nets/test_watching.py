"""What is shown as attention is what acting reads by, at the right ages, and looking changes nothing."""

import pytest
import torch
from parity import ATTENTION, CPU, D, acted, build, inputs
from torch import Tensor

from recollect.nets.agent import make_agent
from recollect.nets.config import NetConfig
from recollect.nets.watching import Watching, attended
from recollect.types import Discrete, TensorSpec

W, STEPS, ENVS = 5, 30, 3
WAYS = [
    {},
    {"core_positions": "relative"},
    {"core_positions": "learned"},
    {"core_attention": "relu2"},
    {"core_norm": "post"},
]


class Noted(Watching):
    """Watching that notes what every layer was given and what it read."""

    def read(self, layer, query, key, value, by_age=None, squared=False):
        out = super().read(layer, query, key, value, by_age, squared)
        self.noted = [*getattr(self, "noted", []), (value[0], out[0])]
        return out


@pytest.mark.parametrize("name", ATTENTION)
@pytest.mark.parametrize("settings", WAYS, ids=str)
def test_the_weights_of_past_values_make_what_was_read(name: str, settings: dict):
    """Each step's values are their own, so that a weight at a wrong age would show."""
    core = build(name, 2, W, **settings)
    x_TND, reset_TN = inputs(STEPS, ENVS, resets=0.1)
    outputs, states = acted(core, x_TND, core.initial_state(ENVS, CPU), reset_TN)
    values: list[list[Tensor]] = [[] for _ in core.layers]
    for t in range(STEPS):
        memory = Noted(states[t], reset_TN[t], W)
        with torch.no_grad():
            assert torch.equal(core.through(x_TND[t][None], memory)[0], outputs[t]), "watched or not, the same bits"
        since_N = [int(reset_TN[: t + 1, n].nonzero()[-1]) for n in range(ENVS)]
        assert len(memory.weights) == len(core.layers)
        for layer, (weight_NHA, (value_NHe, out_NHe)) in enumerate(zip(memory.weights, memory.noted, strict=True)):
            values[layer].append(value_NHe)
            for n in range(ENVS):
                ages = min(W, t - since_N[n]) + 1
                assert weight_NHA[n, :, ages:].eq(0).all(), "nothing of another episode, nothing older than W"
                past_AHe = torch.stack([values[layer][t - age][n] for age in range(ages)])
                expected_He = torch.einsum("ha,ahe->he", weight_NHA[n, :, :ages], past_AHe)
                torch.testing.assert_close(out_NHe[n], expected_He, rtol=1e-4, atol=1e-5)
                if settings.get("core_attention") != "relu2" or name != "gau":
                    torch.testing.assert_close(weight_NHA[n].sum(-1), torch.ones(weight_NHA.shape[1]))


def test_looking_leaves_the_state_alone():
    core = build("transformer", 2, W)
    x_TND, reset_TN = inputs(12, ENVS)
    state = acted(core, x_TND, core.initial_state(ENVS, CPU), reset_TN)[1][-1]
    before = {name: part.clone() for name, part in state.items()}
    weights = attended(core, x_TND[0], state, torch.zeros(ENVS, dtype=torch.bool))
    assert [list(weight.shape) for weight in weights] == [[ENVS, 4, W + 1]] * 2
    assert not any(weight.requires_grad for weight in weights)
    assert state.keys() == before.keys()
    assert all(torch.equal(state[name], before[name]) for name in before)


@pytest.mark.parametrize(("core", "layers"), [("none", 0), ("gru", 0), ("lookback", 1), ("gau", 2)])
@pytest.mark.parametrize("shared", [True, False])
def test_an_agent_shows_what_its_policy_attends_to(core: str, layers: int, shared: bool):
    config = NetConfig(hidden=(8,), core=core, core_width=8, core_heads=2, core_layers=2, look_back=W, shared=shared)
    agent = make_agent({"vector": TensorSpec((D,), torch.float32)}, Discrete(3), config, 1, CPU)
    state, reset_N = agent.initial_state(ENVS, CPU), torch.ones(ENVS, dtype=torch.bool)
    weights = agent.attended({"vector": torch.randn(ENVS, D)}, state, reset_N)
    heads = 1 if core == "gau" else 2
    assert agent.attends == (layers > 0)
    assert [list(weight.shape) for weight in weights] == [[ENVS, heads, W + 1]] * layers
    for weight_NHA in weights:
        assert weight_NHA[:, :, 0].eq(1).all(), "where an episode begins there is nothing but itself"
