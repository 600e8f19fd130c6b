"""Dataclasses and dicts of tensors, handled as one."""

import dataclasses
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor


def map_tensors(function: Callable[[Tensor], Tensor], value: Any) -> Any:
    """The same structure with every tensor mapped."""
    if isinstance(value, Tensor):
        return function(value)
    if isinstance(value, dict):
        return {name: map_tensors(function, part) for name, part in value.items()}
    parts = {field.name: map_tensors(function, getattr(value, field.name)) for field in dataclasses.fields(value)}
    return type(value)(**parts)


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
