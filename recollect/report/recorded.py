"""Results that were recorded earlier (``results/NAME.json``), read to be shown beside runs."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from recollect.report.curves import Line, interval95
from recollect.report.loading import mapping
from recollect.report.style import as_number


@dataclass(frozen=True)
class Recorded:
    """One experiment over its seeds, as ``tools/record.py`` wrote it."""

    name: str
    headline: str
    env_id: str
    protocol: str
    network: str  # empty in a file that does not say
    seeds: tuple[dict[str, Any], ...]

    def of_seeds(self, key: str) -> list[float]:
        """A figure of every seed that has it."""
        return [number for seed in self.seeds if (number := as_number(seed.get(key))) is not None]

    def mean(self, key: str) -> float | None:
        """Its mean over the seeds."""
        values = self.of_seeds(key)
        return float(np.mean(values)) if values else None

    def ends(self, x: str) -> Line:
        """Each seed's mean over ``x``, its env_steps or wall_s, where it says both."""
        pairs = [(as_number(seed.get(x)), as_number(seed["mean"])) for seed in self.seeds]
        ends = sorted(pair for pair in pairs if None not in pair)
        return Line(*np.array(ends, np.float64).reshape(-1, 2).T)

    @property
    def ci95(self) -> Any:
        """Student's interval over the seeds; of a single one the interval over its episodes."""
        means = self.of_seeds("mean")
        if len(means) < 2:
            return self.seeds[0].get("ci95")
        return [float(edge) for edge in interval95(np.array(means))[1:]]


def load_recorded(path: Path) -> Recorded:
    """Read one. ValueError, in one line, where it is no such file."""
    try:
        data = json.loads(Path(path).read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise ValueError(f"--beside {path} cannot be read: {getattr(error, 'strerror', None) or error}") from None
    data = mapping(data)
    listed = data.get("seeds")
    seeds = tuple(mapping(seed) for seed in listed) if isinstance(listed, list) else ()
    scored = all(as_number(seed.get("mean")) is not None for seed in seeds)
    if not seeds or not scored or not isinstance(data.get("name"), str):
        raise ValueError(f"--beside {path} is no recorded result: it needs a name and seeds with a mean, see results/")
    protocol = mapping(data.get("protocol"))
    return Recorded(
        name=data["name"],
        headline=str(data.get("headline") or "without a headline"),
        env_id=str(protocol.get("env_id") or ""),
        protocol=str(protocol.get("name") or ""),
        network=str(data.get("network") or ""),
        seeds=seeds,
    )
