"""Rows carry their axes, tolerate a torn end, and reach TensorBoard."""

import itertools
import json
import math
from pathlib import Path

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from recollect.run.metrics import AXES, Metrics, read_rows


def axes(update: int) -> dict[str, float]:
    return {
        "update": update,
        "step": 100 * update,
        "frames": 400 * update,
        "episode": update // 2,
        "seconds": 0.1 * update,
    }


def write(metrics: Metrics, *updates: int) -> None:
    for update in updates:
        metrics.write(axes(update), {"loss/policy": update / 3, "train/return_mean": None})


def scalars(folder: Path, name: str) -> list[tuple[int, float]]:
    """A scalar as TensorBoard shows it: what a later part of the run overwrote is gone."""
    board = EventAccumulator(str(folder / "tensorboard"))
    board.Reload()
    return [(event.step, event.value) for event in board.Scalars(name)]


def test_every_row_carries_the_axes_and_its_values(tmp_path: Path):
    metrics = Metrics(tmp_path)
    write(metrics, 1, 2)
    metrics.close()
    rows = read_rows(tmp_path / "metrics.jsonl")
    assert [{name: row[name] for name in AXES} for row in rows] == [axes(1), axes(2)]
    assert [row["loss/policy"] for row in rows] == [1 / 3, 2 / 3], "to the last bit"
    assert all(row["schema_version"] == 1 for row in rows)


def test_a_row_without_an_axis_is_refused(tmp_path: Path):
    metrics = Metrics(tmp_path)
    lacking = axes(1)
    del lacking["episode"]
    with pytest.raises(KeyError, match="episode"):
        metrics.write(lacking, {})
    metrics.close()
    assert read_rows(tmp_path / "metrics.jsonl") == []


def test_what_is_not_a_number_is_null_and_the_file_stays_json(tmp_path: Path):
    metrics = Metrics(tmp_path)
    metrics.write(axes(1), {"a": math.nan, "b": math.inf, "c": -math.inf, "d": None, "e": 0.0})
    metrics.close()

    def refuse(word: str) -> None:
        raise AssertionError(f"{word} is not JSON")

    row = json.loads((tmp_path / "metrics.jsonl").read_text(), parse_constant=refuse)
    assert [row[name] for name in "abcde"] == [None, None, None, None, 0.0]
    assert scalars(tmp_path, "e") == [(100, 0.0)]
    with pytest.raises(KeyError):
        scalars(tmp_path, "a")


def test_rows_are_readable_while_the_run_goes_on(tmp_path: Path):
    metrics = Metrics(tmp_path)
    write(metrics, 1)
    assert len(read_rows(metrics.path)) == 1
    metrics.close()


@pytest.mark.parametrize("torn", [b'{"schema_version": 1, "upd', b"{", b'{"update": 3}{"update"', b"\xff\xfe"])
def test_a_torn_last_line_is_left_out(tmp_path: Path, torn: bytes):
    metrics = Metrics(tmp_path)
    write(metrics, 1, 2)
    metrics.close()
    with open(metrics.path, "ab") as file:
        file.write(torn)
    assert [row["update"] for row in read_rows(metrics.path)] == [1, 2]


def test_resuming_cuts_back_to_the_checkpoint(tmp_path: Path):
    """Rows 1 and 2 belong to the checkpoint; 3 and a torn 4 came after it and are played again."""
    metrics = Metrics(tmp_path)
    write(metrics, 1, 2)
    size = metrics.durable_size()
    assert size == metrics.path.stat().st_size
    write(metrics, 3)
    metrics.close()
    with open(metrics.path, "ab") as file:
        file.write(b'{"torn')
    resumed = Metrics(tmp_path, cut_at=size, cut_step=200)
    assert [row["update"] for row in read_rows(metrics.path)] == [1, 2]
    write(resumed, 3, 4)
    resumed.close()
    assert [row["update"] for row in read_rows(metrics.path)] == [1, 2, 3, 4]


def test_a_new_run_starts_with_an_empty_file(tmp_path: Path):
    (tmp_path / "metrics.jsonl").write_text("left from something else\n")
    metrics = Metrics(tmp_path)
    write(metrics, 1)
    metrics.close()
    assert [row["update"] for row in read_rows(metrics.path)] == [1]


def test_tensorboard_has_every_scalar_once_across_a_resume(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    clock = itertools.count(1000)  # a writer's file is named by the second it was opened in
    monkeypatch.setattr("tensorboard.summary.writer.event_file_writer.time.time", lambda: float(next(clock)))
    metrics = Metrics(tmp_path)
    write(metrics, 1, 2)
    size = metrics.durable_size()
    write(metrics, 3)
    metrics.close()
    resumed = Metrics(tmp_path, cut_at=size, cut_step=200)
    write(resumed, 3, 4)
    resumed.close()
    assert scalars(tmp_path, "loss/policy") == [(100 * u, pytest.approx(u / 3)) for u in (1, 2, 3, 4)]
