"""What is recorded of an episode: the arithmetic of shares, and that the episode is the one that is filmed."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from small_runs import AROUND, TINY, only_run

from recollect import api, cli
from recollect.config import override
from recollect.envs.vector import Protocol, RawStep, VectorEnv
from recollect.nets.agent import make_agent
from recollect.nets.config import NetConfig
from recollect.report.schema import validate
from recollect.run import attention
from recollect.run.folder import RunFolder
from recollect.types import Discrete, Obs, TensorSpec

BLIND = ("obs=state", "hidden_from=140", "hidden_to=200", "max_episode_steps=90")
PONG = {"env_id": "recollect/Pong-v0", "env_options": BLIND, "core": "transformer", "look_back": 6, "core_heads": 2}


def trained(out: Path, **changes) -> RunFolder:
    settings = {**TINY, **AROUND, **PONG, "total_timesteps": 16, "out": out, **changes}
    api.start(
        "pong-state-ppo", override(api.experiment_config("pong-state-ppo"), compile="off", **settings), quiet=True
    )
    return only_run(out)


def shares(*rows: list[float]) -> np.ndarray:
    """One layer, one head."""
    return np.array(rows)[:, None, None]


def test_the_mean_of_an_age_is_over_the_steps_that_have_it():
    """Two episodes: clocks 0, 1, 0. Age 0 is in all three steps, age 1 in one, age 2 in none."""
    mean = attention.mean_by_age(shares([1, 0, 0], [0.4, 0.6, 0], [1, 0, 0]), np.array([0, 1, 0]))
    assert mean[0, 0].tolist() == pytest.approx([0.8, 0.6, 0])


def test_attention_on_sight_by_hand():
    """Steps: seen, hidden, no ball, hidden. Of the two hidden ones the first reads 0.7 from the sight one step ago;
    the second reaches back two steps, to the hidden one, and not to the sight: 0. Evenly 1 of 2 and 0 of 3.
    """
    there, visible = [1, 1, 0, 1], [1, 0, 0, 0]
    scenes = [{"ball_there": float(a), "ball_visible": float(b)} for a, b in zip(there, visible, strict=True)]
    given = shares([1, 0, 0], [0.3, 0.7, 0], [0.1, 0.1, 0.8], [0.2, 0.3, 0.5])
    found = attention.on_sight(given, np.arange(4), scenes)
    assert found == {"steps": 2, "share": [[0.35]], "even": 0.25}
    reset = attention.on_sight(given, np.array([0, 0, 1, 2]), scenes)
    assert reset == {"steps": 2, "share": [[0.0]], "even": 0.0}, "what an earlier episode saw is out of reach"
    assert attention.on_sight(given, np.arange(4), [{"ball_there": 1.0, "ball_visible": 1.0}] * 4) is None
    assert attention.on_sight(given, np.arange(4), [{}] * 4) is None


@pytest.mark.parametrize(
    ("steps", "layers", "ages", "first", "count"),
    [
        (1000, 1, 33, 32, 240),  # from where the look-back is full
        (250, 1, 33, 10, 240),
        (100, 1, 33, 0, 100),
        (1000, 4, 257, 256, 145),  # 4 x 257 x 145 shares are 149,060
        (1000, 4, 200_000, 999, 1),
    ],
)
def test_as_many_steps_are_shown_as_the_page_can_hold(steps: int, layers: int, ages: int, first: int, count: int):
    part = attention.shown_part(steps, layers, ages)
    assert (part.start, part.stop - part.start) == (first, count)


def test_maps_are_layer_means_and_then_heads_while_there_is_room(monkeypatch: pytest.MonkeyPatch):
    given = np.arange(2 * 2 * 3 * 2).reshape(2, 2, 3, 2) / 100  # [T, L, H, A]
    made = attention.maps(given)
    kinds = [(each["layer"], each["head"]) for each in made]
    assert kinds == [(0, None), (1, None), (0, 0), (0, 1), (0, 2), (1, 0), (1, 1), (1, 2)]
    assert made[0]["share"] == [[200, 300], [1400, 1500]], "0, 2, 4 and 1, 3, 5 hundredths at the first step"
    assert made[7]["share"] == [[1000, 1100], [2200, 2300]]
    monkeypatch.setattr(attention, "SHOWN_CELLS", 3 * 4)
    assert len(attention.maps(given)) == 3
    monkeypatch.setattr(attention, "SHOWN_CELLS", 1)
    assert len(attention.maps(given)) == 2, "every layer is shown, whatever it takes"
    monkeypatch.undo()
    assert len(attention.maps(given[:, :, :1])) == 2, "one head is its own mean"


def test_the_watched_episode_is_the_filmed_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    run = trained(tmp_path)
    played = []
    real = attention.play_one

    def noted(*args):
        rewards = real(*args)
        played.append(rewards)
        return rewards

    monkeypatch.setattr(attention, "play_one", noted)
    player = api.load(run.path)
    frames = api.film(player, None, 500)
    watched = api.attended(api.load(run.path), None, 500)
    assert watched is not None
    assert len(frames) == watched["watched_steps"] == 90
    assert played[0] == played[1]
    assert watched["watched_return"] == sum(played[0]) < 0
    other = api.attended(api.load(run.path), 5, 500)
    assert other is not None
    assert other["actions"] != watched["actions"], "another seed, another episode"


def test_what_is_written_keeps_its_schema_and_adds_up(tmp_path: Path):
    run = trained(tmp_path, core_layers=2)
    cli.save_attention(api.load(run.path), None)
    data = json.loads(run.attention.read_text())
    validate("attention", data)
    assert (data["look_back"], data["layers"], data["heads"]) == (6, 2, 2)
    assert len(data["maps"]) == 2 + 2 * 2
    mean, *_ = (np.array(each["share"]) / data["unit"] for each in data["maps"])
    assert mean.sum(-1) == pytest.approx(1, abs=1e-3)
    assert ((mean > 0) == (np.arange(90)[:, None] >= np.arange(7))).all(), "nothing from before the episode"
    assert data["first"] == 0
    assert {len(part) for part in data["scene"].values()} == {len(mean)} == {90}
    assert 0 < data["on_sight"]["steps"] < 90
    assert len(run.attention.read_text().splitlines()) == 1


class ThreeLives(VectorEnv):
    """A game of three lives of three decisions each: memory ends with a life, the score does not."""

    num_envs, device, resume = 1, torch.device("cpu"), "restart"
    obs_spec, action_spec = {"vector": TensorSpec((2,), torch.float32)}, Discrete(2)
    protocol = Protocol("lives", "test")

    def _reset(self, seed: int) -> Obs:
        self.count = 0
        return {"vector": torch.ones(1, 2)}

    def _send(self, action: torch.Tensor) -> None:
        self.count += 1

    def _recv(self) -> RawStep:
        obs, no = {"vector": torch.ones(1, 2)}, torch.tensor([False])
        died, over = (torch.tensor([self.count % n == 0]) for n in (3, 9))
        return RawStep(obs, torch.ones(1), terminated=died, truncated=no, final_obs=obs, game_over=over)


def test_a_lost_life_ends_what_can_be_attended_to():
    """All inputs are alike, so that attention is even: 1, 1/2 and 1/3 at the three steps of each life."""
    net = NetConfig(hidden=(4,), core="lookback", core_width=4, core_heads=1, look_back=3, core_positions="none")
    env = ThreeLives()
    watched = attention.watch(make_agent(env.obs_spec, env.action_spec, net, 1, env.device), env, 1, 100)
    assert watched["watched_steps"] == 9
    mean = [(1 + 1 / 2 + 1 / 3) / 3, (1 / 2 + 1 / 3) / 2, 1 / 3, 0]
    assert watched["mean"][0][0] == pytest.approx(mean, abs=1e-5)


def test_relu_squared_weights_are_shown_as_shares(tmp_path: Path):
    run = trained(tmp_path, core="gau", core_attention="relu2")
    watched = api.attended(api.load(run.path), None, 60)
    assert watched is not None
    assert watched["heads"] == 1
    sums = np.array(watched["maps"][0]["share"]).sum(-1) / watched["unit"]
    assert set(np.round(sums, 2)) <= {0.0, 1.0}


@pytest.mark.parametrize("core", ["none", "gru"])
def test_a_core_that_does_not_attend_leaves_no_file(tmp_path: Path, core: str):
    run = trained(tmp_path, core=core)
    assert api.attended(api.load(run.path), None, 20) is None
    cli.save_attention(api.load(run.path), None)
    assert not run.attention.exists()
