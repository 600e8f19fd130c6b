"""Dataclasses, dicts and tuples of tensors, handled as one."""

import dataclasses
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor


def tensors_of(value: Any) -> Iterable[Tensor]:
    """Every tensor in nested dicts (by sorted key: equal states may list theirs otherwise), tuples and dataclasses."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, dict):
        for name in sorted(value):
            yield from tensors_of(value[name])
    elif isinstance(value, tuple):
        for part in value:
            yield from tensors_of(part)
    elif dataclasses.is_dataclass(value):
        for field in dataclasses.fields(value):
            yield from tensors_of(getattr(value, field.name))


def map_tensors(function: Callable[[Tensor], Tensor], value: Any) -> Any:
    """The same structure with every tensor mapped."""
    if isinstance(value, Tensor):
        return function(value)
    if isinstance(value, dict):
        return {k: map_tensors(function, v) for k, v in value.items()}
    if isinstance(value, tuple):
        return tuple(map_tensors(function, v) for v in value)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return type(value)(**{f.name: map_tensors(function, getattr(value, f.name)) for f in dataclasses.fields(value)})
    return value


def select(rows_N: Tensor, one: Any, other: Any) -> Any:
    """``one`` where ``rows_N`` is true, else ``other``: tensors [N, ...], or dataclasses and dicts of them.

    What both share is left alone, as physics that nobody draws anew.
    """
    if one is other:
        return one
    if isinstance(one, Tensor):
        return torch.where(rows_N.view(-1, *[1] * (one.dim() - 1)), one, other)
    if isinstance(one, dict):
        return {name: select(rows_N, part, other[name]) for name, part in one.items()}
    names = [field.name for field in dataclasses.fields(one)]
    return type(one)(**{name: select(rows_N, getattr(one, name), getattr(other, name)) for name in names})


def flatten(value: Any, prefix: str = "") -> dict[str, Tensor]:
    """Every tensor of nested dataclasses and dicts by its dotted name."""
    if isinstance(value, Tensor):
        return {prefix: value}
    parts = value if isinstance(value, dict) else {f.name: getattr(value, f.name) for f in dataclasses.fields(value)}
    flat: dict[str, Tensor] = {}
    for name, part in parts.items():
        flat |= flatten(part, f"{prefix}.{name}" if prefix else name)
    return flat


def unflatten(like: Any, flat: dict[str, Tensor], prefix: str = "") -> Any:
    """The inverse of ``flatten``, in the form of ``like``."""
    if isinstance(like, Tensor):
        return flat[prefix]
    dotted = f"{prefix}." if prefix else ""
    if isinstance(like, dict):
        return {name: unflatten(part, flat, dotted + name) for name, part in like.items()}
    names = [field.name for field in dataclasses.fields(like)]
    return type(like)(**{name: unflatten(getattr(like, name), flat, dotted + name) for name in names})
