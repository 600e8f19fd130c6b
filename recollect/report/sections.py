"""The parts of the page. A section is a function of the runs that gives its HTML, or None where it has nothing to say.

To add one, write the function and put it into ``sections``.
"""

import base64
import shlex
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import numpy as np
from markupsafe import Markup

from recollect.report import elements, figures, tables
from recollect.report.attention import attention
from recollect.report.loading import Run, comparison_notes, flatten, group_runs, mapping
from recollect.report.recorded import Recorded
from recollect.report.style import PALETTE, colour, count, duration

Section = Callable[[Sequence[Run]], Markup | None]

ROW_KEYS = ("schema_version", "update", "step", "frames", "episode", "seconds")
"""The columns that say where a row stands; all others are charted."""

VIDEO_LIMIT_MB = 20
PAGE_VIDEO_LIMIT_MB = 80
"""All videos of a page together: beyond it browsers take long to open the file."""

SHARE = "time/share_"
"""Metrics of this prefix say which part of an update's time went where."""


def notes(runs: Sequence[Run]) -> Markup | None:
    """What the reader should know before reading any number."""
    lines = [f"{run.name}: {problem}." for run in runs for problem in run.problems]
    lines += [f"{run.name}: this run is {run.status}." for run in runs if run.status != "finished"]
    lines += comparison_notes(runs)
    return elements.section("Please note", elements.bullets(lines)) if lines else None


def learning_curves(runs: Sequence[Run], recorded: Sequence[Recorded] = ()) -> Markup:
    """Return by steps and by time side by side, one pair for each environment."""
    parts = []
    groups = group_runs(runs)
    for env_id in dict.fromkeys(group.env_id for group in groups):
        here = [group for group in groups if group.env_id == env_id]
        key = figures.score_key([run for group in here for run in group.runs])
        if key is None:
            parts.append(elements.note(f"{env_id}: no learning curve, as no finished episode is recorded."))
            continue
        same = [each for each in recorded if each.env_id == env_id]
        pair = [
            elements.chart(f"{env_id}: {key} by environment steps", figures.by_steps(here, key, same)),
            elements.chart(f"{env_id}: {key} by wall-clock time", figures.by_time(here, key, same)),
        ]
        parts.append(Markup('<div class="pair">{}</div>').format(elements.join(pair)))
    if any(len(group.runs) > 1 for group in groups):
        parts.append(elements.note("Thin lines are seeds; the band is Student's 95 % interval of their mean."))
    if any(run.metrics.has("eval/mean") for run in runs):
        parts.append(elements.note("Diamonds are evaluations during training."))
    if recorded:
        parts.append(elements.note("Crosses are where the seeds of recorded results ended, as evaluated."))
    return elements.section("Learning curves", elements.join(parts))


def evaluation(runs: Sequence[Run], recorded: Sequence[Recorded] = ()) -> Markup:
    """Final scores, of these runs and of those that were recorded elsewhere."""
    parts = [tables.evaluation_table(runs, recorded)]
    parts += [elements.note(f"Recorded earlier, not run here: {each.name}, {each.headline}.") for each in recorded]
    if (over_seeds := tables.seeds_table(runs)) is not None:
        parts.append(over_seeds)
    if not all(run.evaluation for run in runs):
        parts.append(elements.note("Runs without scores have no eval.json: `recollect eval RUN` writes it."))
    parts.append(elements.note("IQM: the mean of the middle half of the episodes."))
    return elements.section("Evaluation", elements.join(parts))


def videos(runs: Sequence[Run]) -> Markup | None:
    """Every video that fits, inside the page itself."""
    parts = []
    room = PAGE_VIDEO_LIMIT_MB * 1e6
    for run in runs:
        for path in run.videos:
            size = path.stat().st_size
            if size > min(VIDEO_LIMIT_MB * 1e6, room):
                limits = f"{VIDEO_LIMIT_MB} MB a video and {PAGE_VIDEO_LIMIT_MB} MB a page"
                left_out = f"{run.name}/video/{path.name} ({size / 1e6:.1f} MB) is left out: the limits are {limits}."
                parts.append(elements.note(left_out))
                continue
            room -= size
            parts.append(_video(run, path))
    if not parts:
        return None
    return elements.section("Video", Markup('<div class="videos">{}</div>').format(elements.join(parts)))


def _video(run: Run, path: Path) -> Markup:
    data = base64.b64encode(path.read_bytes()).decode()
    return Markup(
        '<figure><video controls loop muted playsinline preload="metadata" aria-label="Video of {0}" '
        'src="data:video/mp4;base64,{1}"></video><figcaption>{0}, seed {2}: {3}</figcaption></figure>'
    ).format(run.experiment, data, run.seed, path.name)


def diagnostics(runs: Sequence[Run]) -> Markup | None:
    """Every logged metric, folded away by the first part of its name."""
    keys = sorted({key for run in runs for key in run.metrics.columns if key not in ROW_KEYS})
    if not keys:
        return None
    groups = group_runs(runs)
    prefixes: dict[str, list[str]] = {}
    for key in keys:
        prefixes.setdefault(key.split("/")[0] if "/" in key else "other", []).append(key)
    parts = []
    for prefix, members in prefixes.items():
        panels = [elements.chart(_panel_caption(runs, key), figures.panel(groups, key)) for key in members]
        body = Markup('<div class="panels">{}</div>').format(elements.join(panels))
        parts.append(elements.details(f"{prefix} ({len(members)})", body))
    return elements.section("Losses and diagnostics", elements.join(parts))


def _panel_caption(runs: Sequence[Run], key: str) -> str:
    """A loss that became NaN would otherwise only look as if training had ended earlier."""
    if not any(run.metrics.has(key) for run in runs):
        return f"{key} (no number yet)"
    blank = sum(run.metrics.blank.get(key, 0) for run in runs)
    return f"{key} ({blank} rows hold no number)" if blank else key


def time_shares(runs: Sequence[Run]) -> Markup | None:
    """Where the wall-clock time went, one bar a run."""
    bars = [_time_bar(run, shares) for run in runs if (shares := mean_shares(run))]
    return elements.section("Where the time went", elements.join(bars)) if bars else None


def mean_shares(run: Run) -> dict[str, float]:
    """The run's share of time by activity, each update weighted by the seconds it took; what is left is ``other``."""
    columns = run.metrics.columns
    keys = [key for key in columns if key.startswith(SHARE) and run.metrics.has(key)]
    if not keys or not run.metrics.has("seconds"):
        return {}
    weight = np.diff(columns["seconds"], prepend=0.0)
    good = np.isfinite(weight) & (weight > 0) & np.all([np.isfinite(columns[key]) for key in keys], axis=0)
    if not good.any():
        return {}
    shares = {key.removeprefix(SHARE): float(np.average(columns[key][good], weights=weight[good])) for key in keys}
    return shares | {"other": max(0.0, 1.0 - sum(shares.values()))}


def _time_bar(run: Run, shares: dict[str, float]) -> Markup:
    """Its legend carries the numbers, so the bar itself is only for the eye."""
    total = sum(shares.values()) or 1.0
    colours = [colour(at) for at in range(len(shares) - 1)] + [PALETTE[-1]]
    pieces = elements.join(
        Markup('<span style="background:{};width:{:.2f}%"></span>').format(paint, 100 * share / total)
        for paint, share in zip(colours, shares.values(), strict=True)
    )
    words = elements.join(
        Markup('<li><i style="background:{}"></i>{} {:.0f} %</li>').format(paint, name, 100 * share)
        for paint, (name, share) in zip(colours, shares.items(), strict=True)
    )
    return Markup(
        '<div class="time"><p>{}, seed {}</p><div class="bar" aria-hidden="true">{}</div><ul>{}</ul></div>'
    ).format(run.experiment, run.seed, pieces, words)


def how_to_repeat(runs: Sequence[Run]) -> Markup:
    """For each run its command, its card and its resolved config."""
    parts = [_run_details(run, opened=len(runs) == 1) for run in runs]
    return elements.section("Runs, and how to repeat them", elements.join(parts))


def regenerate_command(run: Run) -> str:
    """The command line that the card recorded; without one, the experiment and the seed."""
    recorded = run.card.get("command")
    if isinstance(recorded, list) and recorded:
        return shlex.join(str(word) for word in recorded)
    if isinstance(recorded, str) and recorded:
        return recorded
    return shlex.join(["recollect", "train", run.experiment, "--seed", run.seed])


def _run_details(run: Run, opened: bool) -> Markup:
    parts: list[Markup] = [elements.code(regenerate_command(run))]
    if not run.card.get("command"):
        parts.append(elements.note("Other flags of that run, if any, stand in its resolved config below."))
    nested = ("protocol", "hardware", "versions")
    main = {key: value for key, value in run.card.items() if key not in (*nested, "schema_version", "command")}
    for key in ("wall_s", "cold_start_s"):
        main[key] = duration(run.card.get(key))
    main["env_steps"] = count(run.card.get("env_steps"))
    cards = [elements.definitions("run", main)]
    cards += [elements.definitions(name, flatten(mapping(run.card.get(name)))) for name in nested]
    parts.append(Markup('<div class="cards">{}</div>').format(elements.join(cards)))
    config = elements.code(run.config_text) if run.config_text else elements.note("There is no config.yaml.")
    parts.append(elements.details("Resolved config (config.yaml)", config))
    return elements.details(f"{run.name} ({run.status})", elements.join(parts), opened)


def sections(recorded: Sequence[Recorded] = ()) -> tuple[Section, ...]:
    """All parts of the page, in order; ``recorded`` are results to compare with."""
    return (
        notes,
        partial(learning_curves, recorded=recorded),
        partial(evaluation, recorded=recorded),
        videos,
        attention,
        diagnostics,
        time_shares,
        how_to_repeat,
    )
