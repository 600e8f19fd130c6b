"""Runs on whole episodes: stopped and resumed they are as if never stopped, on every engine."""

from pathlib import Path
from typing import Any

import pytest

from recollect import api
from recollect.algos import ppo
from recollect.config import override
from recollect.data.episodes import EpisodeCollector
from recollect.run.checkpoint import fingerprint, load_newest
from recollect.run.folder import RunFolder
from recollect.run.metrics import read_rows
from recollect.run.run import Run

SMALL = {"num_envs": 4, "hidden": (16,), "core_width": 8, "window_steps": 8, "rows_at_once": 64}
AROUND = {"checkpoint_every": 1, "threads": 1, "device": "cpu", "eval_episodes": 0}
PPO = {"algo": "ppo", "collect": "episodes", "num_minibatches": 3, "update_epochs": 2, "total_timesteps": 600}
PONG = {"env_id": "recollect/Pong-v0", "env_options": ("obs=state", "max_episode_steps=40")}

VARIANTS: list[dict[str, Any]] = [
    {"experiment": "cartpole-pg", "total_timesteps": 600},
    {"experiment": "cartpole-pg", "total_timesteps": 600, "episodes_per_env": 2, "core": "gru", "loss_over": "steps"},
    {"experiment": "cartpole-ac", "total_timesteps": 600, "credit": "gae"},
    {"experiment": "cartpole-ac", "total_timesteps": 600, "collect": "segments", "credit": "longest", "core": "gru"},
    {"experiment": "cartpole-ppo", **PPO, "kl_coef": 0.1, "kl_target": 1e-4},
    {"experiment": "cartpole-ppo", **PPO, "core": "gru", "half_batches": True, "lr_schedule": "cosine"},
    {"experiment": "pong-state-ppo", **PPO, **PONG, "compile": "off", "contiguous": True, "credit_by": "round"},
]


def configured(out: Path, experiment: str, algo: str | None = None, **settings: Any) -> Any:
    base = api.experiment_config(experiment, algo)
    return override(base, **{**SMALL, **AROUND, "out": out, **settings})


def start(variant: dict[str, Any], out: Path) -> Run:
    run, _ = api.start(variant["experiment"], configured(out, **variant), variant.get("algo"), quiet=True)
    return run


def outcome(folder: RunFolder) -> Any:
    checkpoint, _ = load_newest(folder.checkpoints)
    rows = [
        {k: v for k, v in row.items() if not k.startswith(("seconds", "time/"))} for row in read_rows(folder.metrics)
    ]
    data = {k: v for k, v in checkpoint.data.items() if k not in ("seconds", "cold_start_s", "metrics_bytes")}
    return rows, fingerprint(checkpoint.tensors), data


@pytest.mark.parametrize("variant", VARIANTS, ids=lambda v: "-".join(map(str, v.values()))[:60])
def test_stopped_and_resumed_is_uninterrupted(tmp_path: Path, variant: dict[str, Any]):
    whole = start(variant, tmp_path / "whole")
    real = Run.log

    def log(self: Run, *args: Any) -> None:
        self.stop_asked = True
        real(self, *args)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Run, "log", log)
        stopped = start(variant, tmp_path / "stopped")
        assert stopped.status == "stopped"
        api.go_on(stopped.folder, {}, {}, quiet=True)
    api.go_on(stopped.folder, {}, {}, quiet=True)
    rows, tensors, data = outcome(stopped.folder)
    assert (rows, tensors, data) == outcome(whole.folder)
    assert len(rows) > 3
    assert all(row["parity/max_ratio_error"] < 1e-4 for row in rows)


def test_steps_are_those_of_the_episodes_learnt(tmp_path: Path):
    run = start(VARIANTS[0], tmp_path)
    rows = read_rows(run.folder.metrics)
    assert [row["step"] for row in rows] == [sum(r["batch/steps"] for r in rows[: i + 1]) for i in range(len(rows))]
    assert [row["episode"] for row in rows] == [4 * (i + 1) for i in range(len(rows))]
    assert rows[-2]["step"] < 600 <= rows[-1]["step"] == run.result()["env_steps"]
    data = load_newest(run.folder.checkpoints)[0].data
    assert sum(data["recent_lengths"]) == rows[-1]["step"], "nothing is lost, nothing counted twice"


def test_every_batch_has_streams_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Other starts, and other noise."""
    real, seeds, noises = EpisodeCollector.collect, [], []

    def collect(self: EpisodeCollector, act: Any, peek: Any, draw: Any, seed: int, initial_state: Any) -> Any:
        seeds.append(seed)
        noises.append(float(draw((1, 1))))
        return real(self, act, peek, draw, seed, initial_state)

    monkeypatch.setattr(EpisodeCollector, "collect", collect)
    start(VARIANTS[0], tmp_path)
    assert len(seeds) == len(set(seeds)) == len(set(noises)) > 3


def test_a_finished_run_goes_on_only_if_asked_for_more(tmp_path: Path):
    run = start(VARIANTS[0], tmp_path)
    before = outcome(run.folder)
    api.go_on(run.folder, {}, {}, quiet=True)
    assert outcome(run.folder) == before
    again, _, _ = api.go_on(run.folder, {"total_timesteps": 1200}, {}, quiet=True)
    assert again.env_steps >= 1200
    assert len(outcome(run.folder)[0]) > len(before[0])


def test_seeds_make_runs_and_evaluation_changes_nothing(tmp_path: Path):
    plain = outcome(start(VARIANTS[0], tmp_path / "a").folder)
    watched = outcome(start(VARIANTS[0] | {"eval_every": 2, "eval_episodes": 2}, tmp_path / "b").folder)
    other = outcome(start(VARIANTS[0] | {"seed": 5}, tmp_path / "c").folder)
    assert watched[1:] == plain[1:]
    assert any("eval/mean" in row for row in watched[0])
    assert "eval/mean" in watched[0][-1], "the last update is known to be the last"
    assert other[1] != plain[1]


def test_the_limit_of_steps_is_logged(tmp_path: Path):
    rows = read_rows(start(VARIANTS[0] | {"max_steps": 8}, tmp_path).folder.metrics)
    assert rows[0]["batch/cut_off"] > 0
    assert rows[0]["batch/steps"] <= 4 * 8


@pytest.mark.parametrize("protocol", ["deterministic", "v0-random-skip"])
def test_the_emulator_resumes_to_the_bit_between_batches(tmp_path: Path, protocol: str):
    pytest.importorskip("ale_py")
    game = {"env_id": "ALE/Pong-v5", "protocol": protocol, "env_options": ("max_episode_steps=12",), "num_envs": 2}
    variant = {"experiment": "cartpole-pg", **game, "encoder": "small", "cnn_width": 8, "total_timesteps": 24 * 4}
    test_stopped_and_resumed_is_uninterrupted(tmp_path, variant)


def test_what_cannot_be_says_so():
    with pytest.raises(ValueError, match="credit monte-carlo needs whole returns"):
        configured(Path(), "cartpole-ac", collect="segments")
    with pytest.raises(ValueError, match="window_steps must be at least 1"):
        configured(Path(), "cartpole-pg", window_steps=0)
    with pytest.raises(ValueError, match="'rounds' is not one of 'round', 'episode'"):
        configured(Path(), "cartpole-pg", credit_by="rounds")
    ppo.Config(collect="episodes", num_minibatches=3)
    with pytest.raises(ValueError, match="does not divide the batch"):
        ppo.Config(num_minibatches=3)
