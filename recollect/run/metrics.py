"""Where numbers go: ``metrics.jsonl`` first, TensorBoard always, Weights & Biases on request."""

import json
import math
import os
from pathlib import Path
from typing import Any

SCHEMA_VERSION = 1
AXES = ("update", "step", "frames", "episode", "seconds")  # what every row carries beside its metrics


class Metrics:
    """One row an update. On resume, ``cut_at`` bytes of ``metrics.jsonl`` and steps up to ``cut_step`` are kept."""

    def __init__(self, folder: Path, cut_at: int = 0, cut_step: int | None = None, track: dict[str, Any] | None = None):
        self.path = folder / "metrics.jsonl"
        if self.path.exists():
            os.truncate(self.path, min(cut_at, self.path.stat().st_size))
        self.file = open(self.path, "ab")  # noqa: SIM115 - closed by close()
        from torch.utils.tensorboard import SummaryWriter  # takes a second to import

        purge = None if cut_step is None else cut_step + 1  # TensorBoard drops this step as well as those behind it
        self.board = SummaryWriter(str(folder / "tensorboard"), purge_step=purge)
        self.wandb = _start_wandb(folder, track) if track is not None else None

    def write(self, axes: dict[str, float], values: dict[str, float | None]) -> None:
        """Append a row; a value that is not a number is written as null."""
        clean = {k: v if v is not None and math.isfinite(v) else None for k, v in values.items()}
        row = {"schema_version": SCHEMA_VERSION, **{k: axes[k] for k in AXES}, **clean}
        self.file.write(json.dumps(row).encode() + b"\n")
        self.file.flush()
        known = {k: v for k, v in clean.items() if v is not None}
        for name, value in known.items():
            self.board.add_scalar(name, value, int(axes["step"]))
        if self.wandb is not None:
            self.wandb.log({**known, **axes}, step=int(axes["step"]))

    def durable_size(self) -> int:
        """Sync, and say how many bytes there are: a checkpoint remembers this."""
        self.file.flush()
        os.fsync(self.file.fileno())
        return self.file.tell()

    def close(self) -> None:
        """Finish every writer."""
        self.file.close()
        self.board.close()
        if self.wandb is not None:
            self.wandb.finish()


def _start_wandb(folder: Path, config: dict[str, Any]) -> Any:
    try:
        import wandb
    except ImportError:
        raise ValueError("--track needs Weights & Biases: pip install 'recollect[wandb]'") from None
    try:
        return wandb.init(
            project="recollect", name=folder.name, id=folder.name, dir=str(folder), config=config, resume="allow"
        )
    except wandb.Error as error:
        raise ValueError(f"--track: {error} (or set WANDB_MODE=offline)") from None


def read_rows(path: Path) -> list[dict[str, Any]]:
    """Every whole row; a torn last line (a run that was killed while writing) is left out."""
    rows = []
    for line in path.read_bytes().splitlines():
        try:
            rows.append(json.loads(line))
        except ValueError:
            break
    return rows
