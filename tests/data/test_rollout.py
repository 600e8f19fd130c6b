"""Identifiable data followed through the collector: every part of a transition stands where it belongs."""

import math
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from coded import ENVS, SEGMENTS, STEPS, Reader, code, collector_of, initial_state, noise, truncates, walk
from torch import Tensor

from recollect.data.rollout import Collector, Episodes, Rollout
from recollect.ops.returns import gae
from recollect.types import Obs, State

GROUPINGS = [(6,), (3, 3), (2, 4)]


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
