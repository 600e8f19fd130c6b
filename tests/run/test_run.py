"""What surrounds training: stops that say how to go on, clocks that go on, NaN caught, hot functions made fast."""

import json
import os
import shlex
import signal
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from recollect import api, cli
from recollect.algos import ppo
from recollect.algos.loss import Minibatch
from recollect.config import override
from recollect.nets.agent import make_agent
from recollect.run import checkpoint as checkpoints
from recollect.run.checkpoint import load, load_newest, newest_first
from recollect.run.device import can_compile, fast
from recollect.run.folder import RunFolder
from recollect.run.metrics import read_rows
from recollect.run.run import NotANumber, Run
from recollect.types import Discrete, TensorSpec

TINY = {"num_envs": 2, "num_steps": 8, "num_minibatches": 2, "update_epochs": 1, "hidden": (8,), "core_width": 8}
AROUND = {"threads": 1, "device": "cpu", "checkpoint_every": 1, "eval_episodes": 0}


def tiny(out: Path, updates: int = 6, **changes: Any) -> Any:
    settings = {**TINY, **AROUND, "out": out, "total_timesteps": 16 * updates, **changes}
    return override(api.experiment_config("cartpole-ppo"), **settings)


def only_run(out: Path) -> RunFolder:
    (path,) = out.iterdir()
    return RunFolder.open(path)


def stopped(out: Path, at: int, **changes: Any) -> RunFolder:
    """A run that was asked to stop in its ``at``-th update."""
    real, calls = Run.log, []

    def log(self: Run, *args: Any) -> None:
        calls.append(1)
        self.stop_asked = len(calls) == at
        real(self, *args)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Run, "log", log)
        api.start("cartpole-ppo", tiny(out, **changes), quiet=True)
    return only_run(out)


# Not a number

FAULTY = '''
import gymnasium
import numpy as np


class Faulty(gymnasium.Env):
    """Pays 1 a step, and from the 40th step of its life on something else."""

    observation_space = gymnasium.spaces.Box(-1, 1, (2,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)
    steps = 0

    def reset(self, *, seed=None, options=None):
        return np.zeros(2, np.float32), {}

    def step(self, action):
        self.steps += 1
        reward = 1.0 if self.steps < 40 else FAULT
        return np.full(2, self.steps / 100, np.float32), reward, self.steps % 5 == 0, False, {}
'''


@pytest.mark.parametrize("fault", ["float('nan')", "float('inf')"])
def test_a_reward_that_is_no_number_stops_the_run(tmp_path: Path, fault: str):
    """The 40th step is in the fifth segment of eight: updates 1 to 4 are saved, finite, and can be gone on from."""
    (tmp_path / "faulty.py").write_text(FAULTY.replace("FAULT", fault))
    env_id, out = f"{tmp_path / 'faulty.py'}:Faulty", tmp_path / "runs"
    with pytest.raises(NotANumber) as caught:
        api.start("cartpole-ppo", tiny(out, env_id=env_id), quiet=True)
    folder = only_run(out)
    good = folder.checkpoints / "update_000000004.json"
    assert str(caught.value).startswith("loss/")
    assert f"at step 80; the last good checkpoint: {good}" in str(caught.value)
    assert newest_first(folder.checkpoints)[0] == good
    for path in newest_first(folder.checkpoints):
        for name, tensor in load(path).under("agent").items():
            assert tensor.isfinite().all(), f"{path}: {name}"
    rows = read_rows(folder.metrics)
    assert len(rows) == 5
    assert rows[-1]["loss/value"] is None
    assert folder.read_card()["status"] == "failed"


def test_the_command_line_says_it_in_one_line_and_fails(
    tmp_path: Path, capsys: pytest.CaptureFixture, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(ppo.policy_loss, "ppo_clip", lambda logp, *_: logp * float("nan"))
    words = shlex.split(api.command_line("cartpole-ppo", tiny(tmp_path), "ppo"))[1:]
    assert cli.main(words) == 1
    lines = [line for line in capsys.readouterr().err.splitlines() if "loss/policy" in line]
    assert lines == ["recollect: loss/policy is nan at step 16; the last good checkpoint: none was written yet"]


def test_weights_that_are_no_numbers_are_never_saved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """An algorithm whose metrics all look well, while its last gradient step spoilt a weight."""
    real, calls = ppo.Learner.update, []

    def update(self: ppo.Learner, *args: Any) -> dict[str, float]:
        values = real(self, *args)
        calls.append(1)
        if len(calls) == 3:
            with torch.no_grad():
                self.parameters[0][0, 0] = float("nan")
        return values

    monkeypatch.setattr(ppo.Learner, "update", update)
    with pytest.raises(NotANumber, match=r"weight torso\S+ is nan at step 48; .*update_000000002.json"):
        api.start("cartpole-ppo", tiny(tmp_path), quiet=True)
    assert load_newest(only_run(tmp_path).checkpoints)[0].data["update"] == 2


# A run that ends early leaves nothing open


def test_a_failed_run_is_closed_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Even while somebody holds the exception, and with it every frame: the card, the file, the signal handler."""
    monkeypatch.setattr(ppo.policy_loss, "ppo_clip", lambda logp, *_: logp * float("nan"))
    before, made = signal.getsignal(signal.SIGINT), []
    real = Run.__init__

    def init(self: Run, *args: Any, **settings: Any) -> None:
        made.append(self)
        real(self, *args, **settings)

    monkeypatch.setattr(Run, "__init__", init)
    try:
        api.start("cartpole-ppo", tiny(tmp_path), quiet=True)
    except NotANumber:
        assert signal.getsignal(signal.SIGINT) is before
        assert only_run(tmp_path).read_card()["status"] == "failed"
        assert made[0].metrics.file.closed
    else:
        pytest.fail("it did not stop")


def test_training_in_a_thread_works(tmp_path: Path):
    """Only the main thread may listen for Ctrl-C; another one leaves that to whoever started it."""
    results: list[Any] = []

    def work() -> None:
        try:
            api.start("cartpole-ppo", tiny(tmp_path), quiet=True)
            results.append(only_run(tmp_path).read_card()["status"])
        except BaseException as error:
            results.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert results == ["finished"]


# Ctrl-C


def wait_for(condition: Any, process: subprocess.Popen, patience: float = 120.0) -> None:
    """Poll until something holds; a process that ended first, or never gets there, is a failure."""
    deadline = time.monotonic() + patience
    while not condition():
        assert process.poll() is None, process.communicate()[1]
        assert time.monotonic() < deadline, "nothing happened"
        time.sleep(0.01)


@pytest.mark.slow
def test_ctrl_c_saves_and_says_how_to_go_on(tmp_path: Path):
    config = tiny(tmp_path, updates=250, checkpoint_every=1000)
    recollect = [sys.executable, "-m", "recollect"]
    words = shlex.split(api.command_line("cartpole-ppo", config, "ppo"))[1:]
    process = subprocess.Popen([*recollect, *words, "--json"], stdout=-1, stderr=-1, text=True)
    wait_for(lambda: [f for f in tmp_path.glob("*/metrics.jsonl") if len(read_rows(f)) >= 3], process)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=120)
    assert process.returncode == 130, err
    folder = only_run(tmp_path)
    assert "stopping after this update" in err
    last = err.splitlines()[-1]
    assert last == f"stopped; go on with: recollect train --resume {folder.path}"
    done = read_rows(folder.metrics)[-1]["update"]
    assert load_newest(folder.checkpoints)[0].data["update"] == done < 250
    assert json.loads(out.splitlines()[-1])["status"] == folder.read_card()["status"] == "stopped"

    command = shlex.split(last.partition("go on with: ")[2])
    resumed = subprocess.run([*recollect, *command[1:]], capture_output=True, text=True, timeout=300)
    assert resumed.returncode == 0, resumed.stderr
    assert [row["update"] for row in read_rows(folder.metrics)] == list(range(1, 251))
    assert folder.read_card()["status"] == "finished"


def test_a_stop_at_any_moment_is_saved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Ctrl-C right after it was decided that this update needs no checkpoint: the next one is the last then."""
    real, calls = Run.due, []

    def due(self: Run, every: int, update: int) -> bool:
        answer = real(self, every, update)
        calls.append(1)
        if len(calls) == 2:
            signal.raise_signal(signal.SIGINT)
        return answer

    monkeypatch.setattr(Run, "due", due)
    run, _ = api.start("cartpole-ppo", tiny(tmp_path, checkpoint_every=1000), quiet=True)
    assert run.status == "stopped"
    rows = read_rows(run.folder.metrics)
    assert load_newest(run.folder.checkpoints)[0].data["update"] == rows[-1]["update"] == 3


def test_a_second_ctrl_c_stops_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture):
    real, calls = ppo.Learner.update, []

    def update(self: ppo.Learner, *args: Any) -> dict[str, float]:
        calls.append(1)
        if len(calls) == 3:
            signal.raise_signal(signal.SIGINT)
            signal.raise_signal(signal.SIGINT)
        return real(self, *args)

    monkeypatch.setattr(ppo.Learner, "update", update)
    words = shlex.split(api.command_line("cartpole-ppo", tiny(tmp_path), "ppo"))[1:]
    assert cli.main(words) == 130
    assert "Ctrl-C again to stop at once" in capsys.readouterr().err
    assert load_newest(only_run(tmp_path).checkpoints)[0].data["update"] == 2


# Going on


def with_data(folder: RunFolder, **changes: Any) -> None:
    """Rewrite the newest checkpoint with other plain data."""
    checkpoint, _ = load_newest(folder.checkpoints)
    rest = {k: v for k, v in checkpoint.data.items() if k not in ("schema_version", "update", "tensors_sha256")}
    checkpoints.save(folder.checkpoints, checkpoint.data["update"], checkpoint.tensors, {**rest, **changes})


def test_wall_clock_accumulates(tmp_path: Path):
    folder = stopped(tmp_path, at=3)
    with_data(folder, seconds=5000.0)
    run, _, _ = api.go_on(folder, {}, {}, quiet=True)
    seconds = [row["seconds"] for row in read_rows(folder.metrics)]
    assert seconds == sorted(seconds)
    assert seconds[2] < 5000 < seconds[3], "the resumed part counts on from the checkpoint, not from the last row"
    assert 5000 < run.result()["wall_s"] <= folder.read_card()["wall_s"] + 1e-3
    assert load_newest(folder.checkpoints)[0].data["seconds"] > 5000


def test_evaluation_is_not_counted_as_training_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """A clock that only evaluation moves: a thousand seconds each."""
    now = [0.0]
    monkeypatch.setattr("recollect.run.run.time.perf_counter", lambda: now[0])

    def slow(*_: Any) -> dict[str, Any]:
        now[0] += 1000
        return {"mean": 1.0, "greedy": {"mean": 1.0}}

    monkeypatch.setattr("recollect.run.run.evaluate", slow)
    real = Run.log

    def log(self: Run, *args: Any) -> None:
        now[0] += 1
        real(self, *args)

    monkeypatch.setattr(Run, "log", log)
    api.start("cartpole-ppo", tiny(tmp_path, eval_every=2), quiet=True)
    rows = read_rows(only_run(tmp_path).metrics)
    assert [row["seconds"] for row in rows] == [1, 2, 3, 4, 5, 6]
    assert [row["time/env_steps_per_s"] for row in rows] == [16.0] * 6
    assert len([row for row in rows if "eval/mean" in row]) == 3


def test_metrics_are_cut_back_to_the_checkpoint(tmp_path: Path):
    folder = stopped(tmp_path, at=3)
    rows = read_rows(folder.metrics)
    with open(folder.metrics, "ab") as file:
        file.write(json.dumps({**rows[-1], "update": 4}).encode() + b'\n{"update": 5, "lo')
    api.go_on(folder, {}, {}, quiet=True)
    after = read_rows(folder.metrics)
    assert after[:3] == rows
    assert [row["update"] for row in after] == [1, 2, 3, 4, 5, 6]
    assert after[3]["step"] == 64


def test_the_one_before_is_used_and_its_metrics_with_it(tmp_path: Path, capsys: pytest.CaptureFixture):
    folder = stopped(tmp_path, at=3)
    newest = folder.checkpoints / "update_000000003.safetensors"
    newest.write_bytes(newest.read_bytes()[:-1])
    assert cli.main(["train", "--resume", str(folder.path)]) == 0
    said = capsys.readouterr().err
    assert f"passed over a damaged checkpoint: {newest} was truncated or altered" in said
    assert [row["update"] for row in read_rows(folder.metrics)] == [1, 2, 3, 4, 5, 6]
    assert load_newest(folder.checkpoints)[1] == []


def test_settings_that_a_resume_changed_hold_for_the_next(tmp_path: Path):
    folder = stopped(tmp_path, at=3)
    api.go_on(folder, {"total_timesteps": 16 * 8}, {}, quiet=True)
    assert folder.read_config()["total_timesteps"] == 16 * 8
    assert not list(folder.path.glob("*.partial"))
    run, _, _ = api.go_on(folder, {}, {}, quiet=True)
    assert (run.total, run.first_update, run.env_steps) == (8, 8, 16 * 8)
    with pytest.raises(ValueError, match="--learning-rate cannot change"):
        api.go_on(folder, {"learning_rate": 1.0}, {}, quiet=True)


def test_resuming_what_is_finished_changes_nothing(tmp_path: Path):
    api.start("cartpole-ppo", tiny(tmp_path), quiet=True)
    folder = only_run(tmp_path)
    rows, card = read_rows(folder.metrics), folder.read_card()
    run, _, _ = api.go_on(folder, {}, {}, quiet=True)
    assert read_rows(folder.metrics) == rows
    assert run.result()["weights_sha256"] == card["weights_sha256"] == folder.read_card()["weights_sha256"]
    assert run.result()["env_steps"] == card["env_steps"] == 96


# Engines that cannot store an episode

ENGINE = '''
import torch

from recollect.envs.vector import Protocol, RawStep, VectorEnv
from recollect.types import Discrete, TensorSpec


class Counting(VectorEnv):
    """Counts each environment's steps; an episode lasts ten. It keeps its state to itself."""

    resume = "restart"

    def __init__(self, num_envs, device="cpu", first_env=0):
        self.num_envs, self.device, self.first_env = num_envs, torch.device(device), first_env
        self.obs_spec = {"vector": TensorSpec((1,), torch.float32)}
        self.action_spec = Discrete(2)
        self.protocol = Protocol("Counting-v0", "forgetful", max_episode_steps=10)

    def _obs(self):
        return {"vector": self.clock_N[:, None].float()}

    def _reset(self, seed):
        self.clock_N = torch.zeros(self.num_envs, dtype=torch.int64)
        return self._obs()

    def _send(self, action):
        pass

    def _recv(self):
        self.clock_N = self.clock_N + 1
        final, cut_N = self._obs(), self.clock_N >= 10
        self.clock_N = self.clock_N.masked_fill(cut_N, 0)
        return RawStep(self._obs(), torch.ones(self.num_envs), torch.zeros_like(cut_N), cut_N, final)

    def _load_state_dict(self, state):
        return self._reset(0)
'''


@pytest.mark.parametrize("core", ["none", "gru"])
def test_a_resume_says_that_episodes_restart(tmp_path: Path, capsys: pytest.CaptureFixture, core: str):
    """Stopped at step 24, 4 steps into the third episodes: those begin anew and their 4 steps are not scored."""
    (tmp_path / "engine.py").write_text(ENGINE)
    env_id = f"{tmp_path / 'engine.py'}:Counting"
    folder = stopped(tmp_path / "runs", at=3, env_id=env_id, core=core)
    capsys.readouterr()
    with pytest.raises(ValueError, match=r"if you trust it, give --env-id .*engine\.py:Counting"):
        api.go_on(folder, {}, {}, quiet=True)
    api.go_on(folder, {}, {"env_id": env_id}, quiet=True)
    assert "Counting-v0 on forgetful cannot store open episodes: they restart" in capsys.readouterr().err
    stored = load_newest(folder.checkpoints)[0].data
    assert stored["recent_lengths"] == [10] * 8, "two episodes each before, two each after, none longer or shorter"
    assert stored["env_steps"] == 96


def test_engines_that_go_on_exactly_say_nothing(tmp_path: Path, capsys: pytest.CaptureFixture):
    folder = stopped(tmp_path, at=3)
    capsys.readouterr()
    api.go_on(folder, {}, {}, quiet=True)
    assert "restart" not in capsys.readouterr().err


UNREPEATABLE = '''
import random

import gymnasium
import numpy as np


class Unrepeatable(gymnasium.Env):
    """Draws from a stream of its own, whatever seed it is given."""

    observation_space = gymnasium.spaces.Box(-1, 1, (1,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        return np.zeros(1, np.float32), {}

    def step(self, action):
        return np.array([random.random()], np.float32), 1.0, False, False, {}
'''


def test_what_is_no_function_of_seed_and_actions_is_not_resumed_as_if_it_were(tmp_path: Path):
    (tmp_path / "unrepeatable.py").write_text(UNREPEATABLE)
    given = {"env_id": f"{tmp_path / 'unrepeatable.py'}:Unrepeatable"}
    folder = stopped(tmp_path / "runs", at=3, **given)
    with pytest.raises(ValueError, match=r"not a function of seed and actions.*give --restart-episodes"):
        api.go_on(folder, {}, given, quiet=True)
    api.go_on(folder, {}, given, restart=True, quiet=True)
    assert [row["update"] for row in read_rows(folder.metrics)] == [1, 2, 3, 4, 5, 6]


# Hot functions made fast


@pytest.fixture
def no_memory_of_compilers():
    can_compile.cache_clear()
    yield
    can_compile.cache_clear()


@pytest.mark.usefixtures("no_memory_of_compilers")
@pytest.mark.parametrize(
    ("on_path", "cxx", "found"),
    [
        ("g++", None, True),
        ("clang++", None, False),
        (None, None, False),
        ("mine", "mine", True),
        ("g++", "mine", False),
    ],
)
def test_only_a_compiler_that_torch_would_call_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, on_path: str | None, cxx: str | None, found: bool
):
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CXX", raising=False)
    if cxx:
        monkeypatch.setenv("CXX", cxx)
    if on_path:
        (tmp_path / on_path).write_text("#!/bin/sh\n")
        (tmp_path / on_path).chmod(0o755)
    assert can_compile() is found


def test_eager_is_the_function_itself():
    def function(x: Tensor) -> Tensor:
        return x

    assert fast(function, torch.device("cpu"), compiled=False) is function


needs_compiler = pytest.mark.skipif(not can_compile(), reason="no C++ compiler here")
CPU, OBS_SPEC = torch.device("cpu"), {"vector": TensorSpec((3,), torch.float32)}


def draws(*shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape)))


def agree(built: dict[str, Tensor], eager: dict[str, Tensor]) -> None:
    """The same numbers to float32's rounding."""
    assert built.keys() == eager.keys()
    for name, expected in eager.items():
        torch.testing.assert_close(built[name], expected, rtol=1e-4, atol=1e-5, msg=name)


@needs_compiler
@pytest.mark.slow
def test_compiled_acting_equals_eager():
    """Two steps with a memory, one environment reset between them."""
    agent = make_agent(OBS_SPEC, Discrete(2), tiny(Path("unused"), core="gru").net, seed=1, device=CPU)
    results = []
    for compiled in (False, True):
        act, state, said = fast(agent.act, CPU, compiled), agent.initial_state(4, CPU), {}
        for t, reset_N in enumerate((torch.ones(4, dtype=torch.bool), torch.arange(4) == 2)):
            with torch.no_grad():
                acted, state = act({"vector": draws(4, 3) - t}, state, reset_N, draws(4).sigmoid())
            said |= {f"{name} {t}": value for name, value in (vars(acted) | state).items()}
        results.append(said)
    assert len(results[0]["action 0"].unique()) == 2
    agree(results[1], results[0])


@needs_compiler
@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_compiled_gradient_steps_equal_eager():
    """Two in a row: the second starts from what the first left in weights and moments."""
    config, results = tiny(Path("unused")), []
    shape = (1, 8)
    batch = Minibatch(
        obs={"vector": draws(*shape, 3)},
        state={},
        reset=torch.zeros(shape, dtype=torch.bool),
        action=(draws(*shape) > 0).long(),
        logp=draws(*shape) / 4 - 0.7,
        value=draws(*shape),
        advantage=draws(*shape),
        target=draws(*shape) + 1,
    )
    for compiled in (False, True):
        agent = make_agent(OBS_SPEC, Discrete(2), config.net, seed=1, device=CPU)
        learner = ppo.Learner(agent, config, CPU, compiled)
        logged = {f"{k} {i}": v for i in range(2) for k, v in learner.gradient_step(batch).items()}
        results.append(logged | {name: weight.detach() for name, weight in agent.state_dict().items()})
    assert results[0]["loss/value 0"] > results[0]["loss/value 1"]
    agree(results[1], results[0])


WITHOUT_COMPILER = textwrap.dedent("""
    import json, sys
    from pathlib import Path
    sys.path.insert(0, sys.argv[2])
    import test_run as here
    run, _ = here.api.start("cartpole-ppo", here.tiny(Path(sys.argv[1]), compile="on"), quiet=True)
    print(run.weights_sha256)
""")


@pytest.mark.slow
def test_without_a_compiler_the_eager_path_runs_and_says_so_once(tmp_path: Path):
    run, _ = api.start("cartpole-ppo", tiny(tmp_path / "eager", compile="off"), quiet=True)
    (tmp_path / "bin").mkdir()
    environment = {k: v for k, v in os.environ.items() if k != "CXX"} | {"PATH": str(tmp_path / "bin")}
    command = [sys.executable, "-c", WITHOUT_COMPILER, str(tmp_path / "asked"), str(Path(__file__).parent)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("no C++ compiler") == 1, done.stderr
    assert done.stdout.split() == [run.weights_sha256]


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_captured_equals_eager():
    """A graph's warm-up does not count, its outputs may be kept, and its inputs are read at every call."""
    device = torch.device("cuda")
    weight = torch.zeros(3, device=device)

    def step(x: Tensor) -> dict[str, Tensor]:
        weight.add_(x)
        return {"sum": weight * 2}

    graphed = fast(step, device, compiled=True, changed=lambda: [weight])
    kept = [graphed(torch.full((3,), float(i), device=device)) for i in (1, 2, 3)]
    assert [out["sum"].tolist() for out in kept] == [[2.0] * 3, [6.0] * 3, [12.0] * 3]
    assert weight.tolist() == [6.0] * 3
