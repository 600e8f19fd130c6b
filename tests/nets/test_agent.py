"""The agent: acting, replaying and peeking agree; weights depend on the seed alone; heads stay in fp32."""

import pytest
import torch

from recollect.nets.agent import Agent, make_agent
from recollect.nets.config import NetConfig
from recollect.nets.cores import CORES
from recollect.nets.cores.gru import GRU
from recollect.nets.encoders import blocks
from recollect.types import Continuous, Discrete, TensorSpec

CPU = torch.device("cpu")
VECTOR = {"vector": TensorSpec((4,), torch.float32)}
FRAME = {"frame": TensorSpec((4, 84, 84), torch.uint8, 0, 255)}
REAL = Continuous(2, (-1.0, -1.0), (1.0, 1.0))
T, N = 9, 6


THREE = Discrete(3)


def agent_for(spec: dict, actions=THREE, **settings: object) -> Agent:
    return make_agent(spec, actions, NetConfig(**settings), 1, CPU)


def observations(spec: dict, seed: int = 0) -> dict:
    stream = torch.Generator().manual_seed(seed)
    if "frame" in spec:
        return {"frame": torch.randint(0, 256, (T, N, 4, 84, 84), dtype=torch.uint8, generator=stream)}
    return {"vector": torch.randn(T, N, 4, generator=stream)}


@torch.no_grad()
def act_all(agent: Agent, obs: dict, reset_TN: torch.Tensor):
    """Act through a segment: log-probabilities and values [T, N], actions, and the state before every step."""
    stream, state = torch.Generator().manual_seed(5), agent.initial_state(N, CPU)
    actions, logps, values, states = [], [], [], []
    for t in range(T):
        states.append(state)
        noise = agent.policy.noise((N,), stream)
        acted, state = agent.act({k: v[t] for k, v in obs.items()}, state, reset_TN[t], noise)
        actions.append(acted.action)
        logps.append(acted.logp)
        values.append(acted.value)
    return torch.stack(actions), torch.stack(logps), torch.stack(values), [*states, state]


@pytest.mark.parametrize("core", CORES)
@pytest.mark.parametrize("shared", [True, False])
@pytest.mark.parametrize("actions", [Discrete(3), REAL], ids=["discrete", "continuous"])
def test_replay_says_what_acting_said(core: str, shared: bool, actions):
    agent, obs = agent_for(VECTOR, actions, core=core, shared=shared, core_width=16), observations(VECTOR)
    reset_TN = torch.rand(T, N, generator=torch.Generator().manual_seed(2)) < 0.2
    reset_TN[0] = True
    action_TN, logp_TN, value_TN, states = act_all(agent, obs, reset_TN)
    replayed = agent.replay(obs, states[0], reset_TN)
    torch.testing.assert_close(replayed.policy.logp(action_TN), logp_TN, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(replayed.value, value_TN, rtol=1e-5, atol=1e-6)
    late = agent.replay({k: v[4:] for k, v in obs.items()}, states[4], reset_TN[4:])
    torch.testing.assert_close(late.value, value_TN[4:], rtol=1e-5, atol=1e-6)
    burnt = agent.replay(obs, states[0], reset_TN, burn_in=4)
    torch.testing.assert_close(burnt.value, value_TN[4:], rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(burnt.policy.logp(action_TN[4:]), logp_TN[4:], rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(burnt.feature, replayed.feature[4:], rtol=0, atol=0)
    for name, part in agent.after(obs, states[0], reset_TN).items():
        torch.testing.assert_close(part, states[-1][name], rtol=1e-5, atol=1e-5, msg=name)


def test_a_core_that_does_not_say_its_state_after_a_segment_is_walked_through_it(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delattr(GRU, "after")
    monkeypatch.delattr(GRU, "reach")
    agent, obs = agent_for(VECTOR, core="gru", core_width=16), observations(VECTOR)
    reset_TN = torch.rand(T, N, generator=torch.Generator().manual_seed(2)) < 0.2
    states = act_all(agent, obs, reset_TN)[-1]
    assert agent.reach is None
    for name, part in agent.after(obs, states[0], reset_TN).items():
        torch.testing.assert_close(part, states[-1][name], rtol=1e-5, atol=1e-6, msg=name)


@pytest.mark.parametrize("core", [name for name in CORES if name != "none"])
@pytest.mark.parametrize("shared", [True, False])
def test_peek_is_the_value_of_going_on_and_changes_nothing(core: str, shared: bool):
    """At a truncation this is the value of the old episode's last observation, with the old episode's memory."""
    agent, obs = agent_for(VECTOR, core=core, shared=shared, core_width=16), observations(VECTOR)
    reset_TN = torch.zeros(T, N, dtype=torch.bool)
    reset_TN[0] = True
    _, _, value_TN, states = act_all(agent, obs, reset_TN)
    kept = {k: v.clone() for k, v in states[4].items()}
    peeked_N = agent.peek({k: v[4] for k, v in obs.items()}, states[4])
    torch.testing.assert_close(peeked_N, value_TN[4], rtol=1e-5, atol=1e-6)
    assert all(torch.equal(states[4][k], kept[k]) for k in kept)
    fresh_N = agent.peek({k: v[4] for k, v in obs.items()}, agent.initial_state(N, CPU))
    assert (fresh_N - peeked_N).abs().max() > 1e-3, "with another memory the value is another"


def test_weights_depend_on_the_seed_alone():
    torch.manual_seed(0)
    first = agent_for(VECTOR).state_dict()
    torch.rand(7)
    second = agent_for(VECTOR).state_dict()
    other = make_agent(VECTOR, Discrete(3), NetConfig(), 2, CPU).state_dict()
    assert all(torch.equal(first[k], second[k]) for k in first)
    assert not torch.equal(first["policy.logits.weight"], other["policy.logits.weight"])


def test_making_an_agent_leaves_the_global_stream_alone():
    torch.manual_seed(11)
    expected = torch.rand(3)
    torch.manual_seed(11)
    agent_for(VECTOR)
    assert torch.equal(torch.rand(3), expected)


def test_bf16_stays_below_the_heads():
    agent, obs = agent_for(FRAME, encoder="small", cnn_width=64, precision="bf16"), observations(FRAME)
    plain = agent_for(FRAME, encoder="small", cnn_width=64)
    plain.load_state_dict(agent.state_dict())
    reset_TN = torch.zeros(T, N, dtype=torch.bool)
    half, full = agent.replay(obs, {}, reset_TN), plain.replay(obs, {}, reset_TN)
    assert half.value.dtype is torch.float32
    assert half.policy.logits.dtype is torch.float32
    error = (half.feature - full.feature).norm() / full.feature.norm()
    assert 1e-5 < error < 3e-2, "bf16 is coarser than fp32, but no more than it must be"
    assert all(p.dtype is torch.float32 for p in agent.parameters())


@pytest.mark.parametrize("encoder", ["nature", "small"])
def test_a_cnn_sees_frames_and_clock(encoder: str):
    spec = FRAME | {"clock": TensorSpec((1,), torch.float32)}
    agent = agent_for(spec, encoder=encoder, cnn_width=32)
    obs = {k: v[0] for k, v in observations(FRAME).items()}
    early, late = ({**obs, "clock": torch.full((N, 1), c)} for c in (0.0, 1.0))
    assert agent.torso.width == 33
    assert not torch.equal(agent.peek(early, {}), agent.peek(late, {}))
    black = agent.peek({"frame": torch.zeros_like(obs["frame"]), "clock": early["clock"]}, {})
    assert not torch.allclose(black, agent.peek(early, {}))


def test_the_nature_network_has_its_known_size():
    """8*8*4*32+32 + 4*4*32*64+64 + 3*3*64*64+64 + 3136*512+512 + 512*6+6 + 512+1 = 1,687,719"""
    agent = agent_for(FRAME, Discrete(6), encoder="nature")
    assert sum(p.numel() for p in agent.parameters()) == 1_687_719


@pytest.mark.parametrize(
    ("spec", "settings", "words"),
    [
        ({"clock": TensorSpec((1,), torch.float32)}, {"encoder": "mlp"}, "reads 'vector' or 'frame'"),
        (VECTOR, {"encoder": "nature"}, "reads 'frame'"),
        (VECTOR, {"encoder": "mpl"}, "did you mean 'mlp'"),
        (VECTOR, {"core": "gur"}, "did you mean 'gru'"),
        ({"frame": TensorSpec((1, 20, 20), torch.uint8)}, {"encoder": "nature"}, "at least 36x36"),
    ],
)
def test_what_does_not_fit_is_said_in_words(spec: dict, settings: dict, words: str):
    with pytest.raises(ValueError, match=words):
        agent_for(spec, **settings)


@pytest.mark.parametrize("size", [(84, 84), (80, 80), (87, 50)])
def test_a_convolution_on_blocks_is_the_same_convolution(size: tuple[int, int]):
    frame, weight = torch.rand(2, 3, *size), torch.randn(5, 3, 8, 8)
    pixels, taps = blocks(frame, weight, stride=4)
    expected = torch.nn.functional.conv2d(frame, weight, stride=4)
    torch.testing.assert_close(torch.nn.functional.conv2d(pixels, taps), expected)
