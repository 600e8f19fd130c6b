"""An auxiliary loss plugs in from a file of one's own, without editing PPO."""

from pathlib import Path

from recollect import api
from recollect.config import override
from recollect.run.metrics import read_rows

QUIET_FEATURES = '''
from recollect.algos import ppo
from recollect.algos.loss import Term

Config = ppo.Config


def train(config, run):
    """PPO whose features are kept small."""
    size = Term("feature_size", 0.1, lambda replayed, batch: replayed.feature.square().mean())
    return ppo.train(config, run, extra_terms=[size])
'''


def run_with(tmp_path: Path, algo: str | None):
    settings = {"total_timesteps": 2048, "eval_episodes": 0, "threads": 1, "out": tmp_path}
    run, _ = api.start(
        "cartpole-ppo", override(api.experiment_config("cartpole-ppo", algo), **settings), algo, quiet=True
    )
    return run.result(), read_rows(run.folder.metrics)


def test_a_term_of_ones_own_is_learnt_from_and_logged(tmp_path: Path):
    source = tmp_path / "quiet.py"
    source.write_text(QUIET_FEATURES)
    plain, plain_rows = run_with(tmp_path / "a", None)
    quiet, quiet_rows = run_with(tmp_path / "b", str(source))
    assert "loss/feature_size" not in plain_rows[0]
    sizes = [row["loss/feature_size"] for row in quiet_rows]
    assert sizes[-1] < sizes[0], "the term pulls"
    assert plain["weights_sha256"] != quiet["weights_sha256"]
