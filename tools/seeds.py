"""Train several seeds of an experiment and evaluate each, without pages: for a machine that only computes.

``python tools/seeds.py OUT EXPERIMENT SEED... [--parallel] [--unscored] [-- name=value ...]`` leaves run folders under
OUT; ``tools/pack.py`` packs them, to be evaluated (if unscored), reported and recorded elsewhere.
"""

import subprocess
import sys
import typing
from pathlib import Path

from recollect.config import choose, from_word, leaf_types
from recollect.experiments import experiment


def one(out: Path, experiment: str, seed: int, settings: dict, scored: bool) -> None:
    """Train, say how it went, evaluate."""
    import recollect
    from recollect.cli import save_evaluation, sentence
    from recollect.run.folder import RunFolder

    result = recollect.train(experiment, out=out, seed=seed, **settings)
    print(seed, result, flush=True)
    if scored:
        print(seed, sentence(save_evaluation(RunFolder(Path(result["run"])), {}, 100, {})), flush=True)


def settings_of(name: str, pairs: list[str]) -> dict:
    """``name=value`` words as the experiment's own settings; several values are written with commas."""
    hints, settings = leaf_types(type(experiment(name).config())), {}
    for key, _, words in (pair.partition("=") for pair in pairs):
        hint = choose("setting", key, hints)
        many = typing.get_origin(hint) is tuple
        values = tuple(from_word(hint, word, key) for word in words.split(",")) if many else ()
        settings[key] = values if many else from_word(hint, words, key)
    return settings


def main(words: list[str]) -> int:
    """Seeds one after another, or each in a process of its own."""
    pairs = []
    if "--" in words:
        words, pairs = words[: words.index("--")], words[words.index("--") + 1 :]
    flags = {word for word in words if word in ("--parallel", "--unscored")}
    out, name, *seeds = [word for word in words if word not in flags]
    if "--parallel" not in flags:
        settings = settings_of(name, pairs)
        for seed in seeds:
            one(Path(out), name, int(seed), settings, "--unscored" not in flags)
        return 0
    command = [sys.executable, __file__, out, name, *flags - {"--parallel"}]
    children = [subprocess.Popen([*command, seed, "--", *pairs]) for seed in seeds]
    return max(child.wait() for child in children)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
