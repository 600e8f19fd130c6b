"""Where a segment begins in mid-episode and the weights have changed: memory rebuilt or burnt in is exact.

Observations of size one are laid out beforehand, so that one can say what an agent with the new weights would
remember, had it played from the very first step. On the core's output, the worst step of any environment.
"""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from recollect import api
from recollect.algos import actor_critic, ppo
from recollect.algos.learner import replay
from recollect.algos.loss import Minibatch
from recollect.algos.memory import ROWS_AT_ONCE
from recollect.algos.minibatches import minibatches
from recollect.algos.practice import Segments
from recollect.config import override
from recollect.envs.vector import Protocol, RawStep, VectorEnv
from recollect.fast import can_compile, fast
from recollect.nested import map_tensors
from recollect.nets.agent import Agent, make_agent
from recollect.run.checkpoint import load_newest
from recollect.run.folder import RunConfig, RunFolder
from recollect.run.metrics import read_rows
from recollect.types import Discrete, Obs, State, TensorSpec

CPU = torch.device("cpu")
N, WIDTH, SEGMENTS, BOUND = 6, 5, 5, 1e-5
SPEC = {"vector": TensorSpec((WIDTH,), torch.float32)}


class Script(VectorEnv):
    """Shows what is written, whatever the action."""

    resume = "state"

    def __init__(self, obs_KN: Tensor, reset_KN: Tensor):
        self.num_envs, self.device, self.obs_spec, self.action_spec = reset_KN.shape[1], CPU, SPEC, Discrete(2)
        self.protocol, self.obs_KN, self.reset_KN = Protocol("script", "test"), obs_KN, reset_KN

    def _reset(self, seed: int) -> Obs:
        self.at = 0
        return {"vector": self.obs_KN[0]}

    def _send(self, action: Tensor) -> None:
        self.at += 1

    def _recv(self) -> RawStep:
        obs, ended = {"vector": self.obs_KN[self.at]}, self.reset_KN[self.at]
        nothing = torch.zeros(self.num_envs)
        return RawStep(obs, nothing, ended, torch.zeros_like(ended), obs, may_truncate=False)


class Played:
    """Segments of written episodes, and an agent whose weights move between them."""

    def __init__(self, num_steps: int, groups: int = 1, resets: float = 0.06, **settings: Any):
        stream, steps = torch.Generator().manual_seed(4), num_steps * SEGMENTS + 60
        self.obs_KN = torch.randn(steps, N, WIDTH, generator=stream)
        self.reset_KN = torch.rand(steps, N, generator=stream) < resets
        self.reset_KN[0] = True
        sizes = {"num_envs": N, "num_steps": num_steps, "num_minibatches": 2, "hidden": (16,), "core_heads": 2}
        net = {"core": "transformer", "core_width": 16, "look_back": 3}
        self.config = override(ppo.Config(), **(sizes | net | settings))
        self.agent = make_agent(SPEC, Discrete(2), self.config.net, 1, CPU)
        each = N // groups
        parts = [slice(first, first + each) for first in range(0, N, each)]
        envs: list[VectorEnv] = [Script(self.obs_KN[:, part], self.reset_KN[:, part]) for part in parts]
        self.practice = Segments(self.config, a_run(), self.agent, envs)
        self.at = 0

    def segment(self, update: int):
        self.began, self.at = self.at, self.at + self.config.num_steps
        return self.practice.collect(update)[0]

    def move(self) -> None:
        """As an update would, and further."""
        with torch.no_grad():
            for weight in self.agent.parameters():
                weight += 0.2 * weight.std(correction=0).clamp_min(0.1) * torch.randn_like(weight)

    @torch.no_grad()
    def acted(self, steps: int, state: State | None = None, first: int = 0) -> tuple[Tensor, State]:
        """Features of ``steps`` steps from ``first`` on, with the weights of now, one by one; the state after them."""
        state = self.agent.initial_state(N, CPU) if state is None else state
        features = []
        for t in range(first, first + steps):
            feature, _, state = self.agent._step({"vector": self.obs_KN[t]}, state, self.reset_KN[t])
            features.append(feature)
        return torch.stack(features) if features else torch.empty(0), state

    def remembered(self) -> State:
        groups = self.practice.collector.groups
        return {name: torch.cat([group.state[name] for group in groups]) for name in groups[0].state}

    def minibatches(self, rollout: Any) -> list[Minibatch]:
        """In the environments' own order."""
        zero_TN = torch.zeros_like(rollout.value)
        return list(minibatches(rollout, zero_TN, zero_TN, 1, True, torch.Generator().manual_seed(0)))


def a_run() -> Any:
    return SimpleNamespace(
        device=CPU, compiled=False, config=RunConfig(compile="off"), resumed=None, restart_episodes=False
    )


def worst(actual: Tensor, expected: Tensor) -> float:
    return ((actual - expected).norm(dim=-1) / expected.norm(dim=-1)).max().item()


# Rebuilt

# Reach is 3, 6 or 12 steps: segments are shorter, equal and longer.
LAYOUTS = [(layers, steps) for layers in (1, 2, 4) for steps in (1, 5, 6, 30)]


@pytest.mark.parametrize("shared", [True, False])
@pytest.mark.parametrize(("layers", "steps"), LAYOUTS)
def test_the_rebuilt_memory_is_that_of_an_agent_that_played_all_along(layers: int, steps: int, shared: bool):
    played = Played(steps, core_layers=layers, shared=shared)
    reach = 3 * layers
    assert played.agent.reach == reach
    met = set()
    for update in range(SEGMENTS):
        played.segment(update)
        played.move()
        upkeep = played.practice.upkeep
        assert upkeep is not None
        rebuilt = upkeep.rebuilt()
        _, truth = played.acted(played.at)
        ahead = (reach + 3, rebuilt, played.at), (reach + 3, truth, played.at)
        features, expected = (played.acted(*each)[0] for each in ahead)
        assert worst(features, expected) <= BOUND
        stale = played.acted(reach + 3, played.remembered(), played.at)[0]
        assert worst(stale, expected) > 100 * BOUND, "what acting left is another memory"
        young_N = truth["actor.clock"] <= reach
        met |= set(young_N.tolist())
        for name, part in truth.items():  # where the episode is in the history whole, to the last slot
            torch.testing.assert_close(rebuilt[name][young_N], part[young_N], rtol=1e-4, atol=1e-5, msg=name)
    assert met == {True, False} or steps * SEGMENTS <= reach


def test_acting_goes_on_from_it_in_every_group():
    whole, halves = Played(5, core_layers=2), Played(5, groups=2, core_layers=2)
    for update in range(SEGMENTS):
        torch.manual_seed(update)
        first = whole.segment(update)
        torch.manual_seed(update)
        second = halves.segment(update)
        torch.testing.assert_close(first.logp, second.logp, rtol=1e-4, atol=1e-5)
        for name, part in first.state.items():
            torch.testing.assert_close(part, second.state[name], rtol=1e-4, atol=1e-5, msg=name)
        assert worst(whole.acted(5, first.state, whole.began)[0], whole.acted(whole.at)[0][whole.began :]) <= BOUND
        for played in (whole, halves):
            torch.manual_seed(100 + update)
            played.move()


def test_without_rebuilding_acting_goes_on_as_it_was():
    played = Played(5, rebuild_memory=False)
    played.segment(0)
    played.move()
    kept = played.remembered()
    rollout = played.segment(1)
    assert all(torch.equal(part, rollout.state[name]) for name, part in kept.items())
    assert worst(played.acted(5, rollout.state, 5)[0], played.acted(10)[0][5:]) > 100 * BOUND


def test_many_environments_are_rebuilt_in_equal_parts(monkeypatch: pytest.MonkeyPatch):
    assert ROWS_AT_ONCE >= N * 6
    played = Played(5, core_layers=2)
    played.segment(0)
    upkeep = played.practice.upkeep
    assert upkeep is not None
    assert upkeep.columns == N
    together = upkeep.rebuilt()
    monkeypatch.setattr("recollect.algos.memory.ROWS_AT_ONCE", 6 * 4 + 1)  # room for 4, which do not divide 6
    upkeep.columns = upkeep._columns()
    assert upkeep.columns == 3
    apart = upkeep.rebuilt()
    for name, part in together.items():
        torch.testing.assert_close(apart[name], part, rtol=1e-5, atol=1e-6, msg=name)


# Burnt in


@pytest.mark.parametrize(("layers", "steps"), LAYOUTS)
def test_burn_in_is_exact_after_any_number_of_gradient_steps(layers: int, steps: int):
    """The weights move after collection, as between the minibatches of an update."""
    played = Played(steps, core_layers=layers, segment_start="burn-in")
    for update in range(SEGMENTS):
        rollout = played.segment(update)
        assert rollout.state == {}, "no memory is stored"
        played.move()
        (batch,) = played.minibatches(rollout)
        feature = replay(played.agent, batch).feature
        assert feature.shape == (steps, N, 16)
        expected = played.acted(played.at)[0][played.began :]
        order = [int((played.obs_KN[played.began] == each).all(-1).nonzero()) for each in batch.obs["vector"][0]]
        assert sorted(order) == list(range(N))
        assert worst(feature, expected[:, order]) <= BOUND


def test_from_the_stored_memory_it_is_exact_only_until_the_weights_move():
    played = Played(6, core_layers=2)
    for update in range(SEGMENTS):
        rollout = played.segment(update)
        assert rollout.before is None
        truth = played.acted(played.at)[0][played.began :]
        assert worst(played.agent.replay(rollout.obs, rollout.state, rollout.reset).feature, truth) <= BOUND
        played.move()
    truth = played.acted(played.at)[0][played.began :]
    assert worst(played.agent.replay(rollout.obs, rollout.state, rollout.reset).feature, truth) > 100 * BOUND


@pytest.mark.parametrize("detached", [False, True])
def test_burn_in_is_learnt_through_unless_keys_are_detached(detached: bool):
    played = Played(4, core_layers=2, segment_start="burn-in", core_detached=detached, resets=0.0)
    for update in range(3):
        rollout = played.segment(update)
    rollout.reset[0, 2] = True
    (batch,) = played.minibatches(rollout)
    assert batch.before is not None
    before = batch.before.obs["vector"].requires_grad_()
    opens_B = batch.reset[0]
    assert int(opens_B.sum()) == 1
    replay(played.agent, batch).feature.square().mul(torch.arange(16)).sum().backward()
    assert before.grad is not None
    reached_HB = before.grad.abs().sum(-1) > 0
    assert not reached_HB[:, opens_B].any(), "an episode that opens with the segment has nothing before it"
    assert bool(reached_HB[:, ~opens_B].any()) is not detached
    assert bool(reached_HB[:, ~opens_B].all()) is not detached, "all of reach"


# Measured


@pytest.mark.parametrize(("core", "rebuild"), [("gru", True), ("transformer", False)])
def test_a_memory_of_the_present_weights_is_not_stale(core: str, rebuild: bool):
    """Measured against the last segment replayed from where that began, if no number of steps would be enough."""
    played = Played(4, core=core, rebuild_memory=rebuild, resets=0.0)
    for update in range(SEGMENTS):
        rollout = played.segment(update)
        errors = played.practice.measured()
        assert all(error <= BOUND for error in errors.values())
    played.move()
    errors = played.practice.measured()
    assert errors["memory/stale_error"] <= BOUND, "that was before"
    assert errors["memory/stale_error_end"] > 100 * BOUND
    rollout.reset[0, 1:] = True
    alone = played.practice.measured()["memory/stale_error_end"]
    assert alone != pytest.approx(errors["memory/stale_error_end"]), "of open episodes only"
    rollout.reset[0] = True
    assert "memory/stale_error_end" not in played.practice.measured()


# What cannot be


def test_a_core_without_bound_cannot_be_burnt_in():
    with pytest.raises(ValueError, match="segment_start burn-in needs a core that looks back over a bounded"):
        Played(4, core="gru", segment_start="burn-in")


@pytest.mark.parametrize("algorithm", [ppo, actor_critic])
def test_whole_episodes_have_nothing_to_burn_in(algorithm: Any):
    with pytest.raises(ValueError, match="segment_start burn-in is of segments"):
        override(algorithm.Config(), collect="episodes", credit_by="episode", segment_start="burn-in")


# Runs

SMALL = {"num_envs": 4, "num_steps": 17, "num_minibatches": 2, "update_epochs": 2, "hidden": (16,), "core_width": 8}
SMALL |= {"core_heads": 2, "look_back": 5, "checkpoint_every": 1, "threads": 1, "device": "cpu", "eval_episodes": 0}


def rows_of(out: Path, experiment: str = "cartpole-ppo", **settings: Any) -> tuple[list[dict], RunFolder]:
    config = override(api.experiment_config(experiment), **(SMALL | {"total_timesteps": 6 * 68, "out": out} | settings))
    run, _ = api.start(experiment, config, quiet=True)
    return read_rows(run.folder.metrics), run.folder


def column(rows: list[dict], name: str) -> list[float]:
    return [row[name] for row in rows if name in row]


@pytest.mark.parametrize("layers", [1, 2])
def test_what_is_stale_is_measured(tmp_path: Path, layers: int):
    """Learner and actor agree about a stale memory: the alarm is silent, this is not."""
    attention = {"core": "transformer", "core_layers": layers}
    rebuilt, _ = rows_of(tmp_path / "a", **attention)
    kept, _ = rows_of(tmp_path / "b", **attention, rebuild_memory=False)
    burnt, _ = rows_of(tmp_path / "c", **attention, segment_start="burn-in")
    for rows in (rebuilt, kept, burnt):
        assert max(column(rows, "parity/max_ratio_error")) <= BOUND
    for rows in (rebuilt, burnt):
        assert len(column(rows, "memory/stale_error")) >= 4, "only where an episode is open"
        assert max(column(rows, "memory/stale_error")) <= BOUND
    assert min(column(kept, "memory/stale_error")) > 100 * BOUND
    for rows in (rebuilt, kept):
        assert min(column(rows, "memory/stale_error_end")) > 100 * BOUND, "an update has made it stale"
    assert column(burnt, "memory/stale_error_end") == []


def test_a_burnt_in_learner_notices_that_acting_is_stale(tmp_path: Path):
    rows, _ = rows_of(tmp_path, core="transformer", segment_start="burn-in", rebuild_memory=False)
    assert max(column(rows, "memory/stale_error")) > 100 * BOUND
    assert max(column(rows, "parity/max_ratio_error")) > 10 * BOUND


@pytest.mark.parametrize("core", ["gru", "lstm"])
def test_the_error_of_a_memory_that_cannot_be_rebuilt_is_logged(tmp_path: Path, core: str):
    rows, _ = rows_of(tmp_path, core=core)
    assert len(column(rows, "memory/stale_error")) >= 4
    assert min(column(rows, "memory/stale_error")) > 100 * BOUND
    assert min(column(rows, "memory/stale_error_end")) > 100 * BOUND


def test_nothing_is_stale_without_memory(tmp_path: Path):
    rows, folder = rows_of(tmp_path, core="none")
    assert not any(name.startswith("memory/") or name.endswith("share_memory") for row in rows for name in row)
    assert not any("history" in name for name in load_newest(folder.checkpoints)[0].tensors)


def test_a_checkpoint_holds_the_memory_or_what_it_is_rebuilt_from(tmp_path: Path):
    def names(out: str, **settings: Any) -> dict[str, tuple[int, ...]]:
        tensors = load_newest(rows_of(tmp_path / out, **settings)[1].checkpoints)[0].under("collector")
        return {name: tuple(tensors[name].shape) for name in tensors if "env." not in name}

    rebuilt = names("a", core="transformer", core_layers=2)
    assert rebuilt == {"0.reset": (4,), "history/obs.vector": (10, 4, 4), "history/reset": (10, 4)}
    kept = names("b", core="gru", num_envs=12)
    assert kept["0.memory.actor.h"] == (12, 8)
    assert kept["history/obs.vector"] == (17, 8, 4), "what is only measured, of a few environments"
    assert kept["history/start.actor.h"] == (8, 8)


# Compiled and captured


def check_fast(device: torch.device) -> None:
    """A gradient step with burn-in and a rebuilt memory, against the eager ones."""
    results = []
    for compiled in (False, True):
        played = Played(6, core_layers=2, core_heads=1, segment_start="burn-in")  # 16 a head: what flex takes
        for update in range(3):
            rollout = played.segment(update)
        (batch,) = played.minibatches(rollout)
        batch = map_tensors(lambda part: part.to(device), batch)
        agent: Agent = played.agent.to(device)
        learner = ppo.Learner(agent, played.config, device, compiled)
        said = {f"{i} {k}": v for i in range(2) for k, v in learner.gradient_step(batch).items()}
        assert batch.before is not None
        with torch.no_grad():
            after = fast(agent.after, device, compiled)
            state = after(batch.before.obs, agent.initial_state(N, device), batch.before.reset)
        results.append(said | state | {name: weight.detach() for name, weight in agent.state_dict().items()})
    eager, built = results
    for name, expected in eager.items():
        torch.testing.assert_close(built[name], expected, rtol=1e-3, atol=1e-4, msg=name)


@pytest.mark.slow
@pytest.mark.skipif(not can_compile(), reason="no C++ compiler here")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_compiled_equals_eager():
    check_fast(CPU)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_captured_equals_eager():
    check_fast(torch.device("cuda"))
