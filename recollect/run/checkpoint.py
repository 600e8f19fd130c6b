"""Checkpoints that hold no code: one safetensors file and one JSON file each, whole or not there at all.

The tensors are written first, then the JSON that names their digest; each goes to a temporary name, is synced and
renamed. A checkpoint counts once its JSON stands under its final name, so a kill at any moment leaves the one before.
"""

import hashlib
import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load as load_tensors
from safetensors.torch import save as dump_tensors
from torch import Tensor

SCHEMA_VERSION = 1


class DamagedCheckpoint(ValueError):
    """A checkpoint whose bytes are not those that were written."""


@dataclass(frozen=True)
class Checkpoint:
    """Tensors by name and plain data, as one moment of a run."""

    tensors: dict[str, Tensor]
    data: dict[str, Any]
    path: Path

    def under(self, prefix: str) -> dict[str, Tensor]:
        """The tensors whose name starts with ``prefix/``."""
        start = prefix + "/"
        return {k.removeprefix(start): v for k, v in self.tensors.items() if k.startswith(start)}


def write_durably(path: Path, content: bytes) -> None:
    """Write beside the final name, sync, rename, sync the folder: never half a file under ``path``."""
    beside = path.with_name(path.name + ".partial")
    with open(beside, "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    os.replace(beside, path)
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def save(folder: Path, update: int, tensors: dict[str, Tensor], data: dict[str, Any], keep: int = 3) -> Path:
    """Write the checkpoint of one update and forget all but the newest ``keep``."""
    folder.mkdir(parents=True, exist_ok=True)
    stem = f"update_{update:09d}"
    # Copies, since safetensors refuses tensors that share memory, and tied weights do.
    content = dump_tensors(
        {k: v.detach().cpu().clone(memory_format=torch.contiguous_format) for k, v in tensors.items()}
    )
    write_durably(folder / f"{stem}.safetensors", content)
    body = {"schema_version": SCHEMA_VERSION, "update": update, "tensors_sha256": _digest(content), **data}
    text = json.dumps(body, sort_keys=True)
    sealed = json.dumps({"sha256": _digest(text.encode()), "body": body}, sort_keys=True)
    path = folder / f"{stem}.json"
    write_durably(path, sealed.encode())
    _forget(folder, path, keep)
    return path


def _forget(folder: Path, newest: Path, keep: int) -> None:
    """Delete old checkpoints, JSON first so that none is ever half there, and leftovers of killed writes.

    Those with a higher number go as well: they were damaged, so the run went on from before them.
    """
    every = newest_first(folder)
    current = every.index(newest)
    for path in every[:current] + every[current + keep :]:
        path.unlink()
    kept = {path.stem for path in newest_first(folder)}
    for file in folder.iterdir():
        if file.name.endswith(".partial") or (file.suffix == ".safetensors" and file.stem not in kept):
            file.unlink()


def newest_first(folder: Path) -> list[Path]:
    """Every finished checkpoint's JSON file."""
    return sorted(folder.glob("update_*.json"), reverse=True)


def load(path: Path) -> Checkpoint:
    """Read one checkpoint; ``DamagedCheckpoint`` names the file and what is wrong with it."""
    try:
        sealed = json.loads(path.read_text())
        body = sealed["body"]
        whole = _digest(json.dumps(body, sort_keys=True).encode()) == sealed["sha256"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise DamagedCheckpoint(f"{path} cannot be read ({type(error).__name__})") from None
    if not whole:
        raise DamagedCheckpoint(f"{path} was altered: its digest does not fit")
    if body["schema_version"] != SCHEMA_VERSION:
        raise DamagedCheckpoint(f"{path} has schema version {body['schema_version']}, this code reads {SCHEMA_VERSION}")
    tensor_path = path.with_suffix(".safetensors")
    try:
        content = tensor_path.read_bytes()
    except OSError:
        raise DamagedCheckpoint(f"{tensor_path} is missing") from None
    if _digest(content) != body["tensors_sha256"]:
        raise DamagedCheckpoint(f"{tensor_path} was truncated or altered: its digest does not fit")
    try:
        return Checkpoint(load_tensors(content), body, path)
    except SafetensorError as error:
        raise DamagedCheckpoint(f"{tensor_path}: {error}") from None


def load_newest(folder: Path) -> tuple[Checkpoint, list[str]]:
    """The newest whole checkpoint, and a line for each damaged one that was passed over."""
    damaged: list[str] = []
    for checkpoint in _try_each(folder, damaged):
        return checkpoint, damaged
    reasons = "; ".join(damaged) or "it has none"
    raise ValueError(f"no usable checkpoint in {folder}: {reasons}")


def _try_each(folder: Path, damaged: list[str]) -> Iterator[Checkpoint]:
    for path in newest_first(folder):
        try:
            yield load(path)
        except DamagedCheckpoint as error:
            damaged.append(str(error))


def load_weights(module: torch.nn.Module, tensors: dict[str, Tensor], where: Path) -> None:
    """Load weights; those of another network are an error that names the first difference."""
    own = module.state_dict()
    missing, unexpected = own.keys() - tensors.keys(), tensors.keys() - own.keys()
    if missing or unexpected:
        name = sorted(missing or unexpected)[0]
        side = "lacks" if missing else "has an unknown"
        raise ValueError(f"{where} belongs to another network: it {side} {name!r}")
    for name, tensor in own.items():
        if tensor.shape != tensors[name].shape:
            found, wanted = list(tensors[name].shape), list(tensor.shape)
            raise ValueError(f"{where} belongs to another network: {name!r} is {found}, this network has {wanted}")
    module.load_state_dict(tensors)


def optimizer_tensors(optimizer: torch.optim.Optimizer) -> tuple[dict[str, Tensor], list[dict[str, Any]]]:
    """An optimiser as tensors and plain data: moments by parameter number, and the groups' numbers."""
    state = optimizer.state_dict()
    tensors = {
        f"{i}.{name}": torch.as_tensor(value) for i, slot in state["state"].items() for name, value in slot.items()
    }
    groups = [{k: _number(v) for k, v in group.items()} for group in state["param_groups"]]
    return tensors, groups


def _number(value: Any) -> Any:
    return value.item() if isinstance(value, Tensor) else value


def load_optimizer(optimizer: torch.optim.Optimizer, tensors: dict[str, Tensor], groups: list[dict[str, Any]]) -> None:
    """Put back what ``optimizer_tensors`` took; how this optimiser steps here (its kernels, its rate's tensor) stays.

    Moments take their weights' strides (a CNN's are channels last): fused kernels walk raw memory, so that moments in
    another order would silently belong to other weights.
    """
    state: dict[int, dict[str, Tensor]] = {}
    for key, tensor in tensors.items():
        number, _, name = key.partition(".")
        state.setdefault(int(number), {})[name] = tensor
    own = [
        {k: group[k] for k in ("lr", "capturable", "fused", "foreach") if k in group}
        for group in optimizer.param_groups
    ]
    optimizer.load_state_dict({"state": state, "param_groups": groups})
    for group, kept in zip(optimizer.param_groups, own, strict=True):
        rate = kept.pop("lr")
        group.update(kept)
        if isinstance(rate, Tensor):
            group["lr"] = rate.fill_(float(group["lr"]))
    for parameter, slot in optimizer.state.items():
        for name, value in slot.items():
            if value.shape == parameter.shape:
                slot[name] = torch.empty_like(parameter).copy_(value)


def fingerprint(tensors: dict[str, Tensor]) -> str:
    """SHA-256 over names, shapes, dtypes and bytes: equal only for identical weights."""
    digest = hashlib.sha256()
    for name in sorted(tensors):
        tensor = tensors[name].detach().cpu().contiguous()
        digest.update(f"{name}|{tuple(tensor.shape)}|{tensor.dtype}|".encode())
        digest.update(tensor.reshape(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()
