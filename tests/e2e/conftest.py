"""Commands in this process, and finished runs to try them on."""

from pathlib import Path

import pytest
from command_line import QUICK, Cli, in_process, newest

from recollect.cli import main


@pytest.fixture
def cli(capfd: pytest.CaptureFixture[str]) -> Cli:
    """Run a command in this process, which saves the seconds that importing torch takes."""
    return lambda *words: in_process(capfd, *words)


@pytest.fixture(scope="session")
def darkroom(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run on tensors, with memory. Tests that change it take a copy."""
    out = tmp_path_factory.mktemp("darkroom")
    assert main([str(word) for word in ("train", "darkroom-ppo", *QUICK, "--core", "gru", "--out", out)]) == 0
    return newest(out)


@pytest.fixture(scope="session")
def cartpole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run in Gymnasium, without memory."""
    out = tmp_path_factory.mktemp("cartpole")
    assert main([str(word) for word in ("train", "cartpole-ppo", *QUICK, "--out", out)]) == 0
    return newest(out)
