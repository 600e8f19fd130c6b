"""Would a test notice? Breaks the pure functions one small edit at a time and runs their tests on each broken copy.

``python tests/mutants.py`` mutates every module of ``recollect/ops`` (and what ``ALSO`` names). A mutant *dies* when
its module's tests fail, crash or exceed the time limit. One that lives is either a gap in the tests, or changes
nothing that a test could see: the latter is listed, with its reason, in ``tests/mutants_equivalent.txt``.

Exit status 0 means: every mutant is dead or listed, and every listed one still exists and still lives.
Not mutated: asserts (internal shapes), docstrings, annotations, imports, the wording of errors.
"""

import argparse
import ast
import copy
import gc
import importlib.abc
import importlib.util
import multiprocessing
import multiprocessing.connection
import os
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.machinery import ModuleSpec
from pathlib import Path

# Imported once here, so that each forked child starts with them in memory; the code under test is never imported here.
import hypothesis  # noqa: F401
import pytest
import torch

ROOT = Path(__file__).resolve().parents[1]
EQUIVALENT = "tests/mutants_equivalent.txt"
FORK = multiprocessing.get_context("fork")
UNNOTICED = (pytest.ExitCode.OK, pytest.ExitCode.USAGE_ERROR, pytest.ExitCode.NO_TESTS_COLLECTED)


@dataclass(frozen=True)
class Target:
    """A module, the tests (a file or a folder) that must notice, and which of its functions to break (all if empty).

    A class stands for all its methods, ``Class.method`` for one.
    """

    module: str
    tests: str
    functions: tuple[str, ...] = ()


ALSO: tuple[Target, ...] = (
    Target("recollect/nets/attention.py", "tests/nets/test_attention.py", ("visible", "cached_episode")),
    Target("recollect/nets/agent.py", "tests/nets/test_agent.py", ("Agent.peek",)),
)
"""Targets beside ``recollect/ops``, each of whose modules has ``tests/ops/test_<module>.py``."""


@dataclass(frozen=True)
class Mutant:
    """One edit of one module. ``key`` survives moved lines: file : function : text of the line : edit."""

    key: str
    source: str


@dataclass
class Tally:
    """What became of one target's mutants."""

    module: str
    killed: int = 0
    timed_out: int = 0  # of those killed
    equivalent: int = 0
    survived: int = 0
    seconds: float = 0.0

    @property
    def generated(self) -> int:
        return self.killed + self.equivalent + self.survived


# --- Edits: what may stand in a node's place -------------------------------------------------------------------------

OPERATORS = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Div,
    ast.Div: ast.Mult,
    ast.FloorDiv: ast.Mult,
    ast.Mod: ast.Mult,
    ast.Pow: ast.Mult,
    ast.BitAnd: ast.BitOr,
    ast.BitOr: ast.BitAnd,
}
COMPARISONS = {  # its neighbour at the boundary, and its opposite
    ast.Lt: (ast.LtE, ast.GtE),
    ast.LtE: (ast.Lt, ast.Gt),
    ast.Gt: (ast.GtE, ast.LtE),
    ast.GtE: (ast.Gt, ast.Lt),
    ast.Eq: (ast.NotEq,),
    ast.NotEq: (ast.Eq,),
    ast.Is: (ast.IsNot,),
    ast.IsNot: (ast.Is,),
    ast.In: (ast.NotIn,),
    ast.NotIn: (ast.In,),
}
PAIRS = """minimum maximum, min max, clamp_min clamp_max, amin amax, argmin argmax, zeros ones, zeros_like ones_like,
    softmax log_softmax, sum mean, std var, any all, tril triu, cos sin"""
RENAMED = {a: b for pair in PAIRS.split(",") for a, b in (pair.split(), pair.split()[::-1])}
SYMMETRIC = {"min", "max", "minimum", "maximum"}  # the order of their arguments means nothing
CHOICES = SYMMETRIC | {"where"}  # they return one of their arguments
LIBRARIES = {"torch", "math", "nn", "F"}  # torch.f(x) is a function of x, x.f() a method


def edited(node: ast.AST, **fields: object) -> ast.AST:
    """A shallow copy with some fields changed."""
    new = copy.copy(node)
    for name, value in fields.items():
        setattr(new, name, value)
    return new


def negated(node: ast.expr) -> ast.expr:
    return ast.UnaryOp(ast.USub(), node)


def binary(node: ast.BinOp) -> Iterator[ast.AST]:
    """Another operator, or one side alone."""
    if type(node.op) in OPERATORS:
        yield edited(node, op=OPERATORS[type(node.op)]())
    yield node.left
    yield node.right


def augmented(node: ast.AugAssign) -> Iterator[ast.AST]:
    if type(node.op) in OPERATORS:
        yield edited(node, op=OPERATORS[type(node.op)]())


def boolean(node: ast.BoolOp) -> Iterator[ast.AST]:
    """The other connective, or one condition alone."""
    yield edited(node, op=ast.Or() if isinstance(node.op, ast.And) else ast.And())
    yield from node.values


def comparison(node: ast.Compare) -> Iterator[ast.AST]:
    for i, op in enumerate(node.ops):
        for other in COMPARISONS[type(op)]:
            yield edited(node, ops=[*node.ops[:i], other(), *node.ops[i + 1 :]])


def unary(node: ast.UnaryOp) -> Iterator[ast.AST]:
    """The sign or negation removed; a negative number moves by one either way."""
    yield node.operand
    if is_number(node):
        number = ast.literal_eval(node)
        yield ast.Constant(number + 1)
        yield negated(ast.Constant(1 - number))


def constant(node: ast.Constant) -> Iterator[ast.AST]:
    if isinstance(node.value, bool):
        yield ast.Constant(not node.value)
    elif isinstance(node.value, int | float):
        yield ast.Constant(node.value + 1)
        if node.value == 1:
            yield ast.Constant(type(node.value)(0))
    elif isinstance(node.value, str):
        yield ast.Constant(node.value + "_other")


def call(node: ast.Call) -> Iterator[ast.AST]:
    """Another function of the same kind, no function at all, fewer arguments, arguments in another order."""
    name = called(node)
    if name in RENAMED:
        field = "attr" if isinstance(node.func, ast.Attribute) else "id"
        yield edited(node, func=edited(node.func, **{field: RENAMED[name]}))
    if isinstance(node.func, ast.Attribute) and ast.unparse(node.func.value) not in LIBRARIES:
        yield node.func.value  # x.exp() -> x
    elif name in CHOICES:
        yield from node.args
    elif len(node.args) == 1:
        yield node.args[0]  # reversed(x) -> x
    for i, argument in enumerate(node.args):
        before, after = node.args[:i], node.args[i + 1 :]
        if name == "clamp":
            yield edited(node, args=[*before, ast.Constant(None), *after])
        elif is_number(argument):
            yield edited(node, args=[*before, *after])  # x.sum(-1) -> x.sum()
        if after and name not in SYMMETRIC:
            yield edited(node, args=[*before, after[0], argument, *after[1:]])
    for i in range(len(node.keywords)):
        yield edited(node, keywords=node.keywords[:i] + node.keywords[i + 1 :])


def slice_bounds(node: ast.Slice) -> Iterator[ast.AST]:
    for bound in ("lower", "upper", "step"):
        if getattr(node, bound) is not None:
            yield edited(node, **{bound: None})


def choice(node: ast.IfExp) -> Iterator[ast.AST]:
    yield node.body
    yield node.orelse


def condition(node: ast.If) -> Iterator[ast.AST]:
    """``if flag`` inverted. A comparison is inverted where it stands."""
    if not isinstance(node.test, ast.Compare | ast.BoolOp):
        yield edited(node, test=ast.UnaryOp(ast.Not(), node.test))


def result(node: ast.Assign | ast.Return) -> Iterator[ast.AST]:
    """What is kept or returned changes its sign; a sign or a number already there is edited where it stands."""
    if node.value is not None and not isinstance(node.value, ast.UnaryOp | ast.Constant | ast.Tuple):
        yield edited(node, value=negated(node.value))


def raised(node: ast.Raise) -> Iterator[ast.AST]:
    yield ast.Pass()


EDITS = {
    ast.BinOp: binary,
    ast.AugAssign: augmented,
    ast.BoolOp: boolean,
    ast.Compare: comparison,
    ast.UnaryOp: unary,
    ast.Constant: constant,
    ast.Call: call,
    ast.Slice: slice_bounds,
    ast.IfExp: choice,
    ast.If: condition,
    ast.Assign: result,
    ast.Return: result,
    ast.Raise: raised,
}


def called(node: ast.Call) -> str:
    """The last part of the name: ``where`` of ``torch.where``."""
    return ast.unparse(node.func).rpartition(".")[2]


def is_number(node: ast.AST) -> bool:
    """A number as written, its sign included."""
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        node = node.operand
    return isinstance(node, ast.Constant) and type(node.value) in (int, float)


# --- Mutants: every edit of every node -------------------------------------------------------------------------------


@dataclass(frozen=True)
class Site:
    """A node and the place that holds it, so that another can stand there for a moment."""

    node: ast.AST
    parent: ast.AST
    field: str
    index: int | None
    function: str
    line: int

    def put(self, node: ast.AST) -> None:
        if self.index is None:
            setattr(self.parent, self.field, node)
        else:
            getattr(self.parent, self.field)[self.index] = node


def sites(parent: ast.AST, function: str = "", line: int = 0) -> Iterator[Site]:
    """Every node below ``parent`` that may be edited."""
    for field, value in ast.iter_fields(parent):
        if field in ("annotation", "returns", "decorator_list", "ctx"):
            continue
        for index, node in enumerate(value) if isinstance(value, list) else ((None, value),):
            docstring = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
            spared = isinstance(node, ast.Assert | ast.Import | ast.ImportFrom | ast.JoinedStr)
            if not isinstance(node, ast.AST) or docstring or spared:
                continue
            at = getattr(node, "lineno", line)
            yield Site(node, parent, field, index, function, at)
            if isinstance(node, ast.FunctionDef | ast.ClassDef):
                yield from sites(node, f"{function}.{node.name}".lstrip("."), at)
            elif not isinstance(node, ast.Raise) and not is_number(node):
                yield from sites(node, function, at)


def mutants(source: str, target: Target) -> list[Mutant]:
    """Every distinct edit of a module, in the order of its lines."""
    tree, lines = ast.parse(source), source.splitlines()
    seen, keys, found = {ast.unparse(tree)}, Counter[str](), []
    for site in list(sites(tree)):
        if target.functions and not f"{site.function}.".startswith(tuple(f"{name}." for name in target.functions)):
            continue
        for new in EDITS.get(type(site.node), lambda node: ())(site.node):
            site.put(new)
            mutated = ast.unparse(tree)
            site.put(site.node)
            if mutated in seen:
                continue
            seen.add(mutated)
            edit = f"{brief(site.node)} -> {brief(new)}"
            key = f"{target.module} : {site.function or '(module)'} : {lines[site.line - 1].strip()} : {edit}"
            keys[key] += 1
            found.append(Mutant(key if keys[key] == 1 else f"{key} ({keys[key]})", mutated))
    return found


def brief(node: ast.AST) -> str:
    """A node on one line: the value of an assignment or a return, the head of a compound statement."""
    shown = node.value if isinstance(node, ast.Assign | ast.Return) and node.value else node
    return ast.unparse(shown).splitlines()[0]


# --- Trials: one forked child a mutant -------------------------------------------------------------------------------


class Finder(importlib.abc.MetaPathFinder, importlib.abc.InspectLoader):
    """Hands out ``source`` in place of one module, to whoever imports it."""

    def __init__(self, name: str, source: str, path: Path):
        self.name, self.source, self.path = name, source, path

    def find_spec(self, fullname: str, path: object, target: object = None) -> ModuleSpec | None:
        if fullname == self.name:
            return importlib.util.spec_from_loader(fullname, self, origin=str(self.path))
        return None

    def get_source(self, fullname: str) -> str:
        return self.source


def prepare() -> None:
    """What every child inherits, paid for once."""
    torch.set_num_threads(1)  # the mutants share the cores, not the operations
    torch.testing.assert_close(torch.ones(1), torch.ones(1))  # imports sympy on its first call
    gc.freeze()  # so that no child walks, and thereby copies, all that the parent imported


def run_tests(source: str, target: Target, root: Path, log: str) -> None:
    """In the child: the target's tests against ``source``; the exit status is pytest's."""
    output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(output, 1)
    os.dup2(output, 2)
    os.chdir(root)
    sys.path.insert(0, str(root))
    name = target.module.removesuffix(".py").replace("/", ".")
    sys.meta_path.insert(0, Finder(name, source, root / target.module))
    # No plugins and no addopts: neither is needed to fail, and each would cost every mutant its start-up.
    os.environ["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"
    options = ["-x", "-q", "--tb=short", "--assert=plain", "-p", "no:cacheprovider", "-o", "addopts="]
    status = pytest.main([target.tests, f"--rootdir={root}", *options])
    sys.stdout.flush()
    os._exit(int(status))


def trials(sources: list[str], target: Target, root: Path, jobs: int, limit_s: float, logs: str) -> list[int | None]:
    """Run the target's tests on each source, ``jobs`` at a time: pytest's exit statuses, None where time ran out."""
    statuses: list[int | None] = [None] * len(sources)
    waiting, running = list(enumerate(sources))[::-1], {}
    while waiting or running:
        while waiting and len(running) < jobs:
            i, source = waiting.pop()
            child = FORK.Process(target=run_tests, args=(source, target, root, f"{logs}/{i}"))
            child.start()
            running[i] = child, time.monotonic() + limit_s
        multiprocessing.connection.wait([child.sentinel for child, _ in running.values()], timeout=1)
        for i, (child, deadline) in list(running.items()):
            if child.exitcode is None and time.monotonic() < deadline:
                continue
            statuses[i] = child.exitcode
            if child.exitcode is None:
                child.kill()
            child.join()
            del running[i]
    return statuses


def try_mutants(found: list[Mutant], target: Target, root: Path, jobs: int) -> list[int | None]:
    """First the untouched module, whose tests must pass, then each mutant."""
    plain = ast.unparse(ast.parse((root / target.module).read_text()))
    with tempfile.TemporaryDirectory() as logs:
        start = time.monotonic()
        if trials([plain], target, root, 1, 300, logs) != [pytest.ExitCode.OK]:
            raise SystemExit(f"{target.tests} does not pass as it is:\n{Path(logs, '0').read_text()}")
        # Ten times what the untouched module takes: even on a busy machine only a mutant that hangs is that slow.
        limit_s = max(30.0, 10 * (time.monotonic() - start))
        return trials([mutant.source for mutant in found], target, root, jobs, limit_s, logs)


# --- The verdict -----------------------------------------------------------------------------------------------------


def read_equivalent(path: Path) -> dict[str, str]:
    """``{key: reason}``: a key stands alone on its line, its reason on the indented lines below it."""
    reasons: dict[str, str] = {}
    key = ""
    for line in path.read_text().splitlines() if path.exists() else ():
        if line.startswith(" ") and key:
            reasons[key] = f"{reasons[key]} {line.strip()}".strip()
        elif line and not line.startswith("#"):
            key = line.rstrip()
            if key in reasons:
                raise SystemExit(f"{path} lists this twice: {key}")
            reasons[key] = ""
    if unexplained := [key for key, reason in reasons.items() if not reason]:
        raise SystemExit(f"{path} gives no reason for: {unexplained[0]}")
    return reasons


def default_targets(root: Path) -> list[Target]:
    """Every module of ``recollect/ops`` with its test file, then ``ALSO``."""
    modules = sorted(path for path in (root / "recollect/ops").glob("*.py") if path.name != "__init__.py")
    return [Target(f"recollect/ops/{path.name}", f"tests/ops/test_{path.name}") for path in modules] + list(ALSO)


def judge(target: Target, root: Path, listed: dict[str, str], jobs: int) -> tuple[Tally, list[str]]:
    """Try every mutant of one target: its tally, and what is wrong (unlisted survivors, listed ones that died)."""
    start, tally, wrong = time.monotonic(), Tally(target.module), []
    found = mutants((root / target.module).read_text(), target)
    for mutant, status in zip(found, try_mutants(found, target, root, jobs), strict=True):
        tally.timed_out += status is None
        if status not in UNNOTICED:
            tally.killed += 1
            if mutant.key in listed:
                wrong.append(f"listed as equivalent, but killed: {mutant.key}")
        elif mutant.key in listed:
            tally.equivalent += 1
        else:
            tally.survived += 1
            wrong.append(f"survived: {mutant.key}")
    tally.seconds = time.monotonic() - start
    return tally, wrong


def gone(listed: dict[str, str], targets: list[Target], root: Path, only: str | None) -> list[str]:
    """Listed mutants that are no longer generated; with ``only``, of the chosen modules."""
    known = {mutant.key for target in targets for mutant in mutants((root / target.module).read_text(), target)}
    modules = {target.module for target in targets}
    asked = [key for key in listed if only is None or key.split(" : ")[0] in modules]
    return [f"listed as equivalent, but no longer generated: {key}" for key in asked if key not in known]


def main(argv: list[str] | None = None, root: Path = ROOT, targets: list[Target] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Break the pure functions, one edit at a time; the tests must notice.")
    parser.add_argument("--list", action="store_true", help="print every mutant's key and stop")
    parser.add_argument("--only", metavar="MODULE", help="one module, by name (returns) or path")
    parser.add_argument("--jobs", type=int, default=2, help="mutants tried at the same time (default 2)")
    args = parser.parse_args(argv)

    everything = default_targets(root) if targets is None else targets
    chosen = [t for t in everything if args.only in (None, t.module, Path(t.module).stem)]
    if not chosen:
        names = ", ".join(Path(target.module).stem for target in everything)
        raise SystemExit(f"--only {args.only}: no such module; there are {names}")
    if args.list:
        for target in chosen:
            print(*(mutant.key for mutant in mutants((root / target.module).read_text(), target)), sep="\n")
        return 0

    prepare()
    listed, start = read_equivalent(root / EQUIVALENT), time.monotonic()
    wrong, tallies = gone(listed, chosen, root, args.only), []
    print(f"{'module':<36}{'generated':>10}{'killed':>10}{'equivalent':>12}{'survived':>10}{'seconds':>9}")
    for target in chosen:
        tally, complaints = judge(target, root, listed, args.jobs)
        tallies.append(tally)
        wrong += complaints
        counts = f"{tally.generated:>10}{tally.killed:>10}{tally.equivalent:>12}{tally.survived:>10}"
        print(f"{tally.module:<36}{counts}{tally.seconds:>9.1f}", flush=True)
    for complaint in wrong:
        print(complaint)
    killed, timed_out = sum(t.killed for t in tallies), sum(t.timed_out for t in tallies)
    print(
        f"mutants: {sum(t.generated for t in tallies)} generated, {killed} killed ({timed_out} by the time limit), "
        f"{sum(t.equivalent for t in tallies)} equivalent, {len(wrong)} to settle, {time.monotonic() - start:.0f} s"
    )
    return 1 if wrong else 0


if __name__ == "__main__":
    raise SystemExit(main())
