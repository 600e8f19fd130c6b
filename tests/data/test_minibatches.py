"""A pass over a segment takes every row once, and every part of a row from the same place."""

import pytest
import torch
from coded import ENVS, STEPS, Reader, code, collector_of, initial_state, noise
from torch import Tensor

from recollect.algos.loss import Minibatch
from recollect.algos.minibatches import minibatches
from recollect.data.rollout import Rollout, rows_of, shuffled_rows, windows_of


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
