"""Frames into an mp4, or straight into the terminal."""

import itertools
import math
import os
import shutil
import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any, TextIO, cast

import numpy as np

SMALLEST_SIDE = 240
"""Pixels: below it players blur or shrink the picture, so tiny frames are enlarged by whole factors."""


def write_mp4(frames: Iterable[np.ndarray], path: Path, fps: float) -> Path:
    """Write uint8 [H, W, 3] frames, one at a time, as H.264 that every browser plays. Returns ``path``."""
    import imageio.v2 as imageio  # here, since a terminal player needs none of it

    _check_fps(fps)
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{path.stem}.partial.mp4")
    checked = _checked(frames)
    first = next(checked, None)
    if first is None:
        raise ValueError(f"{path}: there are no frames to write")
    options: dict[str, Any] = {"codec": "libx264", "quality": 8, "pixelformat": "yuv420p", "macro_block_size": 2}
    # faststart: the index goes first, so that a browser shows the first frame before it has the last
    options["output_params"] = ["-movflags", "+faststart"]
    try:
        # closing(), as the writer's own `with` leaves ffmpeg running when a frame is refused
        with closing(cast(Any, imageio.get_writer(partial, fps=fps, **options))) as writer:
            for frame in itertools.chain([first], checked):
                writer.append_data(playable(frame))
        os.replace(partial, path)
    finally:
        partial.unlink(missing_ok=True)
    return path


def playable(frame: np.ndarray) -> np.ndarray:
    """Enlarge a tiny frame by nearest neighbour and repeat its last row or column where a side is odd.

    yuv420p halves the resolution of colour, hence even sides; whole factors keep a game's pixels square and sharp.
    """
    factor = math.ceil(SMALLEST_SIDE / min(frame.shape[:2]))
    if factor > 1:
        frame = frame.repeat(factor, axis=0).repeat(factor, axis=1)
    height, width = frame.shape[:2]
    return np.pad(frame, ((0, height % 2), (0, width % 2), (0, 0)), mode="edge")


def _check_fps(fps: float) -> None:
    if not (math.isfinite(fps) and fps > 0):
        raise ValueError(f"fps must be above zero and finite, got {fps}")


def _checked(frames: Iterable[np.ndarray]) -> Iterator[np.ndarray]:
    """Frames as they come; ValueError at the first that is no picture or differs in size."""
    shape = None
    for number, frame in enumerate(frames):
        frame = np.asarray(frame)
        if frame.dtype != np.uint8 or frame.ndim != 3 or frame.shape[2] != 3 or 0 in frame.shape:
            raise ValueError(f"frame {number} must be uint8 [H, W, 3], got {frame.dtype} {list(frame.shape)}")
        if frame.shape != (shape or frame.shape):
            raise ValueError(f"frame {number} is {list(frame.shape)}, but the first was {list(shape or ())}")
        shape = frame.shape
        yield frame


def has_screen() -> bool:
    """Can a window be opened here?"""
    return sys.platform == "darwin" or any(os.environ.get(name) for name in ("DISPLAY", "WAYLAND_DISPLAY"))


HIDE_CURSOR, SHOW_CURSOR, RESET, CLEAR_BELOW = "\x1b[?25l", "\x1b[?25h", "\x1b[0m", "\x1b[J"


def play_in_terminal(frames: Iterable[np.ndarray], fps: float, stream: TextIO | None = None) -> int:
    """Play frames in a truecolour terminal, two pixels a character. Returns how many were shown.

    The picture follows the terminal's size. Ctrl-C is the way to stop watching: it ends the film, not the program,
    and the cursor comes back whatever happens.
    """
    _check_fps(fps)
    stream = stream or sys.stdout
    assert stream is not None, "there is no standard output to play to"
    shown, drawn_rows, size = 0, 0, None
    due = time.monotonic()
    try:
        stream.write(HIDE_CURSOR)
        for frame in _checked(frames):
            now_size = _terminal_size(stream)
            lines = half_blocks(frame, *now_size)
            home = f"\x1b[{drawn_rows}A\r" if drawn_rows else ""
            if size not in (None, now_size):  # what the old size left behind must go
                home += CLEAR_BELOW
            stream.write(home + "\n".join(lines) + "\n")
            stream.flush()
            shown, drawn_rows, size = shown + 1, len(lines), now_size
            # a late frame moves the clock: better slow than a rush to catch up
            due = max(due + 1 / fps, time.monotonic())
            time.sleep(max(0.0, due - time.monotonic()))
    except KeyboardInterrupt:
        pass
    finally:
        stream.write(RESET + SHOW_CURSOR)
        stream.flush()
    return shown


def _terminal_size(stream: TextIO) -> tuple[int, int]:
    """Columns and rows free for the picture: the last row stays empty, or the terminal would scroll."""
    try:
        columns, rows = os.get_terminal_size(stream.fileno())
    except (OSError, ValueError, AttributeError):
        columns, rows = shutil.get_terminal_size()
    return max(1, columns), max(1, rows - 1)


def half_blocks(frame: np.ndarray, columns: int, rows: int) -> list[str]:
    """``frame`` uint8 [H, W, 3] as at most ``rows`` lines of at most ``columns`` characters, its proportions kept.

    Each character is an upper half block: the foreground is the upper pixel, the background the lower one. A colour
    is only sent where it changes, which is rarely in a game.
    """
    scale = min(columns / frame.shape[1], 2 * rows / frame.shape[0])
    width = min(columns, max(1, round(frame.shape[1] * scale)))
    height = 2 * min(rows, max(1, round(frame.shape[0] * scale / 2)))
    pixels = _resized(frame, height, width).tolist()
    return [_line(upper, lower) for upper, lower in zip(pixels[0::2], pixels[1::2], strict=True)]


def _line(upper: list[list[int]], lower: list[list[int]]) -> str:
    parts: list[str] = []
    front = back = None
    for top, bottom in zip(upper, lower, strict=True):
        if top != front:
            parts.append("\x1b[38;2;{};{};{}m".format(*top))
        if bottom != back:
            parts.append("\x1b[48;2;{};{};{}m".format(*bottom))
        parts.append("\N{UPPER HALF BLOCK}")
        front, back = top, bottom
    return "".join(parts) + RESET


def _resized(frame: np.ndarray, height: int, width: int) -> np.ndarray:
    """Shrink by averaging areas, so that a ball of two pixels does not vanish between samples; enlarge by repeating."""
    for axis, size in ((0, height), (1, width)):
        have = frame.shape[axis]
        starts = np.arange(size) * have // size
        if size >= have:
            frame = frame.take(starts, axis)
            continue
        total = np.add.reduceat(frame, starts, axis=axis, dtype=np.float64)
        lengths = np.diff(starts, append=have)
        frame = total / lengths.reshape([-1 if at == axis else 1 for at in range(3)])
    return np.rint(frame).astype(np.uint8)
