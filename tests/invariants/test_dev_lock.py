"""What the tests compare against is really there: a silent skip would be a hole in the proof."""

import importlib

import pytest


@pytest.mark.parametrize(
    "name",
    ["ale_py", "cv2", "envpool", "hypothesis", "jsonschema", "matplotlib", "pygame", "stable_baselines3", "wandb"],
)
def test_the_dev_lock_brings(name: str):
    assert importlib.import_module(name)
