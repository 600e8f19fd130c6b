"""One run: what a training loop asks for beside learning. ``train()`` of an algorithm gets one and reads aloud."""

import contextlib
import math
import signal
import sys
import time
from collections import deque
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from recollect import __version__
from recollect.config import to_dict
from recollect.data.rollout import Episodes
from recollect.envs.registry import EnvConfig
from recollect.envs.vector import VectorEnv
from recollect.nets.agent import Agent
from recollect.run import checkpoint as checkpoints
from recollect.run.checkpoint import Checkpoint
from recollect.run.device import commit, hardware, make_current, pick_device, synchronise, versions
from recollect.run.evaluate import evaluate
from recollect.run.folder import RunConfig, RunFolder
from recollect.run.metrics import Metrics
from recollect.run.progress import Progress

RETURN_WINDOW = 100  # episodes that the running mean of the return looks at


class NotANumber(RuntimeError):
    """A metric that must be finite was not; training stopped there."""


class Run:
    """Counts, times, logs and saves. A loop does: ``for update in run.updates(...)``, ``run.log(...)``."""

    def __init__(
        self,
        folder: RunFolder,
        whole: Any,
        experiment: str,
        algorithm: str,
        command: str,
        resumed: Checkpoint | None = None,
        restart_episodes: bool = False,
        quiet: bool = False,
    ):
        self.folder, self.whole, self.experiment, self.algorithm = folder, whole, experiment, algorithm
        self.command, self.resumed, self.quiet = command, resumed, quiet
        self.config: RunConfig = whole.run
        self.restart_episodes = restart_episodes
        self.device = pick_device(self.config.device)
        data = resumed.data if resumed else {}
        self.first_update, self.env_steps = data.get("update", 0), data.get("env_steps", 0)
        self.episodes, self.seconds_before = data.get("episodes", 0), data.get("seconds", 0.0)
        self.cold_start = data.get("cold_start_s", 0.0)
        self.recent: deque[float] = deque(data.get("recent_returns", []), RETURN_WINDOW)
        self.recent_lengths: deque[int] = deque(data.get("recent_lengths", []), RETURN_WINDOW)
        self.status, self.stop_asked, self.stopping = "running", False, False
        self.last_checkpoint = resumed.path if resumed else None
        self.weights_sha256: str | None = data.get("weights_sha256")
        self._ends = contextlib.ExitStack()
        self._set_up_torch()

    def __enter__(self) -> "Run":
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if self.status == "running":
            self._end("failed" if kind else "finished")

    def _end(self, status: str) -> None:
        """Close everything now, not when the last frame of a failed loop is let go; the card says how it ended."""
        self.status = status
        self._ends.close()

    def _set_up_torch(self) -> None:
        """Threads, device and arithmetic of this run; what is global to the process is put back at its end."""
        # On a GPU the host only copies; torch's idle threads would wait on the cores that the environments need.
        threads = self.config.threads or (1 if self.device.type == "cuda" else 0)
        if threads:
            self._ends.callback(torch.set_num_threads, torch.get_num_threads())
            torch.set_num_threads(threads)
        if self.device.type == "cuda":
            make_current(self.device)
            # fp32 means fp32: acting and learning must agree, and whole numbers stay whole in what is drawn.
            torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = False

    @property
    def compiled(self) -> bool:
        """Whether hot functions are to be captured or compiled."""
        return self.config.compile == "on" or (self.config.compile == "auto" and self.device.type == "cuda")

    # The first update compiles, captures and warms up; card and page tell its time apart (``cold_start``).

    @property
    def seconds(self) -> float:
        """Wall-clock of training, earlier parts of a resumed run included."""
        return self.seconds_before + time.perf_counter() - self.began

    def updates(self, total: int, steps_each: int, env: VectorEnv, parameters: int) -> Iterator[int]:
        """The numbers of the updates that are left, 0-based, while showing progress; Ctrl-C ends it early."""
        if self.resumed and env.resume == "restart":
            self.say(f"{env.protocol.env_id} on {env.protocol.engine} cannot store open episodes: they restart")
        self.steps_each, self.total = steps_each, total
        return self._numbers(total * steps_each, env, parameters)

    def updates_until(self, steps: int, env: VectorEnv, parameters: int) -> Iterator[int]:
        """As ``updates``, where ``took`` says how many steps an update brought: until there are ``steps``."""
        self.steps_until = steps
        self.total = self.first_update if self.env_steps >= steps else sys.maxsize
        return self._numbers(steps, env, parameters)

    def took(self, update: int, steps: int) -> None:
        """How many steps this update learns from, before anything asks what is due or is logged."""
        self.steps_each = steps
        if self.env_steps + steps >= self.steps_until:
            self.total = update + 1

    def _numbers(self, total_steps: int, env: VectorEnv, parameters: int) -> Iterator[int]:
        self.protocol, self.parameters = env.protocol, parameters
        cut_at, cut_step = (self.resumed.data["metrics_bytes"], self.env_steps) if self.resumed else (0, None)
        track = to_dict(self.whole) if self.config.track else None
        self.metrics = Metrics(self.folder.path, cut_at, cut_step, track)
        self.began = self.mark = time.perf_counter()
        self.write_card()
        self._ends.callback(self.write_card)  # first in, last out: when all else is closed
        self._ends.callback(self.metrics.close)
        self._listen()
        title = f"{self.experiment} on {env.protocol.env_id} ({env.protocol.name}), seed {self.config.seed}"
        self.progress = self._ends.enter_context(Progress(title, total_steps, self.env_steps, self.quiet))
        update = self.first_update
        while update < self.total and not self.stopping:
            yield update
            update += 1
        self._end("stopped" if self.stopping else "finished")

    def say(self, line: str) -> None:
        """One line to the person, on standard error."""
        print(f"recollect: {line}", file=sys.stderr)

    def _listen(self) -> None:
        """First Ctrl-C: finish the update, save, stop. Second: stop at once."""

        def asked(_signal: int, _frame: Any) -> None:
            if self.stop_asked:
                raise KeyboardInterrupt
            self.stop_asked = True
            self.say("stopping after this update; Ctrl-C again to stop at once")

        handler = signal.getsignal(signal.SIGINT)
        with contextlib.suppress(ValueError):  # not in the main thread: whoever started us handles Ctrl-C
            signal.signal(signal.SIGINT, asked)
            self._ends.callback(signal.signal, signal.SIGINT, handler)

    def log(self, update: int, episodes: Episodes, values: dict[str, float], seconds: dict[str, float]) -> None:
        """One row of metrics. ``seconds``: time of this update in env, act and learn."""
        synchronise(self.device)
        now = time.perf_counter()
        wall, self.mark = now - self.mark, now
        if update == self.first_update:
            self.cold_start += wall
        self.env_steps += self.steps_each
        self.episodes += len(episodes.returns)
        self.recent.extend(episodes.returns)
        self.recent_lengths.extend(episodes.lengths)
        row: dict[str, float | None] = {
            "train/return_mean": _mean(self.recent),
            "train/length_mean": _mean(self.recent_lengths),
        }
        row |= values
        row["time/env_steps_per_s"] = self.steps_each / wall
        row |= {f"time/share_{name}": spent / wall for name, spent in seconds.items()}
        frames = int(self.env_steps * self.protocol.frames_per_step)
        axes = {
            "update": update + 1,
            "step": self.env_steps,
            "frames": frames,
            "episode": self.episodes,
            "seconds": self.seconds,
        }
        self.metrics.write(axes, row)
        self.progress.show(self.env_steps, row)
        for name, value in values.items():
            self._check(name, value)
        # A stop counts from here: what this update evaluated did not depend on it, what it saves does.
        self.stopping = self.stop_asked

    def _check(self, name: str, value: float) -> None:
        if not math.isfinite(value):
            good = self.last_checkpoint or "none was written yet"
            raise NotANumber(f"{name} is {value} at step {self.env_steps:,}; the last good checkpoint: {good}")

    def due(self, every: int, update: int) -> bool:
        """Whether something that happens every so many updates is due after this one; the last always is."""
        last = update + 1 == self.total or self.stopping
        return last or (every > 0 and (update + 1) % every == 0)

    def evaluate(self, agent: Agent, env: EnvConfig) -> dict[str, float]:
        """Evaluate beside training, on streams and environments of its own; its time is not training's."""
        start = time.perf_counter()
        result = evaluate(agent, env, self.config.eval_episodes or 20, self.config.seed, self.device)
        spent = time.perf_counter() - start
        self.began, self.mark = self.began + spent, self.mark + spent
        return {"eval/mean": result["mean"], "eval/greedy_mean": result["greedy"]["mean"]}

    def save(
        self, update: int, weights: dict[str, Tensor], parts: dict[str, dict[str, Tensor]], data: dict[str, Any]
    ) -> None:
        """Write a checkpoint: ``weights`` under agent/, every other part under its name. A good one is finite."""
        for name, weight in weights.items():
            self._check(f"weight {name}", float(weight.sum(dtype=torch.float64)))
        self.weights_sha256 = checkpoints.fingerprint(weights)
        body = {
            "env_steps": self.env_steps,
            "episodes": self.episodes,
            "seconds": self.seconds,
            "cold_start_s": self.cold_start,
            "recent_returns": list(self.recent),
            "recent_lengths": list(self.recent_lengths),
            "metrics_bytes": self.metrics.durable_size(),
            "weights_sha256": self.weights_sha256,
            **data,
        }
        every = {f"{part}/{k}": v for part, of in {"agent": weights, **parts}.items() for k, v in of.items()}
        self.last_checkpoint = checkpoints.save(self.folder.checkpoints, update + 1, every, body)
        self.write_card()

    def write_card(self) -> None:
        """What a result must say of itself."""
        card = {
            "run": self.folder.path.name,
            "experiment": self.experiment,
            "algorithm": self.algorithm,
            "seed": self.config.seed,
            "command": self.command,
            "protocol": self.protocol.card(),
            "hardware": {**hardware(), "device": str(self.device), "threads": torch.get_num_threads()},
            "versions": {**versions(), "recollect": __version__},
            "commit": commit(),
            "env_steps": self.env_steps,
            "wall_s": round(self.seconds, 3),
            "cold_start_s": round(self.cold_start, 3),
            "parameters": self.parameters,
            "status": self.status,
            "weights_sha256": self.weights_sha256,
        }
        self.folder.write_json(self.folder.card, card)

    def result(self) -> dict[str, Any]:
        """What ``train`` reports."""
        return {
            "run": str(self.folder.path),
            "env_steps": self.env_steps,
            "wall_s": round(self.seconds_before + self.mark - self.began, 3),
            "mean_return": _mean(self.recent),
            "status": self.status,
            "weights_sha256": self.weights_sha256,
        }


def _mean(values: deque) -> float | None:
    return sum(values) / len(values) if values else None
