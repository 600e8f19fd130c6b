"""PPO's penalty: it holds the policy where the clip is off, and its weight adapts."""

import itertools
from pathlib import Path
from typing import Any

import pytest

from recollect import api
from recollect.algos import ppo
from recollect.config import override
from recollect.run.metrics import read_rows


def rows(out: Path, **settings: Any) -> list[dict[str, Any]]:
    around = {"out": out, "threads": 1, "device": "cpu", "eval_episodes": 0, "total_timesteps": 4096}
    run, _ = api.start(
        "cartpole-ppo", override(api.experiment_config("cartpole-ppo"), **around, **settings), quiet=True
    )
    return read_rows(run.folder.metrics)


def test_a_heavy_penalty_holds_the_policy_and_a_light_one_grows(tmp_path: Path):
    heavy = rows(tmp_path / "heavy", clip_coef=None, kl_coef=1000.0, kl_target=1e-9)
    light = rows(tmp_path / "light", clip_coef=None, kl_coef=1e-3, kl_target=1e-4)
    assert heavy[0]["policy/last_kl"] < light[0]["policy/last_kl"] / 10
    coefs = [row["policy/kl_coef"] for row in light]
    assert coefs[0] == pytest.approx(1e-3)
    assert coefs[1] == pytest.approx(2e-3)
    for before, after in itertools.pairwise(light):
        factor = 2 if before["policy/last_kl"] > 1.5e-4 else 0.5 if before["policy/last_kl"] < 1e-4 / 1.5 else 1
        assert after["policy/kl_coef"] == pytest.approx(factor * before["policy/kl_coef"])
    assert "policy/clip_fraction" not in light[0]
    assert "loss/kl" in light[0]


def test_both_hold_together_and_neither_is_refused(tmp_path: Path):
    both = rows(tmp_path / "both", kl_coef=0.5)
    assert {"policy/clip_fraction", "policy/kl_coef", "loss/kl"} <= both[0].keys()
    with pytest.raises(ValueError, match="clip_coef none needs a kl_coef above 0"):
        ppo.Config(clip_coef=None)
