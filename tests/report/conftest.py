"""Run folders built by hand, as a renderer meets them."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

RunMaker = Callable[..., Path]


def protocol(env_id: str = "recollect/Pong-v0") -> dict[str, Any]:
    """A full protocol card."""
    return {
        "env_id": env_id,
        "engine": "tensor",
        "name": "ale-v5",
        "frame_skip": 4,
        "sticky": 0.25,
        "max_pool": False,
        "noop_max": 0,
        "fire_reset": False,
        "life_loss_ends": False,
        "clip_reward": False,
        "max_episode_steps": 27000,
        "full_actions": False,
        "extra": "",
    }


def card(name: str, experiment: str = "pong-ppo", seed: int = 1, **changes: Any) -> dict[str, Any]:
    """A full card."""
    return {
        "schema_version": 1,
        "run": name,
        "experiment": experiment,
        "algorithm": "ppo",
        "seed": seed,
        "protocol": protocol(),
        "hardware": {"cpu": "AMD EPYC 9575F", "cores": 16, "gpu": None, "memory_gib": 128.0},
        "versions": {"recollect": "0.1.0", "python": "3.11.7", "torch": "2.13.0"},
        "commit": "0123abc",
        "env_steps": 100_000,
        "wall_s": 50.0,
        "parameters": 1_234,
        "status": "finished",
        "weights_sha256": "a" * 64,
    } | changes


def row(update: int, value: float | None, seconds: float | None = None) -> dict[str, Any]:
    """A row of metrics, a thousand steps an update."""
    return {
        "schema_version": 1,
        "update": update,
        "step": 1000 * update,
        "frames": 4000 * update,
        "episode": update // 2,
        "seconds": 0.5 * update if seconds is None else seconds,
        "train/return_mean": value,
        "loss/policy": 0.1 / (1 + update),
        "loss/value": None,
        "parity/max_ratio_error": 1e-6,
        "time/share_env": 0.5,
        "time/share_act": 0.25,
        "time/share_learn": 0.125,
    }


def evaluation(name: str, mean: float = 18.5) -> dict[str, Any]:
    """A full eval.json."""
    block = {"mean": mean, "iqm": mean + 0.25, "ci95": [mean - 1, mean + 1], "returns": [mean], "length_mean": 900.0}
    head = {key: block[key] for key in ("mean", "iqm", "ci95", "returns")}
    greedy = block | {"mean": mean + 1}
    extent = {"episodes": 1, "env_steps": 1800, "seconds": 3.0}
    who = {"schema_version": 1, "run": name, "env_id": "recollect/Pong-v0", "protocol": protocol()}
    return who | extent | head | {"sampled": block, "greedy": greedy}


def attention(name: str = "pong") -> dict[str, Any]:
    """A full attention.json: 2 layers of 2 heads, 3 ages, 4 shown steps of which two hide the ball."""
    even = [[1 / 3] * 3] * 2
    shares = [[5000, 3000, 2000]] * 4
    scene = {"ball_there": [1, 1, 1, 1], "ball_visible": [0, 1, 0, 0], "ball_x": [150, 140, 150, 160]}
    return {
        "schema_version": 1,
        "run": name,
        "env_id": "recollect/Pong-v0",
        "core": "transformer",
        "env_steps": 100_000,
        "look_back": 2,
        "layers": 2,
        "heads": 2,
        "watched_steps": 900,
        "watched_return": -21,
        "mean": [even, even],
        "on_sight": {"steps": 300, "share": [[0.25, 0.75], [0.5, 0.5]], "even": 0.4},
        "first": 7,
        "unit": 10_000,
        "maps": [{"layer": i, "head": head, "share": shares} for head in (None, 0, 1) for i in range(2)],
        "reward": [0, 0, -1, 1],
        "actions": {"action": [0, 1, 2, 1]},
        "action_names": ["NOOP", "UP", "DOWN"],
        "scene": {**scene, "ball_y": [100, 102, 104, 106], "paddle": [60, 62, 64, 66]},
    }


@pytest.fixture
def make_run(tmp_path: Path) -> RunMaker:
    """``make_run(name, values=..., mean=..., **card)`` writes a run folder and returns it."""

    def make(name: str = "pong__ppo__1__t", values: Any = None, mean: float | None = 18.5, **changes: Any) -> Path:
        folder = tmp_path / "runs" / name
        folder.mkdir(parents=True)
        (folder / "card.json").write_text(json.dumps(card(name, **changes)))
        (folder / "config.yaml").write_text("ppo:\n  clip_coef: 0.1\nrun:\n  seed: 1\n")
        values = np.linspace(-21, 21, 50).tolist() if values is None else values
        (folder / "metrics.jsonl").write_text("".join(json.dumps(row(at, v)) + "\n" for at, v in enumerate(values)))
        if mean is not None:
            (folder / "eval.json").write_text(json.dumps(evaluation(name, mean)))
        return folder

    return make


@pytest.fixture
def samples() -> dict[str, dict[str, Any]]:
    """One good example of every kind of file that has a schema."""
    bench = {
        "schema_version": 1,
        "name": "pong",
        "machine": {"cpu": "AMD EPYC 9575F", "cores": 2},
        "command": "recollect bench pong",
        "config": {"num_envs": 64},
        "rows": [{"what": "tensor", "value": 9000.0, "unit": "steps/s", "spread": [8900, 9100]}],
        "ratios": [{"name": "tensor / ale", "value": 3.2, "floor": 2.0, "pass": True}],
    }
    about = {key: card("pong")[key] for key in ("protocol", "hardware", "versions", "commit")}
    seed = {"seed": 1, "env_steps": 1000, "wall_s": 2.5, "episodes": 3, "mean": 1.0, "iqm": 1.0, "ci95": [0.5, 1.5]}
    result = {
        "schema_version": 1,
        "name": "pong",
        "headline": "1.0 after 1,000 steps",
        "commands": ["recollect train pong"],
        **about,
        "seeds": [{**seed, "greedy_mean": 1.0, "weights_sha256": None}],
    }
    good = {"card": card("pong"), "eval": evaluation("pong"), "metrics": row(3, 1.0)}
    return {**good, "attention": attention(), "bench": bench, "result": result}
