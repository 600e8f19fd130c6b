"""Frames to mp4 and to the terminal."""

import io
import re
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from recollect.report.video import half_blocks, has_screen, play_in_terminal, playable, write_mp4


def frames(count: int, height: int = 84, width: int = 84) -> Iterator[np.ndarray]:
    for at in range(count):
        frame = np.zeros((height, width, 3), np.uint8)
        frame[:, : width // 2] = (200, 60, 20 + 5 * at)
        yield frame


@pytest.mark.parametrize(("size", "written"), [((84, 84), (252, 252)), ((3, 5), (240, 400)), ((241, 303), (242, 304))])
def test_an_mp4_reads_back_with_its_frames_and_size(tmp_path: Path, size, written) -> None:
    import imageio.v3 as imageio

    path = write_mp4(frames(7, *size), tmp_path / "video" / "a.mp4", fps=30)
    film = np.stack(list(imageio.imiter(path)))
    assert film.shape == (7, *written, 3)
    assert np.abs(film[3, 100, 20].astype(int) - (200, 60, 35)).max() < 25, "colours survive, coarsely"
    assert film[3, 100, -20].max() < 25
    assert [each.name for each in path.parent.iterdir()] == ["a.mp4"], "no half-written file stays"


def test_enlarging_keeps_pixels_square_and_sharp() -> None:
    small = np.arange(2 * 3 * 3, dtype=np.uint8).reshape(2, 3, 3)
    large = playable(small)
    assert large.shape == (240, 360, 3)
    assert (large[::120, ::120] == small).all()
    assert (large[119, 119] == small[0, 0]).all()
    assert playable(np.zeros((480, 640, 3), np.uint8)).shape == (480, 640, 3)


def test_what_cannot_be_a_film_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.mp4"
    with pytest.raises(ValueError, match="no frames"):
        write_mp4([], path, 30)
    with pytest.raises(ValueError, match=r"frame 0 must be uint8 \[H, W, 3\], got float64 \[4, 4, 3\]"):
        write_mp4([np.zeros((4, 4, 3))], path, 30)
    with pytest.raises(ValueError, match=r"frame 1 is \[5, 4, 3\], but the first was \[4, 4, 3\]"):
        write_mp4([np.zeros((size, 4, 3), np.uint8) for size in (4, 5)], path, 30)
    with pytest.raises(ValueError, match="fps must be above zero"):
        write_mp4(frames(1), path, 0)
    assert not list(tmp_path.iterdir())


def plain(line: str) -> str:
    return re.sub(r"\x1b\[[0-9;]*m", "", line)


@pytest.mark.parametrize(
    ("columns", "rows", "size", "expected"),
    [
        (80, 23, (210, 160), (23, 35)),  # the height limits: 46 half blocks high, 46 * 160 / 210 wide
        (20, 23, (210, 160), (13, 20)),  # the width limits: 20 wide, 20 * 210 / 160 / 2 = 13.1 lines
        (80, 24, (84, 84), (24, 48)),
        (10, 10, (2, 4), (2, 10)),  # enlarged
        (1, 1, (84, 84), (1, 1)),
    ],
)
def test_a_picture_fits_and_keeps_its_proportions(columns, rows, size, expected) -> None:
    lines = half_blocks(next(frames(1, *size)), columns, rows)
    assert (len(lines), {len(plain(line)) for line in lines}) == (expected[0], {expected[1]})


def test_upper_and_lower_pixels_are_foreground_and_background() -> None:
    frame = np.array([[[1, 2, 3], [1, 2, 3]], [[4, 5, 6], [7, 8, 9]]], np.uint8)
    assert half_blocks(frame, 2, 1) == ["\x1b[38;2;1;2;3m\x1b[48;2;4;5;6m▀\x1b[48;2;7;8;9m▀\x1b[0m"]


def test_a_small_ball_survives_shrinking() -> None:
    frame = np.zeros((210, 160, 3), np.uint8)
    frame[101:103, 77:79] = 255
    text = "".join(half_blocks(frame, 40, 20))
    assert max(int(level) for level in re.findall(r"8;2;(\d+);", text)) > 20


def test_the_player_draws_in_place_and_gives_the_cursor_back(monkeypatch) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    monkeypatch.setenv("LINES", "11")
    stream = io.StringIO()
    assert play_in_terminal(frames(3), fps=1000, stream=stream) == 3
    text = stream.getvalue()
    assert text.count("\n") == 3 * 10, "ten lines a frame: the eleventh stays free, or the terminal would scroll"
    assert text.count("\x1b[10A\r") == 2, "the second and the third frame are drawn over the first"
    assert text.startswith("\x1b[?25l")
    assert text.endswith("\x1b[?25h")


def test_a_resized_terminal_is_cleared(monkeypatch) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    monkeypatch.setenv("LINES", "11")

    def resizing() -> Iterator[np.ndarray]:
        for at, frame in enumerate(frames(2)):
            monkeypatch.setenv("LINES", str(11 - 5 * at))
            yield frame

    stream = io.StringIO()
    play_in_terminal(resizing(), fps=1000, stream=stream)
    assert stream.getvalue().count("\n") == 10 + 5
    assert "\x1b[10A\r\x1b[J" in stream.getvalue()


@pytest.mark.parametrize("error", [KeyboardInterrupt, RuntimeError])
def test_the_cursor_comes_back_whatever_happens(error) -> None:
    def broken() -> Iterator[np.ndarray]:
        yield from frames(2)
        raise error

    stream = io.StringIO()
    if error is KeyboardInterrupt:
        assert play_in_terminal(broken(), fps=1000, stream=stream) == 2
    else:
        with pytest.raises(error):
            play_in_terminal(broken(), fps=1000, stream=stream)
    assert stream.getvalue().endswith("\x1b[0m\x1b[?25h")


def test_has_screen(monkeypatch) -> None:
    monkeypatch.setattr("sys.platform", "linux")
    for name in ("DISPLAY", "WAYLAND_DISPLAY"):
        monkeypatch.delenv(name, raising=False)
    assert not has_screen()
    monkeypatch.setenv("WAYLAND_DISPLAY", "wayland-0")
    assert has_screen()
    monkeypatch.delenv("WAYLAND_DISPLAY")
    monkeypatch.setattr("sys.platform", "darwin")
    assert has_screen()
