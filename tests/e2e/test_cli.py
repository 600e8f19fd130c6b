"""The whole way on tiny budgets: train, eval, watch, report, list, resume, from the shell and from Python."""

import json
import os
import pty
import shlex
import shutil
import signal
import subprocess
import sys
import time
from datetime import datetime
from pathlib import Path

import imageio.v2 as imageio
import numpy as np
import pytest
from command_line import QUICK, Cli, Said, done, newest, shell

import recollect
from recollect.algos import ALGOS
from recollect.cli import VERBS
from recollect.experiments import ROWS
from recollect.nets.cores import CORES
from recollect.run.metrics import read_rows

STEPS = 512  # of QUICK: four updates of 8 x 16


def only_output(said: Said) -> dict:
    """The JSON object that is all of standard output."""
    assert len(done(said).out.splitlines()) == 1, said.out
    return said.data


def frames_of(path: Path) -> list[np.ndarray]:
    with imageio.get_reader(path) as film:
        return list(iter(film))  # its length is infinite, so that a list of itself would not fit


# The whole way


def test_train_to_report_and_on(cli: Cli, tmp_path: Path):
    trained = only_output(cli("train", "darkroom-ppo", *QUICK, "--capture-video", "--json", "--out", tmp_path))
    assert {"run", "env_steps", "wall_s", "mean_return"} <= trained.keys()
    run = Path(trained["run"])
    assert run.parent == tmp_path
    assert run.name.startswith("recollect-DarkRoom-v0__darkroom-ppo__1__")
    assert trained["env_steps"] == STEPS
    assert trained["wall_s"] > 0
    made = {path.name for path in run.iterdir()}
    assert {"config.yaml", "card.json", "metrics.jsonl", "checkpoints", "eval.json", "video", "report.html"} <= made

    scored = only_output(cli("eval", run, "--episodes", 6, "--json"))
    assert {"run", "env_id", "episodes", "mean", "iqm", "ci95", "returns"} <= scored.keys()
    assert (scored["run"], scored["env_id"], scored["episodes"]) == (run.name, "recollect/DarkRoom-v0", 6)
    assert len(scored["returns"]) == 6
    assert scored["mean"] == pytest.approx(np.mean(scored["returns"]))
    assert scored["ci95"][0] <= scored["mean"] <= scored["ci95"][1]
    assert json.loads((run / "eval.json").read_text()) == {"schema_version": 1, **scored}

    film = Path(done(cli("watch", run, "--seed", 5, "--out", tmp_path / "film.mp4")).out.strip())
    assert film == tmp_path / "film.mp4"
    frames = frames_of(film)
    assert 2 <= len(frames) <= 20  # a picture before every decision, and at most 20 decisions
    assert {frame.shape for frame in frames} == {(432, 432, 3)}  # 9 cells of 24 pixels, twice as large
    centre, goal = frames[0][216, 216], frames[0][24, 24]
    assert centre[0] > centre[2] + 60, "the agent is orange and starts at the centre"
    assert goal[1] > goal[0] + 60, "the goal is green"

    page = Path(done(cli("report", run, "-o", tmp_path / "page.html")).out.strip())
    assert run.name in page.read_text()

    again = only_output(cli("train", "--resume", run, "--total-timesteps", 2 * STEPS, "--json"))
    assert again["run"] == str(run)
    assert again["env_steps"] == 2 * STEPS
    assert again["wall_s"] > trained["wall_s"]
    assert [row["step"] for row in read_rows(run / "metrics.jsonl")] == [128 * k for k in range(1, 9)]


def test_a_run_that_attends_shows_it_and_its_recorded_control(cli: Cli, tmp_path: Path):
    blind = ("--env-options", "obs=state", "hidden_from=148", "hidden_to=200", "max_episode_steps=40")
    memory = ("--core", "transformer", "--core-width", 16, "--core-heads", 2, "--look-back", 4, "--hidden", 8)
    train = ("train", "pong-state-ppo", *QUICK, *blind, *memory, "--compile", "off", "--out", tmp_path)
    run = Path(only_output(cli(*train, "--json"))["run"])
    first = json.loads((run / "attention.json").read_text())
    assert (first["env_steps"], first["watched_steps"], first["look_back"]) == (STEPS, 40, 4)
    assert "What it attends to" in (run / "report.html").read_text()

    done(cli("watch", run, "--seed", 7, "--out", tmp_path / "other.mp4"))
    assert json.loads((run / "attention.json").read_text()) == first, "a film for elsewhere leaves the run as it is"
    done(cli("watch", run, "--seed", 7))
    assert json.loads((run / "attention.json").read_text()) != first, "the page's film and attention are one episode"

    recorded = Path(__file__).parents[2] / "results" / "pong-state-ppo.json"
    page = Path(done(cli("report", run, "-o", tmp_path / "page.html", "--beside", recorded)).out.strip()).read_text()
    for words in ("What it attends to", "recorded", json.loads(recorded.read_text())["headline"]):
        assert words in page
    refused = cli("report", run, "--beside", tmp_path / "gone.json")
    assert (refused.code, refused.out) == (2, "")
    assert "gone.json cannot be read" in refused.err


def test_a_run_without_evaluation_or_video_is_not_watched(cli: Cli, tmp_path: Path):
    train = ("train", "cartpole-ppo", *QUICK, "--core", "lookback", "--out", tmp_path)
    run = Path(only_output(cli(*train, "--eval-episodes", 0, "--json"))["run"])
    assert not (run / "attention.json").exists()


def test_a_resume_that_is_done_already_changes_nothing(cli: Cli, darkroom: Path, tmp_path: Path):
    run = shutil.copytree(darkroom, tmp_path / "run")
    before = (run / "metrics.jsonl").read_bytes()
    assert only_output(cli("train", "--resume", run, "--json"))["env_steps"] == STEPS
    assert (run / "metrics.jsonl").read_bytes() == before


def test_a_damaged_checkpoint_is_passed_over_and_named_once(cli: Cli, darkroom: Path, tmp_path: Path):
    run = shutil.copytree(darkroom, tmp_path / "run")
    newest_one = max((run / "checkpoints").glob("*.safetensors"))
    newest_one.write_bytes(newest_one.read_bytes()[:-1])
    for verb in (("eval", run, "--episodes", 2), ("watch", run), ("train", "--resume", run, "--eval-episodes", 0)):
        said = done(cli(*verb))
        assert said.err.count("passed over a damaged checkpoint") == 1
        assert newest_one.name in said.err


@pytest.mark.parametrize("algo", ALGOS)
def test_every_algorithm_trains_evaluates_and_resumes(cli: Cli, tmp_path: Path, algo: str):
    experiment = next(row.name for row in ROWS if row.algorithm == algo)
    flags = ("--total-timesteps", STEPS, "--threads", 1, "--eval-episodes", 2, "--out", tmp_path)
    run = only_output(cli("train", experiment, *flags, "--json"))["run"]
    assert only_output(cli("eval", run, "--episodes", 2, "--json"))["episodes"] == 2
    assert only_output(cli("train", "--resume", run, "--total-timesteps", 2 * STEPS, "--json"))["env_steps"] >= STEPS


@pytest.mark.parametrize("core", CORES)
def test_every_core_trains_evaluates_and_resumes(cli: Cli, tmp_path: Path, core: str):
    train = ("train", "cartpole-ppo", *QUICK, "--core", core, "--out", tmp_path)
    run = only_output(cli(*train, "--json"))["run"]
    assert only_output(cli("eval", run, "--episodes", 2, "--json"))["episodes"] == 2
    assert (
        only_output(cli("train", "--resume", run, "--total-timesteps", 2 * STEPS, "--json"))["env_steps"] == 2 * STEPS
    )


def test_an_evaluation_elsewhere_has_a_file_of_its_own(cli: Cli, darkroom: Path, tmp_path: Path):
    run = shutil.copytree(darkroom, tmp_path / "run")
    own = (run / "eval.json").read_bytes()
    done(cli("eval", run, "--episodes", 2, "--env-options", "goal=8,8"))
    assert (run / "eval.json").read_bytes() == own
    elsewhere = json.loads((run / "eval__goal=8-8.json").read_text())
    assert "goal 8,8" in elsewhere["protocol"]["extra"]
    done(cli("eval", run, "--episodes", 2, "--env-options", "goal=0,0", "--env-id", "recollect/DarkRoom-v0"))
    assert json.loads((run / "eval.json").read_text())["episodes"] == 2, "its own settings, repeated, are its own"
    assert len(list(run.glob("eval*.json"))) == 2


def test_equal_seeds_make_equal_runs_and_evaluations(cli: Cli, tmp_path: Path):
    said = [only_output(cli("train", "cartpole-ppo", *QUICK, "--json", "--out", tmp_path / str(i))) for i in range(2)]
    assert said[0]["weights_sha256"] == said[1]["weights_sha256"]
    scores = [only_output(cli("eval", each["run"], "--episodes", 4, "--json"))["returns"] for each in said]
    assert scores[0] == scores[1]


def test_two_runs_of_the_same_second(cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    class Frozen(datetime):
        @classmethod
        def now(cls, tz=None):
            return cls(2026, 1, 2, 3, 4, 5)

    monkeypatch.setattr("recollect.run.folder.datetime", Frozen)
    train = ("train", "cartpole-ppo", *QUICK, "--eval-episodes", 0, "--json", "--out", tmp_path)
    runs = [only_output(cli(*train))["run"] for _ in range(2)]
    assert [Path(run).name for run in runs] == [
        "CartPole-v1__cartpole-ppo__1__20260102-030405",
        "CartPole-v1__cartpole-ppo__1__20260102-030405-2",
    ]


def test_paths_with_spaces_and_letters_of_any_script(cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "my work").mkdir()
    monkeypatch.chdir(tmp_path / "my work")
    run = only_output(cli("train", "darkroom-ppo", *QUICK, "--json", "--out", "übung 練習"))["run"]
    assert Path(run).parent == Path("übung 練習")
    only_output(cli("eval", run, "--episodes", 2, "--json"))
    monkeypatch.chdir(tmp_path)
    run = Path("my work", run)
    assert "übung 練習" in done(cli("report", run)).out
    assert frames_of(Path(done(cli("watch", run)).out.strip()))
    only_output(cli("train", "--resume", run, "--total-timesteps", 2 * STEPS, "--json"))


# What a program reads


def test_list(cli: Cli):
    rows = only_output(cli("list", "--json"))
    assert [row["name"] for row in rows] == [row.name for row in ROWS]
    for row in rows:
        assert {"name", "env_id", "algorithm", "network", "reported", "measured"} <= row.keys()
        assert all(isinstance(value, str) for value in row.values())
    lines = done(cli("list")).out.splitlines()
    assert lines[0].split() == ["name", "env_id", "algorithm", "network", "reported", "measured"]
    assert [line.split()[0] for line in lines[1:]] == [row.name for row in ROWS]


def test_results_go_to_output_and_progress_to_error(cli: Cli, tmp_path: Path):
    said = done(cli("train", "cartpole-ppo", *QUICK, "--out", tmp_path))
    run = newest(tmp_path)
    assert said.out.splitlines()[0] == f"run: {run}"
    assert said.out.splitlines()[-1] == f"report: {run / 'report.html'}"
    assert "mean" in said.out
    assert f"{STEPS}/{STEPS} steps (100 %)" in said.err
    assert "run:" not in said.err


def test_a_number_that_json_does_not_know_is_null(cli: Cli, cartpole: Path, monkeypatch: pytest.MonkeyPatch):
    result = {"mean": float("nan"), "ci95": [float("-inf"), 1.0], "returns": (2.0,)}
    monkeypatch.setattr("recollect.cli.save_evaluation", lambda *_: result)
    monkeypatch.setattr("recollect.cli.sentence", lambda _: "")
    assert only_output(cli("eval", cartpole, "--json")) == {"mean": None, "ci95": [None, 1.0], "returns": [2.0]}


def test_of_a_flag_given_twice_the_last_one_counts(cli: Cli, tmp_path: Path):
    twice = ("--algo", "nothing", "--seed", 1, "--algo", "ppo", "--seed=2")
    run = only_output(cli("train", "cartpole-ppo", *QUICK, *twice, "--json", "--out", tmp_path))["run"]
    assert Path(run).name.startswith("CartPole-v1__cartpole-ppo__2__")


# Help


@pytest.mark.parametrize("verb", VERBS)
def test_every_verb_has_help(cli: Cli, verb: str):
    for flag in ("--help", "-h"):
        said = done(cli(verb, flag))
        assert said.out.startswith(f"usage: recollect {verb}")
        assert said.err == ""
        assert max(map(len, said.out.splitlines())) <= 100


FLAGS = {
    "train": [
        *("--env-id", "--seed", "--total-timesteps", "--num-envs", "--num-steps", "--learning-rate", "--gamma"),
        *("--gae-lambda", "--clip-coef", "--ent-coef", "--vf-coef", "--max-grad-norm", "--target-kl", "--track"),
        *("--capture-video", "--core", "--encoder", "--algo", "--resume", "--out", "--json"),
    ],
    "eval": ["--episodes", "--env-id", "--protocol", "--core", "--encoder", "--algo", "--json"],
    "watch": ["--out", "--seed", "--fps", "--max-steps", "--terminal", "--core"],
    "report": ["-o", "--out"],
    "list": ["--json"],
}


@pytest.mark.parametrize("verb", FLAGS)
def test_help_lists_the_flags(cli: Cli, verb: str):
    text = done(cli(verb, "--help")).out
    assert [flag for flag in FLAGS[verb] if flag not in text.replace(",", " ").split()] == []


def test_help_shows_the_defaults_of_the_experiment(cli: Cli):
    cartpole = " ".join(done(cli("train", "cartpole-ppo", "--help")).out.replace("│", " ").split())
    darkroom = " ".join(done(cli("train", "darkroom-ppo", "--help")).out.replace("│", " ").split())
    assert "defaults shown are those of cartpole-ppo" in cartpole
    assert "(default: CartPole-v1)" in cartpole
    assert "(default: 99840)" in cartpole
    assert "(default: recollect/DarkRoom-v0)" in darkroom
    assert "(default: 256)" in darkroom


def test_help_goes_before_complaints(cli: Cli, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("COLUMNS", "40")
    assert done(cli("train", "cartpole-ppo", "--gmma", 3, "--help")).out.startswith("usage: recollect train EXPERIMENT")
    assert max(map(len, done(cli("eval", "--help")).out.splitlines())) <= 56


def test_without_a_verb_there_is_an_overview(cli: Cli):
    for words in ((), ("--help",), ("help",)):
        text = done(cli(*words)).out
        assert [verb for verb in VERBS if f"recollect {verb}" not in text] == []
    assert done(cli("--version")).out.strip() == recollect.__version__


# Processes of their own


@pytest.mark.slow
def test_a_pipe_gets_plain_text(tmp_path: Path):
    said = done(shell("train", "darkroom-ppo", *QUICK, cwd=tmp_path, NO_COLOR="1", TERM="dumb", COLUMNS="40"))
    assert "\x1b" not in said.out + said.err
    assert "512/512 steps (100 %)" in said.err
    run = said.out.splitlines()[0].removeprefix("run: ")
    assert (tmp_path / run / "report.html").is_file()


@pytest.mark.slow
def test_an_output_that_lacks_a_letter_or_is_closed(tmp_path: Path):
    said = shell("train", "darkroom-ppo", *QUICK, "--out", "ü", cwd=tmp_path, PYTHONIOENCODING="ascii")
    assert done(said).out.startswith("run: \\xfc/recollect-DarkRoom-v0__")
    closed = ["sh", "-c", '"$0" -m recollect list >&-', sys.executable]
    ran = subprocess.run(closed, cwd=tmp_path, capture_output=True, text=True)
    assert (ran.returncode, ran.stderr) == (0, "")


@pytest.mark.slow
def test_at_a_terminal_progress_is_live_and_output_stays_clean(tmp_path: Path):
    master, slave = pty.openpty()
    command = [sys.executable, "-m", "recollect", "train", "darkroom-ppo", *map(str, QUICK), "--json"]
    with subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=slave, env=os.environ) as process:
        os.close(slave)
        assert process.stdout is not None
        out, seen = process.stdout.read().decode(), b""
        while True:
            try:
                seen += os.read(master, 65536)
            except OSError:  # the other end is closed
                break
    os.close(master)
    assert process.returncode == 0
    assert json.loads(out)["env_steps"] == STEPS
    assert "steps/s" in seen.decode()
    assert "Traceback" not in seen.decode()


@pytest.mark.slow
def test_a_reader_that_stops_reading_is_no_error(tmp_path: Path):
    for verb in (["list"], ["train", "--help"]):
        with subprocess.Popen(
            [sys.executable, "-m", "recollect", *verb], stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=tmp_path
        ) as process:
            assert process.stdout is not None
            assert process.stderr is not None
            process.stdout.close()
            assert process.stderr.read() == b""
        assert process.returncode == 0


@pytest.mark.slow
def test_ctrl_c_saves_and_says_how_to_go_on(tmp_path: Path):
    command = ["train", "cartpole-ppo", *map(str, QUICK), "--total-timesteps", "100000000", "--json"]
    process = subprocess.Popen(
        [sys.executable, "-m", "recollect", *command],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    deadline = time.monotonic() + 60
    while (
        not sum(path.stat().st_size for path in tmp_path.glob("runs/*/metrics.jsonl")) and time.monotonic() < deadline
    ):
        time.sleep(0.1)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "Traceback" not in err
    advice = err.splitlines()[-1]
    assert advice.startswith("stopped; go on with: recollect train --resume ")
    steps = json.loads(out.splitlines()[-1])["env_steps"]
    words = shlex.split(advice.partition("recollect ")[2])
    again = done(shell(*words, "--total-timesteps", steps + STEPS, "--json", cwd=tmp_path)).data
    assert again["env_steps"] == steps + STEPS


# From Python


def test_python_trains_and_evaluates(tmp_path: Path, capfd: pytest.CaptureFixture[str]):
    settings = {"num_envs": np.int64(8), "num_steps": 16, "total_timesteps": STEPS, "threads": 1, "hidden": [16]}
    trained = recollect.train("cartpole-ppo", **settings, out=str(tmp_path))
    assert trained["env_steps"] == STEPS
    scored = recollect.evaluate(trained["run"], episodes=4)
    assert len(scored["returns"]) == 4
    assert recollect.load(trained["run"]).config.net.hidden == (16,)
    assert capfd.readouterr() == ("", ""), "a library is quiet"


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"num_env": 3}, "unknown setting 'num_env'; did you mean 'num_envs'"),
        ({"num_envs": "8"}, "num_envs: expected a whole number, got '8'"),
        ({"num_envs": True}, "num_envs: expected a whole number, got True"),
        ({"gamma": 2}, "gamma must be in 0..1, got 2.0"),
        ({"hidden": 64}, "hidden: expected a list, got 64"),
        ({"precision": "fp16"}, "precision: 'fp16' is not one of 'fp32', 'bf16', 'auto'"),
        ({"seed": None}, "seed: expected a whole number, got None"),
    ],
)
def test_python_gets_the_same_words(tmp_path: Path, settings: dict, says: str):
    with pytest.raises(ValueError, match="(?s)" + says.replace(".", r"\.")):
        recollect.train("cartpole-ppo", out=tmp_path, **settings)
    assert list(tmp_path.iterdir()) == []


def test_an_agent_acts_on_one_observation_and_on_a_batch(cartpole: Path):
    player = recollect.load(cartpole)
    batch = np.random.default_rng(0).normal(size=(5, 4))  # float64, as numpy has it
    actions = player.act(batch)
    assert actions.shape == (5,)
    assert actions.dtype == np.int64
    player.reset()
    single = player.act(batch[0])
    assert single.shape == ()
    assert single == actions[0]


@pytest.fixture(scope="module")
def pendulum(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run with memory and real-valued actions, in which every difference shows."""
    settings = {"num_envs": 4, "num_steps": 8, "num_minibatches": 2, "total_timesteps": 64, "threads": 1}
    return Path(recollect.train("pendulum-ppo", core="gru", out=tmp_path_factory.mktemp("p"), **settings)["run"])


def test_an_agent_with_memory_remembers_until_it_is_reset(pendulum: Path):
    player = recollect.load(pendulum)
    first, second, third = np.random.default_rng(1).normal(size=(3, 3))
    story = [player.act(obs) for obs in (first, second, third)]
    assert [action.shape for action in story] == [(1,)] * 3
    player.reset()
    assert not np.array_equal(player.act(third), story[2]), "what it saw before matters"
    player.reset()
    again = [player.act(obs) for obs in (first, second, third)]
    assert all(np.array_equal(a, b) for a, b in zip(story, again, strict=True)), "after a reset nothing is left"


def test_a_batch_has_one_memory_each(pendulum: Path):
    stories = np.random.default_rng(2).normal(size=(4, 3, 3)).astype(np.float32)  # [steps, batch, observation]
    player = recollect.load(pendulum)
    together = np.stack([player.act(batch) for batch in stories])
    assert together.shape == (4, 3, 1)
    for i in range(3):
        player.reset()
        alone = np.stack([player.act(obs) for obs in stories[:, i]])
        np.testing.assert_allclose(alone, together[:, i], rtol=1e-5, atol=1e-6)


def test_an_agent_plays_the_game_it_was_trained_for(cartpole: Path):
    gymnasium = pytest.importorskip("gymnasium")
    env, player = gymnasium.make("CartPole-v1"), recollect.load(cartpole)
    obs, _ = env.reset(seed=0)
    for _ in range(10):
        obs, _, terminated, truncated, _ = env.step(player.act(obs).item())
        if terminated or truncated:
            player.reset()
            obs, _ = env.reset()


def test_a_folder_that_is_no_run_in_python(tmp_path: Path):
    with pytest.raises(ValueError, match="is not a run folder"):
        recollect.load(tmp_path)
