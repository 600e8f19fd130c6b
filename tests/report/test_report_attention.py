"""What the page shows of attention: the right numbers at the right steps, and a damaged file said instead of shown."""

import itertools
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import attention as sample

from recollect.report.attention import along, attention, by_age, how_to_read, one_head, parsed
from recollect.report.loading import load_runs
from recollect.report.page import write_report


def give(run: Path, **changes: Any) -> Path:
    (run / "attention.json").write_text(json.dumps(sample() | changes))
    return run


def test_by_age_is_a_line_a_head_over_steps_back() -> None:
    mean = [[[0.5, 0.3, 0.2], [0.1, 0.2, 0.7]], [[0.4, 0.4, 0.2], [0, 0, 1]]]
    lines = by_age(parsed(sample() | {"mean": mean}))["data"]
    assert [line["name"] for line in lines] == [
        "layer 1, head 1",
        "layer 1, head 2",
        "layer 2, head 1",
        "layer 2, head 2",
        "spread evenly",
    ]
    assert lines[1]["x"] == [0, 1, 2]
    assert lines[1]["y"] == [10, 20, 70]
    assert lines[4]["y"] == pytest.approx([33.3333] * 2)
    assert len({(line["line"]["color"], line["line"].get("dash")) for line in lines}) == 5
    alone = by_age(parsed(sample() | {"mean": [[[0.5, 0.3, 0.2]]], "maps": sample()["maps"][:1]}))["data"]
    assert [line["name"] for line in alone] == ["attention", "spread evenly"]


def test_the_map_has_a_column_a_step_and_a_row_an_age() -> None:
    shares = [[10_000, 0, 0], [5_000, 5_000, 0], [1, 2, 3], [0, 0, 10_000]]
    data = sample() | {"maps": [{"layer": 0, "head": None, "share": shares}]}
    figure = along(parsed(data))
    drawn = next(trace for trace in figure["data"] if trace["type"] == "heatmap")
    assert np.array(drawn["z"]).shape == (3, 4)
    assert [row[1] for row in drawn["z"]] == [50, 50, 0], "percent, the newest at the bottom"
    assert drawn["z"][2][3] == 100
    assert (drawn["x0"], drawn["dx"]) == (7, 1)


def test_what_happened_stands_at_the_same_steps() -> None:
    figure = along(parsed(sample()))
    named = {trace["name"]: trace for trace in figure["data"] if trace["type"] == "scatter"}
    assert named["ball last seen"]["x"] == [7, 8, 9, 10]
    assert named["ball last seen"]["y"] == [None, None, 1, 2], "never seen yet; seen now; one step ago; two"
    columns = [trace for trace in figure["data"] if trace["yaxis"] == "y3"]
    assert {t["name"]: t["y"] for t in columns} == {
        "ball, seen": [None, 140, None, None],
        "ball, hidden": [150, None, 150, 160],
    }
    assert named["own paddle"]["y"] == [60, 62, 64, 66]
    (chosen,) = (t for t in figure["data"] if t.get("name") == "action")
    axis = figure["layout"]["yaxis" + chosen["yaxis"][1:]]
    assert chosen["y"] == [0, 1, 2, 1]
    assert axis["ticktext"] == ["NOOP", "UP", "DOWN"]
    assert [shape["x0"] for shape in figure["layout"]["shapes"]] == [9.5, 10.5]
    assert len({shape["line"]["color"] for shape in figure["layout"]["shapes"]}) == 2, "lost and won"


def test_a_reward_that_comes_with_every_step_marks_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    watched = parsed(sample() | {"reward": [1, 1, 1, 1]})
    assert len(along(watched)["layout"]["shapes"]) == 4
    monkeypatch.setattr("recollect.report.attention.MARKED_REWARDS", 3)
    assert along(watched)["layout"]["shapes"] == []


def test_a_game_without_a_scene_and_with_continuous_actions_is_shown_too() -> None:
    actions = {"action 1": [0.5, -1, 0, 1], "action 2": [0, 0, 0, 0.25]}
    plain = sample() | {"scene": {}, "actions": actions, "action_names": [], "on_sight": None, "reward": [1, 1, 1, 1]}
    watched = parsed(plain)
    names = [trace.get("name") for trace in along(watched)["data"]]
    assert names == [None, None, "action 1", "action 2"]
    assert len(how_to_read(watched)) == 1
    assert "orange" not in how_to_read(watched)[0]


def test_plotly_accepts_the_figures_and_rows_do_not_overlap() -> None:
    from plotly import graph_objects

    watched = parsed(sample())
    for figure in (by_age(watched), along(watched), one_head(watched, watched.maps[2][2])):
        graph_objects.Figure(figure)
        json.dumps(figure, allow_nan=False)
    layout = along(watched)["layout"]
    domains = [layout[f"yaxis{at}"]["domain"] for at in ("", 2, 3, 4, 5)]
    assert domains[0][1] == 1
    assert domains[-1][0] == 0
    assert all(above[0] > below[1] for above, below in itertools.pairwise(domains))
    assert layout["xaxis"]["anchor"] == "y5"
    assert layout["yaxis4"]["autorange"] == "reversed", "lines count downwards, as on the screen"


def test_words_say_how_much_goes_to_steps_that_saw_the_ball() -> None:
    words = " ".join(how_to_read(parsed(sample())))
    assert "50 % went to steps that had seen it; the most is 75 % (layer 1, head 2)" in words
    assert "it would be 40 %" in words


def test_it_is_on_the_page_and_small(tmp_path, make_run) -> None:
    run = give(make_run())
    page = write_report([run], tmp_path / "r.html").read_text()
    for words in ("What it attends to", "Mean attention by age", "steps 7 to 10 of that episode", "Head by head (4)"):
        assert words in page
    assert "one sampled episode, 900 decisions, return in them -21.00" in page
    (run / "attention.json").unlink()
    assert "What it attends to" not in write_report([run], tmp_path / "r.html").read_text()


def test_of_several_runs_each_folds_away(make_run) -> None:
    runs = [give(make_run("a")), give(make_run("b", seed=2)), make_run("c", seed=3)]
    html = str(attention(load_runs(runs)))
    assert re.findall(r"<summary>(pong-ppo, seed \d)", html) == ["pong-ppo, seed 1", "pong-ppo, seed 2"]


@pytest.mark.parametrize(
    "changes",
    [
        {"mean": None},
        {"mean": [[["x"]]]},
        {"maps": []},
        {"maps": [{"layer": 0, "head": None, "share": [[1, 2, 3]]}]},
        {"maps": [{"layer": 0, "head": "x", "share": [[1, 2, 3]] * 4}]},
        {"maps": [1]},
        {"unit": 0},
        {"first": "x"},
        {"reward": []},
        {"reward": [0, 0, 0, float("nan")]},
        {"actions": [1]},
        {"actions": {"action": [1, 2]}},
        {"scene": {"paddle": [1]}},
        {"action_names": None},
    ],
    ids=str,
)
def test_a_damaged_file_is_said(make_run, changes: dict) -> None:
    html = str(attention(load_runs([give(make_run(), **changes)])))
    assert "attention.json is damaged" in html
    assert "<figure" not in html


def test_names_from_a_file_stay_text(make_run) -> None:
    hostile = "<b>x</b>%{x}"
    changes = {"actions": {hostile: [0, 1, 2, 1]}, "action_names": [hostile, "b", "c"]}
    html = str(attention(load_runs([give(make_run(experiment=hostile), **changes)])))
    assert "<b>" not in html
    assert "\\u003cb" not in html
    assert "%{x}%" not in html
