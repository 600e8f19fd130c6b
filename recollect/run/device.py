"""Where tensors live, and what a result says about the machine that it was made on."""

import functools
import os
import platform
import subprocess
from importlib import metadata
from typing import Any

import torch


def pick_device(name: str) -> torch.device:
    """``auto`` is the GPU where there is one."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
    except RuntimeError:
        device = None
    if device is None or device.type not in ("cpu", "cuda"):
        raise ValueError(f"device is 'auto', 'cpu' or 'cuda', not {name!r}")
    if device.type == "cuda" and not torch.cuda.is_available():
        raise ValueError("device 'cuda' was asked for, but this machine or this build of torch has none")
    return device


def make_current(device: torch.device) -> None:
    """Graphs and streams are made on CUDA's current device; plain ``cuda`` means that one already."""
    if device.index is not None:
        torch.cuda.set_device(device)


def synchronise(device: torch.device) -> None:
    """Wait for the device, so that a clock read next is honest."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


@functools.cache
def hardware() -> dict[str, Any]:
    """What a result must say about the machine."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    gpu = torch.cuda.get_device_name() if torch.cuda.is_available() else None
    return {"cpu": _cpu_name(), "cores": os.cpu_count(), "gpu": gpu, "memory_gib": round(memory, 1)}


def _cpu_name() -> str:
    try:
        with open("/proc/cpuinfo") as lines:
            return next(line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()


@functools.cache
def versions() -> dict[str, str]:
    """Versions that move a number."""
    found = {"python": platform.python_version()}
    for name in ("recollect", "torch", "numpy", "gymnasium", "ale-py", "envpool", "stable-baselines3", "mujoco"):
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found


@functools.cache
def commit() -> str | None:
    """The commit of the source tree, with ``+changes`` where it has any; None outside a checkout."""
    here = os.path.dirname(__file__)
    run = functools.partial(subprocess.run, cwd=here, capture_output=True, text=True, check=True)
    try:
        head = run(["git", "rev-parse", "--short=12", "HEAD"]).stdout.strip()
        changed = run(["git", "status", "--porcelain", "--untracked-files=no"]).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return None
    return head + ("+changes" if changed else "")
