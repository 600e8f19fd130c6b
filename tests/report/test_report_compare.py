"""Runs beside their controls: networks are named and never averaged together, recorded results stand in the table."""

import json
from pathlib import Path
from typing import Any

import pytest

from recollect.report.figures import by_steps, by_time
from recollect.report.loading import group_runs, load_runs, network_words
from recollect.report.page import write_report
from recollect.report.recorded import load_recorded
from recollect.report.schema import validate
from recollect.report.style import NOTHING
from recollect.report.tables import HEADER, evaluation_row, recorded_row

MEMORY = {"encoder": "mlp", "core": "transformer", "core_layers": 1, "look_back": 16}


def with_net(run: Path, **net: Any) -> Path:
    words = "".join(f"  {key}: {value}\n" for key, value in (MEMORY | net).items())
    (run / "config.yaml").write_text(f"net:\n{words}run:\n  seed: 1\n")
    return run


@pytest.mark.parametrize(
    ("net", "words"),
    [
        (MEMORY, "mlp + transformer, 1 layer, look-back 16"),
        (MEMORY | {"core": "gtrxl", "core_layers": 4}, "mlp + gtrxl, 4 layers, look-back 16"),
        (MEMORY | {"core": "lookback"}, "mlp + lookback, look-back 16"),
        (MEMORY | {"core": "gru"}, "mlp + gru"),
        (MEMORY | {"core": "none"}, "mlp, no memory"),
        ({"encoder": "cnn"}, ""),
        ({}, ""),
    ],
)
def test_a_network_in_words(net: dict, words: str) -> None:
    assert network_words(net) == words


def test_the_network_stands_in_each_row(make_run) -> None:
    runs = load_runs([with_net(make_run("a")), with_net(make_run("b"), core="none"), make_run("c")])
    cells = [dict(zip(HEADER, evaluation_row(run).cells(), strict=True))["Network"] for run in runs]
    assert cells == ["mlp + transformer, 1 layer, look-back 16", "mlp, no memory", NOTHING]


def test_a_control_of_the_same_experiment_is_not_averaged_in(make_run) -> None:
    folders = [with_net(make_run(name, seed=seed, mean=10.0), core=core) for name, seed, core in (
        ("a1", 1, "transformer"), ("a2", 2, "transformer"), ("b1", 1, "none"),
    )]  # fmt: skip
    groups = group_runs(load_runs(folders))
    names = ["pong-ppo (mlp + transformer, 1 layer, look-back 16)", "pong-ppo (mlp, no memory)"]
    assert [group.name for group in groups] == names
    assert [len(group.runs) for group in groups] == [2, 1]
    assert groups[0].index != groups[1].index
    shown = [trace["name"] for trace in by_steps(groups, "train/return_mean")["data"] if trace.get("showlegend", True)]
    assert shown == [f"{names[0]} (mean of 2 seeds)", names[1]]
    assert [group.name for group in group_runs(load_runs(folders[:2]))] == ["pong-ppo"], "one network needs no name"


def record(path: Path, samples: dict, seeds: int = 3, **changes: Any) -> Path:
    """Seeds that end at 1, 2, 3."""
    result = samples["result"]
    row = result["seeds"][0]
    rows = [row | {"seed": k, "mean": float(k), "env_steps": 1000 * k, "wall_s": 60.0 * k} for k in range(1, seeds + 1)]
    result |= {"name": "pong-blind-none", "network": "mlp, no memory", "seeds": rows} | changes
    path.write_text(json.dumps(result))
    return path


def test_a_recorded_row_over_its_seeds(tmp_path, samples) -> None:
    path = record(tmp_path / "r.json", samples)
    validate("result", json.loads(path.read_text()))
    cells = dict(zip(HEADER, recorded_row(load_recorded(path)).cells(), strict=True))
    assert (cells["Experiment"], cells["Network"], cells["Seed"]) == ("pong-blind-none", "mlp, no memory", "3 seeds")
    assert (cells["Mean"], cells["95 % interval"]) == ("2.00", "[-0.48, 4.48]")  # 2 -+ 4.3027 / sqrt(3)
    assert (cells["Env steps"], cells["Wall time"], cells["Episodes"]) == ("3,000", "3 min 0 s", "9")
    assert cells["Status"] == "recorded"


def test_a_recorded_row_of_one_seed_has_its_own_interval(tmp_path, samples) -> None:
    path = record(tmp_path / "r.json", samples, seeds=1)
    cells = dict(zip(HEADER, recorded_row(load_recorded(path)).cells(), strict=True))
    assert (cells["Seed"], cells["Mean"], cells["95 % interval"]) == ("1", "1.00", "[0.50, 1.50]")


def test_where_recorded_seeds_ended_is_marked_in_the_curves(tmp_path, make_run, samples) -> None:
    """In seconds, as the run took 24.5 of them; on a curve from -21 to 21 the end at 40 is still in view."""
    recorded = load_recorded(record(tmp_path / "r.json", samples))
    recorded.seeds[2]["mean"] = 40.0
    groups = group_runs(load_runs([make_run()]))
    for draw, x in ((by_steps, [1000, 2000, 3000]), (by_time, [60, 120, 180])):
        figure = draw(groups, "train/return_mean", [recorded])
        (marks,) = (trace for trace in figure["data"] if trace["name"] == "pong-blind-none (recorded)")
        assert (marks["x"], marks["y"]) == (x, [1, 2, 40])
        assert marks["mode"] == "markers"
        assert figure["layout"]["yaxis"]["range"][1] > 40
    elsewhere = Path(tmp_path / "e.json")
    record(elsewhere, samples, protocol={"env_id": "elsewhere", "engine": "x", "name": "y"})
    page = write_report([make_run("x")], tmp_path / "r.html", [elsewhere]).read_text()
    assert "(recorded)" not in page, "another game's score is no mark on this one's curve"


def test_recorded_results_stand_beside_a_run(tmp_path, make_run, samples) -> None:
    path = record(tmp_path / "none.json", samples, headline="<b>-20.9</b> after 9 steps")
    page = write_report([make_run()], tmp_path / "r.html", [path]).read_text()
    for words in ("pong-blind-none", "mlp, no memory", "recorded", "--beside", str(path)):
        assert words in page
    assert "Recorded earlier, not run here: pong-blind-none, &lt;b&gt;-20.9&lt;/b&gt; after 9 steps." in page
    assert "Recorded earlier" not in write_report([make_run("x")], tmp_path / "r.html").read_text()


@pytest.mark.parametrize(
    "text", ["", "[]", "{}", '{"name": "x", "seeds": []}', '{"name": "x", "seeds": [{"mean": "1"}]}']
)
def test_what_is_no_recorded_result_is_named(tmp_path, make_run, text: str) -> None:
    path = tmp_path / "x.json"
    path.write_text(text)
    with pytest.raises(ValueError, match=f"--beside {path} ") as error:
        write_report([make_run()], tmp_path / "r.html", [path])
    assert "\n" not in str(error.value)
    assert not (tmp_path / "r.html").exists()
    with pytest.raises(ValueError, match=r"gone\.json cannot be read: No such file"):
        load_recorded(tmp_path / "gone.json")
