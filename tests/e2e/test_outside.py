"""Code of one's own, from a folder outside the repository: exactly the code that the pages in docs/ show."""

import re
import sys
from pathlib import Path

import pytest
import torch
from command_line import QUICK, Cli, done, newest, refused, shell

import recollect
from recollect.config import load_external
from recollect.envs.gymnasium import GymnasiumEnv
from recollect.nets.config import NetConfig
from recollect.run.metrics import read_rows

DOCS = Path(__file__).parents[2] / "docs"
sys.path.append(str(Path(__file__).parents[1] / "envs"))

from contract import check_contract  # noqa: E402 - the environments' own tests lie beside ours


def blocks(page: str) -> dict[str, str]:
    """The files that a page shows: each block of Python begins with its name."""
    found = re.findall(r"^```python\n# (\S+)\n(.*?)^```$", (DOCS / page).read_text(), re.DOTALL | re.MULTILINE)
    assert len(found) == (DOCS / page).read_text().count("```python")
    return dict(found)


def commands(page: str) -> list[str]:
    """The lines that a page tells one to type."""
    return re.findall(r"^recollect .*$", (DOCS / page).read_text(), re.MULTILINE)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder outside the repository, with a space in its name."""
    folder = tmp_path / "my work"
    folder.mkdir()
    return folder


def place(page: str, folder: Path) -> None:
    for name, code in blocks(page).items():
        (folder / name).write_text(code)


def whole_way(cli: Cli, page: str, folder: Path, *flags: str, quick: tuple = QUICK) -> Path:
    """Train, evaluate and go on with the flags that ``page`` gives; without them nothing of ours is loaded. The run."""
    words = " ".join(flags)
    for verb in ("train cartpole-ppo", "eval runs/", "train --resume runs/"):
        assert any(line.startswith(f"recollect {verb}") and words in line for line in commands(page)), verb
    place(page, folder)
    trained = done(shell("train", "cartpole-ppo", *quick, *flags, "--json", cwd=folder)).data
    run = folder / trained["run"]
    assert trained["env_steps"] == 512
    said = refused(cli("eval", run, "--episodes", 2), "code from outside the package")
    assert said.endswith(f"give {' '.join(flags[:2])}")
    scored = done(shell("eval", run, "--episodes", 2, *flags, "--json", cwd=folder)).data
    assert len(scored["returns"]) == 2
    assert [path.name for path in run.glob("eval*")] == ["eval.json"], "its own environment is no other one"
    there = [flag if flag.startswith("--") else f"my work/{flag}" for flag in flags]
    again = shell("train", "--resume", run, *there, "--total-timesteps", 1024, "--json", cwd=folder.parent)
    assert done(again).data["env_steps"] == 1024
    errors = [row["parity/max_ratio_error"] for row in read_rows(run / "metrics.jsonl")]
    assert len(errors) == 8
    assert max(errors) < 1e-4, "acting and learning compute the same thing"
    return run


@pytest.mark.slow
def test_a_network_of_ones_own(cli: Cli, folder: Path):
    run = whole_way(cli, "add-a-network.md", folder, "--core", "mine.py:MyCore", "--encoder", "mine.py:MyEncoder")
    assert "core: my work/mine.py:MyCore" in (run / "config.yaml").read_text(), "where the last command found it"


@pytest.mark.slow
def test_an_encoder_of_frames_of_ones_own(cli: Cli, folder: Path):
    """With and without differences, which it gets for nothing."""
    pong = ("--env-id", "recollect/Pong-v0", "--env-options", "obs=binary", "max_episode_steps=40")
    page, flags = "encoders.md", ("--encoder", "mine.py:RowsAndColumns")
    whole_way(cli, page, folder, *flags, quick=(*QUICK, *pong))
    done(shell("train", "cartpole-ppo", *QUICK, *pong, *flags, "--difference", cwd=folder))
    said = refused(cli("train", "cartpole-ppo", *QUICK, "--encoder", f"{folder / 'mine.py'}:RowsAndColumns"))
    assert said.endswith("encoder 'RowsAndColumns' reads 'frame', but the observation has vector")


@pytest.mark.slow
def test_a_gymnasium_environment_of_ones_own(cli: Cli, folder: Path, monkeypatch: pytest.MonkeyPatch):
    page, flags = "add-an-environment.md", ("--env-id", "mine.py:Recall")
    run = whole_way(cli, page, folder, *flags)
    assert run.name.startswith("mine__cartpole-ppo__1__")
    assert any(line.startswith("recollect watch") and " ".join(flags) in line for line in commands(page))
    monkeypatch.chdir(folder)
    assert Path(done(cli("watch", run, *flags)).out.strip()).stat().st_size > 0


@pytest.mark.slow
def test_an_environment_of_ones_own_on_tensors(cli: Cli, folder: Path, monkeypatch: pytest.MonkeyPatch):
    page, flag = "add-an-environment.md", ("--env-id", "mine_tensor.py:Recall")
    place(page, folder)
    words = "--env-id mine_tensor.py:Recall --core gru --num-envs 64 --env-options delay=8"
    assert any(words in line for line in commands(page))
    done(shell("train", "cartpole-ppo", *QUICK, *words.split(), "--num-envs", 8, cwd=folder))
    run = newest(folder / "runs")
    assert "delay 8" in (run / "card.json").read_text()
    refused(cli("eval", run), "--env-id mine_tensor.py:Recall")
    monkeypatch.chdir(folder)
    done(cli("eval", run, *flag, "--episodes", 2))
    again = cli("train", "--resume", run, *flag, "--total-timesteps", 1024, "--json")
    assert done(again).data["env_steps"] == 1024


@pytest.mark.slow
def test_an_algorithm_of_ones_own(cli: Cli, folder: Path):
    quick = ("--num-envs", 8, "--num-steps", 16, "--total-timesteps", 512, "--threads", 1, "--eval-episodes", 4)
    run = whole_way(cli, "add-an-algorithm.md", folder, "--algo", "mine.py", quick=quick)
    assert "learning_rate: 0.001\n" in (run / "config.yaml").read_text(), "the experiment's, not the Config's default"
    assert "clip_coef" not in (run / "config.yaml").read_text()


def test_the_help_of_an_algorithm_shows_its_own_flags(cli: Cli, tmp_path: Path):
    place("add-an-algorithm.md", tmp_path)
    text = done(cli("train", "cartpole-ppo", "--algo", tmp_path / "mine.py", "--help")).out
    assert "--ent-coef" in text
    assert "Weight of the entropy bonus." in text
    assert "--clip-coef" not in text


@pytest.mark.slow
def test_the_algorithm_learns(tmp_path: Path):
    place("add-an-algorithm.md", tmp_path)
    settings = {"total_timesteps": 30_000, "threads": 1, "num_steps": 16, "env_options": ("max_episode_steps=100",)}
    trained = recollect.train("cartpole-ppo", algo=str(tmp_path / "mine.py"), out=tmp_path, **settings)
    assert trained["mean_return"] > 60, "at random it falls after about 22 steps"


@torch.no_grad()
def test_the_core_keeps_the_contract(tmp_path: Path):
    place("add-a-network.md", tmp_path)
    core = load_external(f"{tmp_path / 'mine.py'}:MyCore")(6, NetConfig(core_width=5))
    stream = torch.Generator().manual_seed(0)
    x_TND, reset_TN = torch.randn(9, 4, 6, generator=stream), torch.rand(9, 4, generator=stream) < 0.3
    fresh, state = core.initial_state(4, torch.device("cpu")), {"memory": torch.randn(4, 5, generator=stream)}
    always_N = torch.ones(4, dtype=torch.bool)
    torch.testing.assert_close(core.step(x_TND[0], state, always_N), core.step(x_TND[0], fresh, ~always_N))
    segment_TND = core(x_TND, state, reset_TN)
    for x_ND, reset_N, y_ND in zip(x_TND, reset_TN, segment_TND, strict=True):
        stepped_ND, state = core.step(x_ND, state, reset_N)
        torch.testing.assert_close(stepped_ND, y_ND)


@pytest.mark.parametrize("delay", [0, 4])
def test_the_environments_keep_the_contract(tmp_path: Path, delay: int):
    place("add-an-environment.md", tmp_path)
    plain, tensors = (load_external(f"{tmp_path / name}.py:Recall") for name in ("mine", "mine_tensor"))
    check_contract(lambda num_envs, first: tensors(num_envs, first_env=first, delay=delay), steps=60)
    check_contract(
        lambda num_envs, first: GymnasiumEnv("Recall", lambda: plain(delay=delay), num_envs, first_env=first), steps=60
    )


def test_an_environment_of_an_installed_package(cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    register = "\nfrom gymnasium.envs.registration import register\n\nregister('Recall-v0', entry_point=Recall)\n"
    (tmp_path / "recall_package.py").write_text(blocks("add-an-environment.md")["mine.py"] + register)
    monkeypatch.syspath_prepend(tmp_path)
    flag = ("--env-id", "recall_package:Recall-v0")
    done(cli("train", "cartpole-ppo", *QUICK, *flag, "--out", tmp_path / "runs"))
    run = newest(tmp_path / "runs")
    refused(cli("eval", run, "--episodes", 2), "code from outside the package", " ".join(flag))
    done(cli("eval", run, "--episodes", 2, *flag))


def test_a_file_beside_ones_own_can_be_imported(tmp_path: Path):
    (tmp_path / "beside_mine.py").write_text("value = 7\n")
    (tmp_path / "mine.py").write_text("from beside_mine import value\n")
    assert load_external(f"{tmp_path / 'mine.py'}:value") == 7


def test_files_of_one_name_in_two_folders_are_two(tmp_path: Path):
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "mine.py").write_text(f"class {name.upper()}:\n    pass\n")
    found = [load_external(f"{tmp_path / name}/mine.py:{name.upper()}") for name in ("a", "b")]
    assert [sys.modules[each.__module__].__file__ for each in found] == [f"{tmp_path}/{n}/mine.py" for n in "ab"]


def test_a_file_is_imported_once(tmp_path: Path):
    (tmp_path / "mine.py").write_text("class Core:\n    pass\n")
    spec = f"{tmp_path / 'mine.py'}:Core"
    assert load_external(spec) is load_external(spec), "two copies of a class would not be equal"
