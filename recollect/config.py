"""Machinery for frozen dataclasses as configuration: plain data and back, flat overrides, errors that name the nearest.

A default is stated once, in the Config of whoever owns it; nested configs share one flat space of names, so that
``learning_rate`` is the same word in a table of experiments, on the command line and in a file.
"""

import dataclasses
import difflib
import functools
import hashlib
import importlib.util
import math
import numbers
import sys
import traceback
import types
import typing
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import yaml

ConfigT = TypeVar("ConfigT")

MOST_NAMES = 12  # that an error lists
OUTSIDE = "recollect_external_"  # how the names of modules from a user's own files begin


def nearest(name: str, known: Iterable[str]) -> str:
    """``; did you mean 'x'?`` where something known is close or contains it, else what is allowed."""
    names = sorted(known)
    lower = {known_name.lower(): known_name for known_name in names}
    close = difflib.get_close_matches(name.lower(), lower, n=1, cutoff=0.65)
    inside = sorted((known_name for known_name in lower if len(name) > 2 and name.lower() in known_name), key=len)
    if close or inside:
        return f"; did you mean {lower[(close or inside)[0]]!r}?"
    if not names:
        return "; none is known"
    more = f" and {len(names) - MOST_NAMES} more" if len(names) > MOST_NAMES else ""
    return f"; known: {', '.join(names[:MOST_NAMES])}{more}"


def choose(what: str, name: str, options: Mapping[str, Any]) -> Any:
    """``options[name]``, or an error that says what was given and what is near."""
    if name not in options:
        raise ValueError(f"unknown {what} {name!r}{nearest(name, options)}")
    return options[name]


def flat_fields(config_class: type) -> dict[str, tuple[str, ...]]:
    """Every leaf by its flat name, with the path that leads to it: ``{"seed": ("run", "seed")}``."""
    found: dict[str, tuple[str, ...]] = {}
    hints = typing.get_type_hints(config_class)
    for field in dataclasses.fields(config_class):
        if dataclasses.is_dataclass(hints[field.name]):
            inner = {name: (field.name, *path) for name, path in flat_fields(hints[field.name]).items()}
        else:
            inner = {field.name: (field.name,)}
        twice = found.keys() & inner.keys()
        assert not twice, f"{config_class} states {twice} twice"
        found |= inner
    return found


def leaf_types(config_class: type) -> dict[str, Any]:
    """Every leaf's annotation by its flat name."""
    found: dict[str, Any] = {}
    for name, hint in typing.get_type_hints(config_class).items():
        found |= leaf_types(hint) if dataclasses.is_dataclass(hint) else {name: hint}  # type: ignore[arg-type]
    return found


def setting(config: Any, name: str) -> Any:
    """The value of a leaf by its flat name."""
    value = config
    for part in choose("setting", name, flat_fields(type(config))):
        value = getattr(value, part)
    return value


def override(config: ConfigT, **changes: Any) -> ConfigT:
    """The same config with some leaves changed, named flat: ``override(config, seed=3, num_envs=8)``.

    All changes are made before anything is validated, so that they may depend on each other.
    """
    known, hints = flat_fields(type(config)), leaf_types(type(config))
    paths = {choose("setting", name, known): name for name in changes}
    return _replace(config, {path: _typed(hints[name], changes[name], "", name) for path, name in paths.items()})


def _replace(config: ConfigT, changes: dict[tuple[str, ...], Any]) -> ConfigT:
    here = {path[0]: value for path, value in changes.items() if len(path) == 1}
    for part in {path[0] for path in changes if len(path) > 1}:
        below = {path[1:]: value for path, value in changes.items() if path[0] == part}
        here[part] = _replace(getattr(config, part), below)
    return dataclasses.replace(config, **here)  # type: ignore[type-var]


def to_dict(config: Any) -> dict[str, Any]:
    """Nested plain data, ready for YAML or JSON."""
    return _plain(dataclasses.asdict(config))


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {str(k): _plain(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(v) for v in value]
    return str(value) if isinstance(value, Path) else value


def from_dict(config_class: type[ConfigT], data: Mapping[str, Any], where: str = "config") -> ConfigT:
    """Build a config from plain data; an unknown key or a value of the wrong kind is an error that says where."""
    return _build(config_class, data, where, "")


def _build(config_class: type[ConfigT], data: Any, where: str, path: str) -> ConfigT:
    """``where`` is the file or call that an error names, ``path`` the dotted name of this config inside it."""
    if not isinstance(data, Mapping):
        raise ValueError(f"{_at(where, path)}: expected settings by name, got {data!r}")
    hints = typing.get_type_hints(config_class)
    known = {f.name for f in dataclasses.fields(config_class)}  # type: ignore[arg-type]
    leaves = {}
    for key, value in data.items():
        if key not in known:
            raise ValueError(f"{_at(where, path)}: unknown key {key!r}{nearest(str(key), known)}")
        leaves[key] = _typed(hints[key], value, where, f"{path}.{key}".lstrip("."))
    try:
        return config_class(**leaves)
    except ValueError as error:
        raise ValueError(f"{where}: {error}") from None


def _at(where: str, path: str) -> str:
    return ": ".join(part for part in (where, path) if part)


def _without_none(hint: Any) -> tuple[Any, bool]:
    """``int | None`` -> (int, True): the annotation that is left, and whether None is allowed beside it."""
    if typing.get_origin(hint) in (types.UnionType, typing.Union):
        return next(a for a in typing.get_args(hint) if a is not type(None)), type(None) in typing.get_args(hint)
    return hint, False


def _typed(hint: Any, value: Any, where: str, path: str) -> Any:
    """``value`` as the annotation has it: nested config, tuple, Path, float from an int; else unchanged but checked."""
    hint, optional = _without_none(hint)
    if value is None and optional:
        return None
    if dataclasses.is_dataclass(hint):
        return _build(hint, value, where, path)  # type: ignore[arg-type]
    if typing.get_origin(hint) is tuple:
        if not isinstance(value, list | tuple):
            raise ValueError(f"{_at(where, path)}: expected a list, got {value!r}")
        return tuple(_typed(typing.get_args(hint)[0], v, where, path) for v in value)
    if typing.get_origin(hint) is typing.Literal:
        return _one_of(typing.get_args(hint), value, _at(where, path))
    number = isinstance(value, numbers.Real) and not isinstance(value, bool)
    if hint is float and isinstance(value, str):  # YAML 1.1 reads 1e-3 as a word
        return from_word(float, value, _at(where, path))
    if hint is float and number:
        return float(value)  # type: ignore[arg-type]
    if hint is int and number and isinstance(value, numbers.Integral):
        return int(value)  # numpy's integers too
    if hint is Path and isinstance(value, str | Path):
        return Path(value)
    if hint in (int, float, Path) or (isinstance(hint, type) and not isinstance(value, hint)):
        raise ValueError(f"{_at(where, path)}: expected {_kind(hint)}, got {value!r}")
    return value


def _one_of(options: tuple[Any, ...], value: Any, where: str) -> Any:
    if value not in options:
        meant = nearest(str(value), map(str, options))
        allowed = ", ".join(map(repr, options))
        raise ValueError(f"{where}: {value!r} is not one of {allowed}{meant if 'did you mean' in meant else ''}")
    return value


def _kind(hint: type) -> str:
    """What a type is called in an error."""
    return {int: "a whole number", float: "a number", bool: "true or false", str: "text", Path: "a path"}.get(
        hint, hint.__name__
    )


def from_word(hint: Any, word: str, where: str) -> Any:
    """A word of the command line as the annotation has it; ``none`` is None where that is allowed."""
    hint, optional = _without_none(hint)
    if optional and word.lower() == "none":
        return None
    if typing.get_origin(hint) is tuple:
        hint = typing.get_args(hint)[0]
    if typing.get_origin(hint) is typing.Literal:
        return _one_of(typing.get_args(hint), word, where)
    try:
        if hint is bool:
            return {"true": True, "false": False}[word.lower()]
        return hint(word) if hint in (int, float, Path) else word
    except (KeyError, ValueError):
        raise ValueError(f"{where}: expected {_kind(hint)}, got {word!r}") from None


def limit(config: Any, *names: str, low: float = -math.inf, high: float = math.inf, above: float = -math.inf) -> None:
    """Raise ValueError unless each named setting is finite and in its range; None stands for switched off."""
    for name in names:
        value = getattr(config, name)
        for number in value if isinstance(value, tuple) else (value,):
            if number is None or (math.isfinite(number) and low <= number <= high and number > above):
                continue
            bound = f"above {above}" if above > -math.inf else f"at least {low}" if low > -math.inf else "finite"
            raise ValueError(f"{name} must be {f'in {low}..{high}' if high < math.inf else bound}, got {number}")


def save_yaml(config: Any, path: Path) -> None:
    """Write a config as YAML."""
    path.write_text(yaml.safe_dump({"schema_version": 1, **to_dict(config)}, sort_keys=False), encoding="utf-8")


def load_yaml(path: Path) -> dict[str, Any]:
    """Read what ``save_yaml`` wrote, as plain data."""
    try:
        data = yaml.safe_load(path.read_text(encoding="utf-8"))
    except yaml.MarkedYAMLError as error:
        line = f", line {error.problem_mark.line + 1}" if error.problem_mark else ""
        raise ValueError(f"{path} is not YAML: {error.problem}{line}") from None
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ValueError(f"{path} is not YAML: {str(error).splitlines()[0]}") from None
    if not isinstance(data, dict):
        raise ValueError(f"{path} holds no settings")
    data.pop("schema_version", None)
    return data


def split_options(pairs: Iterable[str], what: str) -> dict[str, str]:
    """``("size=9", "goal=all")`` as words by name."""
    words = {}
    for pair in pairs:
        key, equals, value = pair.partition("=")
        if not equals:
            raise ValueError(f"{what}s are written key=value, got {pair!r}")
        key = key.replace("-", "_")
        if key in words:
            raise ValueError(f"{what} {key!r} is given twice")
        words[key] = value
    return words


def parse_options(options_class: type[ConfigT], pairs: Iterable[str], what: str) -> ConfigT:
    """``("size=9", "goal=all")`` as an options dataclass, each value read as the dataclass annotates it."""
    hints = typing.get_type_hints(options_class)
    return options_class(
        **{
            key: from_word(choose(what, key, hints), word, f"{what} {key!r}")
            for key, word in split_options(pairs, what).items()
        }
    )


def free_options(pairs: Iterable[str], what: str) -> dict[str, Any]:
    """Options that no dataclass of ours annotates: each value as YAML reads it, a word where it cannot."""

    def scalar(word: str) -> Any:
        try:
            return yaml.safe_load(word)
        except yaml.YAMLError:
            return word

    return {name: scalar(word) for name, word in split_options(pairs, what).items()}


def is_external(name: str) -> bool:
    """True for ``mine.py``, ``mine.py:MyCore`` and Gymnasium's ``module:Id-v0``: names that import outside code."""
    return ":" in name or is_file(name)


def is_file(name: str) -> bool:
    """True for code in a file of one's own: ``mine.py`` or ``mine.py:MyCore``."""
    return name.partition(":")[0].endswith(".py")


def load_external(spec: str) -> Any:
    """The object that ``path/to/mine.py:Name`` points at; the module where there is no name.

    Callers pass only what stood on this command line (or in this Python call), never what a run folder names.
    """
    path_text, _, name = spec.partition(":")
    if not is_file(spec):
        raise ValueError(f"{spec!r}: code of your own is named by its file, as mine.py:Name")
    path = Path(path_text).expanduser().resolve()
    if not path.is_file():
        raise ValueError(f"{spec!r}: there is no file {path}")
    module = _load_module(path)
    if not name:
        return module
    if not hasattr(module, name):
        public = [n for n in vars(module) if not n.startswith("_")]
        raise ValueError(f"{path} has no {name!r}{nearest(name, public)}")
    return getattr(module, name)


@functools.cache
def _load_module(path: Path) -> types.ModuleType:
    """Import a file once; twice would make two unequal copies of each of its classes."""
    unique = hashlib.sha256(str(path).encode()).hexdigest()[:8]  # two files in two folders may share a name
    module_name = f"{OUTSIDE}{path.stem}_{unique}"
    module_spec = importlib.util.spec_from_file_location(module_name, path)
    assert module_spec is not None and module_spec.loader is not None
    module = importlib.util.module_from_spec(module_spec)
    sys.modules[module_name] = module  # dataclasses look their own module up while it loads
    if str(path.parent) not in sys.path:
        sys.path.append(str(path.parent))  # last, so that a file beside it can be imported but hides nothing
    try:
        module_spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:  # whatever a user's file raises belongs in one clear line
        del sys.modules[module_name]
        raise ValueError(f"{path} failed to import: {described(error)}") from error
    return module


def described(error: BaseException) -> str:
    """``KeyError: 'h' (mine.py, line 7)``: an error of the user's own code, and where in it."""
    return f"{type(error).__name__}: {error}{place_of(error)}"


def place_of(error: BaseException) -> str:
    """`` (mine.py, line 7)`` if the user's own code, and not ours, raised or called what raised; else nothing."""
    frames = [
        (frame.f_globals.get("__name__", ""), frame, line) for frame, line in traceback.walk_tb(error.__traceback__)
    ]
    ours = [each for each in frames if each[0].startswith(("recollect.", OUTSIDE))]
    if not ours or not ours[-1][0].startswith(OUTSIDE):
        return ""
    return f" ({Path(ours[-1][1].f_code.co_filename).name}, line {ours[-1][2]})"


def resolve(what: str, name: str, registry: Mapping[str, Any]) -> Any:
    """A registered name, or external code written as ``mine.py:Name``."""
    if not is_external(name):
        return choose(what, name, registry)
    if is_file(name) and not name.partition(":")[2]:
        raise ValueError(f"{name!r} names a file; say which {what} in it, as {name}:Name")
    return load_external(name)
