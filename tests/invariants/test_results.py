"""Recorded results keep their schema, belong to known experiments or benches, and pictures stand beside curves."""

import json
from pathlib import Path

import pytest

from recollect.bench import BENCHES
from recollect.experiments import EXPERIMENTS, measured
from recollect.report.schema import validate

RESULTS = Path(__file__).parents[2] / "results"
FILES = sorted(RESULTS.glob("*.json"))


def test_there_are_results():
    assert FILES


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_a_result_keeps_its_schema(path: Path):
    data = json.loads(path.read_text())
    if path.stem.startswith("bench-"):
        validate("bench", data)
        assert data["name"] in BENCHES
        return
    validate("result", data)
    assert data["name"] == path.stem
    assert path.stem in EXPERIMENTS
    assert path.with_suffix(".png").is_file()
    assert measured(path.stem) == data["headline"]


def test_the_readme_says_what_is_recorded():
    readme = (RESULTS.parent / "README.md").read_text()
    for path in FILES:
        assert json.loads(path.read_text())["headline"] in readme, path.stem
