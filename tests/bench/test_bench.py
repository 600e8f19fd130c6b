"""The benches measure what they say, in turns, and write results that keep the schema."""

import itertools
import json

import pytest
import torch

from recollect.bench import memory
from recollect.bench.measure import Ratio, Row, interleave
from recollect.cli import main
from recollect.envs.pong import rules
from recollect.nets.encoders import ENCODERS
from recollect.report.schema import validate


def test_sides_take_turns_and_the_first_round_only_warms_up():
    order: list[str] = []
    counts = {"a": itertools.count(1), "b": itertools.count(10)}

    def side(name: str):
        def measure() -> float:
            order.append(name)
            return float(next(counts[name]))

        return measure

    rows = interleave({"a": side("a"), "b": side("b")}, 3, "x/s")
    assert order == ["a", "b"] * 4
    assert rows["a"].samples == (2, 3, 4)
    assert rows["b"].value == 12


def test_a_row_is_its_median_with_its_spread():
    row = Row("loop", (5.0, 1.0, 9.0), "steps/s")
    assert row.data() == {"what": "loop", "value": 5.0, "unit": "steps/s", "spread": [1.0, 9.0]}


@pytest.mark.parametrize(("value", "floor", "reached"), [(0.9, 0.85, True), (0.8, 0.85, False), (0.8, None, None)])
def test_a_ratio_knows_whether_it_is_enough(value: float, floor: float | None, reached: bool | None):
    assert Ratio("r", value, floor).data()["pass"] is reached


def last_line(capsys: pytest.CaptureFixture) -> dict:
    return json.loads(capsys.readouterr().out.strip().splitlines()[-1])


@pytest.mark.slow
def test_bench_env_measures_every_engine(capsys: pytest.CaptureFixture, tmp_path):
    out = tmp_path / "env.json"
    words = ["bench", "env", "--num-envs", "2", "--seconds", "0.02", "--repeats", "1", "--json", "--out", str(out)]
    assert main(words) == 0
    result = last_line(capsys)
    validate("bench", result)
    assert json.loads(out.read_text()) == result
    assert {row["what"] for row in result["rows"]} >= {"recollect ALE/Pong-v5", "recollect CartPole-v1 (EnvPool)"}
    assert all(row["value"] > 0 for row in result["rows"])


@pytest.mark.slow
def test_bench_train_sets_the_loop_beside_its_bound_and_stable_baselines(capsys: pytest.CaptureFixture):
    """stable-baselines3 really trains here, on our environment: a missing one would miss its row."""
    sizes = ["--num-envs", "2", "--num-steps", "16", "--updates", "1", "--repeats", "1", "--seconds", "0.05"]
    assert main(["bench", "train", *sizes, "--json"]) == 0
    result = last_line(capsys)
    validate("bench", result)
    rates = {row["what"]: row["value"] for row in result["rows"]}
    assert min(rates[name] for name in ("recollect, bf16", "recollect, fp32", "stable-baselines3, fp32")) > 0
    bound = next(ratio for ratio in result["ratios"] if "bound" in ratio["name"])
    env = next(value for name, value in rates.items() if name.startswith("ale-py alone"))
    parts = 4 / rates["training samples"] + 1 / rates["acting"] + 1 / env
    assert bound["value"] == pytest.approx(rates["recollect, bf16"] * parts)
    assert bound["floor"] == 0.85


@pytest.mark.slow
def test_bench_encoders_measures_every_encoder_in_both_ways(capsys: pytest.CaptureFixture):
    words = ["--rows", "4", "--acting", "2", "--seconds", "0.01", "--repeats", "1", "--device", "cpu", "--json"]
    assert main(["bench", "encoders", *words]) == 0
    result = last_line(capsys)
    validate("bench", result)
    rates = {row["what"]: row["value"] for row in result["rows"]}
    assert min(rates.values()) > 0
    for encoder in ENCODERS:
        for what in ("training", "acting"):
            assert any(name.startswith(f"{encoder}, ") and f"{what}, fp32" in name for name in rates), encoder
    assert "--rows 4 --acting 2 --device cpu" in result["command"]


def compared(capsys: pytest.CaptureFixture) -> dict[str, float]:
    assert main(["bench", "pong", "--frames", "2400", "--repeats", "0", "--json"]) == 0
    result = last_line(capsys)
    validate("bench", result)
    return {row["what"]: row["value"] for row in result["rows"]}


@pytest.mark.slow
def test_bench_pong_finds_no_difference_and_would_find_one(
    capsys: pytest.CaptureFixture, monkeypatch: pytest.MonkeyPatch
):
    rows = compared(capsys)
    assert rows["scripted play: emulator frames compared"] == 2400
    assert rows["scripted play: pictures compared"] > 500
    assert sum(value for what, value in rows.items() if what.endswith("that differ")) == 0
    monkeypatch.setattr(rules, "TOP", rules.TOP + 1)
    rows = compared(capsys)
    assert sum(value for what, value in rows.items() if what.endswith("that differ")) > 0


@pytest.mark.slow
def test_bench_pong_measures_every_speed(capsys: pytest.CaptureFixture):
    sizes = ["--many-envs", "16", "--picture-envs", "4", "--few-envs", "2"]
    words = ["bench", "pong", "--frames", "80", "--repeats", "1", "--seconds", "0.05", "--json", *sizes]
    assert main(words) == 0
    rows = {row["what"]: row["value"] for row in last_line(capsys)["rows"]}
    assert rows["state, compiled, 2 environments"] > 0
    assert rows["pictures, compiled, 4 environments"] > 0


@pytest.mark.slow
def test_bench_memory_counts_projections_and_holds_its_sides_to_the_same_outputs(
    capsys: pytest.CaptureFixture, monkeypatch: pytest.MonkeyPatch
):
    sizes = ["--look-back", "16", "--num-steps", "80", "--num-envs", "2", "--width", "32"]
    words = ["bench", "memory", *sizes, "--repeats", "1", "--seconds", "0.01", "--device", "cpu", "--json"]
    assert main(words) == 0
    result = last_line(capsys)
    validate("bench", result)
    values = {row["what"]: row["value"] for row in result["rows"]}
    assert values["projections a decision, cached"] == 3
    assert values["projections a decision, recomputed"] == 2 * 17 + 1
    assert values["four layers, output of windows off from the exact one by"] > 1
    assert min(values.values()) > 0
    floors = {ratio["name"]: ratio["floor"] for ratio in result["ratios"]}
    assert floors["acting, cached / recomputed"] == 20
    monkeypatch.setattr("recollect.bench.memory.rotate", lambda x, turn: x)
    assert main(words) == 2, "sides that compute different things are not compared"
    assert "differ" in capsys.readouterr().err


def test_bench_memory_counts_what_the_backward_pass_keeps():
    """A product keeps both its factors, here 100 numbers and one; the weights are there anyway."""
    bench = memory.Bench(look_back=2, num_steps=4, width=16)
    part = memory.Learning(bench, 1, 4, torch.device("cpu"))
    x = torch.ones(100)
    assert part.kept_bytes(lambda: x.requires_grad_() * part.core.embed.bias.sum()) == 404
    assert part.kept_bytes(lambda: x * part.core.embed.bias[0]) == 400
