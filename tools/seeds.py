"""Train several seeds of an experiment and evaluate each, without pages: for a machine that only computes.

``python tools/seeds.py OUT EXPERIMENT SEED... [--parallel] [-- name=value ...]`` leaves run folders under OUT; bring
them home without their checkpoints, then ``recollect report`` and ``python tools/record.py`` there.
"""

import subprocess
import sys
from pathlib import Path

import yaml


def one(out: Path, experiment: str, seed: int, settings: dict, episodes: int = 100) -> None:
    """Train, say how it went, evaluate."""
    import recollect
    from recollect.cli import save_evaluation, sentence
    from recollect.run.folder import RunFolder

    result = recollect.train(experiment, out=out, seed=seed, **settings)
    print(seed, result, flush=True)
    print(seed, sentence(save_evaluation(RunFolder(Path(result["run"])), {}, episodes, {})), flush=True)


def main(words: list[str]) -> int:
    """Seeds one after another, or each in a process of its own."""
    settings = {}
    if "--" in words:
        words, pairs = words[: words.index("--")], words[words.index("--") + 1 :]
        settings = {name: yaml.safe_load(value) for name, _, value in (pair.partition("=") for pair in pairs)}
    parallel = "--parallel" in words
    out, experiment, *seeds = [word for word in words if word != "--parallel"]
    if not parallel:
        for seed in seeds:
            one(Path(out), experiment, int(seed), settings)
        return 0
    again = [f"{name}={yaml.safe_dump(value).splitlines()[0]}" for name, value in settings.items()]
    command = [sys.executable, __file__, out, experiment]
    children = [subprocess.Popen([*command, seed, "--", *again]) for seed in seeds]
    return max(child.wait() for child in children)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
