"""The words of a command line: what belongs to which flag, what it may hold, and one clear line for what cannot be.

tyro writes the help and builds the dataclass; its complaints are drawn boxes, so words are checked here before.
"""

import contextlib
import dataclasses
import io
import json
import math
import os
import re
import sys
import typing
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import tyro

from recollect.config import flat_fields, from_word, is_external, leaf_types, nearest, setting

NO_PREFIXES = (tyro.conf.OmitArgPrefixes, tyro.conf.OmitSubcommandPrefixes)
SHORT = {"-h": "--help", "-o": "--out"}
EXTERNAL = ("core", "encoder", "env_id", "algo")  # flags that may name code of the user's own


def say(line: str) -> None:
    """To the person, not to the program that reads our output."""
    print(line, file=sys.stderr)


def write_any_letter() -> None:
    """Escape what a terminal's encoding lacks: a path with an umlaut is no reason to fail after hours of training."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def emit(as_json: bool, data: Any, text: str) -> None:
    """The result: one JSON value on the last line for a program, else words."""
    print(json.dumps(_finite(data), allow_nan=False) if as_json else text)


def as_table(rows: list[dict[str, str]], columns: Sequence[str]) -> str:
    """Aligned columns and whole words, so that a name can be copied or searched for at any width."""
    lines = [{column: column for column in columns}, *rows]
    widths = {column: max(len(line[column]) for line in lines) for column in columns}
    return "\n".join("  ".join(line[c].ljust(widths[c]) for c in columns).rstrip() for line in lines)


def _finite(data: Any) -> Any:
    """The same with null for NaN and infinity, which JSON does not know."""
    if isinstance(data, dict):
        return {key: _finite(value) for key, value in data.items()}
    if isinstance(data, list | tuple):
        return [_finite(value) for value in data]
    return None if isinstance(data, float) and not math.isfinite(data) else data


def split_positionals(argv: Sequence[str]) -> tuple[list[str], list[str]]:
    """Leading words that are no flags, and the rest."""
    count = next((i for i, word in enumerate(argv) if _is_flag(word)), len(argv))
    return list(argv[:count]), list(argv[count:])


def wants_help(argv: Sequence[str]) -> bool:
    """Whether the words ask for help, which goes before any complaint."""
    return any(SHORT.get(word, word) == "--help" for word in argv)


def flag_value(argv: Sequence[str], name: str) -> str | None:
    """The value that ``--name`` has in ``argv``, written either way; the last one counts, as it does for tyro."""
    values = [words[0] for flag, words in _groups(argv) if flag == _flag(name) and words]
    return values[-1] if values else None


def external_in(argv: Sequence[str]) -> dict[str, str]:
    """Code of the user's own that *this* command line names: {"core": "mine.py:MyCore"}."""
    given = {name: flag_value(argv, name) for name in EXTERNAL}
    return {name: value for name, value in given.items() if value is not None}


def external_of(command: Any) -> dict[str, str]:
    """The outside code that this very command names, in a flag or in an experiment of its own."""
    known = flat_fields(type(command))
    return {n: v for n in EXTERNAL if n in known and (v := setting(command, n)) is not None and is_external(v)}


def as_flags(settings: dict[str, str]) -> list[str]:
    """{"core": "mine.py:MyCore"} -> ["--core", "mine.py:MyCore"]"""
    return [word for name, value in settings.items() for word in (f"--{name.replace('_', '-')}", value)]


def same_setting(stored: Any, given: Any) -> bool:
    """Whether a flag repeats what a run has; of code in a file the folder may differ, as it is seen from here."""
    if isinstance(given, str) and is_external(given) and is_external(str(stored)):
        return Path(str(stored)).name == Path(given).name
    return stored == (list(given) if isinstance(given, tuple) else given)


def writable(path: Path, kind: str) -> Path:
    """``path`` with its folder made, or an error before any work is done."""
    if path.is_dir():
        raise ValueError(f"{path} is a folder; give the name of an {kind} file")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ValueError(f"cannot write {path}: {error.strerror}") from None
    if not os.access(path.parent, os.W_OK):
        raise ValueError(f"cannot write {path}: its folder may not be written to")
    return path


def parse(command: type, usage: str, argv: Sequence[str], default: Any = None) -> Any:
    """Parse flags into a dataclass; what cannot be parsed is one clear line. ``usage``: ``eval RUN``."""
    words = [SHORT.get(word, word) for word in argv]
    if not wants_help(words):
        words = checked(command, words)
    box = io.StringIO()
    extra = {} if default is None else {"default": default}
    try:
        with contextlib.redirect_stderr(box):
            return tyro.cli(command, args=words, prog=f"recollect {usage}", config=NO_PREFIXES, **extra)
    except SystemExit as stop:
        if stop.code in (0, None):
            raise
        raise ValueError(_cause(stop) or _without_frame(box.getvalue())) from None


def train_command(config: Any, name: str) -> type:
    """The flags of ``train`` for one algorithm: all of its Config, and what belongs to the command."""
    arg = tyro.conf.arg
    about = f"Train a named experiment; every setting is a flag. The defaults shown are those of {name}."
    return dataclasses.make_dataclass(
        "Train",
        [
            ("config", type(config), dataclasses.field(default=config)),
            (
                "algo",
                Annotated[
                    str | None,
                    arg(help="policy_gradient, actor_critic, ppo, or mine.py with Config and train()."),
                ],
                None,
            ),
            ("resume", Annotated[Path | None, arg(help="Go on with this run instead of starting one.")], None),
            ("restart_episodes", Annotated[bool, arg(help="On resume, begin open episodes anew.")], False),
            ("json", Annotated[bool, arg(help="Print the result as one JSON object.")], False),
        ],
        namespace={"__doc__": about},
    )


def checked(command: type, argv: Sequence[str]) -> list[str]:
    """The words as tyro reads them. ValueError unless each flag is the command's and holds what its field takes."""
    types = {_flag(name): hint for name, hint in leaf_types(command).items()}
    switches = {flag for flag, hint in types.items() if hint is bool}
    off = {f"--no-{flag[2:]}" for flag in switches}
    read: list[str] = []
    for flag, words in _groups(argv):
        if flag not in types and flag not in off:
            raise ValueError(_unknown(flag, [*types, *off]) if flag else _unexpected(words[0]))
        if flag in off | switches:
            if words:
                raise ValueError(f"{_unexpected(words[0])}: {flag} takes no value")
        elif not _takes_many(types[flag]) and len(words) != 1:
            raise ValueError(f"{flag} takes one value, got {' '.join(words) or 'none'}")
        # tyro knows None by no other spelling
        read += [flag, *("None" if from_word(types[flag], word, flag) is None else word for word in words)]
    return read


def _takes_many(hint: Any) -> bool:
    return any(typing.get_origin(part) in (tuple, list, set, dict) for part in (hint, *typing.get_args(hint)))


def _unknown(flag: str, known: Sequence[str]) -> str:
    guess = nearest(flag, known)
    return f"unknown flag {flag}{guess if 'did you mean' in guess else '; --help lists those there are'}"


def _unexpected(word: str) -> str:
    return f"unexpected {word!r}"


def _flag(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def _is_flag(word: str) -> bool:
    """``--seed`` and ``-o``, but not the number ``-0.5``."""
    return re.match(r"-(-|[a-zA-Z])", word) is not None and word != "-inf"


def _groups(argv: Sequence[str]) -> list[tuple[str, list[str]]]:
    """Each flag with the words that follow it; words before the first flag belong to the flag ``""``."""
    groups: list[tuple[str, list[str]]] = []
    for word in argv:
        if _is_flag(word):
            flag, equals, value = word.partition("=")
            groups.append((flag.replace("_", "-"), [value] if equals else []))
        elif groups:
            groups[-1][1].append(word)
        else:
            groups.append(("", [word]))
    return groups


def _cause(stop: SystemExit) -> str | None:
    """What a config said when it refused its values: the innermost of the errors that led to the exit."""
    error: BaseException | None = stop
    said = None
    while error is not None:
        said = str(error) if isinstance(error, ValueError) else said
        error = error.__context__
    return said


def _without_frame(box: str) -> str:
    """The words of a drawn box, for whatever ``check`` does not foresee."""
    lines = [re.sub(r"[│╭╮╰╯─|+]+|-{2,}(?=$|\s)", " ", line).strip() for line in box.splitlines()]
    return " ".join(line for line in lines if line) or "cannot parse the flags"
