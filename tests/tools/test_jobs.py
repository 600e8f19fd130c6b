"""Many runs on a machine that may be taken away: what is finished is kept, what was stopped goes on."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

TOOLS = Path(__file__).parents[2] / "tools"
SMALL = "num_envs=2 num_steps=8 checkpoint_every=1 compile=off"


def jobs(folder: Path, lines: str, *words: str) -> subprocess.CompletedProcess:
    """Run the tool on a file of these lines."""
    (folder / "jobs").write_text(lines)
    command = [sys.executable, str(TOOLS / "jobs.py"), str(folder / "jobs"), str(folder / "out"), *words]
    return subprocess.run(command, capture_output=True, text=True, timeout=300)


def cards(folder: Path) -> dict[str, dict]:
    """By job, of its only run."""
    found = {path.parents[1].name: path for path in (folder / "out").glob("*/*/card.json")}
    assert len(found) == len(list((folder / "out").glob("*/*/card.json")))
    return {name: json.loads(path.read_text()) for name, path in found.items()}


@pytest.mark.slow
def test_what_was_stopped_goes_on_and_what_is_finished_is_kept(tmp_path: Path):
    lines = f"cartpole-ppo 1 total_timesteps=64 {SMALL}  # short\ncartpole-ppo 2 total_timesteps=40000000 {SMALL}\n"
    first = jobs(tmp_path, lines, "--at-once", "2", "--seconds", "20")
    assert first.returncode == 1, first.stdout + first.stderr
    before = cards(tmp_path)
    assert sorted(card["status"] for card in before.values()) == ["finished", "stopped"]
    assert "finished, cold start" in first.stdout and "stopped, cold start" in first.stdout
    jobs(tmp_path, lines, "--at-once", "2", "--seconds", "15")
    after = cards(tmp_path)
    assert before.keys() == after.keys()
    for name, card in before.items():
        grown = after[name]["env_steps"] > card["env_steps"]
        assert grown is (card["status"] == "stopped"), name


def test_a_line_that_cannot_be_is_refused_before_anything_runs(tmp_path: Path):
    done = jobs(tmp_path, "cartpole-ppo 1 num_env=2\n")
    assert done.returncode != 0
    assert "did you mean 'num_envs'" in done.stderr
    assert not (tmp_path / "out").exists()


@pytest.mark.slow
def test_a_packed_run_can_be_evaluated_elsewhere(tmp_path: Path):
    done = jobs(tmp_path, f"cartpole-ppo 1 total_timesteps=64 {SMALL}\n")
    assert done.returncode == 0, done.stderr
    (run,) = (path.parent for path in (tmp_path / "out").glob("*/*/card.json"))
    pack = [sys.executable, str(TOOLS / "pack.py"), str(tmp_path / "packed.tar.gz"), str(run)]
    subprocess.run(pack, check=True, timeout=100)
    subprocess.run(["tar", "xf", "packed.tar.gz"], cwd=tmp_path, check=True)
    packed = tmp_path / run.name
    size = lambda path: sum(file.stat().st_size for file in (path / "checkpoints").iterdir())  # noqa: E731
    assert size(packed) < size(run) / 2
    evaluate = [sys.executable, "-m", "recollect", "eval", str(packed), "--episodes", "2", "--json"]
    scored = subprocess.run(evaluate, capture_output=True, text=True, timeout=100)
    assert json.loads(scored.stdout.splitlines()[-1])["episodes"] == 2, scored.stderr
