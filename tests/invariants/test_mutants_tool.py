"""The mutant tool, on a module of two functions of which its tests see one."""

import subprocess
import sys
from pathlib import Path

import pytest

TESTS = Path(__file__).resolve().parents[1]

MODULE = '''"""A docstring."""

import torch


def seen(x: float = 1) -> float:
    """Twice x."""
    assert x > -100
    return x + x


def unseen(x):
    return x * 3
'''
TEST = """
import tiny

def test_seen():
    assert tiny.seen(2) == 4
    assert tiny.seen() == 2
"""
LINE = "tiny.py : unseen : return x * 3"
UNNOTICED = ("x * 3 -> -(x * 3)", "x * 3 -> x / 3", "x * 3 -> x", "x * 3 -> 3", "3 -> 4")
SURVIVORS = [f"{LINE} : {edit}" for edit in UNNOTICED]

SCRIPT = """
import sys
import mutants
from pathlib import Path

root, target = Path(sys.argv[1]), mutants.Target("tiny.py", "test_tiny.py")
for listed in sorted(root.glob("list*.txt")):
    (root / mutants.EQUIVALENT).write_text(listed.read_text())
    print("RUN", flush=True)
    print("exit", mutants.main([], root, [target]), flush=True)
print("hung:", mutants.trials(["while True: pass"], target, root, jobs=1, limit_s=1, logs=sys.argv[1]))
(root / "test_tiny.py").write_text("def test_broken(): assert False, 'broken before any mutant'")
mutants.main([], root, [target])
"""


def entries(*keys: str) -> str:
    return "# a comment\n" + "".join(f"{key}\n    because nobody looks\n" for key in keys)


def test_mutants_die_survive_are_excused_and_hang(tmp_path: Path):
    (tmp_path / "tests").mkdir()
    (tmp_path / "tiny.py").write_text(MODULE)
    (tmp_path / "test_tiny.py").write_text(TEST)
    killed, gone = "tiny.py : seen : return x + x : x + x -> x - x", f"{LINE} : x * 3 -> x * 5"
    (tmp_path / "list1.txt").write_text(entries(killed, gone))
    (tmp_path / "list2.txt").write_text(entries(*SURVIVORS))

    command = [sys.executable, "-c", SCRIPT, str(tmp_path)]
    ran = subprocess.run(command, cwd=TESTS, capture_output=True, text=True, timeout=120, check=False)

    _, wrong, right = ran.stdout.split("RUN")
    assert [line.removeprefix("survived: ") for line in wrong.splitlines() if "survived: " in line] == SURVIVORS
    assert f"listed as equivalent, but killed: {killed}" in wrong
    assert f"listed as equivalent, but no longer generated: {gone}" in wrong
    assert "10 generated, 5 killed (0 by the time limit), 0 equivalent, 7 to settle" in wrong
    assert "exit 1" in wrong
    assert "10 generated, 5 killed (0 by the time limit), 5 equivalent, 0 to settle" in right
    assert "exit 0" in right
    assert "hung: [None]" in right
    assert "test_tiny.py does not pass as it is" in ran.stderr
    assert "broken before any mutant" in ran.stderr


def edits(source: str, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The edits of a module's source, without the rest of their keys."""
    monkeypatch.syspath_prepend(TESTS)
    import mutants

    return [mutant.key.split(" : ")[-1] for mutant in mutants.mutants(source, mutants.Target("m.py", "test_m.py"))]


@pytest.mark.parametrize(
    ("code", "edit"),
    [
        ("a + b", "a + b -> a - b"),
        ("a**b", "a ** b -> a * b"),
        ("a & b", "a & b -> a | b"),
        ("a < b", "a < b -> a <= b"),
        ("a < b", "a < b -> a >= b"),
        ("a == 'x'", "'x' -> 'x_other'"),
        ("a or b", "a or b -> a and b"),
        ("~a", "~a -> a"),
        ("-a", "-a -> a"),
        ("a", "a -> -a"),
        ("a[1:]", "1: -> :"),
        ("a[1:]", "1 -> 0"),
        ("a.sum(-1)", "-1 -> 0"),
        ("a.sum(-1)", "-1 -> -2"),
        ("a.sum(-1)", "-1 -> 1"),
        ("a.sum(-1)", "a.sum(-1) -> a.sum()"),
        ("a.std(correction=0)", "a.std(correction=0) -> a.std()"),
        ("a.exp()", "a.exp() -> a"),
        ("a.log_softmax(-1)", "a.log_softmax(-1) -> a.softmax(-1)"),
        ("torch.minimum(a, b)", "torch.minimum(a, b) -> torch.maximum(a, b)"),
        ("torch.minimum(a, b)", "torch.minimum(a, b) -> a"),
        ("torch.where(a, b, c)", "torch.where(a, b, c) -> torch.where(a, c, b)"),
        ("a.clamp(b, c)", "a.clamp(b, c) -> a.clamp(None, c)"),
        ("a.clamp_min(b)", "a.clamp_min(b) -> a.clamp_max(b)"),
        ("reversed(range(a))", "reversed(range(a)) -> range(a)"),
        ("a if b else c", "a if b else c -> c"),
    ],
)
def test_edits(code: str, edit: str, monkeypatch: pytest.MonkeyPatch):
    assert edit in edits(f"def f(a, b, c):\n    return {code}\n", monkeypatch)


def test_statements_are_edited_too(monkeypatch: pytest.MonkeyPatch):
    assert edits("def f(a):\n    raise ValueError(a + 1)", monkeypatch) == ["raise ValueError(a + 1) -> pass"]
    assert edits("def f(a):\n    a -= b", monkeypatch) == ["a -= b -> a += b"]
    assert edits("def f(a):\n    if a:\n        pass", monkeypatch) == ["if a: -> if not a:"]


def test_what_states_no_behaviour_is_left_alone(monkeypatch: pytest.MonkeyPatch):
    source = '"""Text."""\nimport m\n\n\n@m.d(1)\ndef f(a: "int") -> "int":\n    """Text."""\n    assert a + 1 < 2\n'
    assert edits(source, monkeypatch) == []


def test_keys_survive_moved_lines(monkeypatch: pytest.MonkeyPatch):
    source = "def f(a):\n    return a + 1\n"
    monkeypatch.syspath_prepend(TESTS)
    import mutants

    target = mutants.Target("m.py", "test_m.py")
    assert [m.key for m in mutants.mutants("import m\n\n\n" + source, target)] == [
        m.key for m in mutants.mutants(source, target)
    ]
