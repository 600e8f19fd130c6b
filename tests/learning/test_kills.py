"""Kill -9 at twenty moments, eight of them inside a checkpoint's write: every time the run goes on, nothing is lost.

One run is killed again and again, each time in a process of its own, and must end as one that was never interrupted.
"""

import os
import random
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from recollect import api
from recollect.config import override
from recollect.run.checkpoint import fingerprint, load_newest
from recollect.run.folder import RunFolder
from recollect.run.metrics import read_rows

pytestmark = pytest.mark.learning

UPDATES = 400  # more than twenty kills use up
SETTINGS = {"num_envs": 4, "num_steps": 16, "num_minibatches": 2, "update_epochs": 2, "hidden": (16,), "core_width": 8}
AROUND = {"core": "gru", "threads": 1, "device": "cpu", "checkpoint_every": 1, "total_timesteps": UPDATES * 64}

# Where the process strikes itself inside a checkpoint's write, after how many whole checkpoints. Tensors come first
# (calls 1), then their JSON (2); a sync that is struck leaves half of the file, a rename the old name.
STRIKES = [
    ("fsync", 1, "tensors half written"),
    ("replace", 1, "tensors written, not renamed"),
    ("folder", 1, "tensors renamed, their folder not synced"),
    ("fsync", 2, "JSON half written"),
    ("replace", 2, "JSON written, not renamed"),
    ("folder", 2, "JSON renamed, its folder not synced"),
    ("unlink", 1, "about to delete the oldest JSON"),
    ("unlink", 2, "the oldest JSON is deleted, its tensors are not"),
]
RANDOM_KILLS = 12

CHILD = textwrap.dedent("""
    import os, signal, stat, sys
    from pathlib import Path

    from recollect import api
    from recollect.run import checkpoint
    from recollect.run.folder import RunFolder

    folder, diary, call, number, after = sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4]), int(sys.argv[5])
    inside, saves, calls = False, 0, 0
    real_save = checkpoint.save

    def note(line):
        file = os.open(diary, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        os.write(file, (line + "\\n").encode())
        os.close(file)

    def save(where, update, *args, **settings):
        global inside, saves, calls
        inside, calls = True, 0
        path = real_save(where, update, *args, **settings)
        inside, saves = False, saves + 1
        note(f"saved {update}")
        return path

    def guarded(name, real):
        def guard(*args, **settings):
            global calls
            folder_sync = name == "fsync" and stat.S_ISDIR(os.fstat(args[0]).st_mode)
            if inside and saves >= after and call == ("folder" if folder_sync else name):
                calls += 1
                if calls == number:
                    if call == "fsync":
                        os.ftruncate(args[0], os.fstat(args[0]).st_size // 2)
                    note(f"struck {call} {number}")
                    os.kill(os.getpid(), signal.SIGKILL)
            return real(*args, **settings)
        return guard

    checkpoint.save = save
    os.fsync, os.replace = guarded("fsync", os.fsync), guarded("replace", os.replace)
    Path.unlink = guarded("unlink", Path.unlink)
    run, _, damaged = api.go_on(RunFolder.open(folder), {}, {}, quiet=True)
    note(f"finished {run.first_update} {len(damaged)}")
""")


def config(out: Path) -> Any:
    return override(api.experiment_config("cartpole-ppo"), **SETTINGS, **AROUND, out=out)


def only_run(out: Path) -> RunFolder:
    (path,) = out.iterdir()
    return RunFolder.open(path)


def first_updates(out: Path) -> RunFolder:
    """The run's beginning: stopped after its third update, so that there is something to go on from."""
    calls: list[int] = []
    with pytest.MonkeyPatch.context() as patch:
        real = api.Run.log

        def log(self: Any, *args: Any) -> None:
            calls.append(1)
            self.stop_asked = len(calls) == 3
            real(self, *args)

        patch.setattr(api.Run, "log", log)
        api.start("cartpole-ppo", config(out), quiet=True)
    return only_run(out)


def rows_without_times(folder: RunFolder) -> list[dict[str, Any]]:
    timed = ("seconds", "time/")
    return [{k: v for k, v in row.items() if not k.startswith(timed)} for row in read_rows(folder.metrics)]


def spawn(folder: RunFolder, diary: Path, call: str = "never", number: int = 0, after: int = 0) -> subprocess.Popen:
    words = [str(folder.path), str(diary), call, str(number), str(after)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.Popen([sys.executable, "-c", CHILD, *words], env=environment, stderr=subprocess.PIPE, text=True)


def saved(diary: Path) -> int:
    """The newest checkpoint that a process said was finished."""
    lines = diary.read_text().splitlines() if diary.exists() else []
    return max((int(line.split()[1]) for line in lines if line.startswith("saved")), default=3)


def kill_at_random(process: subprocess.Popen, diary: Path, chance: random.Random) -> None:
    """SIGKILL a few updates after it came to life, at any point of one."""
    goal = saved(diary) + chance.randint(1, 4)
    deadline = time.monotonic() + 120
    while saved(diary) < goal:
        assert process.poll() is None, process.communicate()[1]
        assert time.monotonic() < deadline, "the run does not get anywhere"
        time.sleep(0.002)
    time.sleep(chance.uniform(0, 0.03))
    process.kill()


def plan() -> Iterator[tuple[str, int, str]]:
    """Twenty ways to die, shuffled, always in the same order."""
    ways = [*STRIKES, *[("random", 0, f"random moment {i}") for i in range(RANDOM_KILLS)]]
    random.Random(0).shuffle(ways)
    yield from ways


def check_after_a_kill(folder: RunFolder, diary: Path, before: int, where: str) -> int:
    """Nothing finished is lost, nothing damaged was left, the metrics reach at least as far as the checkpoint."""
    checkpoint, damaged = load_newest(folder.checkpoints)
    newest = checkpoint.data["update"]
    assert damaged == [], where
    assert newest >= saved(diary) >= before, where
    updates = [row["update"] for row in read_rows(folder.metrics)]
    assert updates == list(range(1, len(updates) + 1)), f"{where}: a row twice, or none"
    assert len(updates) >= newest, where
    assert folder.read_card()["status"] == "running", where
    return newest


def test_twenty_kills_lose_nothing(tmp_path: Path):
    whole = tmp_path / "whole"
    api.start("cartpole-ppo", config(whole), quiet=True)
    folder, diary = first_updates(tmp_path / "killed"), tmp_path / "diary"
    chance, newest, kills = random.Random(1), 3, 0
    for call, number, where in plan():
        process = spawn(folder, diary, call, number, after=chance.randint(0, 3))
        if call == "random":
            kill_at_random(process, diary, chance)
        _, said = process.communicate(timeout=120)
        assert process.returncode == -signal.SIGKILL, f"{where}: {said}"
        if call != "random":
            assert diary.read_text().splitlines()[-1] == f"struck {call} {number}", where
        newest = check_after_a_kill(folder, diary, newest, where)
        kills += 1
    assert kills == 20
    assert newest < UPDATES, "it finished before it was killed often enough: give it more updates"

    process = spawn(folder, diary)
    _, said = process.communicate(timeout=200)
    assert process.returncode == 0, said
    assert diary.read_text().splitlines()[-1] == f"finished {newest} 0"
    (end, _), (expected, _) = load_newest(folder.checkpoints), load_newest(only_run(whole).checkpoints)
    assert rows_without_times(folder) == rows_without_times(only_run(whole))
    assert fingerprint(end.tensors) == fingerprint(expected.tensors)
    assert end.data["weights_sha256"] == expected.data["weights_sha256"]
    assert folder.read_card()["status"] == "finished"
    assert len(list(folder.checkpoints.iterdir())) == 6, "three checkpoints of two files, no leftovers"
