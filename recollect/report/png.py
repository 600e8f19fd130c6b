"""Learning curves as a PNG, for results/ and documents that cannot hold a page."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from recollect.report.curves import Line, downsample, mean_band, time_unit, view_range
from recollect.report.figures import score_key
from recollect.report.loading import Group, group_runs, load_runs
from recollect.report.style import colour

STROKES = ("-", "--", ":", "-.")


def write_curve_png(runs: Sequence[Path], out: Path) -> Path:
    """Return by steps (left) and by wall-clock time (right), one row an environment. Returns ``out``."""
    try:
        from matplotlib.figure import Figure  # without pyplot: no window, no global state
    except ImportError as error:
        raise ValueError("writing a PNG needs matplotlib, of the extra 'dev': pip install 'recollect[dev]'") from error
    groups = group_runs(load_runs(runs))
    env_ids = list(dict.fromkeys(group.env_id for group in groups))
    image = Figure(figsize=(11, 4 * len(env_ids)), layout="constrained")
    axes = image.subplots(len(env_ids), 2, squeeze=False, sharey="row")
    for row, env_id in zip(axes, env_ids, strict=True):
        here = [group for group in groups if group.env_id == env_id]
        columns = [run.metrics.columns.get("seconds", np.zeros(1)) for group in here for run in group.runs]
        unit, seconds = time_unit(max(float(np.nanmax(column, initial=0.0)) for column in columns))
        _draw(row[0], here, "step", 1.0)
        _draw(row[1], here, "seconds", seconds)
        row[0].set(title=_plain(env_id), xlabel="environment steps", ylabel="return per episode")
        row[1].set(title=_plain(env_id), xlabel=f"wall-clock time ({unit})")
    out = Path(out)
    out.parent.mkdir(parents=True, exist_ok=True)
    image.savefig(out, dpi=150, format="png")
    return out


def _draw(axis: Any, groups: Sequence[Group], x: str, unit: float) -> None:
    """Seeds as thin lines, their mean and band; a single seed as a full line."""
    key = score_key([run for group in groups for run in group.runs])
    lines, bands = [], []
    for group in groups if key else ():
        raw = [(run, line) for run in group.runs if len((line := run.metrics.line(x, str(key))).x)]
        seeds = [Line(line.x / unit, line.y) for _, line in raw]
        averaged = [line for (run, _), line in zip(raw, seeds, strict=True) if run in group.replicates]
        band = mean_band(averaged)
        style = {"color": colour(group.index), "linestyle": STROKES[group.index // 8 % len(STROKES)]}
        name = _plain(group.name)
        for at, line in enumerate(map(downsample, seeds)):
            alone = {"linewidth": 1.8, "label": name if at == 0 else None}
            axis.plot(line.x, line.y, **style, **({"linewidth": 0.7, "alpha": 0.45} if band else alone))
        if band is not None:
            bands.append(band)
            axis.plot(band.x, band.mean, **style, linewidth=2, label=f"{name} (mean of {len(averaged)} seeds)")
            axis.fill_between(band.x, band.low, band.high, color=style["color"], alpha=0.16, linewidth=0)
        lines += seeds
    if (shown := view_range(lines, bands)) is None:
        axis.text(0.5, 0.5, "no finished episode is recorded", ha="center", transform=axis.transAxes)
        return
    axis.set_ylim(*shown)
    axis.grid(alpha=0.25)
    axis.legend(frameon=False, fontsize=8)


def _plain(text: str) -> str:
    """Matplotlib reads $...$ as mathematics, and a torn formula in a name would stop the whole figure."""
    return text.replace("$", r"\$")
