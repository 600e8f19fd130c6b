"""How to measure honestly on a noisy machine: warm up, interleave the sides, report medians, spreads and ratios."""

import json
import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from recollect.run.device import commit, hardware, versions

Side = Callable[[], float]  # measures once; its rate, in units a second


@dataclass(frozen=True)
class Row:
    """One measured side."""

    what: str
    samples: tuple[float, ...]
    unit: str

    @property
    def value(self) -> float:
        """The median."""
        return statistics.median(self.samples)

    def data(self) -> dict[str, Any]:
        """As the results' schema has it; ``spread`` is the lowest and the highest sample."""
        spread = [min(self.samples), max(self.samples)]
        return {"what": self.what, "value": self.value, "unit": self.unit, "spread": spread}


@dataclass(frozen=True)
class Ratio:
    """One side over another, with the least that it should be."""

    name: str
    value: float
    floor: float | None = None

    def data(self) -> dict[str, Any]:
        """As the results' schema has it."""
        reached = None if self.floor is None else self.value >= self.floor
        return {"name": self.name, "value": self.value, "floor": self.floor, "pass": reached}


def interleave(sides: Mapping[str, Side], repeats: int, unit: str) -> dict[str, Row]:
    """Measure every side once to warm up, then ``repeats`` rounds in turn, so that drift hits all alike."""
    console = Console(stderr=True)
    samples: dict[str, list[float]] = {name: [] for name in sides}
    for round_number in range(repeats + 1):
        for name, side in sides.items():
            rate = side()
            console.print(f"round {round_number}/{repeats}: {name}: {rate:,.0f} {unit}", highlight=False)
            if round_number > 0:
                samples[name].append(rate)
    return {name: Row(name, tuple(rates), unit) for name, rates in samples.items()}


def rate_of(work: Callable[[], int], seconds: float) -> float:
    """Do ``work`` (which says how many units it did) for about so long; units a second."""
    done, start = 0, time.perf_counter()
    while (passed := time.perf_counter() - start) < seconds:
        done += work()
    return done / passed


def report(
    name: str,
    command: str,
    config: dict[str, Any],
    rows: list[Row],
    ratios: list[Ratio],
    as_json: bool,
    out: Path | None,
    headline: str,
) -> None:
    """Print a table (or one JSON line), and write the result file where one is asked for."""
    machine = {**hardware(), "versions": versions(), "commit": commit()}
    result = {
        "schema_version": 1,
        "name": name,
        "headline": headline,
        "machine": machine,
        "command": command,
        "config": config,
        "rows": [row.data() for row in rows],
        "ratios": [ratio.data() for ratio in ratios],
    }
    if out is not None:
        out.parent.mkdir(parents=True, exist_ok=True)
        out.write_text(json.dumps(result, indent=2) + "\n")
    if as_json:
        print(json.dumps(result))
        return
    table = Table(title=f"bench {name}: {machine['cpu']}, {machine['cores']} cores, {machine['gpu'] or 'no GPU'}")
    for column in ("what", "median", "lowest", "highest", "unit"):
        table.add_column(column, justify="left" if column in ("what", "unit") else "right")
    for row in rows:
        table.add_row(row.what, f"{row.value:,.0f}", f"{min(row.samples):,.0f}", f"{max(row.samples):,.0f}", row.unit)
    console = Console()
    console.print(table)
    for ratio in ratios:
        floor = "" if ratio.floor is None else f" (at least {ratio.floor:g}: {'yes' if ratio.data()['pass'] else 'NO'})"
        console.print(f"{ratio.name}: {ratio.value:.3f}{floor}", highlight=False)
