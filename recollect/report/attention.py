"""What an agent attends to: by age, and along some steps of play beside what happened in them."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from markupsafe import Markup

from recollect.report import elements
from recollect.report.figures import Figure, label
from recollect.report.loading import Run, mapping
from recollect.report.style import DASHES, PALETTE, as_number, colour, figure, translucent

# L layers, H heads, T shown steps, A ages 0..W.

PANEL = 150  # pixels of one row of a figure
MARKED_REWARDS = 40  # as marks in the map; a reward that comes with every step marks nothing
WON, LOST, HIDDEN, SEEN = PALETTE[2], PALETTE[4], PALETTE[1], PALETTE[0]


@dataclass(frozen=True)
class Watched:
    """``attention.json``, with every shape checked."""

    mean_LHA: np.ndarray
    first: int  # the step of the episode that the first shown one is
    maps: tuple[tuple[int, int | None, np.ndarray], ...]  # layer, head or None for their mean, shares [T, A]
    reward_T: np.ndarray
    actions: dict[str, np.ndarray]  # [T] each
    action_names: tuple[str, ...]
    scene: dict[str, np.ndarray]  # [T] each
    on_sight: dict[str, Any]
    words: str  # of which episode

    @property
    def step_T(self) -> list[int]:
        """The shown steps, counted from the episode's first."""
        return list(range(self.first, self.first + len(self.reward_T)))

    @property
    def last_seen_T(self) -> np.ndarray:
        """How many steps ago the ball was last seen, where it is there and hidden, within what is shown; else NaN."""
        age_T = np.full(len(self.reward_T), np.nan)
        if {"ball_there", "ball_visible"} <= self.scene.keys():
            seen_T, at = self.scene["ball_visible"] > 0, np.arange(len(age_T))
            latest_T = np.maximum.accumulate(np.where(seen_T, at, -1))
            hidden_T = (self.scene["ball_there"] > 0) & ~seen_T & (latest_T >= 0)
            age_T[hidden_T] = (at - latest_T)[hidden_T]
        return age_T


def parsed(data: dict[str, Any]) -> Watched:
    """The file's content. ValueError where it is not what it should be: it may come from anywhere."""
    try:
        mean_LHA, reward_T, unit = _numbers(data["mean"], 3), _numbers(data["reward"], 1), float(data["unit"])
        if unit <= 0:
            raise ValueError(f"unit must be above 0, got {unit}")
        maps = tuple((int(m["layer"]), m["head"], _numbers(m["share"], 2) / unit) for m in data["maps"])
        actions, scene = (
            {str(name): _numbers(values, 1) for name, values in data[key].items()} for key in ("actions", "scene")
        )
        fits = all(share_TA.shape == (len(reward_T), mean_LHA.shape[2]) for _, _, share_TA in maps)
        fits &= all(len(values_T) == len(reward_T) for each in (actions, scene) for values_T in each.values())
        if not (fits and maps and all(head is None or isinstance(head, int) for _, head, _ in maps)):
            raise ValueError("its parts do not fit together")
        return Watched(
            mean_LHA=mean_LHA,
            first=int(data["first"]),
            maps=maps,
            reward_T=reward_T,
            actions=actions,
            action_names=tuple(str(name) for name in data["action_names"]),
            scene=scene,
            on_sight=mapping(data.get("on_sight")),
            words=f"{int(data['watched_steps']):,} decisions, return in them {figure(data['watched_return'])}",
        )
    except (KeyError, TypeError, AttributeError, OverflowError) as error:
        raise ValueError(f"{type(error).__name__}: {error}") from None


def _numbers(values: Any, dimensions: int) -> np.ndarray:
    array = np.array(values, np.float64)
    if array.ndim != dimensions or not array.size or not np.isfinite(array).all():
        raise ValueError(f"numbers in {dimensions} dimensions were expected, got {list(array.shape)}")
    return array


def by_age(watched: Watched) -> Figure:
    """Mean share of each age, a line for each head."""
    layers, heads, ages = watched.mean_LHA.shape
    data = []
    for layer in range(layers):
        for head in range(heads):
            stroke = {"color": colour(head), "dash": DASHES[layer % len(DASHES)], "width": 1.8}
            name = _name(layer, head, layers, heads)
            data.append(_line(list(range(ages)), 100 * watched.mean_LHA[layer, head], name, "y", stroke, 4))
            data[-1]["hovertemplate"] = f"%{{y:.3~g}} %, %{{x}} steps back<extra>{name}</extra>"
    even = np.full(2, 100 / ages)
    data.append(
        _line([0, ages - 1], even, "spread evenly", "y", {"color": PALETTE[-1], "dash": "dot", "width": 1.4}, 4)
    )
    layout = _layout([340])
    layout["xaxis"]["title"] = {"text": "steps back (0 is now)", "standoff": 10}
    layout["yaxis"] |= {"title": {"text": "mean share of attention (%)", "standoff": 8}, "rangemode": "tozero"}
    layout["hovermode"] = "closest"
    return {"data": data, "layout": layout}


def along(watched: Watched) -> Figure:
    """Attention over age, step by step, one map a layer; below it what happened, on the same steps."""
    layers, _, ages = watched.mean_LHA.shape
    means = [(layer, share_TA) for layer, head, share_TA in watched.maps if head is None]
    pong = {"ball_x", "ball_y", "paddle", "ball_there", "ball_visible"} <= watched.scene.keys()
    layout = _layout([max(PANEL, 260 - 40 * len(means))] * len(means) + ([PANEL, PANEL] if pong else []) + [PANEL])
    data = []
    for at, (layer, share_TA) in enumerate(means):
        data.append(_map(watched, share_TA, _axis(at)))
        axis = layout[_axis(at, "yaxis")]
        axis |= {
            "title": {"text": "steps back" + (f", layer {layer + 1}" if layers > 1 else "")},
            "range": [-0.5, ages - 0.5],
        }
        if np.isfinite(watched.last_seen_T).any():
            stroke = {"color": HIDDEN, "width": 1.4, "dash": "dot"}  # the cells below it are to be seen
            data.append(_line(watched.step_T, watched.last_seen_T, "ball last seen", _axis(at), stroke, 0))
            data[-1]["showlegend"] = at == 0
    row = len(means)
    if pong:
        data += _where(watched, row)
        layout[_axis(row, "yaxis")]["title"] = {"text": "column"}
        layout[_axis(row + 1, "yaxis")] |= {"title": {"text": "line"}, "autorange": "reversed"}
        row += 2
    data += _actions(watched, layout[_axis(row, "yaxis")], _axis(row))
    layout["xaxis"]["title"] = {"text": "step of the episode", "standoff": 10}
    layout["shapes"] = _points(watched)
    return {"data": data, "layout": layout}


def one_head(watched: Watched, share_TA: np.ndarray) -> Figure:
    """One head's map, small."""
    layout = _layout([170], margin=44)
    layout["yaxis"]["title"] = {"text": "steps back"}
    data = [_map(watched, share_TA, "y") | {"showscale": False}]
    data.append(
        _line(
            watched.step_T, watched.last_seen_T, "ball last seen", "y", {"color": HIDDEN, "width": 1, "dash": "dot"}, 0
        )
    )
    layout["showlegend"] = False
    return {"data": data, "layout": layout}


def _map(watched: Watched, share_TA: np.ndarray, axis: str) -> dict[str, Any]:
    """Clear where there is nothing, so that it suits a light page and a dark one; a few peaks do not pale the rest."""
    top = float(np.quantile(share_TA, 0.995)) or 1.0
    return {
        "type": "heatmap",
        "x0": watched.first,
        "dx": 1,
        "z": np.round(100 * share_TA.T, 2).tolist(),
        "yaxis": axis,
        "zmin": 0,
        "zmax": float(f"{100 * top:.3g}"),
        "colorscale": [[0, translucent(0, 0)], [1, translucent(0, 1)]],
        "colorbar": {"title": {"text": "%"}, "thickness": 10, "len": 0.35, "y": 1, "yanchor": "top"},
        "showscale": axis == "y",
        "hovertemplate": "step %{x} looks %{y} steps back: %{z} %<extra></extra>",
    }


def _where(watched: Watched, row: int) -> list[dict[str, Any]]:
    """Ball and paddle of Pong: the ball where it is seen, where it is hidden, and nowhere between two points."""
    there_T, seen_T = watched.scene["ball_there"] > 0, watched.scene["ball_visible"] > 0
    data = []
    for at, name in ((row, "ball_x"), (row + 1, "ball_y")):
        for words, mask_T, paint in (
            ("ball, seen", there_T & seen_T, SEEN),
            ("ball, hidden", there_T & ~seen_T, HIDDEN),
        ):
            values_T = np.where(mask_T, watched.scene[name], np.nan)
            dots = _line(watched.step_T, values_T, words, _axis(at), {"color": paint}, 1)
            data.append(dots | {"mode": "markers", "marker": {"color": paint, "size": 4}, "showlegend": at == row})
    paddle = {"color": WON, "width": 1.8, "shape": "hv"}
    return [*data, _line(watched.step_T, watched.scene["paddle"], "own paddle", _axis(row + 1), paddle, 1)]


def _actions(watched: Watched, axis: dict[str, Any], name: str) -> list[dict[str, Any]]:
    """What was chosen: marks on the rows of named actions, else lines."""
    if watched.action_names:
        at = list(range(len(watched.action_names)))
        axis |= {
            "tickvals": at,
            "ticktext": [label(word) for word in watched.action_names],
            "range": [-0.7, len(at) - 0.3],
        }
    axis["title"] = {"text": "" if watched.action_names else "action"}
    data = []
    for k, (words, values_T) in enumerate(watched.actions.items()):
        data.append(_line(watched.step_T, values_T, words, name, {"color": colour(5 + k), "width": 1.4}, 3))
        if watched.action_names or len(watched.actions) == 1:
            data[-1] |= {"mode": "markers", "marker": {"color": colour(5), "size": 4}}
    return data


def _points(watched: Watched) -> list[dict[str, Any]]:
    """A line through all rows where a reward came: green for a good one."""
    at_T = np.flatnonzero(watched.reward_T)
    if len(at_T) > MARKED_REWARDS:
        return []
    line = {"type": "line", "xref": "x", "yref": "paper", "y0": 0, "y1": 1, "layer": "above"}
    return [
        line
        | {"x0": x, "x1": x, "line": {"color": WON if watched.reward_T[t] > 0 else LOST, "width": 1.4, "dash": "dot"}}
        for t in at_T.tolist()
        for x in [watched.first + t + 0.5]  # it came between this step and the next
    ]


def _name(layer: int, head: int | None, layers: int, heads: int) -> str:
    words = ([f"layer {layer + 1}"] if layers > 1 else []) + ([f"head {head + 1}"] if head is not None else [])
    return ", ".join(words) if heads > 1 or layers > 1 else "attention"


def _axis(row: int, prefix: str = "y") -> str:
    """Plotly's names: y, y2, y3; yaxis, yaxis2."""
    return prefix if row == 0 else f"{prefix}{row + 1}"


def _line(x: list[int], y: np.ndarray, name: str, axis: str, stroke: dict[str, Any], digits: int) -> dict[str, Any]:
    """A line, with gaps where there is no number."""
    values = [round(value, digits) if np.isfinite(value) else None for value in y.tolist()]
    return {
        "type": "scatter",
        "mode": "lines",
        "x": x,
        "y": values,
        "name": label(name),
        "yaxis": axis,
        "line": stroke,
        "connectgaps": False,
    }


def _layout(rows: Sequence[int], margin: int = 96) -> dict[str, Any]:
    """Rows of these heights above one another, on one x axis."""
    gap, total = 26, sum(rows) + 26 * (len(rows) - 1)
    layout: dict[str, Any] = {
        "height": total + margin + 24,
        "margin": {"l": 64, "r": 16, "t": 24, "b": margin},
        "legend": {"orientation": "h", "x": 0, "y": -56 / total, "yanchor": "top"},
        "xaxis": {"automargin": True, "zeroline": False, "anchor": _axis(len(rows) - 1)},
    }
    top = total
    for row, height in enumerate(rows):
        domain = [round(max(top - height, 0) / total, 4), round(top / total, 4)]
        layout[_axis(row, "yaxis")] = {"domain": domain, "automargin": True, "zeroline": False}
        top -= height + gap
    return layout


def how_to_read(watched: Watched) -> list[str]:
    """In words: what the maps show, and what came of it while the ball was hidden."""
    lines = [
        "Each column of the map is one decision, and each row a number of steps back: dark is where the agent looked. "
        "Upright lines are points."
    ]
    share, even = watched.on_sight.get("share"), as_number(watched.on_sight.get("even"))
    try:
        share_LH = _numbers(share, 2)
    except (ValueError, TypeError):
        return lines
    if even is None:
        return lines
    layers, heads = share_LH.shape
    layer, head = (int(at) for at in np.unravel_index(share_LH.argmax(), share_LH.shape))
    best = (
        f"; the most is {100 * share_LH.max():.0f} % ({_name(layer, head, layers, heads)})" if share_LH.size > 1 else ""
    )
    lines[0] += (
        " While the ball is hidden the orange line is the step that saw it last: where the map is dark there, the "
        "agent looks back to that."
    )
    lines.append(
        f"Of its attention while the ball was hidden, {100 * share_LH.mean():.0f} % went to steps that had seen it"
        f"{best}; spread evenly over what it can reach, it would be {100 * even:.0f} %."
    )
    return lines


def attention(runs: Sequence[Run]) -> Markup | None:
    """What each run that was watched attends to."""
    watched = [run for run in runs if run.attention is not None]
    parts = [_of_run(run, alone=len(watched) == 1) for run in watched]
    return elements.section("What it attends to", elements.join(parts)) if parts else None


def _of_run(run: Run, alone: bool) -> Markup:
    try:
        watched = parsed(mapping(run.attention))
    except ValueError as error:
        return elements.note(f"{run.name}: attention.json is damaged ({error}).")
    steps = watched.step_T
    parts = [
        elements.chart("Mean attention by age, over one episode", by_age(watched)),
        elements.chart(f"Attention and what happened, steps {steps[0]} to {steps[-1]} of that episode", along(watched)),
        *(elements.note(line) for line in how_to_read(watched)),
    ]
    layers, heads = watched.mean_LHA.shape[:2]
    each = [
        elements.chart(_name(layer, head, layers, heads), one_head(watched, share_TA))
        for layer, head, share_TA in watched.maps
        if head is not None
    ]
    if each:
        body = Markup('<div class="panels">{}</div>').format(elements.join(each))
        parts.append(elements.details(f"Head by head ({len(each)})", body))
    about = f"{run.experiment}, seed {run.seed}: one sampled episode, {watched.words}"
    if alone:
        return elements.join([elements.note(f"{about}."), *parts])
    return elements.details(about, elements.join(parts))
