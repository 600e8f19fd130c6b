"""Machinery for frozen dataclasses as configuration: plain data and back, flat overrides, errors that name the nearest.

A default is stated once, in the Config of whoever owns it; nested configs share one flat space of names, so that
``learning_rate`` is the same word in a table of experiments, on the command line and in a file.
"""

import dataclasses
import difflib
import functools
import importlib.util
import sys
import types
import typing
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import yaml

ConfigT = TypeVar("ConfigT")


def nearest(name: str, known: Iterable[str]) -> str:
    """``; did you mean 'x'?`` where something known is close, else the list of what is allowed."""
    known = list(known)
    close = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
    if close:
        return f"; did you mean {close[0]!r}?"
    return f"; known: {', '.join(sorted(known))}"


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
    known = flat_fields(type(config))
    return _replace(config, {choose("setting", name, known): value for name, value in changes.items()})


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
    hints = typing.get_type_hints(config_class)
    known = {f.name for f in dataclasses.fields(config_class)}  # type: ignore[arg-type]
    leaves = {}
    for key, value in data.items():
        if key not in known:
            raise ValueError(f"{where}: unknown key {key!r}{nearest(key, known)}")
        leaves[key] = _typed(hints[key], value, f"{where}.{key}")
    return config_class(**leaves)


def _typed(hint: Any, value: Any, where: str) -> Any:
    """``value`` as the annotation has it: nested config, tuple, Path, float from an int; else unchanged but checked."""
    if dataclasses.is_dataclass(hint):
        return from_dict(hint, value, where)  # type: ignore[arg-type]
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if origin in (types.UnionType, typing.Union):
        if value is None and type(None) in args:
            return None
        return _typed(next(a for a in args if a is not type(None)), value, where)
    if origin is typing.Literal:
        if value not in args:
            raise ValueError(f"{where}: {value!r} is not one of {', '.join(map(repr, args))}")
        return value
    if origin is tuple:
        if not isinstance(value, list | tuple):
            raise ValueError(f"{where}: expected a list, got {value!r}")
        return tuple(_typed(args[0], v, where) for v in value)
    if hint is Path:
        return Path(value)
    if hint is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if isinstance(hint, type) and (not isinstance(value, hint) or (hint is int and isinstance(value, bool))):
        raise ValueError(f"{where}: expected {hint.__name__}, got {value!r}")
    return value


def save_yaml(config: Any, path: Path) -> None:
    """Write a config as YAML."""
    path.write_text(yaml.safe_dump({"schema_version": 1, **to_dict(config)}, sort_keys=False))


def load_yaml(path: Path) -> dict[str, Any]:
    """Read what ``save_yaml`` wrote, as plain data."""
    try:
        data = yaml.safe_load(path.read_text())
    except yaml.YAMLError as error:
        raise ValueError(f"{path} is not YAML: {str(error).splitlines()[0]}") from None
    if not isinstance(data, dict):
        raise ValueError(f"{path} holds no settings")
    data.pop("schema_version", None)
    return data


def parse_options(options_class: type[ConfigT], pairs: Iterable[str], what: str) -> ConfigT:
    """``("size=9", "goal=all")`` as an options dataclass; values are YAML scalars."""
    data: dict[str, Any] = {}
    for pair in pairs:
        key, equals, value = pair.partition("=")
        if not equals:
            raise ValueError(f"{what}: an option is written key=value, got {pair!r}")
        data[key.replace("-", "_")] = yaml.safe_load(value)
    return from_dict(options_class, data, what)


def is_external(name: str) -> bool:
    """True for ``mine.py`` and ``mine.py:MyCore``: code outside the package."""
    return name.partition(":")[0].endswith(".py")


def load_external(spec: str, default: str | None = None) -> Any:
    """The object that ``path/to/mine.py:Name`` points at; ``default`` is the name where the spec has none.

    Callers pass only what stood on this command line (or in this Python call), never what a run folder names.
    """
    path_text, _, name = spec.partition(":")
    name = name or default or ""
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
    module_name = f"recollect_external_{path.stem}"
    module_spec = importlib.util.spec_from_file_location(module_name, path)
    assert module_spec is not None and module_spec.loader is not None
    module = importlib.util.module_from_spec(module_spec)
    sys.modules[module_name] = module  # dataclasses look their own module up while it loads
    try:
        module_spec.loader.exec_module(module)
    except Exception as error:  # whatever a user's file raises belongs in one clear line
        raise ValueError(f"{path} failed to import: {type(error).__name__}: {error}") from error
    return module


def resolve(what: str, name: str, registry: Mapping[str, Any]) -> Any:
    """A registered name, or external code written as ``mine.py:Name``."""
    return load_external(name) if is_external(name) else choose(what, name, registry)
