"""What surrounds training: stops that say how to go on, NaN that is caught, ends that leave nothing open."""

import json
import shlex
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from small_runs import only_run, tiny

from recollect import api, cli
from recollect.algos import ppo
from recollect.run.checkpoint import load, load_newest, newest_first
from recollect.run.metrics import read_rows
from recollect.run.run import NotANumber, Run

# Not a number

FAULTY = '''
import gymnasium
import numpy as np


class Faulty(gymnasium.Env):
    """Pays 1 a step, and from the 40th step of its life on something else."""

    observation_space = gymnasium.spaces.Box(-1, 1, (2,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)
    steps = 0

    def reset(self, *, seed=None, options=None):
        return np.zeros(2, np.float32), {}

    def step(self, action):
        self.steps += 1
        reward = 1.0 if self.steps < 40 else FAULT
        return np.full(2, self.steps / 100, np.float32), reward, self.steps % 5 == 0, False, {}
'''


@pytest.mark.parametrize("fault", ["float('nan')", "float('inf')"])
def test_a_reward_that_is_no_number_stops_the_run(tmp_path: Path, fault: str):
    """The 40th step is in the fifth segment of eight: updates 1 to 4 are saved, finite, and can be gone on from."""
    (tmp_path / "faulty.py").write_text(FAULTY.replace("FAULT", fault))
    env_id, out = f"{tmp_path / 'faulty.py'}:Faulty", tmp_path / "runs"
    with pytest.raises(NotANumber) as caught:
        api.start("cartpole-ppo", tiny(out, env_id=env_id), quiet=True)
    folder = only_run(out)
    good = folder.checkpoints / "update_000000004.json"
    assert str(caught.value).startswith("loss/")
    assert f"at step 80; the last good checkpoint: {good}" in str(caught.value)
    assert newest_first(folder.checkpoints)[0] == good
    for path in newest_first(folder.checkpoints):
        for name, tensor in load(path).under("agent").items():
            assert tensor.isfinite().all(), f"{path}: {name}"
    rows = read_rows(folder.metrics)
    assert len(rows) == 5
    assert rows[-1]["loss/value"] is None
    assert folder.read_card()["status"] == "failed"


def test_the_command_line_says_it_in_one_line_and_fails(
    tmp_path: Path, capsys: pytest.CaptureFixture, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(ppo.policy_loss, "ppo_clip", lambda logp, *_: logp * float("nan"))
    words = shlex.split(api.command_line("cartpole-ppo", tiny(tmp_path), "ppo"))[1:]
    assert cli.main(words) == 1
    lines = [line for line in capsys.readouterr().err.splitlines() if "loss/policy" in line]
    assert lines == ["recollect: loss/policy is nan at step 16; the last good checkpoint: none was written yet"]


def test_weights_that_are_no_numbers_are_never_saved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """An algorithm whose metrics all look well, while its last gradient step spoilt a weight."""
    real, calls = ppo.Learner.update, []

    def update(self: ppo.Learner, *args: Any) -> dict[str, float]:
        values = real(self, *args)
        calls.append(1)
        if len(calls) == 3:
            with torch.no_grad():
                self.parameters[0][0, 0] = float("nan")
        return values

    monkeypatch.setattr(ppo.Learner, "update", update)
    with pytest.raises(NotANumber, match=r"weight torso\S+ is nan at step 48; .*update_000000002.json"):
        api.start("cartpole-ppo", tiny(tmp_path), quiet=True)
    assert load_newest(only_run(tmp_path).checkpoints)[0].data["update"] == 2


# A run that ends early leaves nothing open


def test_a_failed_run_is_closed_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Even while somebody holds the exception, and with it every frame: the card, the file, the signal handler."""
    monkeypatch.setattr(ppo.policy_loss, "ppo_clip", lambda logp, *_: logp * float("nan"))
    before, made = signal.getsignal(signal.SIGINT), []
    real = Run.__init__

    def init(self: Run, *args: Any, **settings: Any) -> None:
        made.append(self)
        real(self, *args, **settings)

    monkeypatch.setattr(Run, "__init__", init)
    try:
        api.start("cartpole-ppo", tiny(tmp_path), quiet=True)
    except NotANumber:
        assert signal.getsignal(signal.SIGINT) is before
        assert only_run(tmp_path).read_card()["status"] == "failed"
        assert made[0].metrics.file.closed
    else:
        pytest.fail("it did not stop")


def test_what_never_began_leaves_no_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Whole segments of two environments do not make four minibatches; Weights & Biases wants a key."""
    with pytest.raises(ValueError, match="num_minibatches 4 does not divide num_envs 2"):
        api.start("cartpole-ppo", tiny(tmp_path, core="gru", num_minibatches=4), quiet=True)
    assert list(tmp_path.iterdir()) == []
    wandb = pytest.importorskip("wandb")

    def refuse(**_: Any) -> None:
        raise wandb.errors.UsageError("No API key configured.")

    monkeypatch.setattr(wandb, "init", refuse)
    with pytest.raises(ValueError, match=r"--track: No API key configured. .*WANDB_MODE=offline"):
        api.start("cartpole-ppo", tiny(tmp_path, track=True), quiet=True)
    assert list(tmp_path.iterdir()) == []


def test_training_in_a_thread_works(tmp_path: Path):
    """Only the main thread may listen for Ctrl-C; another one leaves that to whoever started it."""
    results: list[Any] = []

    def work() -> None:
        try:
            api.start("cartpole-ppo", tiny(tmp_path), quiet=True)
            results.append(only_run(tmp_path).read_card()["status"])
        except BaseException as error:
            results.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert results == ["finished"]


# Ctrl-C


def wait_for(condition: Any, process: subprocess.Popen, patience: float = 120.0) -> None:
    """Poll until something holds; a process that ended first, or never gets there, is a failure."""
    deadline = time.monotonic() + patience
    while not condition():
        assert process.poll() is None, process.communicate()[1]
        assert time.monotonic() < deadline, "nothing happened"
        time.sleep(0.01)


@pytest.mark.slow
def test_ctrl_c_saves_and_says_how_to_go_on(tmp_path: Path):
    config = tiny(tmp_path, updates=250, checkpoint_every=1000)
    recollect = [sys.executable, "-m", "recollect"]
    words = shlex.split(api.command_line("cartpole-ppo", config, "ppo"))[1:]
    process = subprocess.Popen([*recollect, *words, "--json"], stdout=-1, stderr=-1, text=True)
    wait_for(lambda: [f for f in tmp_path.glob("*/metrics.jsonl") if len(read_rows(f)) >= 3], process)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=120)
    assert process.returncode == 130, err
    folder = only_run(tmp_path)
    assert "stopping after this update" in err
    last = err.splitlines()[-1]
    assert last == f"stopped; go on with: recollect train --resume {folder.path}"
    done = read_rows(folder.metrics)[-1]["update"]
    assert load_newest(folder.checkpoints)[0].data["update"] == done < 250
    assert json.loads(out.splitlines()[-1])["status"] == folder.read_card()["status"] == "stopped"

    command = shlex.split(last.partition("go on with: ")[2])
    resumed = subprocess.run([*recollect, *command[1:]], capture_output=True, text=True, timeout=300)
    assert resumed.returncode == 0, resumed.stderr
    assert [row["update"] for row in read_rows(folder.metrics)] == list(range(1, 251))
    assert folder.read_card()["status"] == "finished"


def test_a_stop_at_any_moment_is_saved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Ctrl-C right after it was decided that this update needs no checkpoint: the next one is the last then."""
    real, calls = Run.due, []

    def due(self: Run, every: int, update: int) -> bool:
        answer = real(self, every, update)
        calls.append(1)
        if len(calls) == 2:
            signal.raise_signal(signal.SIGINT)
        return answer

    monkeypatch.setattr(Run, "due", due)
    run, _ = api.start("cartpole-ppo", tiny(tmp_path, checkpoint_every=1000), quiet=True)
    assert run.status == "stopped"
    rows = read_rows(run.folder.metrics)
    assert load_newest(run.folder.checkpoints)[0].data["update"] == rows[-1]["update"] == 3


def test_a_second_ctrl_c_stops_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture):
    real, calls = ppo.Learner.update, []

    def update(self: ppo.Learner, *args: Any) -> dict[str, float]:
        calls.append(1)
        if len(calls) == 3:
            signal.raise_signal(signal.SIGINT)
            signal.raise_signal(signal.SIGINT)
        return real(self, *args)

    monkeypatch.setattr(ppo.Learner, "update", update)
    words = shlex.split(api.command_line("cartpole-ppo", tiny(tmp_path), "ppo"))[1:]
    assert cli.main(words) == 130
    assert "Ctrl-C again to stop at once" in capsys.readouterr().err
    assert load_newest(only_run(tmp_path).checkpoints)[0].data["update"] == 2


# The clock


def test_evaluation_is_not_counted_as_training_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """A clock that only evaluation moves: a thousand seconds each."""
    now = [0.0]
    monkeypatch.setattr("recollect.run.run.time.perf_counter", lambda: now[0])

    def slow(*_: Any) -> dict[str, Any]:
        now[0] += 1000
        return {"mean": 1.0, "greedy": {"mean": 1.0}}

    monkeypatch.setattr("recollect.run.run.evaluate", slow)
    real = Run.log

    def log(self: Run, *args: Any) -> None:
        now[0] += 1
        real(self, *args)

    monkeypatch.setattr(Run, "log", log)
    api.start("cartpole-ppo", tiny(tmp_path, eval_every=2), quiet=True)
    rows = read_rows(only_run(tmp_path).metrics)
    assert [row["seconds"] for row in rows] == [1, 2, 3, 4, 5, 6]
    assert [row["time/env_steps_per_s"] for row in rows] == [16.0] * 6
    assert len([row for row in rows if "eval/mean" in row]) == 3
