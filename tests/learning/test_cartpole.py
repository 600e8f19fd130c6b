"""CartPole is learnt on every seed, by every rung of the ladder."""

from pathlib import Path

import pytest

import recollect

pytestmark = pytest.mark.learning


@pytest.mark.parametrize("seed", range(1, 6))
def test_cartpole_ppo_balances(tmp_path: Path, seed: int):
    result = recollect.train("cartpole-ppo", seed=seed, out=tmp_path, device="cpu")
    assert result["env_steps"] <= 100_000
    scored = recollect.evaluate(result["run"], episodes=100)
    assert len(scored["returns"]) == 100
    assert scored["mean"] >= 475


@pytest.mark.parametrize("seed", range(1, 4))
@pytest.mark.parametrize("experiment", ["cartpole-pg", "cartpole-ac"])
def test_the_lower_rungs_balance(tmp_path: Path, experiment: str, seed: int):
    result = recollect.train(experiment, seed=seed, out=tmp_path, device="cpu")
    assert recollect.evaluate(result["run"], episodes=100)["mean"] >= 450


@pytest.mark.parametrize("held", [{}, {"clip_coef": None, "kl_coef": 1.0}])
def test_ppo_balances_on_whole_episodes(tmp_path: Path, held: dict):
    settings = {"collect": "episodes", "episodes_per_env": 2, "num_minibatches": 8, "window_steps": 32, **held}
    result = recollect.train("cartpole-ppo", out=tmp_path, device="cpu", **settings)
    assert recollect.evaluate(result["run"], episodes=100)["mean"] >= 450
