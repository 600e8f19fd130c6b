"""A run's folder: its names, its configuration, its card."""

import json
import os
import re
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, Literal

from recollect.config import is_file, limit, load_yaml, save_yaml
from recollect.run.checkpoint import write_durably

SCHEMA_VERSION = 1


@dataclass(frozen=True)
class RunConfig:
    """What surrounds training. Only the seed is meant to change what is learnt; device and threads may round."""

    seed: int = 1
    """Every random stream of the run is keyed by it."""
    out: Path = Path("runs")
    """Folder under which the run's own folder is made."""
    device: str = "auto"
    """auto, cpu or cuda."""
    compile: Literal["auto", "on", "off"] = "auto"
    """Hot functions graph-captured (GPU) or compiled (CPU); auto does so on a GPU only."""
    threads: int = 0
    """Threads of torch on the CPU; 0 leaves torch's choice, which bit-equal repetitions share."""
    checkpoint_every: int = 25
    """Updates between checkpoints; the last update always writes one."""
    eval_every: int = 0
    """Updates between evaluations during training; 0 for none."""
    eval_episodes: int = 100
    """Episodes of the evaluation that follows training; 0 for none."""
    track: bool = False
    """Log to Weights & Biases as well."""
    capture_video: bool = False
    """Write an mp4 of one episode after training."""

    def __post_init__(self) -> None:
        limit(self, "threads", "checkpoint_every", "eval_every", "eval_episodes", low=0)


class RunFolder:
    """Paths of one run."""

    def __init__(self, path: Path):
        self.path = path
        self.config, self.card = path / "config.yaml", path / "card.json"
        self.metrics, self.checkpoints = path / "metrics.jsonl", path / "checkpoints"
        self.eval, self.video, self.report = path / "eval.json", path / "video", path / "report.html"
        self.attention = path / "attention.json"

    @staticmethod
    def create(out: Path, env_id: str, experiment: str, seed: int, config: Any) -> "RunFolder":
        """A new folder ``{env}__{experiment}__{seed}__{time}`` that holds the resolved configuration."""
        env_name = Path(env_id.partition(":")[0]).stem if is_file(env_id) else re.sub(r"[/:]", "-", env_id)
        stem = f"{env_name}__{experiment}__{seed}__{datetime.now():%Y%m%d-%H%M%S}"
        for attempt in range(1000):
            path = out / (stem if attempt == 0 else f"{stem}-{attempt + 1}")
            try:
                path.mkdir(parents=True)
            except FileExistsError:
                if path.is_dir():
                    continue
                raise ValueError(f"--out {out} is a file, not a folder") from None
            except OSError as error:
                raise ValueError(f"--out {out} cannot hold runs: {error.strerror}") from None
            folder = RunFolder(path)
            folder.write_config(config)
            return folder
        raise ValueError(f"no free name for a run under {out}")

    @staticmethod
    def open(path: str | Path) -> "RunFolder":
        """An existing run; any other folder is an error that says what is missing."""
        folder = RunFolder(Path(path))
        if not folder.path.is_dir():
            raise ValueError(f"no run at {path}: there is no such folder")
        if not folder.config.is_file() or not folder.card.is_file():
            raise ValueError(f"{path} is not a run folder: it has no config.yaml and card.json")
        return folder

    def read_config(self) -> dict[str, Any]:
        """The resolved configuration as plain data."""
        return load_yaml(self.config)

    def write_config(self, config: Any) -> None:
        """The resolved configuration, whole or not at all."""
        beside = self.config.with_name("config.yaml.partial")
        save_yaml(config, beside)
        os.replace(beside, self.config)

    def read_card(self) -> dict[str, Any]:
        """The card as plain data."""
        try:
            card = json.loads(self.card.read_text(encoding="utf-8"))
        except ValueError:
            raise ValueError(f"{self.card} is not JSON") from None
        for key in ("algorithm", "experiment", "command"):
            if not isinstance(card, dict) or not isinstance(card.get(key), str):
                raise ValueError(f"{self.card} is damaged: it has no {key!r}")
        return card

    def write_json(self, path: Path, data: dict[str, Any], indent: int | None = 2) -> None:
        """A result file, whole or not at all. ``indent`` None: for many numbers, a line each would be mostly spaces."""
        separators = (",", ":") if indent is None else None
        text = json.dumps({"schema_version": SCHEMA_VERSION, **data}, indent=indent, separators=separators)
        write_durably(path, text.encode() + b"\n")
