"""The arithmetic behind the curves: what is read, what is thinned out, what is averaged."""

import json
from pathlib import Path

import numpy as np
import pytest

from recollect.report.curves import (
    Band,
    Line,
    Metrics,
    downsample,
    interval95,
    mean_band,
    read_metrics,
    time_unit,
    view_range,
)
from recollect.report.figures import by_steps, by_time, panel
from recollect.report.loading import comparison_notes, group_runs, load_runs
from recollect.report.sections import mean_shares
from recollect.report.tables import seed_means


def write(path: Path, text: str) -> Metrics:
    path.write_text(text)
    return read_metrics(path)


def test_a_torn_last_line_is_left_out(tmp_path: Path) -> None:
    metrics = write(tmp_path / "m.jsonl", '{"step": 1, "a": 2}\n{"step": 2, "a": 3}\n{"step": 3, "a"')
    assert (metrics.rows, metrics.damaged) == (2, 0)
    assert metrics.line("step", "a").y.tolist() == [2, 3]


def test_damage_before_the_last_line_is_counted(tmp_path: Path) -> None:
    metrics = write(tmp_path / "m.jsonl", '{"step": 1}\n{"st\n12\n{"step": 2}\n\n')
    assert (metrics.rows, metrics.damaged) == (2, 2)


def test_null_nan_and_words_are_no_numbers(tmp_path: Path) -> None:
    values = ("null", "NaN", "-Infinity", '"4"', "true", "1" + "0" * 400, "5")
    rows = [f'{{"step": {at}, "a": {value}}}' for at, value in enumerate(values)]
    metrics = write(tmp_path / "m.jsonl", "\n".join(rows) + "\n")
    line = metrics.line("step", "a")
    assert (line.x.tolist(), line.y.tolist()) == ([6], [5])
    assert metrics.blank == {"a": 6}


def test_missing_and_empty_files_have_no_rows(tmp_path: Path) -> None:
    assert read_metrics(tmp_path / "none.jsonl").rows == 0
    empty = write(tmp_path / "m.jsonl", "")
    assert empty.rows == 0
    assert not empty.has("a")
    assert not len(empty.line("step", "a").x)


def test_downsampling_keeps_both_ends_and_every_spike() -> None:
    y = np.zeros(100_003)
    y[54_321], y[77_777] = 9, -9
    thin = downsample(Line(np.arange(100_003.0), y), limit=2_000)
    assert 1_000 < len(thin.x) <= 2_000
    assert (np.diff(thin.x) > 0).all()
    assert (thin.x[0], thin.x[-1], thin.y.max(), thin.y.min()) == (0, 100_002, 9, -9)
    short = Line(np.arange(3.0), np.arange(3.0))
    assert downsample(short) is short


def test_the_mean_line_on_a_common_grid() -> None:
    """y = x logged at 0, 10 and y = 3 x logged at 0, 8, 20: at x the mean is 2 x, and no seed is extrapolated."""
    first = Line(np.array([0.0, 10.0]), np.array([0.0, 10.0]))
    second = Line(np.array([0.0, 8.0, 20.0]), np.array([0.0, 24.0, 60.0]))
    band = mean_band([first, second], points=11)
    assert band is not None
    assert band.x.tolist() == pytest.approx(range(11))
    assert band.mean.tolist() == pytest.approx([2 * x for x in range(11)])


def test_the_band_is_students_interval() -> None:
    """1 and 3: s = sqrt(2), t(0.975; 1) = 12.7062, so 2 -+ 12.7062.

    1, 2, 3: s = 1, t(0.975; 2) = 4.3027, so 2 -+ 4.3027 / sqrt(3).
    """
    mean, low, high = interval95(np.array([[1.0], [3.0]]))
    assert (mean[0], low[0], high[0]) == pytest.approx((2, 2 - 12.7062, 2 + 12.7062), abs=1e-4)
    mean, low, high = interval95(np.array([[1.0], [2.0], [3.0]]))
    assert (mean[0], low[0], high[0]) == pytest.approx((2, -0.48413, 4.48413), abs=1e-4)


def test_no_band_without_two_seeds_that_overlap() -> None:
    line, later, nothing = (Line(np.array(x, float), np.array(x, float)) for x in ([0, 1], [2, 3], []))
    assert mean_band([line]) is None
    assert mean_band([line, nothing]) is None
    assert mean_band([line, later]) is None


def test_the_view_follows_the_lines_and_not_a_wide_band() -> None:
    line = Line(np.array([0.0, 1.0]), np.array([0.0, 8.0]))
    band = Band(line.x, line.y, line.y - 1000, line.y + 1)
    assert view_range([line], [band]) == pytest.approx((-2 - 0.4, 9 + 0.4))  # room 8 / 4, margin room / 5
    assert view_range([], []) is None


@pytest.mark.parametrize(("longest", "unit"), [(90, "seconds"), (3000, "minutes"), (30_000, "hours")])
def test_time_units(longest: float, unit: str) -> None:
    assert time_unit(longest)[0] == unit


def traces(figure: dict) -> dict[str, dict]:
    return {trace["name"]: trace for trace in figure["data"] if trace.get("showlegend", True)}


def test_seeds_of_one_experiment_share_a_mean_and_others_stand_alone(make_run) -> None:
    folders = [
        make_run("a1", values=[1.0] * 10, experiment="a", seed=1),
        make_run("b1", values=[7.0] * 10, experiment="b", seed=1),
        make_run("a2", values=[None, None] + [3.0] * 8, experiment="a", seed=2),
    ]
    groups = group_runs(load_runs(folders))
    assert [(group.experiment, len(group.runs)) for group in groups] == [("a", 2), ("b", 1)]
    shown = traces(by_steps(groups, "train/return_mean"))
    assert shown.keys() == {"a (mean of 2 seeds)", "b"}
    mean = shown["a (mean of 2 seeds)"]
    assert set(mean["y"]) == {2.0}
    assert (mean["x"][0], mean["x"][-1]) == (2000, 9000)
    assert mean["line"]["color"] != shown["b"]["line"]["color"]


def test_a_seed_run_twice_is_drawn_twice_and_counted_once(make_run) -> None:
    """Seed 1 gave 100, then 1; seed 2 gives 3: the mean is 2, of two seeds."""
    values = {"old": (100.0, 1), "new": (1.0, 1), "other": (3.0, 2)}
    folders = [make_run(name, values=[value] * 5, mean=value, seed=seed) for name, (value, seed) in values.items()]
    groups = group_runs(load_runs(folders))
    figure = by_steps(groups, "train/return_mean")
    assert set(traces(figure)["pong-ppo (mean of 2 seeds)"]["y"]) == {2.0}
    assert sum("seed" in trace.get("hovertemplate", "") for trace in figure["data"]) == 3
    assert seed_means(groups[0]).tolist() == [1.0, 3.0]


def test_the_curve_by_time_uses_seconds_in_a_fitting_unit(make_run) -> None:
    run = make_run(values=[0.0, 1.0, 2.0])
    rows = [json.loads(line) | {"seconds": 600 * at} for at, line in enumerate((run / "metrics.jsonl").open())]
    (run / "metrics.jsonl").write_text("".join(json.dumps(each) + "\n" for each in rows))
    figure = by_time(group_runs(load_runs([run])), "train/return_mean")
    assert figure["data"][0]["x"] == [0, 10, 20]
    assert figure["layout"]["xaxis"]["title"]["text"] == "wall-clock time (minutes)"


def test_runs_in_other_environments_are_never_averaged(make_run) -> None:
    here, there = make_run("a1"), make_run("a2", protocol={"env_id": "elsewhere"})
    assert [group.env_id for group in group_runs(load_runs([here, there]))] == ["recollect/Pong-v0", "elsewhere"]


def test_notes_name_what_makes_runs_incomparable(make_run) -> None:
    first, second = make_run("a1", seed=1), make_run("a2", seed=1)
    assert comparison_notes(load_runs([first])) == []
    (second / "config.yaml").write_text("ppo:\n  clip_coef: 0.2\nrun:\n  seed: 2\n")
    changed = json.loads((second / "card.json").read_text())
    changed["protocol"]["sticky"] = 0.0
    (second / "card.json").write_text(json.dumps(changed))
    notes = comparison_notes(load_runs([first, second]))
    assert [note.split(":")[0] for note in notes] == ["pong-ppo", "pong-ppo", "recollect/Pong-v0"]
    assert "seed 1 was run more than once" in notes[0]
    assert "ppo.clip_coef: 0.1, 0.2" in notes[1]
    assert "sticky: 0.25, 0.0" in notes[2]


def test_shares_are_weighted_by_the_time_of_each_update(make_run) -> None:
    run = make_run(values=[1.0, 1.0])
    share = {"time/share_env": 0.5, "time/share_act": 0.2, "time/share_learn": 0.2}
    rows = [{"step": 1, "seconds": 1} | share, {"step": 2, "seconds": 4} | share | {"time/share_env": 0.1}]
    (run / "metrics.jsonl").write_text("".join(json.dumps(each) + "\n" for each in rows))
    shares = mean_shares(load_runs([run])[0])
    assert shares == pytest.approx({"env": 0.2, "act": 0.2, "learn": 0.2, "other": 0.4})


def test_plotly_accepts_every_figure(make_run) -> None:
    from plotly import graph_objects

    folders = [make_run("a1"), make_run("a2", seed=2), make_run("b1", values=[3.0], experiment="b")]
    groups = group_runs(load_runs(folders))
    figures = [
        by_steps(groups, "train/return_mean"),
        by_time(groups, "train/return_mean"),
        panel(groups, "loss/policy"),
    ]
    for figure in figures:
        graph_objects.Figure(figure)
