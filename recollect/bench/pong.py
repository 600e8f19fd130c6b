"""``recollect bench pong``: is Pong on tensors the ALE's game, and how much faster; both measured in one run.

Fidelity compares frame by frame with ale-py (see ``fidelity.py``). Speed counts decisions of four frames with sticky
actions, autoreset and scores, through the same contract that training uses, random actions drawn beforehand.
"""

import shlex
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.console import Console

from recollect.api import Player as TrainedPlayer
from recollect.api import load
from recollect.bench import fidelity
from recollect.bench.env import best_ale, random_actions
from recollect.bench.measure import Ratio, Row, Side, interleave, rate_of, report
from recollect.envs.pong import drawing, physics, seeing
from recollect.envs.pong.env import PongEnv
from recollect.envs.pong.options import ENV_ID, Options
from recollect.envs.pong.rules import Game
from recollect.fast import can_compile
from recollect.run.device import pick_device, synchronise

UNIT = "decisions/s"
STACK = Options().stack
TIMES_ALE = 20.0  # the least that pictures should gain over ale-py


@dataclass(frozen=True)
class Bench:
    """Fidelity and speed of Pong on tensors, beside ale-py."""

    frames: int = 1_000_000
    """Emulator frames of each kind of play that are compared."""
    run: Path | None = None
    """A run trained on the state of recollect/Pong-v0, for the third kind of play; without one there are two."""
    seconds: float = 2.0
    """Time of one measurement of speed."""
    repeats: int = 5
    """Measurements of each side, taken in turn; 0 leaves speed out."""
    few_envs: int = 8
    """Environments of a small batch."""
    many_envs: int = 4096
    """Environments of a large batch."""
    picture_envs: int = 128
    """Environments that show pictures."""
    device: str = "auto"
    """auto, cpu or cuda."""
    seed: int = 0
    """Of the play that is compared."""
    json: bool = False
    """Print one JSON object."""
    out: Path | None = None
    """Write the result here as well."""


def stepping(num_envs: int, obs: str, compiled: bool, device: torch.device, seconds: float) -> Side:
    """Decisions a second of one batch."""
    env = PongEnv(num_envs, Options(obs=obs), device, compiled=compiled)  # type: ignore[arg-type]
    env.reset(0)
    actions = [action.to(device) for action in random_actions(env, 16)]

    @torch.no_grad()
    def work() -> int:
        for action in actions:
            env.step(action)
        synchronise(device)
        return len(actions) * num_envs

    return lambda: rate_of(work, seconds)


def moving(device: torch.device, seconds: float) -> Side:
    """Decisions a second if showing a picture were nothing but memory: three kept ones are read, four are written."""
    size, each = 2**26, (STACK - 1 + STACK) * drawing.SIZE**2
    one, other = (torch.zeros(size, dtype=torch.uint8, device=device) for _ in range(2))

    def work() -> int:
        for _ in range(4):
            other.copy_(one)
        synchronise(device)
        return 4 * 2 * size // each

    return lambda: rate_of(work, seconds)


def speed(bench: Bench, device: torch.device) -> tuple[list[Row], list[Ratio]]:
    """Every side in turn."""
    on_cpu = "compiled" if can_compile() else "eager for want of a compiler"
    fast = "graph-captured" if device.type == "cuda" else on_cpu
    ale, ale_side = best_ale(bench.picture_envs, bench.seconds)
    wanted = {
        f"state, {fast}, {bench.few_envs:,} environments": (bench.few_envs, "state", True),
        f"state, {fast}, {bench.many_envs:,} environments": (bench.many_envs, "state", True),
        f"state, eager, {bench.many_envs:,} environments": (bench.many_envs, "state", False),
        f"pictures, {fast}, {bench.picture_envs:,} environments": (bench.picture_envs, "pixels", True),
    }
    sides: dict[str, Side] = {ale: ale_side}
    sides |= {name: stepping(n, obs, c, device, bench.seconds) for name, (n, obs, c) in wanted.items()}
    bound, pictures = "pictures, if only memory had to be moved", list(wanted)[-1]
    sides[bound] = moving(device, bench.seconds)
    rows = interleave(sides, bench.repeats, UNIT)
    ratios = [
        Ratio(f"{name} / {ale}", rows[name].value / rows[ale].value, TIMES_ALE if "pictures" in name else None)
        for name in wanted
    ]
    ratios.append(Ratio(f"{pictures} / {bound}", rows[pictures].value / rows[bound].value))
    return list(rows.values()), ratios


def trained_player(run: Path, seed: int) -> fidelity.Player:
    """The sampled policy, without memory, of a run that was trained on the state; it decides every fourth frame."""
    trained: TrainedPlayer = load(run, device="cpu")
    if trained.config.env.env_id != ENV_ID or "vector" not in trained.obs_spec:
        raise ValueError(f"bench pong plays runs on the state of {ENV_ID}; {run} observes {list(trained.obs_spec)}")
    names = seeing.state_names(True, True)
    if trained.obs_spec["vector"].shape != (len(names),) or getattr(trained.action_spec, "n", 0) != 6:
        raise ValueError(f"bench pong plays runs that see all of {', '.join(names)} and have six actions; not {run}")
    usual, stream = physics.usual(torch.device("cpu")), torch.Generator().manual_seed(seed)
    wanted, count = np.zeros(fidelity.EACH, dtype=np.int64), 0

    def play(game: Game) -> np.ndarray:
        nonlocal wanted, count
        if count % fidelity.SKIP == 0:
            obs = {"vector": seeing.state_vector(game, usual, True, True)}
            state = trained.agent.initial_state(fidelity.EACH, trained.device)
            reset = torch.zeros(fidelity.EACH, dtype=torch.bool)
            acted, _ = trained.agent.act(obs, state, reset, trained.agent.policy.noise((fidelity.EACH,), stream))
            wanted = acted.action.numpy()
        count += 1
        return wanted

    return play


def fidelity_rows(bench: Bench) -> tuple[list[Row], list[Ratio], dict[str, Any]]:
    """Compare, print the coverage table, and say what differed."""
    players = {"random": fidelity.random_player(bench.seed), "scripted": fidelity.scripted_player(bench.seed)}
    if bench.run is not None:
        players["trained"] = trained_player(bench.run, bench.seed)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # a few games at a time: threads would only wait for each other
    compared = fidelity.compare(list(players.values()), bench.frames, bench.seed)
    torch.set_num_threads(threads)
    kinds = {name: compared.of(k) for k, name in enumerate(players)}
    rows, ratios = [], []
    for name, (wrong, met) in kinds.items():
        for what in (fidelity.FRAMES, fidelity.PICTURES):
            rows.append(Row(f"{name} play: {what} compared", (float(met[what]),), "count"))
        rows.append(Row(f"{name} play: {', '.join(wrong)} that differ", (float(sum(wrong.values())),), "count"))
        pictures = wrong.pop(fidelity.PICTURE)
        equal = 1 - sum(wrong.values()) / met[fidelity.FRAMES]
        ratios.append(Ratio(f"{name} play, share of frames with equal memory, reward and end, at least", equal, 1.0))
        ratios.append(Ratio(f"{name} play, share of equal pictures", 1 - pictures / met[fidelity.PICTURES], 1.0))
    coverage = {cell: {name: met.get(cell, 0) for name, (_, met) in kinds.items()} for cell in fidelity.CELLS}
    empty = [cell for cell, counts in coverage.items() if not sum(counts.values())]
    console = Console(stderr=True)
    for cell, counts in coverage.items():
        words = ", ".join(f"{name} {count:,}" for name, count in counts.items())
        console.print(f"{cell}: {words}{'  EMPTY' if cell in empty else ''}", highlight=False)
    filled = 1 - len(empty) / len(coverage)
    ratios.append(Ratio(f"share of {len(coverage)} cells of the coverage table that occurred", filled, 1.0))
    return rows, ratios, coverage


def main(bench: Bench) -> int:
    """Fidelity, then speed."""
    device = pick_device(bench.device)
    rows, ratios, coverage = fidelity_rows(bench)
    wrong = int(sum(row.value for row in rows if row.what.endswith("that differ")))
    headline = f"{wrong} differences in {len(rows) and bench.frames:,} frames of each kind of play"
    if bench.repeats:
        speeds, times = speed(bench, device)
        rows, ratios = rows + speeds, ratios + times
        headline += f"; {_best(speeds, 'state'):,.0f} {UNIT} of state, {_best(speeds, 'pictures'):,.0f} of pictures"
    changed = {f.name: getattr(bench, f.name) for f in fields(bench) if f.name not in ("json", "out")}
    changed = {name: value for name, value in changed.items() if value != getattr(Bench, name)}
    flags = [word for name, value in changed.items() for word in (f"--{name.replace('_', '-')}", str(value))]
    command = shlex.join(["recollect", "bench", "pong", *flags])
    settings = {key: value for key, value in asdict(bench).items() if key not in ("json", "out", "run")}
    config = {**settings, "device": str(device), "coverage": coverage}
    report("pong", command, config, rows, ratios, bench.json, bench.out, headline)
    return 0


def _best(rows: Sequence[Row], what: str) -> float:
    return max(row.value for row in rows if row.what.startswith(what) and "only memory" not in row.what)
