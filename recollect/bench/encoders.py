"""``recollect bench encoders``: samples a second of each encoder on the input that Pong's experiments give it.

Training is a forward and a backward pass of a minibatch; acting is a forward pass of few rows.
"""

import shlex
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch

from recollect.bench.measure import Ratio, Side, interleave, rate_of, report
from recollect.nets.config import NetConfig
from recollect.nets.encoders import ENCODERS
from recollect.nets.precision import uses_bf16
from recollect.run.device import pick_device, synchronise
from recollect.types import ObsSpec, TensorSpec

UNIT = "samples/s"


@dataclass(frozen=True)
class Bench:
    """Encoders, side by side."""

    rows: int = 256
    """Rows of a training minibatch."""
    acting: int = 16
    """Rows of an acting step."""
    device: str = "auto"
    """cpu, cuda, or auto."""
    seconds: float = 0.5
    """Time of one measurement."""
    repeats: int = 5
    """Measurements of each encoder, taken in turn."""
    json: bool = False
    """Print one JSON object."""
    out: Path | None = None
    """Write the result here as well."""


def binary(stack: int) -> ObsSpec:
    """Pong's 80x80 frames."""
    return {"frame": TensorSpec((stack, 80, 80), torch.uint8, 0, 1)}


STATE = {"vector": TensorSpec((8,), torch.float32)}
GREY = {"frame": TensorSpec((4, 84, 84), torch.uint8, 0, 255)}
LADDER = {"hidden": (200,), "activation": "relu", "cnn_width": 200}

CASES: dict[str, tuple[ObsSpec, NetConfig]] = {
    "mlp, 8 numbers": (STATE, NetConfig(encoder="mlp", hidden=(256, 256))),
    "fourier, 8 numbers": (STATE, NetConfig(encoder="fourier", hidden=(256, 256))),
    "mlp, 2 binary, difference": (binary(2), NetConfig(encoder="mlp", difference=True, **LADDER)),
    "cnn, 2 binary, difference": (binary(2), NetConfig(encoder="cnn", difference=True, **LADDER)),
    "cnn, 4 binary": (binary(4), NetConfig(encoder="cnn", **LADDER)),
    "cnn3d, 11 binary": (binary(11), NetConfig(encoder="cnn3d", **LADDER)),
    "cnn3d2d, 11 binary": (binary(11), NetConfig(encoder="cnn3d2d", **LADDER)),
    "small, 4 grey": (GREY, NetConfig(encoder="small")),
    "nature, 4 grey": (GREY, NetConfig(encoder="nature")),
}


def sides_of(case: str, bench: Bench, device: torch.device, bf16: bool) -> dict[str, Side]:
    """Training and acting of one encoder in one arithmetic."""
    spec, config = CASES[case]
    encoder = ENCODERS[config.encoder](spec, config).to(device)
    ((name, part),) = spec.items()
    shape = (max(bench.rows, bench.acting), *part.shape)
    most = int(part.high) + 1 if part.dtype is torch.uint8 else 2
    values = torch.randint(0, most, shape, device=device).to(part.dtype)
    arithmetic = "bf16" if bf16 else "fp32"

    def forward(rows: int) -> torch.Tensor:
        with torch.autocast(device.type, torch.bfloat16, enabled=bf16):
            return encoder({name: values[:rows]})

    def train() -> int:
        encoder.zero_grad()
        forward(bench.rows).float().square().mean().backward()
        synchronise(device)
        return bench.rows

    @torch.no_grad()
    def act() -> int:
        forward(bench.acting)
        synchronise(device)
        return bench.acting

    work: dict[str, Callable[[], int]] = {"training": train, "acting": act}
    return {f"{case}, {what}, {arithmetic}": lambda do=do: rate_of(do, bench.seconds) for what, do in work.items()}


def main(bench: Bench) -> int:
    """Measure every encoder, in bf16 as well where the device multiplies it natively."""
    device = pick_device(bench.device)
    both = (False, True) if uses_bf16("auto", device.type) else (False,)
    sides: dict[str, Side] = {}
    for case in CASES:
        for bf16 in both:
            sides |= sides_of(case, bench, device, bf16)
    rows = interleave(sides, bench.repeats, UNIT)
    rate = {name: row.value for name, row in rows.items()}
    ratios = [
        Ratio(f"{case}, training: bf16 / fp32", rate[f"{case}, training, bf16"] / rate[f"{case}, training, fp32"])
        for case in CASES
        if len(both) == 2
    ]
    words = {"rows": bench.rows, "acting": bench.acting, "device": str(device), "threads": torch.get_num_threads()}
    flags = ["--rows", str(bench.rows), "--acting", str(bench.acting), "--device", device.type]
    command = shlex.join(["recollect", "bench", "encoders", *flags, "--seconds", f"{bench.seconds:g}"])
    best = "cnn3d, 11 binary, training, fp32"
    headline = f"{rate[best]:,.0f} {UNIT} of {best}"
    report("encoders", command, words, list(rows.values()), ratios, bench.json, bench.out, headline)
    return 0
