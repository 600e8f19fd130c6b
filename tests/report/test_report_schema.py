"""Files that a program may read: the good are accepted, the bad refused with the place that is wrong."""

import copy
import json
import sys

import pytest
from jsonschema import Draft202012Validator

from recollect.report.schema import KINDS, schema, validate


@pytest.mark.parametrize("kind", KINDS)
def test_the_good_are_accepted_and_the_schemas_are_schemas(kind: str, samples) -> None:
    Draft202012Validator.check_schema(schema(kind))
    validate(kind, samples[kind])
    validate(kind, json.loads(json.dumps(samples[kind])))


@pytest.mark.parametrize("kind", KINDS)
def test_every_required_key_is_missed(kind: str, samples) -> None:
    for key in schema(kind)["required"]:
        data = {name: value for name, value in samples[kind].items() if name != key}
        with pytest.raises(ValueError, match=f"{kind}: the whole: '{key}' is a required property"):
            validate(kind, data)


@pytest.mark.parametrize(
    ("kind", "path", "value"),
    [
        ("card", "schema_version", 2),
        ("card", "status", "done"),
        ("card", "env_steps", -1),
        ("card", "env_steps", 1.5),
        ("card", "seed", "1"),
        ("card", "weights_sha256", "abc"),
        ("card", "protocol.sticky", 1.5),
        ("card", "protocol.frame_skip", [2, 3, 4]),
        ("card", "protocol.misspelt", 1),
        ("card", "hardware.cores", 0),
        ("card", "versions.torch", 2.13),
        ("eval", "ci95", [1.0]),
        ("eval", "returns", []),
        ("eval", "mean", None),
        ("eval", "sampled.returns", ["1"]),
        ("eval", "greedy.ci95", None),
        ("metrics", "step", None),
        ("metrics", "loss/policy", "0.1"),
        ("metrics", "loss", 0.1),
        ("attention", "look_back", 0),
        ("attention", "on_sight.share", [0.5]),
        ("attention", "maps.0.share", [[0.5]]),
        ("attention", "maps.0.head", "mean"),
        ("attention", "reward", [None]),
        ("attention", "scene.paddle", []),
        ("bench", "rows", []),
        ("bench", "rows.0.value", None),
        ("bench", "ratios.0.pass", "yes"),
        ("bench", "extra", 1),
    ],
)
def test_the_bad_are_refused_by_place(kind: str, path: str, value: object, samples) -> None:
    data = copy.deepcopy(samples[kind])
    *above, last = [int(step) if step.isdigit() else step for step in path.split(".")]
    at = data
    for step in above:
        at = at[step]
    at[last] = value
    with pytest.raises(ValueError, match=f"^{kind}: ") as error:
        validate(kind, data)
    assert "\n" not in str(error.value)
    assert str(last) in str(error.value)


def test_what_may_be_null_or_absent(samples) -> None:
    validate("card", samples["card"] | {"commit": None, "weights_sha256": None, "command": ["recollect", "train"]})
    validate("card", samples["card"] | {"protocol": samples["card"]["protocol"] | {"frame_skip": [2, 4]}})
    validate("metrics", samples["metrics"] | {"train/return_mean": None, "eval/mean": 3})
    samples["bench"]["rows"] = [{"what": "a", "value": 1, "unit": "s"}]
    samples["bench"]["ratios"] = [{"name": "r", "value": 1.0, "floor": None, "pass": None}]
    validate("bench", samples["bench"])


def test_an_unknown_kind_and_a_missing_validator_are_named(samples, monkeypatch) -> None:
    with pytest.raises(ValueError, match="no schema 'cards'; there are card, eval, metrics, attention, bench"):
        validate("cards", {})
    monkeypatch.setitem(sys.modules, "jsonschema", None)
    with pytest.raises(ValueError, match=r"recollect\[dev\]"):
        validate("card", samples["card"])
