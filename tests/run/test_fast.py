"""Hot functions made fast: compiled or captured they say what the eager function says; without a compiler it runs."""

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
import torch
from small_runs import tiny
from torch import Tensor

from recollect import api
from recollect.algos import ppo
from recollect.algos.loss import Minibatch
from recollect.fast import can_compile, fast
from recollect.nets.agent import make_agent
from recollect.types import Discrete, TensorSpec


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
    from recollect import api
    sys.path.insert(0, sys.argv[2])
    import small_runs as here
    run, _ = api.start("cartpole-ppo", here.tiny(Path(sys.argv[1]), compile="on"), quiet=True)
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
