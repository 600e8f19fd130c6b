"""Train many runs on one machine, some side by side, and go on where a machine was taken away.

``python tools/jobs.py JOBS OUT [--at-once K] [--seconds S] [--score]``. Each line of JOBS names an experiment, its
seeds and what differs: ``pong-ppo 1,2,3 total_timesteps=8000000``. A run is known by its experiment, its seed and all
its settings: one that is finished is kept, one that was stopped goes on, and after S seconds all are stopped, each with
a checkpoint. ``--score`` evaluates what is finished. Run folders lie under OUT, a folder a job; ``tools/pack.py`` packs
them.
"""

import argparse
import hashlib
import json
import signal
import subprocess
import sys
import time
import typing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from recollect.config import choose, from_word, leaf_types, override, to_dict
from recollect.experiments import experiment
from recollect.run.metrics import read_rows

GRACE = 60.0  # seconds in which a stopped run writes its checkpoint


@dataclass(frozen=True)
class Job:
    """One run: a line of the file, and one of its seeds."""

    experiment: str
    seed: int
    pairs: tuple[str, ...]

    @property
    def name(self) -> str:
        """Its folder: the same job has the same in every call."""
        resolved = json.dumps(to_dict(self.config()), sort_keys=True)
        return f"{self.experiment}__{self.seed}__{hashlib.sha256(resolved.encode()).hexdigest()[:6]}"

    def config(self) -> Any:
        """The resolved configuration."""
        settings = settings_of(self.experiment, self.pairs)
        return override(experiment(self.experiment).config(), seed=self.seed, **settings)


def read(path: Path) -> list[Job]:
    """Every job of the file, in its order; ValueError for the first that cannot be."""
    jobs = []
    for line in path.read_text().splitlines():
        words = line.partition("#")[0].split()
        if len(words) == 1:
            raise ValueError(f"{path}: a line is EXPERIMENT SEED[,SEED] [name=value ...], got {line!r}")
        if words:
            jobs += [Job(words[0], int(seed), tuple(words[2:])) for seed in words[1].split(",")]
    return list({job.name: job for job in jobs}.values())


def settings_of(name: str, pairs: typing.Iterable[str]) -> dict[str, Any]:
    """``name=value`` words as the experiment's own settings; several values are written with commas."""
    hints, settings = leaf_types(type(experiment(name).config())), {}
    for key, _, words in (pair.partition("=") for pair in pairs):
        hint = choose("setting", key, hints)
        many = typing.get_origin(hint) is tuple
        values = tuple(from_word(hint, word, key) for word in words.split(",")) if many else ()
        settings[key] = values if many else from_word(hint, words, key)
    return settings


def run_of(job: Job, out: Path) -> Path | None:
    """The job's run folder, if it has begun."""
    runs = sorted((out / job.name).glob("*/card.json"))
    return runs[-1].parent if runs else None


def status_of(job: Job, out: Path) -> str:
    """finished, stopped, failed, running (its machine went away) or new."""
    run = run_of(job, out)
    return json.loads((run / "card.json").read_text())["status"] if run else "new"


def work(job: Job, out: Path, score: bool) -> None:
    """Train one job to its end in this process, from its last checkpoint if there is one."""
    from recollect import api
    from recollect.cli import save_evaluation, sentence
    from recollect.run.folder import RunFolder

    run = run_of(job, out)
    if status_of(job, out) != "finished":
        if run is not None and any((run / "checkpoints").glob("*.json")):
            given = {name: str(value) for name, value in settings_of(job.experiment, job.pairs).items()}
            done = api.go_on(RunFolder.open(run), {}, given, quiet=True)[0]
        else:
            done = api.start(job.experiment, override(job.config(), out=out / job.name), quiet=True)[0]
        run = done.folder.path
    assert run is not None
    if score and status_of(job, out) == "finished" and not (run / "eval.json").exists():
        print(sentence(save_evaluation(RunFolder(run), {}, 100, {})), flush=True)


def supervise(jobs: list[Job], out: Path, at_once: int, seconds: float, score: bool, source: Path) -> None:
    """Keep ``at_once`` jobs going until all are done or the time is."""
    todo, going, stopping = list(enumerate(jobs)), {}, False
    stop_at = time.monotonic() + seconds
    while going or (todo and not stopping):
        while todo and len(going) < at_once and not stopping:
            number, job = todo.pop(0)
            (out / job.name).mkdir(parents=True, exist_ok=True)
            command = [sys.executable, __file__, str(source), str(out), "--only", str(number)]
            with open(out / job.name / "log.txt", "a") as log:
                words = [*command, *(["--score"] if score else [])]
                going[subprocess.Popen(words, stdout=log, stderr=subprocess.STDOUT)] = job
        for child in [child for child in going if child.poll() is not None]:
            print(line(going.pop(child), out), flush=True)
        if not stopping and time.monotonic() > stop_at:
            stopping = True
            for child in going:
                child.send_signal(signal.SIGINT)
        if time.monotonic() > stop_at + GRACE:
            for child in going:
                child.kill()
        time.sleep(0.2)


def line(job: Job, out: Path, points: int = 10) -> str:
    """How a job stands: its status, speed without the cold start, and some points of its curve."""
    run = run_of(job, out)
    path = run / "metrics.jsonl" if run else None
    rows = read_rows(path) if path and path.is_file() else []
    if not rows:
        log = (out / job.name / "log.txt").read_text().splitlines()
        return f"{job.name}: {status_of(job, out)}; {log[-1] if log else ''}"
    first, last = rows[0], rows[-1]
    rate = (last["step"] - first["step"]) / max(1e-9, last["seconds"] - first["seconds"])
    shown = [*rows[:: max(1, len(rows) // points)], last]
    curve = " ".join(
        f"{row['step'] / 1e6:.2f}M {row['seconds'] - first['seconds']:.0f}s {row['train/return_mean']:.1f},"
        for row in shown
        if row["train/return_mean"] is not None
    )
    return f"{job.name}: {status_of(job, out)}, cold start {first['seconds']:.0f} s, {rate:,.0f} steps/s: {curve}"


def main() -> int:
    """Read the file; supervise, or work on one job."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("jobs", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--at-once", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=float("inf"))
    parser.add_argument("--score", action="store_true")
    parser.add_argument("--only", type=int, help=argparse.SUPPRESS)
    words = parser.parse_args()
    jobs = read(words.jobs)
    if words.only is not None:
        work(jobs[words.only], words.out, words.score)
        return 0
    supervise(jobs, words.out, words.at_once, words.seconds, words.score, words.jobs)
    return 0 if all(status_of(job, words.out) == "finished" for job in jobs) else 1


if __name__ == "__main__":
    sys.exit(main())
