"""Colours and the words for numbers, shared by page and figures."""

import math

PALETTE = ("#2f7de1", "#cf5f14", "#1f9254", "#b54fd0", "#c23f6d", "#0f8f9c", "#8a7a12", "#7a808c")
"""One colour per experiment; each has a contrast of 3 or more on both surfaces (tested), so one set serves both."""

SURFACES = {"light": "#ffffff", "dark": "#15181d"}

DASHES = ("solid", "dash", "dot", "dashdot")

NOTHING = "\N{EN DASH}"


def colour(index: int) -> str:
    """The colour of the experiment of this index."""
    return PALETTE[index % len(PALETTE)]


def dash(index: int) -> str:
    """Past the last colour the strokes change, so that no two experiments look alike."""
    return DASHES[index // len(PALETTE) % len(DASHES)]


def translucent(index: int, alpha: float) -> str:
    """The same colour, to be seen through."""
    red, green, blue = (int(colour(index)[at : at + 2], 16) for at in (1, 3, 5))
    return f"rgba({red},{green},{blue},{alpha})"


def as_number(value: object) -> float | None:
    """``value`` as a finite float, or None: files from elsewhere may hold anything."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        number = float(value)
    except OverflowError:
        return None
    return number if math.isfinite(number) else None


def figure(value: object) -> str:
    """A score: two decimals, or three significant digits where two decimals would say nothing."""
    number = as_number(value)
    if number is None:
        return NOTHING
    return f"{number:,.2f}" if number == 0 or abs(number) >= 0.1 else f"{number:.3g}"


def count(value: object) -> str:
    """A whole number with its thousands set apart."""
    number = as_number(value)
    return NOTHING if number is None else f"{number:,.0f}"


def interval(value: object) -> str:
    """``[low, high]``."""
    if not isinstance(value, list | tuple) or len(value) != 2 or None in map(as_number, value):
        return NOTHING
    return f"[{figure(value[0])}, {figure(value[1])}]"


def duration(seconds: object) -> str:
    """``41 s``, ``3 min 20 s``, ``2 h 5 min``."""
    number = as_number(seconds)
    if number is None:
        return NOTHING
    if number < 60:
        return f"{number:.1f} s" if number < 10 else f"{number:.0f} s"
    large, small = divmod(round(number if number < 3600 else number / 60), 60)
    return f"{large} min {small} s" if number < 3600 else f"{large} h {small} min"


def rate(amount: object, seconds: object) -> str:
    """Amount per second."""
    top, bottom = as_number(amount), as_number(seconds)
    return NOTHING if top is None or not bottom else count(top / bottom)
