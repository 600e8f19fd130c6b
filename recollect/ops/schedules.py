"""Numbers that change as training goes on: pure functions of the share of training that is done."""

import math


def scheduled(start: float, end: float, progress: float, shape: str) -> float:
    """Value at ``progress`` in 0..1 (clamped) on the way from ``start`` to ``end``.

    constant: start; linear: start + (end - start) p; cosine: end + (start - end)(1 + cos(pi p)) / 2;
    exponential: start (end / start)^p, which needs both ends above zero.
    """
    p = min(max(progress, 0.0), 1.0)
    if shape == "constant":
        return start
    if shape == "linear":
        return start + (end - start) * p
    if shape == "cosine":
        return end + (start - end) * (1 + math.cos(math.pi * p)) / 2
    if shape == "exponential":
        if start <= 0 or end <= 0:
            raise ValueError(f"an exponential schedule needs ends above zero, got {start} and {end}")
        return start * (end / start) ** p
    raise ValueError(f"a schedule is 'constant', 'linear', 'cosine' or 'exponential', not {shape!r}")
