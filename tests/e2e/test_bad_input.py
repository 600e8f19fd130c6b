"""Bad input gets one clear line and exit code 2: what was given, where, what is allowed. Never a traceback."""

import json
import shutil
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path

import pytest
from command_line import QUICK, Cli, done, in_process, newest, refused, shell

CARTPOLE = ("train", "cartpole-ppo", *QUICK)
DARKROOM = ("train", "darkroom-ppo", *QUICK)
PONG = ("train", "pong-v5-ppo", *QUICK)


# Words


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("trian",), ["unknown verb 'trian'", "did you mean 'train'"]),
        (("",), ["unknown verb ''", "bench, eval, list, report, train, watch"]),
        (("--json",), ["unknown verb '--json'"]),
        (("train",), ["one experiment", "recollect list", "--resume RUN"]),
        (("train", "--json", "cartpole-ppo"), ["one experiment, before its flags"]),
        (("train", "cartpole-ppo", "pendulum-ppo"), ["one experiment"]),
        (("train", "cartpole-pop"), ["unknown experiment 'cartpole-pop'", "did you mean 'cartpole-ppo'"]),
        (("train", "zzz"), ["unknown experiment 'zzz'", "darkroom-ppo"]),
        (("list", "all"), ["unexpected 'all'"]),
        (("list", "--jsn"), ["unknown flag --jsn", "did you mean '--json'"]),
        (("eval",), ["eval takes one run folder"]),
        (("eval", ""), ["eval takes one run folder"]),
        (("eval", "one", "two"), ["eval takes one run folder"]),
        (("eval", "--episodes", 3, "run"), ["--episodes takes one value, got 3 run"]),
        (("eval", "run", "--episodes", "many"), ["--episodes", "whole number", "'many'"]),
        (("eval", "run", "--episodes", 0), ["episodes must be at least 1, got 0"]),
        (("eval", "run", "--core", "lstm"), ["--core", "mine.py:Name", "'lstm'"]),
        (("watch",), ["watch takes one run folder"]),
        (("watch", "run", "--fps", 0), ["fps must be at least 1, got 0"]),
        (("watch", "run", "--max-steps", -1), ["max_steps must be at least 1, got -1"]),
        (("watch", "run", "--terminal", "yes"), ["--terminal", "'yes' is not one of 'auto', 'on', 'off'"]),
        (("report",), ["at least one run folder"]),
        (("report", "run", "-o"), ["--out takes one value, got none"]),
        (("bench",), ["bench takes one of"]),
        (("bench", "trian"), ["unknown bench 'trian'"]),
        (("train", "--resume"), ["one experiment", "--resume RUN"]),
        (("train", "cartpole-ppo", "--resume", "run"), ["leave 'cartpole-ppo' out"]),
    ],
)
def test_a_command_that_is_none(cli: Cli, words: tuple, says: list[str]):
    refused(cli(*words), *says)


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("--gmma", 0.9), ["unknown flag --gmma", "did you mean '--gamma'"]),
        (("--num_env=3",), ["unknown flag --num-env", "did you mean '--num-envs'"]),
        (("--no-gamma",), ["unknown flag --no-gamma"]),
        (("-n", 3), ["unknown flag -n", "--help"]),
        (("--num-envs", "abc"), ["--num-envs", "expected a whole number, got 'abc'"]),
        (("--num-envs", 1.5), ["--num-envs", "expected a whole number, got '1.5'"]),
        (("--num-envs=",), ["--num-envs", "got ''"]),
        (("--num-envs",), ["--num-envs takes one value, got none"]),
        (("--num-envs", 8, 9), ["--num-envs takes one value, got 8 9"]),
        (("--gamma", "high"), ["--gamma", "expected a number, got 'high'"]),
        (("--value-clip", "off"), ["--value-clip", "expected a number, got 'off'"]),
        (("--hidden", 64, "wide"), ["--hidden", "expected a whole number, got 'wide'"]),
        (("--precision", "fp16"), ["--precision", "'fp16' is not one of 'fp32', 'bf16', 'auto'"]),
        (("--engine", "envpol"), ["--engine", "did you mean 'envpool'"]),
        (("--json", "yes"), ["unexpected 'yes'", "--json takes no value"]),
        (("--shared", "false"), ["unexpected 'false'", "--shared takes no value"]),
        (("--seed", "x"), ["--seed", "whole number"]),
    ],
)
def test_a_flag_that_cannot_be_read(cli: Cli, words: tuple, says: list[str]):
    refused(cli(*CARTPOLE, *words), *says)


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("--num-envs", 0), ["num_envs must be at least 1, got 0"]),
        (("--num-steps", 0), ["num_steps must be at least 1, got 0"]),
        (("--total-timesteps", -5), ["total_timesteps must be at least 1, got -5"]),
        (("--update-epochs", 0), ["update_epochs must be at least 1, got 0"]),
        (("--num-minibatches", 0), ["num_minibatches must be at least 1, got 0"]),
        (("--env-threads", -1), ["env_threads must be at least 0, got -1"]),
        (("--learning-rate", -1), ["learning_rate must be at least 0, got -1.0"]),
        (("--learning-rate", "nan"), ["learning_rate", "got nan"]),
        (("--learning-rate", "inf"), ["learning_rate", "got inf"]),
        (("--final-learning-rate", -1), ["final_learning_rate must be at least 0"]),
        (("--lr-schedule", "exponential"), ["final_learning_rate must be above 0, got 0.0"]),
        (("--gamma", 1.5), ["gamma must be in 0..1, got 1.5"]),
        (("--gamma", "nan"), ["gamma must be in 0..1, got nan"]),
        (("--gae-lambda", -0.1), ["gae_lambda must be in 0..1, got -0.1"]),
        (("--clip-coef", -1), ["clip_coef must be above 0, got -1.0"]),
        (("--value-clip", 0), ["value_clip must be above 0, got 0.0"]),
        (("--ent-coef", "nan"), ["ent_coef", "got nan"]),
        (("--vf-coef", -1), ["vf_coef must be at least 0"]),
        (("--max-grad-norm", 0), ["max_grad_norm must be above 0"]),
        (("--target-kl", 0), ["target_kl must be above 0"]),
        (("--hidden", 64, 0), ["hidden must be at least 1, got 0"]),
        (("--hidden", -4), ["hidden must be at least 1, got -4"]),
        (("--core-width", 0), ["core_width must be at least 1"]),
        (("--cnn-width", 0), ["cnn_width must be at least 1"]),
        (("--initial-log-std", "nan"), ["initial_log_std must be finite"]),
        (("--half-batches", "--num-envs", 7, "--num-minibatches", 1), ["half_batches needs an even num_envs, got 7"]),
        (("--num-minibatches", 3), ["num_minibatches 3 does not divide", "128 rows", "num_envs 8 x num_steps 16"]),
        (("--threads", -1), ["threads must be at least 0, got -1"]),
        (("--checkpoint-every", -1), ["checkpoint_every must be at least 0"]),
        (("--eval-every", -1), ["eval_every must be at least 0"]),
        (("--eval-episodes", -1), ["eval_episodes must be at least 0"]),
    ],
)
def test_a_value_out_of_range(cli: Cli, tmp_path: Path, words: tuple, says: list[str]):
    line = refused(cli(*CARTPOLE, "--out", tmp_path, *words), *says)
    assert line.startswith(f"recollect: {says[0]}"), "the words of whoever owns the setting, and nothing around them"
    assert list(tmp_path.iterdir()) == []


def test_values_at_the_edge_of_their_range_are_fine(cli: Cli, tmp_path: Path):
    edges = ("--gamma", 1, "--gae-lambda", 0, "--learning-rate", 0, "--ent-coef", 0, "--value-clip", "none", "--hidden")
    done(cli(*CARTPOLE, *edges, "--eval-episodes", 0, "--out", tmp_path))


# Names


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ((*CARTPOLE, "--encoder", "mpl"), ["unknown encoder 'mpl'", "did you mean 'mlp'"]),
        ((*CARTPOLE, "--core", "elman"), ["unknown core 'elman'", "gru", "none"]),
        ((*CARTPOLE, "--algo", "pqo"), ["unknown algorithm 'pqo'", "did you mean 'ppo'"]),
        ((*CARTPOLE, "--protocol", "v5-poled"), ["unknown protocol 'v5-poled'", "did you mean 'v5-pooled'"]),
        ((*CARTPOLE, "--device", "gpu"), ["device", "'auto', 'cpu' or 'cuda'", "'gpu'"]),
        ((*CARTPOLE, "--device", "meta"), ["device", "'meta'"]),
        ((*CARTPOLE, "--env-id", "CartPole-v7"), ["environment 'CartPole-v7'", "did you mean 'CartPole-v1'"]),
        ((*CARTPOLE, "--env-id", "Zzzzzzzzz-v0"), ["unknown environment 'Zzzzzzzzz-v0'", "known: ", "more"]),
        ((*CARTPOLE, "--env-id", "nobody/Zzzzzzzzz-v0"), ["unknown environment 'nobody/Zzzzzzzzz-v0'"]),
        ((*CARTPOLE, "--env-id", "no name"), ["environment 'no name'"]),
        ((*CARTPOLE, "--env-id", ""), ["environment ''"]),
        ((*DARKROOM, "--env-id", "recollect/DarkRom-v0"), ["did you mean 'recollect/DarkRoom-v0'"]),
        ((*CARTPOLE, "--env-options", "limit"), ["Gymnasium options are written key=value, got 'limit'"]),
        ((*CARTPOLE, "--env-options", "limit=3"), ["unknown Gymnasium option 'limit'", "max_episode_steps"]),
        ((*CARTPOLE, "--env-options", "max_episode_steps=x"), ["'max_episode_steps'", "whole number, got 'x'"]),
        ((*CARTPOLE, "--env-options", "max_episode_steps=0"), ["max_episode_steps", "0"]),
        ((*DARKROOM, "--env-options", "sise=5"), ["unknown DarkRoom option 'sise'", "did you mean 'size'"]),
        ((*DARKROOM, "--env-options", "size=[5"), ["DarkRoom option 'size'", "whole number, got '[5'"]),
        ((*DARKROOM, "--env-options", "clock=3"), ["'clock'", "true or false, got '3'"]),
        ((*DARKROOM, "--env-options", "size=5", "size=6"), ["DarkRoom option 'size' is given twice"]),
        ((*DARKROOM, "--env-options", "size=1"), ["size must be at least 2, got 1"]),
        ((*DARKROOM, "--env-options", "max_steps=0"), ["max_steps must be at least 1, got 0"]),
        ((*DARKROOM, "--env-options", "goal=9,9"), ["goal must lie in 0..8", "'9,9'"]),
        ((*DARKROOM, "--env-options", "goal=4,4"), ["off the start", "'4,4'"]),
        ((*DARKROOM, "--env-options", "goal=1"), ["'all' or 'row,column', got '1'"]),
        ((*CARTPOLE, "--encoder", "nature"), ["encoder 'nature' reads 'frame'", "the observation has vector"]),
        ((*DARKROOM, "--encoder", "small"), ["reads 'frame'", "the observation has vector"]),
        (
            (*DARKROOM, "--core", "gru", "--num-envs", 6, "--num-minibatches", 4),
            ["num_minibatches 4 does not divide num_envs 6", "with memory (gru)"],
        ),
    ],
)
def test_a_name_that_is_unknown_or_does_not_fit(cli: Cli, tmp_path: Path, words: tuple, says: list[str]):
    refused(cli(*words, "--out", tmp_path), *says)
    assert list(tmp_path.iterdir()) == [], "what cannot be trained leaves no folder behind"


def test_atari_by_its_rules(cli: Cli, tmp_path: Path):
    pytest.importorskip("ale_py")
    pong = (*PONG, "--out", tmp_path)
    refused(cli(*pong, "--env-id", "ALE/Pogn-v5"), "'ALE/Pogn-v5'", "did you mean 'ALE/Pong-v5'")
    refused(cli(*pong, "--env-options", "stack=1", "--difference"), "at least 2 stacked frames", "shows 1")
    refused(cli(*pong, "--env-options", "obs=state"), "obs=state is shown by recollect/Pong-v0")
    refused(cli(*pong, "--env-options", "stiky=0.1"), "unknown Atari option 'stiky'", "did you mean 'sticky'")
    refused(cli(*pong, "--env-options", "sticky=2"), "sticky", "0..1, got 2.0")


# What is not installed

BLOCKED = textwrap.dedent("""
    import contextlib, io, json, sys

    class Missing:  # stands for an environment where the extras were never installed
        def find_spec(self, name, path=None, target=None):
            if name.split(".")[0] in ("ale_py", "envpool", "mujoco", "pygame", "Box2D", "wandb"):
                raise ModuleNotFoundError(f"No module named {name!r}")

    sys.meta_path.insert(0, Missing())
    from recollect.cli import main

    for words in json.load(sys.stdin):
        out, err = io.StringIO(), io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            code = main(words)
        print(json.dumps([code, out.getvalue(), err.getvalue()]))
""")


@pytest.fixture(scope="module")
def without_extras(tmp_path_factory: pytest.TempPathFactory, cartpole: Path) -> dict[str, list]:
    """Exit code, output and complaint of commands that need what is not there."""
    train = [str(word) for word in (*CARTPOLE, "--out", tmp_path_factory.mktemp("extras"))]
    commands = {
        "atari": [*train, "--env-id", "ALE/Pong-v5", "--encoder", "nature"],
        "envpool": [*train, "--engine", "envpool"],
        "mujoco": [*train, "--env-id", "HalfCheetah-v5"],
        "wandb": [*train, "--track"],
        "box2d": [*train, "--env-id", "LunarLander-v3"],
        "classic": ["watch", str(cartpole), "--out", str(tmp_path_factory.mktemp("video") / "x.mp4")],
        "early": [*train, "--capture-video"],
        "none": [*train, "--eval-episodes", "0"],
    }
    ran = subprocess.run(
        [sys.executable, "-c", BLOCKED], input=json.dumps(list(commands.values())), capture_output=True, text=True
    )
    assert ran.returncode == 0, ran.stderr
    return dict(zip(commands, map(json.loads, ran.stdout.splitlines()), strict=True))


@pytest.mark.slow
@pytest.mark.parametrize("extra", ["atari", "envpool", "mujoco", "classic", "wandb"])
def test_what_is_not_installed_names_its_extra(without_extras: dict[str, list], extra: str):
    code, out, err = without_extras[extra]
    assert (code, out) == (2, "")
    assert len(err.splitlines()) == 1
    assert f"recollect[{extra}]" in err


@pytest.mark.slow
def test_without_any_extra_the_rest_works(without_extras: dict[str, list]):
    assert without_extras["none"][0] == 0


@pytest.mark.slow
def test_an_extra_that_is_named_exists(without_extras: dict[str, list]):
    assert "pip install 'gymnasium[box2d]'" in without_extras["box2d"][2]


@pytest.mark.slow
def test_a_video_that_cannot_be_drawn_is_known_before_training(without_extras: dict[str, list]):
    code, _, err = without_extras["early"]
    assert code == 2
    assert len(err.splitlines()) == 1


# Run folders


def verbs_on(run: Path) -> list[tuple]:
    return [("eval", run, "--episodes", 2), ("train", "--resume", run), ("watch", run, "--out", run / "x.mp4")]


def replace(file: str, old: str, new: str) -> Callable[[Path], None]:
    def edit(run: Path) -> None:
        text = (run / file).read_text()
        assert old in text
        (run / file).write_text(text.replace(old, new))

    return edit


def write(file: str, text: str | bytes) -> Callable[[Path], None]:
    return lambda run: (run / file).write_bytes(text if isinstance(text, bytes) else text.encode())


DAMAGES: dict[str, tuple[Callable[[Path], object], list[str]]] = {
    "no YAML": (write("config.yaml", "env: {size: 3\nnet: ]"), ["config.yaml is not YAML", "line 2"]),
    "a list": (write("config.yaml", "- 1"), ["config.yaml holds no settings"]),
    "empty": (write("config.yaml", ""), ["config.yaml holds no settings"]),
    "bytes": (write("config.yaml", b"\xff\xfe\x00"), ["config.yaml is not YAML"]),
    "no section": (write("config.yaml", "env: 3"), ["config.yaml: env", "got 3"]),
    "a key": (replace("config.yaml", "gamma:", "gmma:"), ["config.yaml: unknown key 'gmma'", "did you mean 'gamma'"]),
    "an inner key": (replace("config.yaml", "num_envs:", "num_env:"), ["env: unknown key 'num_env'", "'num_envs'"]),
    "a type": (replace("config.yaml", "num_envs: 8", "num_envs: many"), ["config.yaml: env.num_envs", "'many'"]),
    "a range": (replace("config.yaml", "num_envs: 8", "num_envs: 0"), ["config.yaml: num_envs", "at least 1, got 0"]),
    "an id": (replace("config.yaml", "DarkRoom-v0", "Gone-v0"), ["unknown environment 'recollect/Gone-v0'"]),
    "an option": (replace("config.yaml", "goal=0,0", "goal"), ["key=value, got 'goal'"]),
    "no JSON": (write("card.json", "{"), ["card.json is not JSON"]),
    "an algorithm": (replace("card.json", '"ppo"', '"pqo"'), ["unknown algorithm 'pqo'"]),
    "no checkpoints": (lambda run: shutil.rmtree(run / "checkpoints"), ["no usable checkpoint", "it has none"]),
    "a checkpoint": (
        lambda run: [path.write_bytes(b"half") for path in (run / "checkpoints").iterdir()],
        ["no usable checkpoint", "cannot be read"],
    ),
    "no card": (lambda run: (run / "card.json").unlink(), ["is not a run folder"]),
    "no config": (lambda run: (run / "config.yaml").unlink(), ["is not a run folder"]),
}
DAMAGED_CARDS = {"a list": "[]", "empty": "{}", "a number": '{"algorithm": 3}'}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_run_folder(cli: Cli, darkroom: Path, tmp_path: Path, damage: str):
    edit, says = DAMAGES[damage]
    run = shutil.copytree(darkroom, tmp_path / "run")
    edit(run)
    for verb in verbs_on(run):
        assert str(run) in refused(cli(*verb), *says) or damage in ("an id", "an option", "an algorithm")


@pytest.mark.parametrize("damage", DAMAGED_CARDS)
def test_a_damaged_card(cli: Cli, darkroom: Path, tmp_path: Path, damage: str):
    run = shutil.copytree(darkroom, tmp_path / "run")
    write("card.json", DAMAGED_CARDS[damage])(run)
    for verb in verbs_on(run):
        refused(cli(*verb), "card.json")


@pytest.mark.parametrize("verb", [("eval", "RUN"), ("watch", "RUN"), ("report", "RUN"), ("train", "--resume", "RUN")])
def test_a_folder_that_is_no_run(cli: Cli, tmp_path: Path, verb: tuple):
    refused(cli(*(tmp_path / "gone" if word == "RUN" else word for word in verb)), f"{tmp_path}/gone", "no such folder")
    said = refused(cli(*(tmp_path if word == "RUN" else word for word in verb)), f"{tmp_path} is not a run folder")
    assert "config.yaml" in said
    assert "card.json" in said
    assert list(tmp_path.iterdir()) == []


OTHER_NETWORKS = {
    "hidden": (replace("config.yaml", "- 64\n  - 64", "- 64\n  - 32"), "is [64, 64], this network has [32, 64]"),
    "width": (replace("config.yaml", "core_width: 128", "core_width: 64"), "torso.core.cell"),
    "core": (replace("config.yaml", "core: gru", "core: none"), "it has an unknown 'torso.core.cell.bias_hh'"),
    "critic": (replace("config.yaml", "shared: true", "shared: false"), "it lacks 'critic."),
}


@pytest.mark.parametrize("change", OTHER_NETWORKS)
def test_a_checkpoint_of_another_network(cli: Cli, darkroom: Path, tmp_path: Path, change: str):
    edit, says = OTHER_NETWORKS[change]
    run = shutil.copytree(darkroom, tmp_path / "run")
    edit(run)
    before = (run / "metrics.jsonl").read_bytes()
    for verb in verbs_on(run):
        refused(cli(*verb), f"{run}/checkpoints/", "belongs to another network", says)
    assert (run / "metrics.jsonl").read_bytes() == before


@pytest.mark.parametrize("env_id", ["Acrobot-v1", "Pendulum-v1", "MountainCar-v0", "recollect/DarkRoom-v0"])
def test_an_environment_that_the_agent_does_not_fit(cli: Cli, cartpole: Path, env_id: str):
    refused(cli("eval", cartpole, "--env-id", env_id, "--episodes", 2), env_id, "this agent observes")


def test_watch_plays_the_runs_own_environment(cli: Cli, cartpole: Path):
    refused(cli("watch", cartpole, "--env-id", "Acrobot-v1"), "own environment", "'Acrobot-v1'")


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("--seed", 3), ["--seed cannot change", "--total-timesteps"]),
        (("--gamma", 0.5), ["--gamma cannot change"]),
        (("--core", "none"), ["--core cannot change"]),
        (("--out", "elsewhere"), ["--out cannot change"]),
        (("--total-timesteps", 0), ["total_timesteps must be at least 1"]),
    ],
)
def test_a_resumed_run_keeps_its_settings(cli: Cli, darkroom: Path, words: tuple, says: list[str]):
    before = (darkroom / "config.yaml").read_bytes()
    refused(cli("train", "--resume", darkroom, *words), *says)
    assert (darkroom / "config.yaml").read_bytes() == before


# Code from outside that a run folder names, and nobody else

STRANGERS = {
    "core": (replace("config.yaml", "core: gru", "core: FILE:Core"), "--core FILE:Core"),
    "encoder": (replace("config.yaml", "encoder: mlp", "encoder: FILE:Encoder"), "--encoder FILE:Encoder"),
    "environment": (replace("config.yaml", "recollect/DarkRoom-v0", "FILE:Env"), "--env-id FILE:Env"),
    "algorithm": (replace("card.json", '"ppo"', '"FILE"'), "--algo FILE"),
    "module": (replace("config.yaml", "recollect/DarkRoom-v0", "stranger:Env-v0"), "--env-id stranger:Env-v0"),
}


@pytest.mark.parametrize("kind", STRANGERS)
def test_code_that_only_the_run_folder_names_is_not_imported(
    cli: Cli, darkroom: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
):
    run, marker, stranger = shutil.copytree(darkroom, tmp_path / "run"), tmp_path / "imported", tmp_path / "stranger.py"
    stranger.write_text(f"open({str(marker)!r}, 'w').close()\n")
    monkeypatch.syspath_prepend(tmp_path)  # as `python -m recollect` has the current folder
    edit, flag = STRANGERS[kind]
    edit(run)
    for file in ("config.yaml", "card.json"):
        (run / file).write_text((run / file).read_text().replace("FILE", str(stranger)))
    for verb in verbs_on(run):
        refused(cli(*verb), "code from outside the package", flag.replace("FILE", str(stranger)))
    assert not marker.exists()
    if kind == "core":  # named on this command line it is imported, so the marker does tell
        refused(cli("eval", run, "--core", f"{stranger}:Core"), "has no 'Core'")
        assert marker.exists()


# Code from outside that is broken

BROKEN = textwrap.dedent("""
    import gymnasium
    import torch
    from torch import nn

    from recollect.envs.vector import Protocol, RawStep, VectorEnv
    from recollect.types import Discrete, TensorSpec

    class Core(nn.Module):
        def __init__(self, width, config):
            super().__init__()
            self.width, self.layer = 8, nn.Linear(width, 8)
        def initial_state(self, num_envs, device):
            return {"h": torch.zeros(num_envs, 8)}
        def step(self, x, state, reset):
            return self.layer(x), state
        def forward(self, x, state, reset):
            return self.layer(x)

    class Widthless(Core):
        def __init__(self, width, config):
            nn.Module.__init__(self)
    class Narrow(Core):
        def __init__(self, width, config):
            super().__init__(width, config)
            self.width = 9
    class Alone(Core):
        def step(self, x, state, reset):
            return self.layer(x)
    class Turned(Core):
        def forward(self, x, state, reset):
            return self.layer(x).transpose(0, 1)
    class Renamed(Core):
        def step(self, x, state, reset):
            return self.layer(x), {"c": state["h"]}
    class Shrunk(Core):
        def step(self, x, state, reset):
            return self.layer(x), {"h": state["h"][:, :4]}
    class Raising(Core):
        def step(self, x, state, reset):
            raise KeyError("oops")  # here
    class Small:
        pass
    number = 3

    class Encoder(nn.Module):
        def __init__(self, obs_spec, config):
            super().__init__()
            self.width, self.layer = 5, nn.Linear(obs_spec["vector"].shape[0], 6)
        def forward(self, obs):
            return self.layer(obs["vector"])

    class Env(gymnasium.Env):
        observation_space = gymnasium.spaces.Box(-1, 1, (2,))
        action_space = gymnasium.spaces.Discrete(2)
        def reset(self, *, seed=None, options=None):
            return [0.0, 0.0], {}
        def step(self, action):
            return [0.0, 0.0], 0.0, False, False, {}
    class Unspaced(gymnasium.Env):
        pass
    class Seedless(Env):
        def reset(self):
            return [0.0, 0.0], {}
    class Old(Env):
        def step(self, action):
            return [0.0, 0.0], 0.0, False, {}
    class Grown(Env):
        def step(self, action):
            return [0.0, 0.0, 0.0], 0.0, False, False, {}
    class Mixed(Env):
        observation_space = gymnasium.spaces.Dict({})

    class Tensors(VectorEnv):
        resume = "state"
        def __init__(self, num_envs, device="cpu", first_env=0):
            self.num_envs, self.device, self.action_spec = num_envs, torch.device(device), Discrete(2)
            self.obs_spec, self.protocol = {"vector": TensorSpec((2,), torch.float32)}, Protocol("Tensors", "tensor")
        def obs(self):
            return {"vector": torch.zeros(self.num_envs, 2)}
        def _reset(self, seed):
            return self.obs()
        def _send(self, action):
            pass
        def _recv(self):
            zero = torch.zeros(self.num_envs)
            return RawStep(self.obs(), zero, zero > 0, zero > 0, self.obs())
    class Unwritten(VectorEnv):
        pass
    class Unset(Tensors):
        def __init__(self, num_envs, device="cpu", first_env=0):
            pass
    class Unplaced(Tensors):
        def __init__(self, num_envs):
            super().__init__(num_envs)
    class Wide(Tensors):
        def obs(self):
            return {"vector": torch.zeros(self.num_envs, 3)}
    class Double(Tensors):
        def obs(self):
            return {"vector": torch.zeros(self.num_envs, 2).double()}
    class Misnamed(Tensors):
        def obs(self):
            return {"vektor": torch.zeros(self.num_envs, 2)}
    class Column(Tensors):
        def _recv(self):
            zero = torch.zeros(self.num_envs, 1)
            return RawStep(self.obs(), zero, zero > 0, zero > 0, self.obs())
""")


@pytest.fixture
def broken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with files of somebody's own, where we are."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "broken.py").write_text(BROKEN)
    (tmp_path / "raising.py").write_text("x = 1\n\nprint(undefined)\n")
    (tmp_path / "syntax.py").write_text("x = = 3\n")
    (tmp_path / "leaving.py").write_text("import sys\nsys.exit(3)\n")
    (tmp_path / "missing.py").write_text("import a_module_that_nobody_has\n")
    (tmp_path / "empty.py").write_text("")
    (tmp_path / "half.py").write_text("class Config:\n    pass\ndef train(config, run):\n    pass\n")
    return tmp_path


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("--core", "gone.py:Core"), ["'gone.py:Core'", "there is no file"]),
        (("--core", "broken.py"), ["'broken.py' names a file", "broken.py:Name"]),
        (("--core", "broken:Core"), ["'broken:Core'", "mine.py:Name"]),
        (("--core", "broken.py:Coer"), ["broken.py has no 'Coer'", "did you mean 'Core'"]),
        (("--encoder", "empty.py:Encoder"), ["empty.py has no 'Encoder'"]),
        (("--core", "raising.py:Core"), ["raising.py failed to import", "NameError", "line 3"]),
        (("--core", "syntax.py:Core"), ["syntax.py failed to import", "SyntaxError", "line 1"]),
        (("--core", "leaving.py:Core"), ["leaving.py failed to import", "SystemExit: 3", "line 2"]),
        (("--core", "missing.py:Core"), ["missing.py failed to import", "a_module_that_nobody_has"]),
        (("--algo", "gone.py"), ["'gone.py'", "there is no file"]),
        (("--algo", "empty.py"), ["algorithm 'empty.py' has no 'Config'", "train(config, run)"]),
        (("--algo", "half.py"), ["'half.py'", "env, net and run"]),
        (("--env-id", "gone.py:Env"), ["'gone.py:Env'", "there is no file"]),
        (("--env-id", "broken.py"), ["'broken.py' names a file"]),
        (("--env-id", "broken.py:Small"), ["neither a gymnasium.Env class nor a recollect VectorEnv class"]),
        (("--env-id", "broken.py:Unspaced"), ["must set observation_space, action_space"]),
        (("--env-id", "broken.py:Seedless"), ["fails at its first step", "seed"]),
        (("--env-id", "broken.py:Old"), ["fails at its first step", "expected 5, got 4"]),
        (("--env-id", "broken.py:Grown"), ["fails at its first step", "shape (3,)"]),
        (("--env-id", "broken.py:Mixed"), ["observes a Dict", "Box and Discrete"]),
        (("--env-id", "broken.py:Env", "--env-options", "size=3"), ["broken.py:Env cannot be made", "'size'"]),
        (("--env-id", "broken.py:Unwritten"), ["must write _recv, _reset, _send"]),
        (("--env-id", "broken.py:Unset"), ["must set num_envs, device, obs_spec, action_spec, protocol"]),
        (("--env-id", "broken.py:Unplaced"), ["cannot be made", "'device'"]),
        (("--env-id", "broken.py:Wide"), ["reset['vector']", "[1, 2] torch.float32, got [1, 3] torch.float32"]),
        (("--env-id", "broken.py:Double"), ["reset['vector']", "got [1, 2] torch.float64"]),
        (("--env-id", "broken.py:Misnamed"), ["reset has vektor, but obs_spec has vector"]),
        (("--env-id", "broken.py:Column"), ["reward", "[1] torch.float32, got [1, 1]"]),
    ],
)
def test_code_of_ones_own_that_is_broken(cli: Cli, broken: Path, words: tuple, says: list[str]):
    refused(cli(*CARTPOLE, *words), *says)
    assert not list((broken / "runs").glob("*"))


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("--core", "broken.py:Widthless"), ["must set width"]),
        (("--core", "broken.py:Narrow"), ["step must give [2, 9]", "got [2, 8]"]),
        (("--core", "broken.py:Alone"), ["step must give (y_ND, state)", "a Tensor"]),
        (("--core", "broken.py:Turned"), ["forward must give [3, 2, 8]", "got [2, 3, 8]"]),
        (("--core", "broken.py:Renamed"), ["step's state has ['c']", "initial_state has ['h']"]),
        (("--core", "broken.py:Shrunk"), ["step's state['h'] must give [2, 8]", "got [2, 4]"]),
        (("--core", "broken.py:Raising"), ["step: KeyError: 'oops' (broken.py, line"]),
        (("--core", "broken.py:Small"), ["cannot be built", "TypeError"]),
        (("--core", "broken.py:number"), ["cannot be built", "not callable"]),
        (("--encoder", "broken.py:Encoder"), ["forward must give [6, 5]", "got [6, 6]"]),
    ],
)
def test_a_network_of_ones_own_that_breaks_the_contract(cli: Cli, broken: Path, words: tuple, says: list[str]):
    refused(cli(*CARTPOLE, *words), f"broken.py:{words[1].partition(':')[2]}", *says)
    assert not list((broken / "runs").glob("*"))


def test_whole_code_of_ones_own_is_not_refused(cli: Cli, broken: Path):
    """What the broken classes are made from works, so that each is refused for what it broke."""
    done(cli(*CARTPOLE, "--eval-episodes", 0, "--core", "broken.py:Core"))
    for env in ("Env", "Tensors"):
        done(cli(*CARTPOLE, "--eval-episodes", 0, "--env-id", f"broken.py:{env}"))


def test_a_core_that_changed_since_it_was_trained(tmp_path: Path, capfd: pytest.CaptureFixture[str]):
    core = tmp_path / "core.py"
    core.write_text(BROKEN)
    flag = ("--core", f"{core}:Core")
    done(in_process(capfd, *CARTPOLE, "--eval-episodes", 0, *flag, "--out", tmp_path / "runs"))
    other = tmp_path / "other.py"
    other.write_text(BROKEN.replace("nn.Linear(width, 8)", "nn.Linear(width, 8, bias=False)"))
    for verb in verbs_on(newest(tmp_path / "runs")):
        said = in_process(capfd, *verb, "--core", f"{other}:Core")
        refused(said, "belongs to another network", "core.layer.bias'")


# Where results go


def test_out_that_cannot_hold_runs(cli: Cli, tmp_path: Path):
    file = tmp_path / "file"
    file.write_text("mine")
    refused(cli(*CARTPOLE, "--out", file), f"--out {file}")
    refused(cli(*CARTPOLE, "--out", file / "below"), f"--out {file}/below")
    assert file.read_text() == "mine"


def test_out_that_may_not_be_written(cli: Cli):
    refused(cli(*CARTPOLE, "--out", "/proc/runs"), "--out /proc/runs cannot hold runs")  # not even for root


def test_pages_and_videos_that_cannot_be_written(cli: Cli, cartpole: Path, tmp_path: Path):
    file = tmp_path / "file"
    file.write_text("mine")
    refused(cli("report", cartpole, "-o", tmp_path), f"{tmp_path} is a folder", "HTML")
    refused(cli("report", cartpole, "-o", file / "page.html"), f"cannot write {file}/page.html")
    refused(cli("watch", cartpole, "--out", tmp_path), f"{tmp_path} is a folder", "mp4")
    refused(cli("watch", cartpole, "--out", file / "film.mp4"), f"cannot write {file}/film.mp4")
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


# The same as a process of its own: what the shell sees


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("eval", "gone", "--json"), ["no run at gone"]),
        ((*CARTPOLE, "--num-minibatches", 3), ["not divide the batch of 128 rows (num_envs 8 x num_steps 16)"]),
        ((*CARTPOLE, "--env-id", "HalfCheetah-v2"), ["HalfCheetah-v2"]),  # Gymnasium would warn beside its error
    ],
)
def test_the_shell_sees_code_2_one_line_and_a_clean_output(tmp_path: Path, words: tuple, says: list[str]):
    refused(shell(*words, cwd=tmp_path, COLUMNS="20"), *says)  # at any width it is one line
    assert list(tmp_path.iterdir()) == []
