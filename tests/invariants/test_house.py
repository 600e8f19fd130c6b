"""How the house is built: imports point only upward, importing does nothing, nothing unpickles, files stay short."""

import ast
import json
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest

import recollect

PACKAGE = Path(recollect.__file__).parent
SOURCES = sorted(PACKAGE.rglob("*.py"))

# A module may import what stands before it, and its own part.
ORDER = (
    "types",
    "rng",
    "config",
    "nested",
    "fast",
    "ops",
    "envs",
    "nets",
    "data",
    "run",
    "algos",
    "report",
    "experiments",
    "api",
    "flags",
    "bench",
    "cli",
)
# Beyond the order: a report reads run folders and nothing else.
NEVER = {"report": {"envs", "nets", "data", "algos"}}
LONGEST_FILE, LONGEST_FUNCTION = 350, 60
LONGER_FILES = {"cli.py": 420}


def part_of(path: Path) -> str:
    """The part of the house that a file belongs to."""
    return path.relative_to(PACKAGE).with_suffix("").parts[0]


def imported(source: str, package: str) -> Iterator[str]:
    """Every module of ours that some source imports, inside functions too: ``recollect.envs.vector``.

    ``package``: the package of the file, for relative imports.
    """
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name.split(".")[0] == "recollect")
        if isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                parents = package.split(".")
                base = ".".join([*parents[: len(parents) - node.level + 1], *([base] if base else [])])
            if base.split(".")[0] == "recollect":
                yield from (f"{base}.{alias.name}" for alias in node.names)


def parts_imported(path: Path) -> set[str]:
    """Parts of the house, other than its own, that a file imports; ``__version__`` of the package is no part."""
    package = ".".join(("recollect", *path.relative_to(PACKAGE).parent.parts))
    names = {name.split(".")[1] for name in imported(path.read_text(), package) if "." in name}
    return names - {part_of(path), "__version__"}


ROOT = {"__init__", "__main__"}  # the door: it names the API and the command line, and nobody imports it


def complaints(part: str, imports: set[str]) -> list[str]:
    allowed = set(ORDER[: ORDER.index(part)]) - NEVER.get(part, set())
    return [f"{part} imports {name}" for name in sorted(imports - allowed)]


def test_every_file_has_its_place():
    assert {part_of(path) for path in SOURCES} <= {*ORDER, *ROOT}
    assert {"types", "envs", "run", "algos", "cli"} <= {part_of(path) for path in SOURCES}


@pytest.mark.parametrize("part", ORDER)
def test_imports_point_only_upward(part: str):
    found = [c for path in SOURCES if part_of(path) == part for c in complaints(part, parts_imported(path))]
    assert found == []


def test_the_check_sees_every_way_to_import():
    ways = [
        "import recollect.api",
        "from recollect import api",
        "from recollect.api import train",
        "def f():\n    from recollect import api as a",
        "from .. import api",
        "from ..api import train",
        "if 1:\n    import recollect.api as a",
    ]
    for way in ways:
        assert {name.split(".")[1] for name in imported(way, "recollect.run")} == {"api"}, way
    assert list(imported("import torch, recollection\nfrom . import x", "other")) == []
    assert complaints("run", {"api"}) == ["run imports api"]
    assert complaints("run", {"envs", "types"}) == []
    assert complaints("report", {"run", "envs"}) == ["report imports envs"]
    assert complaints("algos", {"report"}) == ["algos imports report"]


def test_the_door_imports_only_the_api_and_the_command_line():
    assert parts_imported(PACKAGE / "__init__.py") <= {"api"}
    assert parts_imported(PACKAGE / "__main__.py") <= {"cli"}


# Importing

WATCHED = textwrap.dedent("""
    import json, os, sys

    events = []

    def watch(event, args):
        writes = event == "open" and isinstance(args[2], int) and args[2] & (os.O_WRONLY | os.O_RDWR | os.O_CREAT)
        if writes and args[0] != os.devnull:
            events.append(f"writes {args[0]}")
        if event in ("os.mkdir", "os.rename", "os.remove", "subprocess.Popen", "os.system", "os.fork"):
            events.append(f"{event} {args}")
        if event.startswith("socket.") and event not in ("socket.gethostname", "socket.__new__"):
            events.append(f"{event} {args}")

    sys.addaudithook(watch)
    import importlib
    for name in sys.argv[1:]:
        importlib.import_module(name)
    print(json.dumps({"events": events, "modules": sorted(sys.modules)}))
""")


def what_happens(cwd: Path, *modules: str, path: Path | None = None) -> tuple[list[str], set[str]]:
    """What importing does, in a fresh interpreter that writes no bytecode and lives in an empty folder."""
    environment = {"HOME": str(cwd), "TMPDIR": str(cwd), "PATH": "/usr/bin:/bin", "OMP_NUM_THREADS": "1"}
    environment |= {"PYTHONPATH": str(path)} if path else {}
    command = [sys.executable, "-B", "-c", WATCHED, *modules]
    done = subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert list(cwd.iterdir()) == [], "a file was left behind"
    return found["events"], set(found["modules"])


def test_importing_recollect_is_light_and_does_nothing(tmp_path: Path):
    events, modules = what_happens(tmp_path, "recollect")
    assert events == []
    heavy = {"torch", "tyro", "scipy", "recollect.api", "recollect.cli", "recollect.envs"}
    assert heavy & modules == set()


def test_importing_any_part_does_nothing(tmp_path: Path):
    """No file, no folder, no process, no connection; what is optional is imported only when it is used."""
    optional = {"envs/atari.py", "envs/atari_base.py", "envs/atari_random_skip.py", "envs/envpool.py"}
    ours = [path.relative_to(PACKAGE) for path in SOURCES if path.name not in ("__init__.py", "__main__.py")]
    names = [".".join(("recollect", *path.with_suffix("").parts)) for path in ours if str(path) not in optional]
    assert len(names) > 40
    events, modules = what_happens(tmp_path, *names)
    assert events == []
    assert not {"ale_py", "envpool", "wandb", "stable_baselines3", "matplotlib", "pygame"} & modules


def test_the_watch_sees_what_an_import_does(tmp_path: Path):
    code = "import os, socket, sys\nopen(os.devnull, 'w')\nopen('left', 'w').close()\nos.remove('left')\n"
    code += "socket.socket().connect_ex(('127.0.0.1', 9))\n"
    (tmp_path / "modules").mkdir()
    (tmp_path / "modules" / "careless.py").write_text(code)
    (tmp_path / "cwd").mkdir()
    events, _ = what_happens(tmp_path / "cwd", "careless", path=tmp_path / "modules")
    assert [event.split()[0] for event in events] == ["writes", "os.remove", "socket.connect"]


# Nothing runs that a file on the disk brought along

RUNS_CODE = {"pickle", "cPickle", "dill", "cloudpickle", "joblib", "shelve", "marshal", "jsonpickle"}
CALLS = {"eval", "exec", "torch.load", "torch.save", "yaml.load", "yaml.full_load", "yaml.unsafe_load", "numpy.load"}
CALLS |= {"np.load"}


def dotted(node: ast.expr) -> str:
    if isinstance(node, ast.Attribute):
        return f"{dotted(node.value)}.{node.attr}"
    return node.id if isinstance(node, ast.Name) else "?"


def dangers(source: str) -> list[str]:
    """Every import or call by which loading data could run code."""
    found = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import | ast.ImportFrom):
            named = [node.module or ""] if isinstance(node, ast.ImportFrom) else [alias.name for alias in node.names]
            found += [name for name in named if name.split(".")[0] in RUNS_CODE]
            if isinstance(node, ast.ImportFrom):
                found += [f"{node.module}.{a.name}" for a in node.names if f"{node.module}.{a.name}" in CALLS]
        if isinstance(node, ast.Call) and dotted(node.func) in CALLS:
            found.append(dotted(node.func))
    return found


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_nothing_is_unpickled_or_evaluated(path: Path):
    assert dangers(path.read_text()) == []
    assert ".pickle" not in path.read_text()


def test_the_check_sees_what_runs_code():
    for source in ("import pickle", "from dill import loads", "torch.load(f)", "from torch import load", "eval('1')"):
        assert len(dangers(source)) == 1, source
    assert dangers("agent.eval()\nyaml.safe_load(t)\nload(path)") == []


# Size


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_files_and_functions_fit_a_reader(path: Path):
    text = path.read_text()
    assert len(text.splitlines()) <= LONGER_FILES.get(str(path.relative_to(PACKAGE)), LONGEST_FILE)
    long = [
        f"{node.name}: {node.end_lineno - node.lineno + 1} lines"
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and (node.end_lineno or 0) - node.lineno + 1 > LONGEST_FUNCTION
    ]
    assert long == []
