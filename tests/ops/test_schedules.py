"""Schedules, at points where each shape is a round number."""

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from recollect.ops.schedules import scheduled

SHAPES = ("constant", "linear", "cosine", "exponential")
repeatable = settings(derandomize=True, deadline=None, max_examples=50)
ends = st.floats(0.1, 10)


@pytest.mark.parametrize(
    ("shape", "progress", "expected"),
    [
        ("constant", 0.75, 8),
        ("linear", 0.25, 6.5),  # 8 - 6 / 4
        ("linear", 0.5, 5),
        ("cosine", 1 / 3, 6.5),  # cos(pi / 3) = 1/2: 2 + 6 x 3/4
        ("cosine", 0.5, 5),
        ("cosine", 2 / 3, 3.5),
        ("exponential", 0.5, 4),  # the geometric mean of 8 and 2
        ("exponential", 0.25, 8 / math.sqrt(2)),
    ],
)
def test_from_8_to_2(shape: str, progress: float, expected: float):
    assert scheduled(8.0, 2.0, progress, shape) == pytest.approx(expected)


@pytest.mark.parametrize("shape", SHAPES)
@repeatable
@given(ends, ends)
def test_it_starts_and_ends_where_it_should_and_stays_there(shape: str, start: float, end: float):
    last = start if shape == "constant" else end
    for progress, expected in ((-1.0, start), (0.0, start), (1.0, last), (1.5, last)):
        assert scheduled(start, end, progress, shape) == pytest.approx(expected)


@pytest.mark.parametrize("shape", SHAPES[1:])
@repeatable
@given(ends, ends, st.floats(0, 1), st.floats(0, 1))
def test_it_never_turns_back(shape: str, start: float, end: float, earlier: float, later: float):
    earlier, later = sorted((earlier, later))
    moved = scheduled(start, end, later, shape) - scheduled(start, end, earlier, shape)
    assert moved * (end - start) >= -1e-9


def test_small_ends_are_fine():
    """Learning rates are far below one: 10^-4 to 10^-6 passes 10^-5."""
    assert scheduled(1e-4, 1e-6, 0.5, "exponential") == pytest.approx(1e-5)


@pytest.mark.parametrize(("start", "end"), [(0.0, 1.0), (1.0, 0.0), (-1.0, 1.0), (1.0, -1.0), (-1.0, -2.0)])
def test_an_exponential_schedule_needs_ends_above_zero(start: float, end: float):
    with pytest.raises(ValueError, match=f"ends above zero, got {start} and {end}"):
        scheduled(start, end, 0.5, "exponential")


def test_only_the_exponential_one_minds_zero():
    assert scheduled(0.0, 1.0, 0.5, "linear") == 0.5


def test_an_unknown_shape_names_the_known_ones():
    with pytest.raises(ValueError, match="'constant', 'linear', 'cosine' or 'exponential', not 'step'"):
        scheduled(1.0, 0.0, 0.5, "step")
