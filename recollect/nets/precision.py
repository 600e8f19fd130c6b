"""Which arithmetic a device is good at."""

import functools

import torch


@functools.cache
def native_bf16(device_type: str) -> bool:
    """Whether a device multiplies bf16 in hardware. A CPU without it takes ten times as long as for fp32."""
    if device_type == "cuda":
        return torch.cuda.is_bf16_supported(including_emulation=False)
    try:
        return "avx512_bf16" in _cpu_flags() or "amx_bf16" in _cpu_flags()
    except OSError:  # no Linux
        return False


def _cpu_flags() -> set[str]:
    with open("/proc/cpuinfo") as lines:
        return set(next((line for line in lines if line.startswith("flags")), "").split())


def uses_bf16(precision: str, device_type: str) -> bool:
    """What ``NetConfig.precision`` means on a device."""
    return precision == "bf16" or (precision == "auto" and native_bf16(device_type))
