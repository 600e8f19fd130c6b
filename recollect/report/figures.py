"""Learning curves and diagnostic panels as plotly figures: plain maps, drawn by the page's script.

Plain maps, because building plotly's objects takes longer than all the rest; a test has plotly check them.
"""

from collections.abc import Callable, Sequence
from html import escape
from typing import Any

import numpy as np

from recollect.report.curves import Band, Line, downsample, mean_band, time_unit, view_range
from recollect.report.loading import Group, Run
from recollect.report.recorded import Recorded
from recollect.report.style import PALETTE, colour, dash, translucent

Figure = dict[str, Any]

SCORES = ("train/return_mean", "eval/mean")
"""What a learning curve shows: the first of these that was recorded."""

PANEL_POINTS = 500
"""A small panel has few pixels, and there are many panels."""


def score_key(runs: Sequence[Run]) -> str | None:
    """The metric to draw as the learning curve, or None where no episode has ended yet."""
    return next((key for key in SCORES if any(run.metrics.has(key) for run in runs)), None)


def by_steps(groups: Sequence[Group], key: str, recorded: Sequence[Recorded] = ()) -> Figure:
    """Return over environment steps, and where recorded results ended."""
    ends = [(each, each.ends("env_steps")) for each in recorded]
    return _learning_figure(groups, key, lambda run, y: run.metrics.line("step", y), "environment steps", ends)


def by_time(groups: Sequence[Group], key: str, recorded: Sequence[Recorded] = ()) -> Figure:
    """Return over the run's own wall-clock time, in the unit that fits the longest run."""
    longest = [run.metrics.columns["seconds"] for group in groups for run in group.runs if run.metrics.has("seconds")]
    unit, seconds = time_unit(max((float(np.nanmax(column)) for column in longest), default=0.0))
    ends = [(each, Line((end := each.ends("wall_s")).x / seconds, end.y)) for each in recorded]

    def line_of(run: Run, y: str) -> Line:
        line = run.metrics.line("seconds", y)
        return Line(line.x / seconds, line.y)

    return _learning_figure(groups, key, line_of, f"wall-clock time ({unit})", ends)


def _learning_figure(
    groups: Sequence[Group],
    key: str,
    line_of: Callable[[Run, str], Line],
    x_title: str,
    ends: Sequence[tuple[Recorded, Line]],
) -> Figure:
    data: list[dict[str, Any]] = []
    lines: list[Line] = []
    bands: list[Band] = []
    for group in groups:
        seeds = [(run, line) for run in group.runs if len((line := line_of(run, key)).x)]
        averaged = [line for run, line in seeds if run in group.replicates]
        band = mean_band(averaged)
        data += [_seed_trace(group, run, line, alone=band is None) for run, line in seeds]
        if band is not None:
            bands.append(band)
            data += _band_traces(group, band, len(averaged))
        lines += [line for _, line in seeds]
        if key != "eval/mean":
            data += [trace for run in group.runs if (trace := _evaluation_trace(group, run, line_of(run, "eval/mean")))]
    for each, end in ends:
        data.append(_recorded_trace(each, end))
        lines.append(end)
    layout = _layout(x_title, "return per episode", 440)
    _name_each_once(data)
    if (shown := view_range(lines, bands)) is not None:
        layout["yaxis"]["range"] = [float(f"{edge:.6g}") for edge in shown]
    return {"data": data, "layout": layout}


def _seed_trace(group: Group, run: Run, line: Line, alone: bool) -> dict[str, Any]:
    """One seed: the experiment's own line where it stands alone, a thin one behind the mean otherwise."""
    name = label(group.name)
    stroke = {"color": colour(group.index), "width": 2.2 if alone else 1, "dash": dash(group.index)}
    return _trace(downsample(line)) | {
        "name": name,
        "legendgroup": name,
        "showlegend": alone,
        "line": stroke,
        "marker": {"color": colour(group.index), "size": 7},
        "opacity": 1 if alone else 0.45,
        "hovertemplate": f"%{{y:.4~g}} at %{{x:,.4~s}}<extra>{name}, seed {label(run.seed)}</extra>",
    }


def _band_traces(group: Group, band: Band, seeds: int) -> list[dict[str, Any]]:
    name = label(group.name)
    edge = {"legendgroup": name, "showlegend": False, "hoverinfo": "skip", "line": {"width": 0}}
    low = _trace(Line(band.x, band.low)) | edge
    high = _trace(Line(band.x, band.high)) | edge | {"fill": "tonexty", "fillcolor": translucent(group.index, 0.16)}
    mean = _trace(Line(band.x, band.mean)) | {
        "name": f"{name} (mean of {seeds} seeds)",
        "legendgroup": name,
        "line": {"color": colour(group.index), "width": 2.6, "dash": dash(group.index)},
        "hovertemplate": f"%{{y:.4~g}} at %{{x:,.4~s}}<extra>{name}, mean of {seeds}</extra>",
    }
    return [low, high, mean]


def _evaluation_trace(group: Group, run: Run, line: Line) -> dict[str, Any] | None:
    """Evaluations during training, as marks: measured apart from training, so never joined with its line."""
    if not len(line.x):
        return None
    name = label(group.name)
    return _trace(downsample(line)) | {
        "mode": "markers",
        "name": name,
        "legendgroup": name,
        "showlegend": False,
        "marker": {"color": colour(group.index), "size": 7, "symbol": "diamond-open"},
        "hovertemplate": f"%{{y:.4~g}} at %{{x:,.4~s}}<extra>{name}, seed {label(run.seed)}, evaluated</extra>",
    }


def _recorded_trace(recorded: Recorded, end: Line) -> dict[str, Any]:
    """Where each seed of a recorded result ended: its curve is not known here."""
    name = f"{label(recorded.name)} (recorded)"
    return _trace(end) | {
        "mode": "markers",
        "name": name,
        "marker": {"color": PALETTE[-1], "size": 9, "symbol": "x"},
        "hovertemplate": f"%{{y:.4~g}} at %{{x:,.4~s}}<extra>{name}</extra>",
    }


def _name_each_once(data: list[dict[str, Any]]) -> None:
    """One entry a name in the legend, however many runs draw it."""
    named: set[str] = set()
    for trace in data:
        if trace.get("showlegend", True):
            trace["showlegend"] = trace["name"] not in named
            named.add(trace["name"])


def panel(groups: Sequence[Group], key: str) -> Figure:
    """One diagnostic metric of every run, over environment steps."""
    data = []
    lines = []
    for group in groups:
        for run in group.runs:
            line = downsample(run.metrics.line("step", key), PANEL_POINTS)
            if len(line.x):
                lines.append(line)
                data.append(_seed_trace(group, run, line, alone=True) | {"showlegend": False})
                data[-1]["line"] |= {"width": 1.4}
    layout = _layout("environment steps", "", 230)
    layout["margin"] |= {"t": 12, "b": 44}
    if _spans_decades(lines):
        layout["yaxis"] |= {"type": "log", "title": {"text": "log scale"}}
    return {"data": data, "layout": layout}


def _spans_decades(lines: Sequence[Line]) -> bool:
    """Above zero throughout, and over three powers of ten but for outliers: only a logarithmic axis shows that."""
    ys = np.concatenate([line.y for line in lines]) if lines else np.empty(0)
    if not len(ys) or ys.min() <= 0:
        return False
    low, high = np.quantile(ys, (0.05, 0.95))
    return bool(high / low > 1e3)


def label(text: str) -> str:
    """Plotly reads a small HTML in names, and % braces in templates: text from files must be neither."""
    return escape(text).replace("%{", "%&#123;")


def _trace(line: Line) -> dict[str, Any]:
    # seven digits are more than a screen shows, and half of what a float64 would add to the page
    x, y = ([float(f"{value:.7g}") for value in axis] for axis in (line.x, line.y))
    return {"type": "scatter", "mode": "lines" if len(x) > 1 else "markers", "x": x, "y": y}


def _layout(x_title: str, y_title: str, height: int) -> dict[str, Any]:
    axis = {"automargin": True, "zeroline": False}
    return {
        "height": height,
        "margin": {"l": 56, "r": 16, "t": 24, "b": 52},
        "hovermode": "closest",
        "legend": {"orientation": "h", "x": 0, "y": -0.2, "yanchor": "top"},
        "xaxis": axis | {"title": {"text": x_title, "standoff": 10}, "rangemode": "tozero"},
        "yaxis": axis | {"title": {"text": y_title, "standoff": 8}},
    }
