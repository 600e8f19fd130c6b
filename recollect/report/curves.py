"""The arithmetic of learning curves: read metrics, thin them out, average seeds. Arrays in, arrays out; no drawing."""

import itertools
import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from scipy.special import stdtrit

from recollect.report.style import as_number

POINTS = 2_000
"""Points at most in one drawn line: more than a screen has pixels, few enough to keep the page light."""

GRID = 400
"""Points of the common grid on which the seeds of one experiment are averaged."""


@dataclass(frozen=True)
class Metrics:
    """One run's ``metrics.jsonl`` by column. NaN where a row has null, lacks the key, or holds no finite number."""

    columns: dict[str, np.ndarray] = field(default_factory=dict)  # key -> float64 [rows]
    rows: int = 0
    damaged: int = 0  # lines that are no JSON object, a torn last line not counted
    blank: dict[str, int] = field(default_factory=dict)  # key -> rows that name it and hold no finite number

    def line(self, x: str, y: str) -> "Line":
        """``y`` over ``x`` where both are finite, in the order of ``x``."""
        if x not in self.columns or y not in self.columns:
            return Line(np.empty(0), np.empty(0))
        x_R, y_R = self.columns[x], self.columns[y]
        keep = np.isfinite(x_R) & np.isfinite(y_R)
        order = np.argsort(x_R[keep], kind="stable")
        return Line(x_R[keep][order], y_R[keep][order])

    def has(self, key: str) -> bool:
        """Is there at least one number to draw?"""
        return key in self.columns and bool(np.isfinite(self.columns[key]).any())


@dataclass(frozen=True)
class Line:
    """A series to draw: both float64 [P], ``x`` not decreasing."""

    x: np.ndarray
    y: np.ndarray


@dataclass(frozen=True)
class Band:
    """The mean over seeds and its 95 % interval on a common grid: all float64 [G]."""

    x: np.ndarray
    mean: np.ndarray
    low: np.ndarray
    high: np.ndarray


def read_metrics(path: Path) -> Metrics:
    """Read ``metrics.jsonl``. A missing file has no rows; a last line torn by a crash or a live run is left out."""
    lines = path.read_text(encoding="utf-8", errors="replace").split("\n") if path.is_file() else []
    while lines and not lines[-1].strip():
        lines.pop()
    rows, damaged = [], 0
    for number, text in enumerate(lines):
        row = _parse(text)
        if row is not None:
            rows.append(row)
        elif number < len(lines) - 1:
            damaged += 1
    return _columns(rows, damaged)


def _parse(text: str) -> dict[str, object] | None:
    try:
        row = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return row if isinstance(row, dict) else None


def _columns(rows: list[dict[str, object]], damaged: int) -> Metrics:
    columns: dict[str, np.ndarray] = {}
    blank: dict[str, int] = {}
    for at, row in enumerate(rows):
        for key, value in row.items():
            if key not in columns:
                columns[key] = np.full(len(rows), np.nan)
            number = as_number(value)
            if number is None:
                blank[key] = blank.get(key, 0) + 1
            else:
                columns[key][at] = number
    return Metrics(columns, len(rows), damaged, blank)


def downsample(line: Line, limit: int = POINTS) -> Line:
    """At most ``limit`` points: the lowest and the highest of each stretch, so that no spike is lost, and both ends."""
    count = len(line.x)
    if count <= limit:
        return line
    edges = np.linspace(1, count - 1, max(1, (limit - 2) // 2) + 1).astype(int)
    keep = {0, count - 1}
    for start, stop in itertools.pairwise(edges):
        stretch = line.y[start:stop]
        keep.update((start + int(stretch.argmin()), start + int(stretch.argmax())))
    at = np.array(sorted(keep))
    return Line(line.x[at], line.y[at])


def interval95(values_SG: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Mean over S seeds (axis 0) and Student's 95 % interval: mean -+ t(0.975; S - 1) s / sqrt(S), s with S - 1."""
    seeds = len(values_SG)
    mean = values_SG.mean(axis=0)
    half = stdtrit(seeds - 1, 0.975) * values_SG.std(axis=0, ddof=1) / math.sqrt(seeds)
    return mean, mean - half, mean + half


def mean_band(lines: Sequence[Line], points: int = GRID) -> Band | None:
    """Mean and 95 % band of several seeds, interpolated linearly on a common grid.

    The grid spans only what every seed has reached: beyond it the mean would jump as seeds drop out. None for fewer
    than two seeds with data, or where they share no stretch.
    """
    lines = [line for line in lines if len(line.x)]
    if len(lines) < 2:
        return None
    start, stop = max(line.x[0] for line in lines), min(line.x[-1] for line in lines)
    if stop <= start:
        return None
    grid = np.linspace(start, stop, points)
    mean, low, high = interval95(np.stack([np.interp(grid, line.x, line.y) for line in lines]))
    return Band(grid, mean, low, high)


def time_unit(longest_s: float) -> tuple[str, float]:
    """A unit in which the longest run reads well, and its seconds."""
    if longest_s < 300:
        return "seconds", 1.0
    return ("minutes", 60.0) if longest_s < 3 * 3600 else ("hours", 3600.0)


def view_range(lines: Sequence[Line], bands: Sequence[Band]) -> tuple[float, float] | None:
    """The y range to open with: all lines, and of the bands no more than a quarter of the lines' height beyond them.

    With two seeds Student's t is 12.7: the whole band would press the curves themselves into one flat stroke.
    """
    ys = [line.y for line in lines if len(line.y)]
    if not ys:
        return None
    low, high = min(float(y.min()) for y in ys), max(float(y.max()) for y in ys)
    room = (high - low) / 4 or max(abs(high), 1.0) / 10
    floor = min((float(band.low.min()) for band in bands), default=low)
    ceiling = max((float(band.high.max()) for band in bands), default=high)
    margin = room / 5
    return max(min(floor, low), low - room) - margin, min(max(ceiling, high), high + room) + margin
