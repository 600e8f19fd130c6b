"""Record what an experiment reached: ``python tools/record.py RUN...`` writes results/{experiment}.json and .png.

The runs are finished and evaluated ones of one experiment, a seed each. Nothing is computed here that their own
card.json and eval.json do not hold, but for the headline.
"""

import json
import statistics
import sys
from pathlib import Path
from typing import Any

from recollect.report.loading import network_words
from recollect.report.png import write_curve_png
from recollect.report.schema import validate
from recollect.run.folder import RunFolder

RESULTS = Path(__file__).parent.parent / "results"


def seed_row(card: dict[str, Any], scored: dict[str, Any]) -> dict[str, Any]:
    """One seed's figures."""
    kept = {key: card[key] for key in ("seed", "env_steps", "wall_s", "cold_start_s", "weights_sha256") if key in card}
    return {
        **kept,
        **{k: scored[k] for k in ("episodes", "mean", "iqm", "ci95")},
        "greedy_mean": scored["greedy"]["mean"],
    }


def main(paths: list[str]) -> int:
    """Write the two files."""
    folders = [RunFolder.open(path) for path in paths]
    cards = [folder.read_card() for folder in folders]
    scores = [json.loads(folder.eval.read_text()) for folder in folders]
    names = {card["experiment"] for card in cards}
    assert len(names) == 1, f"runs of one experiment, not of {sorted(names)}"
    assert all(card["status"] == "finished" for card in cards), "only finished runs are recorded"
    seeds = sorted((seed_row(*pair) for pair in zip(cards, scores, strict=True)), key=lambda row: row["seed"])
    means, name = [row["mean"] for row in seeds], names.pop()
    steps, cold = max(row["env_steps"] for row in seeds), max(row.get("cold_start_s", 0.0) for row in seeds)
    wall = max(row["wall_s"] - row.get("cold_start_s", 0.0) for row in seeds)
    time = f"{wall:.0f} s at most" + (f" after a cold start of {cold:.0f} s" if cold >= 0.05 * wall else "")
    many = f"{len(seeds)} seeds: {min(means):.1f} to {max(means):.1f}" if len(seeds) > 1 else "1 seed"
    result = {
        "schema_version": 1,
        "name": name,
        "headline": f"{statistics.mean(means):.1f} ({many}) after {steps:,} steps, {time}",
        "commands": [card["command"] for card in cards],
        "network": network_words(folders[0].read_config().get("net", {})),
        **{key: cards[0][key] for key in ("protocol", "hardware", "versions", "commit")},
        "seeds": seeds,
    }
    validate("result", result)
    (RESULTS / f"{name}.json").write_text(json.dumps(result, indent=2) + "\n")
    write_curve_png([folder.path for folder in folders], RESULTS / f"{name}.png")
    print(f"{name}: {result['headline']}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
