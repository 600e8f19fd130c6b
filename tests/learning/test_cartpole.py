"""CartPole is learnt on every seed, within a hundred thousand steps."""

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
