"""The command line as a person or a program meets it: exit code, standard output, standard error."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from recollect.cli import main

Cli = Callable[..., "Said"]

SMALL = ("--num-envs", 8, "--num-steps", 16, "--num-minibatches", 2, "--update-epochs", 2, "--total-timesteps", 512)
QUICK = (*SMALL, "--threads", 1, "--eval-episodes", 4, "--checkpoint-every", 2)


@dataclass(frozen=True)
class Said:
    """What a command left behind."""

    code: int
    out: str
    err: str

    @property
    def data(self) -> Any:
        """The JSON on the last line of standard output."""
        return json.loads(self.out.splitlines()[-1])


def refused(said: Said, *words: str) -> str:
    """Bad input: exit code 2, one line that says ``words``, nothing on standard output. The line."""
    assert (said.code, said.out) == (2, ""), said
    assert len(said.err.splitlines()) == 1, said.err
    assert said.err.startswith("recollect: "), said.err
    for word in words:
        assert word in said.err, said.err
    assert len(said.err) < 500, said.err
    return said.err.strip()


def done(said: Said) -> Said:
    """The command did what it was asked for."""
    assert said.code == 0, said
    assert "Traceback" not in said.err, said.err
    return said


def newest(folder: Path) -> Path:
    """The run that was started last under ``folder``."""
    return max(folder.iterdir(), key=lambda path: path.stat().st_mtime_ns)


def in_process(capture: Any, *words: object) -> Said:
    try:
        code = main([str(word) for word in words])
    except SystemExit as stop:  # --help
        code = int(stop.code or 0)
    return Said(code, *capture.readouterr())


def shell(*words: object, cwd: Path, timeout: float = 120, **environment: str) -> Said:
    """Run ``recollect`` as a process of its own, away from any terminal."""
    command = [sys.executable, "-m", "recollect", *map(str, words)]
    settings = os.environ | {"OMP_NUM_THREADS": "1"} | environment
    ran = subprocess.run(command, cwd=cwd, env=settings, capture_output=True, timeout=timeout, stdin=subprocess.DEVNULL)
    return Said(ran.returncode, ran.stdout.decode(), ran.stderr.decode())
