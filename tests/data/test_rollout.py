"""Identifiable data followed through the collector and its minibatches.

Every observation says which environment, episode and step it is; the action repeats it, the reward repeats the action,
the memory counts along. Whatever then stands in the wrong place shows.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from torch import Tensor

from recollect.algos.loss import Minibatch
from recollect.algos.ppo import minibatches
from recollect.data.rollout import Collector, Episodes, Rollout, rows_of, shuffled_rows, windows_of
from recollect.envs.vector import Protocol, RawStep, VectorEnv
from recollect.ops.returns import gae
from recollect.types import Acted, Continuous, Obs, State, TensorSpec

STEPS, ENVS, SEGMENTS = 7, 6, 3


def length_of(env: int, episode: int) -> int:
    """Steps of an episode: 1 to 8, so that some fit a segment several times and some span two."""
    return 1 + (5 * env + 3 * episode) % 8


def truncates(env: int, episode: int) -> bool:
    return (env + episode) % 2 == 0


def code(part: Tensor) -> Tensor:
    """(environment, episode, step) as one number that float32 holds exactly. [..., 3] -> [...]"""
    return (part * torch.tensor([10_000.0, 100.0, 1.0])).sum(-1)


class Coded(VectorEnv):
    """Observes (environment, episode, step), pays the code of the action that it was sent."""

    resume = "state"

    def __init__(self, num_envs: int, first_env: int = 0, tells: bool = True, log: list[str] | None = None):
        self.num_envs, self.first_env, self.device, self.tells = num_envs, first_env, torch.device("cpu"), tells
        self.obs_spec = {"vector": TensorSpec((3,), torch.float32)}
        self.action_spec = Continuous(3, (-math.inf,) * 3, (math.inf,) * 3)
        self.protocol = Protocol("coded", "test")
        self.log = [] if log is None else log

    def _obs(self) -> Obs:
        return {"vector": torch.stack([self.index, self.episode, self.clock], 1).float()}

    def _reset(self, seed: int) -> Obs:
        self.index = torch.arange(self.num_envs) + self.first_env
        self.episode, self.clock = torch.zeros_like(self.index), torch.zeros_like(self.index)
        return self._obs()

    def _send(self, action: Tensor) -> None:
        self.log.append(f"send {self.first_env}")
        assert torch.equal(action, self._obs()["vector"]), "an action reached another environment, episode or step"
        self.action = action

    def _recv(self) -> RawStep:
        self.log.append(f"receive {self.first_env}")
        self.clock = self.clock + 1
        final_obs, episodes = self._obs(), list(zip(self.index.tolist(), self.episode.tolist(), strict=True))
        ended = self.clock == torch.tensor([length_of(*e) for e in episodes])
        cut = torch.tensor([truncates(*e) for e in episodes])
        self.episode, self.clock = self.episode + ended, self.clock.masked_fill(ended, 0)
        truncated = ended & cut
        told = bool(truncated.any()) if self.tells else True
        return RawStep(self._obs(), code(self.action), ended & ~cut, truncated, final_obs, may_truncate=told)

    def _state_dict(self) -> dict[str, Tensor]:
        return {"index": self.index, "episode": self.episode, "clock": self.clock}

    def _load_state_dict(self, state: dict[str, Tensor]) -> Obs:
        self.index, self.episode, self.clock = state["index"], state["episode"], state["clock"]
        return self._obs()


def initial_state(num_envs: int, device: torch.device) -> State:
    """What the memory holds: (environment, episode, steps seen), recognisably wrong before the first step."""
    return {"seen": torch.full((num_envs, 3), -7.0)}


@dataclass
class Reader:
    """An agent that reads the code, and complains where its memory belongs to something else."""

    log: list[str] = field(default_factory=list)
    peeks: int = 0

    def act(self, obs: Obs, state: State, reset_N: Tensor, noise_N: Tensor) -> tuple[Acted, State]:
        said_N3, seen_N3 = obs["vector"], state["seen"]
        self.log.append(f"act {int(said_N3[0, 0])}")
        assert torch.equal(reset_N, said_N3[:, 2] == 0), "reset is true exactly at an episode's first observation"
        assert torch.equal(seen_N3[~reset_N], said_N3[~reset_N]), "memory belongs to another environment or episode"
        assert torch.equal(noise_N[:, 0], said_N3[:, 0]), "noise belongs to another environment"
        after_N3 = said_N3 + torch.tensor([0.0, 0.0, 1.0])
        return Acted(said_N3.clone(), code(said_N3) + 0.5, code(said_N3) + 0.25), {"seen": after_N3}

    def peek(self, obs: Obs, state: State) -> Tensor:
        """The code plus 1/8; NaN where the memory is not that of this very episode and step."""
        self.peeks += 1
        own_N = (state["seen"] == obs["vector"]).all(-1)
        return torch.where(own_N, code(obs["vector"]) + 0.125, torch.nan)


def collector_of(*sizes: int, tells: bool = True, log: list[str] | None = None) -> Collector:
    """Environments 0..5 in groups of these sizes."""
    starts = [sum(sizes[:g]) for g in range(len(sizes))]
    envs = [Coded(size, start, tells, log) for size, start in zip(sizes, starts, strict=True)]
    rollout = Rollout.empty(STEPS, ENVS, envs[0].obs_spec, envs[0].action_spec, torch.device("cpu"))
    return Collector(envs, rollout)


def noise() -> Tensor:
    """[T, N, 1] each environment's own number."""
    return torch.arange(float(ENVS)).expand(STEPS, ENVS)[..., None]


def parts(rollout: Rollout) -> dict[str, Tensor]:
    """Every tensor of a rollout, by name."""
    flat: dict[str, Any] = {f"obs.{k}": v for k, v in rollout.obs.items()}
    flat |= {f"state.{k}": v for k, v in rollout.state.items()}
    flat |= {k: v for k, v in vars(rollout).items() if isinstance(v, Tensor)}
    return {k: v.clone() for k, v in flat.items()}


def collect(collector: Collector, reader: Reader, segments: int = SEGMENTS) -> list[tuple[dict[str, Tensor], Episodes]]:
    """Copies of the next segments: the collector overwrites its one rollout."""
    found = []
    for _ in range(segments):
        rollout, episodes = collector.collect(reader.act, reader.peek, noise())
        found.append((parts(rollout) | {"next_value": rollout.next_value, "ended": rollout.ended}, episodes))
    return found


def walk(env: int) -> list[tuple[int, int, bool]]:
    """The oracle, one environment: (episode, step, whether it ends there), step after step."""
    seen = []
    for episode in range(STEPS * SEGMENTS + 1):
        length = length_of(env, episode)
        seen += [(episode, step, step == length - 1) for step in range(length)]
    return seen[: STEPS * SEGMENTS + 1]


GROUPINGS = [(6,), (3, 3), (2, 4)]


@pytest.mark.parametrize("tells", [True, False])
@pytest.mark.parametrize("sizes", GROUPINGS)
def test_everything_lines_up(sizes: Sequence[int], tells: bool):
    collector, reader = collector_of(*sizes, tells=tells), Reader()
    collector.start(0, initial_state)
    segments = [found for found, _ in collect(collector, reader)]
    ends = set()
    for n in range(ENVS):
        for k, (episode, step, ends_here) in enumerate(walk(n)[:-1]):
            found, t = segments[k // STEPS], k % STEPS
            where = f"environment {n}, segment {k // STEPS}, step {t}"
            here = torch.tensor([n, episode, step])
            number = float(code(here.float()))
            cut = ends_here and truncates(n, episode)
            assert found["obs.vector"][t, n].tolist() == here.tolist(), where
            assert found["action"][t, n].tolist() == here.tolist(), where
            assert found["reward"][t, n] == number, where
            assert found["logp"][t, n] == number + 0.5, where
            assert found["value"][t, n] == number + 0.25, where
            assert bool(found["reset"][t, n]) == (step == 0), where
            assert bool(found["terminated"][t, n]) == (ends_here and not cut), where
            assert bool(found["truncated"][t, n]) == cut, where
            assert bool(found["round_end"][t, n]) == bool(found["ended"][t, n]) == ends_here, where
            # The old episode's own next step, seen with the old episode's memory: NaN or the next episode's otherwise.
            assert found["final_value"][t, n] == (number + 1 + 0.125 if cut else 0), where
            if ends_here:
                ends.add((t == STEPS - 1, cut))
    assert ends == {(last, cut) for last in (True, False) for cut in (True, False)}, "every kind of end was met"


@pytest.mark.parametrize("sizes", GROUPINGS)
def test_the_value_of_what_follows_stays_in_the_episode(sizes: Sequence[int]):
    collector, reader = collector_of(*sizes), Reader()
    collector.start(0, initial_state)
    for k, (found, _) in enumerate(collect(collector, reader)):
        number_TN = code(found["obs.vector"])
        for n in range(ENVS):
            for t in range(STEPS):
                if found["terminated"][t, n]:
                    continue  # nothing follows, and nothing reads this
                told = 0.125 if found["truncated"][t, n] or t == STEPS - 1 else 0.25  # peeked, or acted on
                assert found["next_value"][t, n] == number_TN[t, n] + 1 + told
            episode, step, _ = walk(n)[(k + 1) * STEPS]
            if not found["ended"][-1, n]:
                assert found["last_value"][n] == code(torch.tensor([n, episode, step]).float()) + 0.125
        credit = gae(
            found["reward"], found["value"], found["next_value"], found["terminated"], found["ended"], 0.9, 0.8
        )
        assert credit.isfinite().all(), "a value peeked with the wrong memory was used"


@pytest.mark.parametrize("sizes", GROUPINGS)
def test_memory_at_the_segments_start_is_its_environments(sizes: Sequence[int]):
    collector, reader = collector_of(*sizes), Reader()
    collector.start(0, initial_state)
    for k, (found, _) in enumerate(collect(collector, reader)):
        for n in range(ENVS):
            episode, step, _ = walk(n)[k * STEPS]
            if step == 0 and k == 0:
                expected = [-7, -7, -7]
            elif step == 0:  # cleared only when it is consumed: still the old episode's, whole
                old, last, _ = walk(n)[k * STEPS - 1]
                expected = [n, old, last + 1]
            else:
                expected = [n, episode, step]
            assert found["state.seen"][n].tolist() == expected


def test_half_batches_are_one_batch():
    """Two groups, in turn, collect to the bit what one group collects."""
    results = []
    for sizes in GROUPINGS:
        collector = collector_of(*sizes)
        collector.start(0, initial_state)
        results.append(collect(collector, Reader()))
    for other in results[1:]:
        for (found, episodes), (expected, expected_episodes) in zip(other, results[0], strict=True):
            assert episodes == expected_episodes
            assert found.keys() == expected.keys()
            for name, part in expected.items():
                torch.testing.assert_close(found[name], part, rtol=0, atol=0, equal_nan=True, msg=name)


def test_one_half_steps_while_the_agent_acts_for_the_other():
    log: list[str] = []
    collector = collector_of(3, 3, log=log)
    collector.start(0, initial_state)
    collect(collector, Reader(log), 1)
    turn = ["receive 0", "act 0", "send 0", "receive 3", "act 3", "send 3"]
    assert log == [*turn[1:3], *turn[4:6], *turn * (STEPS - 1), "receive 0", "receive 3"]


@pytest.mark.parametrize("sizes", GROUPINGS)
def test_finished_episodes_are_counted_once_in_order_of_time(sizes: Sequence[int]):
    collector = collector_of(*sizes)
    collector.start(0, initial_state)
    for k, (_, episodes) in enumerate(collect(collector, Reader())):
        expected = []
        for t in range(k * STEPS, (k + 1) * STEPS):
            for n in range(ENVS):
                episode, step, ends_here = walk(n)[t]
                if ends_here:
                    codes = [float(code(torch.tensor([n, episode, s]).float())) for s in range(step + 1)]
                    expected.append((sum(codes), step + 1))
        assert list(zip(episodes.returns, episodes.lengths, strict=True)) == expected


def test_no_peek_where_the_environment_knows_that_nothing_was_truncated():
    quiet, asking = Reader(), Reader()
    for reader, tells in ((quiet, True), (asking, False)):
        collector = collector_of(6, tells=tells)
        collector.start(0, initial_state)
        found, _ = collect(collector, reader, 1)[0]
    steps_with_a_truncation = int(found["truncated"].any(1).sum())
    assert 0 < steps_with_a_truncation < STEPS
    assert quiet.peeks == steps_with_a_truncation + 1, "and once for what follows the segment"
    assert asking.peeks == STEPS + 1


def test_peeking_leaves_memory_alone():
    """The collector hands over its own state: were a peek's successor kept, the next act would complain."""
    collector, reader = collector_of(6, tells=False), Reader()
    collector.start(0, initial_state)
    seen = []

    def peek(obs: Obs, state: State) -> Tensor:
        seen.append(state["seen"].clone())
        return reader.peek(obs, state)

    rollout, _ = collector.collect(reader.act, peek, noise())
    assert torch.equal(collector.groups[0].state["seen"], seen[-1])
    assert torch.equal(seen[-1], seen[-2]), "the last peek looks with the memory of the last act"
    assert torch.equal(seen[0], rollout.obs["vector"][0] + torch.tensor([0.0, 0.0, 1.0]))


@pytest.mark.parametrize("garbage", [math.nan, math.inf, 1e30])
def test_poison_where_nothing_was_truncated_changes_nothing(garbage: float):
    collector = collector_of(6)
    collector.start(0, initial_state)
    rollout, _ = collector.collect(Reader().act, Reader().peek, noise())
    clean = rollout.next_value
    assert rollout.truncated.any()
    rollout.final_value = rollout.final_value.masked_fill(~rollout.truncated, garbage)
    torch.testing.assert_close(rollout.next_value, clean, rtol=0, atol=0, equal_nan=True)
    rollout.final_value = rollout.final_value.masked_fill(rollout.truncated, garbage)
    assert not torch.equal(rollout.next_value, clean), "where truncated it does count"


@pytest.mark.parametrize("sizes", GROUPINGS)
def test_a_stored_collector_goes_on_where_it_stood(sizes: Sequence[int]):
    collector = collector_of(*sizes)
    collector.start(0, initial_state)
    collect(collector, Reader(), 1)
    stored = {k: v.clone() for k, v in collector.state_dict().items()}
    expected = collect(collector, Reader())
    resumed = collector_of(*sizes)
    resumed.start(0, initial_state)
    collect(resumed, Reader(), 2)  # wherever it was before
    resumed.load_state_dict(stored, initial_state)
    for (found, episodes), (wanted, wanted_episodes) in zip(collect(resumed, Reader()), expected, strict=True):
        assert episodes == wanted_episodes
        for name, part in wanted.items():
            torch.testing.assert_close(found[name], part, rtol=0, atol=0, equal_nan=True, msg=name)


def test_engines_that_restart_begin_with_fresh_memory():
    collector = collector_of(6)
    collector.start(0, initial_state)
    collect(collector, Reader(), 1)
    stored = collector.state_dict()
    env = collector.envs[0]
    env.resume = "restart"
    env._load_state_dict = lambda state: env._reset(0)  # type: ignore[method-assign]
    collector.load_state_dict(stored, initial_state)
    assert collector.groups[0].reset_N.all()
    assert (collector.groups[0].state["seen"] == -7).all()
    found, episodes = collect(collector, Reader(), 1)[0]
    assert found["reset"][0].all()
    assert episodes.lengths[:1] == [1], "and with scores that count from zero"


# Minibatches


def coded_rollout() -> Rollout:
    collector = collector_of(3, 3)
    collector.start(0, initial_state)
    reader = Reader()
    collector.collect(reader.act, reader.peek, noise())
    return collector.collect(reader.act, reader.peek, noise())[0]


@pytest.mark.parametrize(("rows", "count"), [(42, 6), (42, 1), (42, 42), (8, 4)])
def test_a_pass_takes_every_row_once(rows: int, count: int):
    stream = torch.Generator().manual_seed(0)
    passes = [list(shuffled_rows(rows, count, stream)) for _ in range(2)]
    for parts_of_a_pass in passes:
        assert [len(part) for part in parts_of_a_pass] == [rows // count] * count
        assert sorted(torch.cat(parts_of_a_pass).tolist()) == list(range(rows))
    first, second = (torch.cat(p) for p in passes)
    assert not torch.equal(first, second), "each pass has an order of its own"
    again = torch.cat(list(shuffled_rows(rows, count, torch.Generator().manual_seed(0))))
    assert torch.equal(again, first), "which the stream alone decides"


def test_rows_and_windows_say_what_they_cut():
    part_TN = torch.arange(STEPS)[:, None] * 100 + torch.arange(ENVS)
    assert rows_of(part_TN, torch.tensor([0, ENVS + 2, 5])).tolist() == [[0, 102, 5]]
    assert windows_of(part_TN, torch.tensor([4, 1]))[:2].tolist() == [[4, 1], [104, 101]]
    deep_TNX = part_TN[..., None].expand(STEPS, ENVS, 3)
    assert rows_of(deep_TNX, torch.tensor([7])).shape == (1, 1, 3)
    assert windows_of(deep_TNX, torch.tensor([0])).shape == (STEPS, 1, 3)


def batches_of(rollout: Rollout, remembers: bool, count: int) -> list[Minibatch]:
    number_TN = code(rollout.obs["vector"])
    stream = torch.Generator().manual_seed(0)
    return list(minibatches(rollout, number_TN + 2, number_TN + 4, count, remembers, stream))


def check_one_place(batch: Minibatch) -> Tensor:
    """Everything in a minibatch's place tells of the same transition: its code. [T, B]"""
    number_TB = code(batch.obs["vector"])
    assert torch.equal(code(batch.action), number_TB)
    for name, offset in {"logp": 0.5, "value": 0.25, "advantage": 2, "target": 4}.items():
        assert torch.equal(getattr(batch, name), number_TB + offset), name
    assert torch.equal(batch.reset, batch.obs["vector"][..., 2] == 0)
    return number_TB


@pytest.mark.parametrize("count", [1, 6, 21])
def test_shuffled_rows_cover_a_segment_once(count: int):
    rollout = coded_rollout()
    rollout.state = {}
    batches = batches_of(rollout, False, count)
    seen = torch.cat([check_one_place(batch).flatten() for batch in batches])
    assert all(batch.reset.shape == (1, STEPS * ENVS // count) for batch in batches)
    assert sorted(seen.tolist()) == sorted(code(rollout.obs["vector"]).flatten().tolist())


@pytest.mark.parametrize("count", [1, 2, 6])
def test_windows_cover_every_environment_once_in_order_with_its_own_memory(count: int):
    rollout = coded_rollout()
    batches = batches_of(rollout, True, count)
    envs: list[float] = []
    for batch in batches:
        assert batch.reset.shape == (STEPS, ENVS // count)
        check_one_place(batch)
        index_B = batch.obs["vector"][0, :, 0]
        envs += index_B.tolist()
        for b, n in enumerate(index_B.int().tolist()):
            assert torch.equal(batch.obs["vector"][:, b], rollout.obs["vector"][:, n]), "time runs forward"
            assert torch.equal(batch.state["seen"][b], rollout.state["seen"][n])
            assert batch.state["seen"][b, 0] == n
    assert sorted(envs) == list(range(ENVS))
