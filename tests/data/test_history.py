"""The last steps across segments: always as many, in order, and no memory looks behind where they begin."""

import pytest
import torch
from torch import Tensor

from recollect.data.history import History
from recollect.types import TensorSpec

N = 3
SPEC = {"vector": TensorSpec((2,), torch.float32), "frame": TensorSpec((1, 2, 2), torch.uint8)}


def played(first: int, steps: int) -> tuple[dict[str, Tensor], Tensor]:
    """Steps ``first`` and on, each of which says its number; every third opens an episode."""
    number_TN = (torch.arange(first, first + steps)[:, None] * 10 + torch.arange(N)).float()
    obs = {"vector": number_TN[..., None].expand(-1, -1, 2).clone()}
    obs["frame"] = number_TN.to(torch.uint8)[..., None, None, None].expand(-1, -1, 1, 2, 2).clone()
    return obs, (number_TN // 10) % 3 == 0


@pytest.mark.parametrize("segment", [1, 4, 7, 10])
def test_it_holds_the_newest_steps_whatever_a_segments_length(segment: int):
    history, length = History.empty(7, N, SPEC, torch.device("cpu")), 7
    assert history.reset.all(), "nothing looks behind what was never played"
    for k in range(4):
        obs, reset_TN = played(k * segment, segment)
        history = history.then(obs, reset_TN)
        obs["vector"].fill_(-1)  # a collector overwrites its one segment
        now = (k + 1) * segment
        expected, opens = played(0, now)
        known = min(now, length)
        assert history.reset.shape == (length, N)
        for name, part in history.obs.items():
            assert torch.equal(part[-known:], expected[name][-known:]), name
            assert not part[: length - known].any(), name
        assert torch.equal(history.reset[-known:], opens[-known:])
        assert history.reset[: length - known].all()


def test_some_environments_and_storing():
    history = History.empty(5, N, SPEC, torch.device("cpu")).then(*played(0, 4))
    some = history.of(torch.tensor([2, 0]))
    assert some.obs["vector"][-1, :, 0].tolist() == [32, 30]
    assert torch.equal(some.reset, history.reset[:, [2, 0]])
    again = History.from_state_dict(history.state_dict())
    assert torch.equal(again.reset, history.reset)
    assert again.obs.keys() == history.obs.keys()
    assert all(torch.equal(again.obs[name], part) for name, part in history.obs.items())
