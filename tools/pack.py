"""Pack runs to take along: ``python tools/pack.py OUT.tar.gz RUN...``, each without videos and optimiser.

What is packed can be evaluated, watched and reported, not resumed.
"""

import shutil
import sys
import tarfile
import tempfile
from pathlib import Path

from recollect.run import checkpoint
from recollect.run.folder import RunFolder

KEPT = ("config.yaml", "card.json", "metrics.jsonl", "eval.json")


def slim(run: Path, out: Path) -> None:
    """A copy of a run with the weights of its newest checkpoint alone."""
    newest, _ = checkpoint.load_newest(RunFolder.open(run).checkpoints)
    weights = {name: part for name, part in newest.tensors.items() if name.startswith("agent/")}
    written = (
        "schema_version",
        "update",
        "tensors_sha256",
        "optimizer",
    )  # by save itself, or of no use without moments
    data = {key: value for key, value in newest.data.items() if key not in written}
    checkpoint.save(RunFolder(out).checkpoints, newest.data["update"], weights, data)
    for name in KEPT:
        if (run / name).is_file():
            shutil.copy(run / name, out / name)


def main(words: list[str]) -> int:
    """Pack every run into one archive."""
    out, *runs = map(Path, words)
    with tempfile.TemporaryDirectory() as folder, tarfile.open(out, "w:gz") as archive:
        for run in runs:
            copy = Path(folder) / run.name
            copy.mkdir()
            slim(run, copy)
            archive.add(copy, run.name)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
