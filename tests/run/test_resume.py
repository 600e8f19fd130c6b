"""Going on: clocks and metrics that continue, damaged checkpoints passed over, engines that cannot store an episode."""

import json
from pathlib import Path
from typing import Any

import pytest
from small_runs import only_run, stopped, tiny

from recollect import api, cli
from recollect.run import checkpoint as checkpoints
from recollect.run.checkpoint import load_newest
from recollect.run.folder import RunFolder
from recollect.run.metrics import read_rows


def with_data(folder: RunFolder, **changes: Any) -> None:
    """Rewrite the newest checkpoint with other plain data."""
    checkpoint, _ = load_newest(folder.checkpoints)
    rest = {k: v for k, v in checkpoint.data.items() if k not in ("schema_version", "update", "tensors_sha256")}
    checkpoints.save(folder.checkpoints, checkpoint.data["update"], checkpoint.tensors, {**rest, **changes})


def test_wall_clock_accumulates(tmp_path: Path):
    folder = stopped(tmp_path, at=3)
    with_data(folder, seconds=5000.0)
    run, _, _ = api.go_on(folder, {}, {}, quiet=True)
    seconds = [row["seconds"] for row in read_rows(folder.metrics)]
    assert seconds == sorted(seconds)
    assert seconds[2] < 5000 < seconds[3], "the resumed part counts on from the checkpoint, not from the last row"
    assert 5000 < run.result()["wall_s"] <= folder.read_card()["wall_s"] + 1e-3
    assert load_newest(folder.checkpoints)[0].data["seconds"] > 5000


def test_metrics_are_cut_back_to_the_checkpoint(tmp_path: Path):
    folder = stopped(tmp_path, at=3)
    rows = read_rows(folder.metrics)
    with open(folder.metrics, "ab") as file:
        file.write(json.dumps({**rows[-1], "update": 4}).encode() + b'\n{"update": 5, "lo')
    api.go_on(folder, {}, {}, quiet=True)
    after = read_rows(folder.metrics)
    assert after[:3] == rows
    assert [row["update"] for row in after] == [1, 2, 3, 4, 5, 6]
    assert after[3]["step"] == 64


def test_the_one_before_is_used_and_its_metrics_with_it(tmp_path: Path, capsys: pytest.CaptureFixture):
    folder = stopped(tmp_path, at=3)
    newest = folder.checkpoints / "update_000000003.safetensors"
    newest.write_bytes(newest.read_bytes()[:-1])
    api.load(folder.path)
    assert str(newest) in capsys.readouterr().err, "whoever plays or evaluates it learns it as well"
    assert cli.main(["train", "--resume", str(folder.path)]) == 0
    said, named = capsys.readouterr().err, f"passed over a damaged checkpoint: {newest} was truncated or altered"
    assert said.index(named) < said.index("96/96 steps"), "before it goes on, not when all is done"
    assert [row["update"] for row in read_rows(folder.metrics)] == [1, 2, 3, 4, 5, 6]
    assert load_newest(folder.checkpoints)[1] == []


def test_settings_that_a_resume_changed_hold_for_the_next(tmp_path: Path):
    folder = stopped(tmp_path, at=3)
    api.go_on(folder, {"total_timesteps": 16 * 8}, {}, quiet=True)
    assert folder.read_config()["total_timesteps"] == 16 * 8
    assert not list(folder.path.glob("*.partial"))
    run, _, _ = api.go_on(folder, {}, {}, quiet=True)
    assert (run.total, run.first_update, run.env_steps) == (8, 8, 16 * 8)
    with pytest.raises(ValueError, match="--learning-rate cannot change"):
        api.go_on(folder, {"learning_rate": 1.0}, {}, quiet=True)


def test_resuming_what_is_finished_changes_nothing(tmp_path: Path):
    api.start("cartpole-ppo", tiny(tmp_path), quiet=True)
    folder = only_run(tmp_path)
    rows, card = read_rows(folder.metrics), folder.read_card()
    run, _, _ = api.go_on(folder, {}, {}, quiet=True)
    assert read_rows(folder.metrics) == rows
    assert run.result()["weights_sha256"] == card["weights_sha256"] == folder.read_card()["weights_sha256"]
    assert run.result()["env_steps"] == card["env_steps"] == 96


# Engines that cannot store an episode

ENGINE = '''
import torch

from recollect.envs.vector import Protocol, RawStep, VectorEnv
from recollect.types import Discrete, TensorSpec


class Counting(VectorEnv):
    """Counts each environment's steps; an episode lasts ten. It keeps its state to itself."""

    resume = "restart"

    def __init__(self, num_envs, device="cpu", first_env=0):
        self.num_envs, self.device, self.first_env = num_envs, torch.device(device), first_env
        self.obs_spec = {"vector": TensorSpec((1,), torch.float32)}
        self.action_spec = Discrete(2)
        self.protocol = Protocol("Counting-v0", "forgetful", max_episode_steps=10)

    def _obs(self):
        return {"vector": self.clock_N[:, None].float()}

    def _reset(self, seed):
        self.clock_N = torch.zeros(self.num_envs, dtype=torch.int64)
        return self._obs()

    def _send(self, action):
        pass

    def _recv(self):
        self.clock_N = self.clock_N + 1
        final, cut_N = self._obs(), self.clock_N >= 10
        self.clock_N = self.clock_N.masked_fill(cut_N, 0)
        return RawStep(self._obs(), torch.ones(self.num_envs), torch.zeros_like(cut_N), cut_N, final)

    def _load_state_dict(self, state):
        return self._reset(0)
'''


@pytest.mark.parametrize("core", ["none", "gru"])
def test_a_resume_says_that_episodes_restart(tmp_path: Path, capsys: pytest.CaptureFixture, core: str):
    """Stopped at step 24, 4 steps into the third episodes: those begin anew and their 4 steps are not scored."""
    (tmp_path / "engine.py").write_text(ENGINE)
    env_id = f"{tmp_path / 'engine.py'}:Counting"
    folder = stopped(tmp_path / "runs", at=3, env_id=env_id, core=core)
    capsys.readouterr()
    with pytest.raises(ValueError, match=r"if you trust it, give --env-id .*engine\.py:Counting"):
        api.go_on(folder, {}, {}, quiet=True)
    api.go_on(folder, {}, {"env_id": env_id}, quiet=True)
    assert "Counting-v0 on forgetful cannot store open episodes: they restart" in capsys.readouterr().err
    stored = load_newest(folder.checkpoints)[0].data
    assert stored["recent_lengths"] == [10] * 8, "two episodes each before, two each after, none longer or shorter"
    assert stored["env_steps"] == 96


def test_engines_that_go_on_exactly_say_nothing(tmp_path: Path, capsys: pytest.CaptureFixture):
    folder = stopped(tmp_path, at=3)
    capsys.readouterr()
    api.go_on(folder, {}, {}, quiet=True)
    assert "restart" not in capsys.readouterr().err


UNREPEATABLE = '''
import random

import gymnasium
import numpy as np


class Unrepeatable(gymnasium.Env):
    """Draws from a stream of its own, whatever seed it is given."""

    observation_space = gymnasium.spaces.Box(-1, 1, (1,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        return np.zeros(1, np.float32), {}

    def step(self, action):
        return np.array([random.random()], np.float32), 1.0, False, False, {}
'''


def test_what_is_no_function_of_seed_and_actions_is_not_resumed_as_if_it_were(tmp_path: Path):
    (tmp_path / "unrepeatable.py").write_text(UNREPEATABLE)
    given = {"env_id": f"{tmp_path / 'unrepeatable.py'}:Unrepeatable"}
    folder = stopped(tmp_path / "runs", at=3, **given)
    with pytest.raises(ValueError, match=r"not a function of seed and actions.*give --restart-episodes"):
        api.go_on(folder, {}, given, quiet=True)
    api.go_on(folder, {}, given, restart=True, quiet=True)
    assert [row["update"] for row in read_rows(folder.metrics)] == [1, 2, 3, 4, 5, 6]
