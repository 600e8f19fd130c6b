"""Evaluation tables: one row a run, and one row an experiment over its seeds."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from markupsafe import Markup

from recollect.report import elements
from recollect.report.curves import interval95
from recollect.report.loading import Group, Run, group_runs, mapping
from recollect.report.recorded import Recorded
from recollect.report.style import NOTHING, as_number, count, duration, figure, interval, rate


@dataclass(frozen=True)
class Row:
    """What the evaluation table says of one run, already in words."""

    experiment: str
    network: str
    seed: str
    env_id: str
    protocol: str
    mean: str
    iqm: str
    ci95: str
    episodes: str
    sampled: str
    greedy: str
    env_steps: str
    wall_time: str
    steps_per_s: str
    status: str

    def cells(self) -> tuple[str, ...]:
        """In the order of ``HEADER``."""
        return tuple(getattr(self, name) for name in self.__dataclass_fields__)


HEADER = (
    "Experiment",
    "Network",
    "Seed",
    "Environment",
    "Protocol",
    "Mean",
    "IQM",
    "95 % interval",
    "Episodes",
    "Sampled",
    "Greedy",
    "Env steps",
    "Wall time",
    "Steps/s",
    "Status",
)


def evaluation_row(run: Run) -> Row:
    """A run that was not evaluated keeps its row: a table that leaves failures out flatters."""
    scores = run.evaluation or {}
    protocol = mapping(scores.get("protocol")) or run.protocol
    steps, seconds = run.card.get("env_steps"), run.card.get("wall_s")
    return Row(
        experiment=run.experiment,
        network=run.network or NOTHING,
        seed=run.seed,
        env_id=str(scores.get("env_id") or run.env_id),
        protocol=str(protocol.get("name") or NOTHING),
        mean=figure(scores.get("mean")),
        iqm=figure(scores.get("iqm")),
        ci95=interval(scores.get("ci95")),
        episodes=count(scores.get("episodes")) if scores else "none",
        sampled=_mode(mapping(scores.get("sampled"))),
        greedy=_mode(mapping(scores.get("greedy"))),
        env_steps=count(steps),
        wall_time=duration(seconds),
        steps_per_s=rate(steps, seconds),
        status=run.status,
    )


def _mode(block: dict[str, Any]) -> str:
    """One way of choosing actions: the mean, and in small below it IQM and interval."""
    if as_number(block.get("mean")) is None:
        return NOTHING
    return Markup("{}<small>IQM {}</small><small>{}</small>").format(
        figure(block.get("mean")), figure(block.get("iqm")), interval(block.get("ci95"))
    )


def recorded_row(recorded: Recorded) -> Row:
    """A result that was recorded elsewhere: means over its seeds, and the longest of its times."""
    steps, seconds = (max(recorded.of_seeds(key), default=None) for key in ("env_steps", "wall_s"))
    each = recorded.seeds
    mean = figure(recorded.mean("mean"))
    return Row(
        experiment=recorded.name,
        network=recorded.network or NOTHING,
        seed=str(each[0].get("seed", "?")) if len(each) == 1 else f"{len(each)} seeds",
        env_id=recorded.env_id or NOTHING,
        protocol=recorded.protocol or NOTHING,
        mean=mean,
        iqm=figure(recorded.mean("iqm")),
        ci95=interval(recorded.ci95),
        episodes=count(sum(recorded.of_seeds("episodes"))),
        sampled=mean,
        greedy=figure(recorded.mean("greedy_mean")),
        env_steps=count(steps),
        wall_time=duration(seconds),
        steps_per_s=rate(steps, seconds),
        status="recorded",
    )


def evaluation_table(runs: Sequence[Run], recorded: Sequence[Recorded] = ()) -> Markup:
    """Every run, evaluated or not, and then what was recorded elsewhere."""
    caption = "Evaluation of each run: return per episode, on environments never trained on"
    rows = [*map(evaluation_row, runs), *map(recorded_row, recorded)]
    return elements.table(caption, HEADER, [row.cells() for row in rows], text_columns=5)


def seed_means(group: Group) -> np.ndarray:
    """The evaluation mean of each evaluated seed of the group, float64 [S]: those played where it was trained."""
    scores = [run.evaluation for run in group.replicates if run.evaluation]
    means = [as_number(each.get("mean")) for each in scores if each.get("env_id", group.env_id) == group.env_id]
    return np.array([mean for mean in means if mean is not None])


def seeds_table(runs: Sequence[Run]) -> Markup | None:
    """Experiments with at least two evaluated seeds; None where there is none."""
    rows = []
    for group in group_runs(runs):
        means = seed_means(group)
        if len(means) < 2:
            continue
        mean, low, high = (float(value) for value in interval95(means))
        spread = f"{figure(means.min())} to {figure(means.max())}"
        rows.append((group.name, group.env_id, str(len(means)), figure(mean), interval([low, high]), spread))
    if not rows:
        return None
    header = ("Experiment", "Environment", "Seeds", "Mean of seeds", "95 % interval", "Lowest to highest seed")
    caption = "Each experiment over its seeds: the seed is the unit, Student's interval"
    return elements.table(caption, header, rows, text_columns=2)
