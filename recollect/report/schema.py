"""The shape of every file that a program may read: JSON schemas beside this file, and a check with a clear message."""

import json
from functools import cache
from pathlib import Path
from typing import Any

SCHEMAS = Path(__file__).parent / "schemas"

KINDS = ("card", "eval", "metrics", "attention", "bench", "result")
"""card.json, eval.json, one row of metrics.jsonl, attention.json, what a benchmark writes, what an experiment reached.
"""


@cache
def schema(kind: str) -> dict[str, Any]:
    """The JSON schema of ``kind``."""
    if kind not in KINDS:
        raise ValueError(f"there is no schema {kind!r}; there are {', '.join(KINDS)}")
    return json.loads((SCHEMAS / f"{kind}.json").read_text(encoding="utf-8"))


def validate(kind: str, data: Any) -> None:
    """ValueError with one line, naming the place in ``data`` that does not fit the schema of ``kind``."""
    expected = schema(kind)
    try:
        from jsonschema import Draft202012Validator
        from jsonschema.exceptions import best_match
    except ImportError as error:
        raise ValueError("checking files needs jsonschema, of the extra 'dev': pip install 'recollect[dev]'") from error
    found = best_match(Draft202012Validator(expected).iter_errors(data))
    if found is not None:
        place = ".".join(str(step) for step in found.absolute_path) or "the whole"
        raise ValueError(f"{kind}: {place}: {found.message.splitlines()[0][:200]}")
