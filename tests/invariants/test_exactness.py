"""A run that was stopped and resumed is the run that was not, to the last bit of its weights and metrics.

So is a run that was evaluated, filmed or tracked beside. Compared are the hash of every tensor in the last checkpoint
(weights, optimiser, environments, memories), its data, and every row of metrics, apart from times.
"""

import json
import os
import shlex
import signal
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from recollect import api, cli
from recollect.config import override
from recollect.data.rollout import Collector
from recollect.run.checkpoint import fingerprint, load_newest
from recollect.run.folder import RunFolder
from recollect.run.metrics import read_rows
from recollect.run.run import Run

STOP_AT, UPDATES = 3, 6  # N and 2N

# Segments end in the middle of episodes: a CartPole falls after about 20 steps, a Pendulum is truncated at 200 (in the
# fourth segment, so that a resume replays 180 actions), DarkRoom truncates at 20.
SMALL = {"num_envs": 4, "num_minibatches": 2, "update_epochs": 2, "hidden": (16,), "core_width": 8}
CASES: dict[str, dict[str, Any]] = {
    "darkroom-ppo": {"num_steps": 13, "env_options": ("goal=all", "size=5", "clock=true")},
    "cartpole-ppo": {"num_steps": 17},
    "pendulum-ppo": {"num_steps": 60},
}
TIMES = ("seconds", "time/")


class Crash(Exception):
    """Stands for whatever ends a run in the middle of an update."""


def configured(experiment: str, out: Path, **changes: Any) -> Any:
    around = {"out": out, "checkpoint_every": 1, "threads": 1, "device": "cpu"}
    settings = {**SMALL, **CASES[experiment], **around, **changes}
    settings["total_timesteps"] = UPDATES * settings["num_envs"] * settings["num_steps"]
    return override(api.experiment_config(experiment), **settings)


def only_run(out: Path) -> RunFolder:
    (path,) = out.iterdir()
    return RunFolder.open(path)


def train(experiment: str, out: Path, **changes: Any) -> RunFolder:
    api.start(experiment, configured(experiment, out, **changes), quiet=True)
    return only_run(out)


def outcome(folder: RunFolder) -> dict[str, Any]:
    """Everything about how a run ended that must not depend on how often it was stopped."""
    checkpoint, damaged = load_newest(folder.checkpoints)
    assert damaged == []
    card = folder.read_card()
    assert card["weights_sha256"] == fingerprint(checkpoint.under("agent"))
    rows = [
        {name: value for name, value in row.items() if not name.startswith(TIMES)} for row in read_rows(folder.metrics)
    ]
    data = {k: v for k, v in checkpoint.data.items() if k not in ("seconds", "cold_start_s", "metrics_bytes")}
    return {
        "rows": rows,
        "tensors": fingerprint(checkpoint.tensors),
        "data": data,
        "card": [card["env_steps"], card["status"], card["weights_sha256"]],
    }


def crash_while_collecting(patch: pytest.MonkeyPatch) -> None:
    """Fail in the fourth segment: its environments have moved on by then, its noise is drawn."""
    real, calls = Collector.collect, []

    def collect(self: Collector, *args: Any) -> Any:
        calls.append(1)
        result = real(self, *args)
        if len(calls) == STOP_AT + 1:
            raise Crash
        return result

    patch.setattr(Collector, "collect", collect)


def crash_while_saving(patch: pytest.MonkeyPatch) -> None:
    """Fail after the fourth update was logged, before it is saved: its row must go again."""
    real = Run.save

    def save(self: Run, update: int, *args: Any) -> None:
        if update == STOP_AT:
            raise Crash
        real(self, update, *args)

    patch.setattr(Run, "save", save)


def ctrl_c(patch: pytest.MonkeyPatch) -> None:
    """A real SIGINT during the third update."""
    real, calls = Collector.collect, []

    def collect(self: Collector, *args: Any) -> Any:
        calls.append(1)
        if len(calls) == STOP_AT:
            signal.raise_signal(signal.SIGINT)
        return real(self, *args)

    patch.setattr(Collector, "collect", collect)


STOPS: dict[str, Callable[[pytest.MonkeyPatch], None]] = {
    "crash-collecting": crash_while_collecting,
    "crash-saving": crash_while_saving,
    "ctrl-c": ctrl_c,
}


def stop_and_resume(experiment: str, out: Path, how: str, **changes: Any) -> RunFolder:
    config = configured(experiment, out, **changes)
    with pytest.MonkeyPatch.context() as patch:
        STOPS[how](patch)
        if how == "ctrl-c":
            run, _ = api.start(experiment, config, quiet=True)
            assert run.status == "stopped"
        else:
            with pytest.raises(Crash):
                api.start(experiment, config, quiet=True)
    folder = only_run(out)
    assert load_newest(folder.checkpoints)[0].data["update"] == STOP_AT
    assert folder.read_card()["status"] == ("stopped" if how == "ctrl-c" else "failed")
    api.go_on(folder, {}, {}, quiet=True)
    return folder


VARIANTS: list[tuple[str, str, dict[str, Any]]] = [
    ("darkroom-ppo", "crash-collecting", {"core": "none"}),
    ("darkroom-ppo", "ctrl-c", {"core": "gru"}),
    ("cartpole-ppo", "crash-saving", {"core": "none"}),
    ("cartpole-ppo", "crash-collecting", {"core": "gru"}),
    ("pendulum-ppo", "ctrl-c", {"core": "none"}),
    ("pendulum-ppo", "crash-saving", {"core": "gru"}),
    ("darkroom-ppo", "crash-collecting", {"core": "transformer", "core_heads": 2, "look_back": 5}),
    # what a memory is rebuilt from, and burn-in replays, reaches behind the segment before; nothing of the kind
    ("darkroom-ppo", "crash-collecting", {"core": "transformer", "core_layers": 2, "core_heads": 2, "look_back": 9}),
    (
        "cartpole-ppo",
        "crash-saving",
        {"core": "gau", "core_layers": 2, "look_back": 9, "segment_start": "burn-in", "half_batches": True},
    ),
    ("cartpole-ppo", "ctrl-c", {"core": "lookback", "core_heads": 2, "look_back": 5, "rebuild_memory": False}),
    # one torso for both heads, halves in turn, other schedules, evaluation beside, an early stop of the passes
    ("darkroom-ppo", "crash-saving", {"core": "gru", "half_batches": True}),
    ("cartpole-ppo", "crash-collecting", {"core": "gru", "half_batches": True, "shared": True}),
    ("pendulum-ppo", "crash-collecting", {"half_batches": True, "lr_schedule": "cosine", "target_kl": 1e-3}),
    (
        "cartpole-ppo",
        "ctrl-c",
        {"eval_every": 2, "eval_episodes": 2, "lr_schedule": "exponential", "final_learning_rate": 1e-5},
    ),
]


@pytest.mark.parametrize(("experiment", "how", "changes"), VARIANTS)
def test_stopped_and_resumed_is_uninterrupted(tmp_path: Path, experiment: str, how: str, changes: dict[str, Any]):
    whole = outcome(train(experiment, tmp_path / "whole", **changes))
    resumed = outcome(stop_and_resume(experiment, tmp_path / "resumed", how, **changes))
    assert [row["update"] for row in resumed["rows"]] == list(range(1, UPDATES + 1))
    assert resumed == whole


def test_stopping_twice_and_at_every_update_is_uninterrupted(tmp_path: Path):
    whole = outcome(train("pendulum-ppo", tmp_path / "whole", core="gru"))
    config = configured("pendulum-ppo", tmp_path / "often", core="gru")
    real = Run.log

    def log(self: Run, *args: Any) -> None:
        self.stop_asked = True
        real(self, *args)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Run, "log", log)
        api.start("pendulum-ppo", config, quiet=True)
        folder = only_run(tmp_path / "often")
        for update in range(2, UPDATES + 1):
            run, _, _ = api.go_on(folder, {}, {}, quiet=True)
            assert (run.first_update, run.env_steps) == (update - 1, update * 4 * 60)
    api.go_on(folder, {}, {}, quiet=True)  # nothing is left to do; the card says that it is done
    assert outcome(folder) == whole


KILLED = textwrap.dedent("""
    import os, signal, sys
    from pathlib import Path
    sys.path.insert(0, sys.argv[2])
    import test_exactness as here
    from recollect.run.run import Run

    real = Run.log

    def log(self, update, *args):
        real(self, update, *args)
        if update == here.STOP_AT:  # its row is written, its checkpoint is not
            os.kill(os.getpid(), signal.SIGKILL)

    Run.log = log
    here.train("cartpole-ppo", Path(sys.argv[1]), core="gru")
""")


def in_a_process(code: str, *args: Any, **environment: str) -> subprocess.CompletedProcess:
    command = [sys.executable, "-c", code, *map(str, args)]
    return subprocess.run(command, env={**os.environ, **environment}, capture_output=True, text=True, timeout=300)


def test_killed_and_resumed_is_uninterrupted(tmp_path: Path):
    """SIGKILL in another process, resumed in this one."""
    whole = outcome(train("cartpole-ppo", tmp_path / "whole", core="gru"))
    done = in_a_process(KILLED, tmp_path / "killed", Path(__file__).parent)
    assert done.returncode == -signal.SIGKILL, done.stderr
    folder = only_run(tmp_path / "killed")
    assert len(read_rows(folder.metrics)) == STOP_AT + 1
    assert folder.read_card()["status"] == "running", "it had no chance to say otherwise"
    api.go_on(folder, {}, {}, quiet=True)
    assert outcome(folder) == whole


def test_a_resume_goes_on_counting(tmp_path: Path):
    """Steps, episodes, and a mean return that looks back over the stop: at 3 updates few episodes have ended."""
    folder = stop_and_resume("cartpole-ppo", tmp_path, "crash-collecting")
    rows = read_rows(folder.metrics)
    assert [row["step"] for row in rows] == [4 * 17 * (u + 1) for u in range(UPDATES)]
    counts = [row["episode"] for row in rows]
    assert counts == sorted(counts)
    assert 0 < counts[STOP_AT - 1] < counts[-1] <= 100
    stored = load_newest(folder.checkpoints)[0].data
    assert stored["episodes"] == len(stored["recent_returns"]) == len(stored["recent_lengths"]) == counts[-1]
    mean = sum(stored["recent_returns"]) / len(stored["recent_returns"])
    assert rows[-1]["train/return_mean"] == pytest.approx(mean), "over all episodes, not those since the resume"
    assert stored["recent_returns"] == stored["recent_lengths"], "a CartPole is paid by the step: no episode was torn"


@pytest.mark.parametrize("schedule", ["linear", "cosine", "exponential"])
def test_the_learning_rate_spans_the_whole_run(tmp_path: Path, schedule: str):
    changes = {"lr_schedule": schedule, "learning_rate": 1e-2, "final_learning_rate": 1e-4}
    rates = [
        row["optim/learning_rate"]
        for row in read_rows(stop_and_resume("darkroom-ppo", tmp_path, "crash-saving", **changes).metrics)
    ]
    assert rates[0] == pytest.approx(1e-2)
    assert rates == sorted(set(rates), reverse=True), "it never starts over"
    assert rates[-1] < 2.5e-3
    if schedule == "linear":
        assert rates == pytest.approx([1e-2 - (1e-2 - 1e-4) * u / UPDATES for u in range(UPDATES)])


@pytest.mark.parametrize("experiment", CASES)
def test_equal_seeds_are_equal_runs_and_others_differ(tmp_path: Path, experiment: str):
    first, again = (outcome(train(experiment, tmp_path / name, seed=7)) for name in "ab")
    other = outcome(train(experiment, tmp_path / "c", seed=8))
    assert first == again
    assert other["tensors"] != first["tensors"]
    assert other["rows"][-1]["loss/value"] != first["rows"][-1]["loss/value"]


def test_evaluation_changes_nothing(tmp_path: Path):
    """Nor does how often it happens, or a checkpoint is written."""
    plain = outcome(train("cartpole-ppo", tmp_path / "plain", core="gru"))
    beside = {"eval_every": 1, "eval_episodes": 3, "checkpoint_every": 0}
    watched = outcome(train("cartpole-ppo", tmp_path / "watched", core="gru", **beside))
    assert all("eval/mean" in row for row in watched["rows"])
    bare = [{k: v for k, v in row.items() if not k.startswith("eval/")} for row in watched["rows"]]
    assert {**watched, "rows": bare} == plain


def test_a_stop_asks_for_no_evaluation_of_its_own(tmp_path: Path):
    """Stopped at update 3 with evaluations due at 4 and at the end: those and no others."""
    folder = stop_and_resume("cartpole-ppo", tmp_path, "ctrl-c", eval_every=4, eval_episodes=2)
    assert [row["update"] for row in read_rows(folder.metrics) if "eval/mean" in row] == [4, 6]


def test_video_and_the_final_evaluation_change_nothing(tmp_path: Path):
    """The command line with everything that follows a run, and the bare API."""
    plain = outcome(train("darkroom-ppo", tmp_path / "plain", core="gru"))
    config = configured("darkroom-ppo", tmp_path / "filmed", core="gru", eval_episodes=2, capture_video=True)
    words = shlex.split(api.command_line("darkroom-ppo", config, "ppo"))
    assert words[:2] == ["recollect", "train"]
    assert cli.main(words[1:]) == 0
    folder = only_run(tmp_path / "filmed")
    assert (folder.video / "episode.mp4").stat().st_size > 0
    assert json.loads(folder.eval.read_text())["episodes"] == 24, "2 were asked for, but each of 24 goals is played"
    assert outcome(folder) == plain


TRACKED = textwrap.dedent("""
    import sys
    from pathlib import Path
    sys.path.insert(0, sys.argv[2])
    import test_exactness as here
    here.train("cartpole-ppo", Path(sys.argv[1]), core="gru", track=True)
""")


@pytest.mark.slow
def test_tracking_changes_nothing(tmp_path: Path):
    """Weights & Biases, offline, in a home of its own."""
    pytest.importorskip("wandb")
    plain = outcome(train("cartpole-ppo", tmp_path / "plain", core="gru"))
    home = tmp_path / "home"
    home.mkdir()
    settings = {"HOME": str(home), "WANDB_MODE": "offline", "WANDB_SILENT": "true"}
    done = in_a_process(TRACKED, tmp_path / "tracked", Path(__file__).parent, **settings)
    assert done.returncode == 0, done.stderr
    folder = only_run(tmp_path / "tracked")
    assert list(folder.path.glob("wandb/offline-run-*/*.wandb"))
    assert outcome(folder) == plain


def test_other_settings_do_change_the_outcome(tmp_path: Path):
    """What is compared can differ: by a discount, a memory, the number of environments."""
    outcomes = [
        outcome(train("cartpole-ppo", tmp_path / str(i), **changes))["tensors"]
        for i, changes in enumerate([{}, {"gamma": 0.97}, {"core": "gru"}, {"num_envs": 6}])
    ]
    assert len(set(outcomes)) == len(outcomes)


# A run folder holds no code


def test_nothing_in_a_run_folder_is_a_pickle(tmp_path: Path):
    folder = stop_and_resume("cartpole-ppo", tmp_path, "crash-saving", core="gru")
    files = [path for path in folder.path.rglob("*") if path.is_file()]
    assert {".safetensors", ".json", ".yaml", ".jsonl"} <= {path.suffix for path in files}
    for path in files:
        start = path.read_bytes()[:4]
        assert not (start[:1] == b"\x80" and start[1:2] in b"\x02\x03\x04\x05"), f"{path} is a pickle"
        assert start != b"PK\x03\x04", f"{path} is an archive as torch.save writes it"
        assert path.suffix not in {".pt", ".pth", ".pkl", ".pickle", ".npy", ".npz"}, path


def test_loading_a_checkpoint_unpickles_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Whoever tries raises."""
    folder = train("cartpole-ppo", tmp_path, core="gru")

    def refuse(*_: Any, **__: Any) -> None:
        raise AssertionError("something was unpickled")

    for name in ("pickle.load", "pickle.loads", "pickle.Unpickler", "torch.load"):
        monkeypatch.setattr(name, refuse)
    player = api.load(folder.path)
    assert player.checkpoint.data["update"] == UPDATES
    api.go_on(folder, {}, {}, quiet=True)
