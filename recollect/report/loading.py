"""What a run folder holds, read for display: nothing but the card is required, and what is wrong is kept to be said."""

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from recollect.report.curves import Metrics, read_metrics

SCHEMA_VERSION = 1

RUN_KEYS = {"run", "seed"}
"""Parts of a config that may differ between runs of one experiment without making it another experiment."""


@dataclass(frozen=True, eq=False)  # two runs are the same only if they are one: arrays have no plain equality
class Run:
    """One run folder, read."""

    folder: Path
    card: dict[str, Any]
    metrics: Metrics
    evaluation: dict[str, Any] | None = None
    attention: dict[str, Any] | None = None
    config: dict[str, Any] = field(default_factory=dict)  # dotted key -> leaf
    config_text: str | None = None
    videos: tuple[Path, ...] = ()
    problems: tuple[str, ...] = ()  # one line each, shown on the page

    @property
    def name(self) -> str:
        """The folder's name."""
        return self.folder.name

    @property
    def experiment(self) -> str:
        """By which runs are grouped; a card without one stands for itself."""
        return str(self.card.get("experiment") or self.name)

    @property
    def algorithm(self) -> str:
        """As the card names it."""
        return str(self.card.get("algorithm") or "an unnamed algorithm")

    @property
    def seed(self) -> str:
        """As a word: it is only ever shown and compared."""
        return str(self.card.get("seed", "?"))

    @property
    def status(self) -> str:
        """running, finished, stopped or failed."""
        return str(self.card.get("status") or "unknown")

    @property
    def protocol(self) -> dict[str, Any]:
        """The protocol card of training."""
        return mapping(self.card.get("protocol"))

    @property
    def env_id(self) -> str:
        """The environment trained on."""
        return str(self.protocol.get("env_id") or "an unnamed environment")

    @property
    def network(self) -> str:
        """Encoder and memory in words; empty where the config does not say."""
        return network_words({key.removeprefix("net."): v for key, v in self.config.items() if key.startswith("net.")})


def network_words(net: dict[str, Any]) -> str:
    """A network's settings in words: ``mlp, no memory``, ``cnn + transformer, 2 layers, look-back 16``."""
    encoder, core = net.get("encoder"), net.get("core")
    if not encoder or not core:
        return ""
    if core == "none":
        return f"{encoder}, no memory"
    words = [f"{encoder} + {core}"]
    if core in ("transformer", "gtrxl", "gau") and "core_layers" in net:
        words.append(f"{net['core_layers']} layer" + ("" if net["core_layers"] == 1 else "s"))
    if core not in ("gru", "lstm") and "look_back" in net:
        words.append(f"look-back {net['look_back']}")
    return ", ".join(words)


@dataclass(frozen=True)
class Group:
    """The runs of one experiment with one network in one environment: what is averaged over seeds."""

    name: str  # the experiment's, with the network where it comes with several
    experiment: str
    env_id: str
    index: int  # of experiment and network: its colour, the same in every figure
    runs: tuple[Run, ...]

    @property
    def replicates(self) -> tuple[Run, ...]:
        """One run a seed, the last given: a seed run twice is no second sample, and would narrow every interval."""
        return tuple({run.seed: run for run in self.runs}.values())


def mapping(value: object) -> dict[str, Any]:
    """``value`` if it is a map, else an empty one: a stranger's file may hold anything."""
    return value if isinstance(value, dict) else {}


def load_runs(folders: Sequence[Path]) -> list[Run]:
    """Read every folder once, in the order given."""
    unique = {Path(folder).resolve(): Path(folder) for folder in folders}
    if not unique:
        raise ValueError("a report needs at least one run folder; none was given")
    return [load_run(folder) for folder in unique.values()]


def load_run(folder: Path) -> Run:
    """Read one run folder. ValueError where it is none."""
    card_path = folder / "card.json"
    if not card_path.is_file():
        what = "it has no card.json" if folder.is_dir() else "there is no such folder"
        raise ValueError(f"{folder} is not a run folder: {what}")
    card, problem = _read_map(card_path)
    if card is None:
        raise ValueError(f"{folder} is not a readable run folder: {problem}")
    problems = [_version_problem("card.json", card)]
    metrics = read_metrics(folder / "metrics.jsonl")
    problems.append(_metrics_problem(folder / "metrics.jsonl", metrics))
    evaluation, problem = _read_map(folder / "eval.json")
    problems += [problem, _version_problem("eval.json", evaluation)]
    attention, problem = _read_map(folder / "attention.json")
    problems += [problem, _version_problem("attention.json", attention)]
    config_text, config, problem = _read_config(folder / "config.yaml")
    problems.append(problem)
    videos = tuple(sorted((folder / "video").glob("[!.]*.mp4")))  # a hidden one is still being written
    said = tuple(line for line in problems if line)
    return Run(folder.resolve(), card, metrics, evaluation, attention, config, config_text, videos, said)


def _read_map(path: Path) -> tuple[dict[str, Any] | None, str | None]:
    """The JSON object in ``path``, or None; and what is wrong with it. A file that is not there is nothing wrong."""
    if not path.is_file():
        return None, None
    try:
        data = json.loads(path.read_text(encoding="utf-8", errors="replace"))
    except (ValueError, RecursionError) as error:
        return None, f"{path.name} is damaged ({error})"
    return (data, None) if isinstance(data, dict) else (None, f"{path.name} holds no JSON object")


def _version_problem(name: str, data: dict[str, Any] | None) -> str | None:
    if data is None or data.get("schema_version") == SCHEMA_VERSION:
        return None
    return f"{name} has schema_version {data.get('schema_version')!r}; this page was made for {SCHEMA_VERSION}"


def _metrics_problem(path: Path, metrics: Metrics) -> str | None:
    if not path.is_file():
        return "metrics.jsonl is missing: there are no curves for this run"
    if metrics.damaged:
        return f"metrics.jsonl has {metrics.damaged} damaged line(s), left out here"
    return None if metrics.rows else "metrics.jsonl is empty: no update has been logged yet"


def _read_config(path: Path) -> tuple[str | None, dict[str, Any], str | None]:
    if not path.is_file():
        return None, {}, "config.yaml is missing"
    text = path.read_text(encoding="utf-8", errors="replace")
    try:
        return text, flatten(mapping(yaml.safe_load(text))), None
    except (yaml.YAMLError, ValueError, RecursionError):
        return text, {}, "config.yaml is damaged; it is shown as it is"


def flatten(tree: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """``{"a": {"b": 1}}`` as ``{"a.b": 1}``."""
    flat: dict[str, Any] = {}
    for key, value in tree.items():
        name = f"{prefix}{key}"
        flat.update(flatten(value, f"{name}.") if isinstance(value, dict) and value else {name: value})
    return flat


def group_runs(runs: Sequence[Run]) -> list[Group]:
    """Runs by experiment, network and environment, in order of appearance.

    A control is often the same experiment with another core: averaged with it, both would be lost.
    """
    kinds = list(dict.fromkeys((run.experiment, run.network) for run in runs))
    several = {name for name, _ in kinds if sum(name == other for other, _ in kinds) > 1}

    def named(experiment: str, network: str) -> str:
        return f"{experiment} ({network or 'network unknown'})" if experiment in several else experiment

    keys = dict.fromkeys((run.experiment, run.network, run.env_id) for run in runs)
    return [
        Group(
            named(*key[:2]),
            key[0],
            key[2],
            kinds.index(key[:2]),
            tuple(run for run in runs if (run.experiment, run.network, run.env_id) == key),
        )
        for key in keys
    ]


def comparison_notes(runs: Sequence[Run]) -> list[str]:
    """What makes these runs less comparable than the page would suggest, one line each."""
    notes = []
    for group in group_runs(runs):
        seeds = [run.seed for run in group.runs]
        twice = sorted({seed for seed in seeds if seeds.count(seed) > 1})
        if twice:
            notes.append(f"{group.name}: seed {', '.join(twice)} was run more than once; means take its last run.")
        for key, values in _differences([run.config for run in group.runs]).items():
            if key.split(".")[0] not in RUN_KEYS:
                notes.append(f"{group.name}: averaged runs differ in {key}: {values}.")
    for env_id in dict.fromkeys(run.env_id for run in runs):
        cards = [flatten(run.protocol) for run in runs if run.env_id == env_id]
        for key, values in _differences(cards).items():
            notes.append(f"{env_id}: the protocols differ in {key}: {values}. Scores are not directly comparable.")
    return notes


def _differences(maps: Sequence[dict[str, Any]]) -> dict[str, str]:
    """Keys whose values are not the same in all non-empty maps, and the values."""
    maps = [each for each in maps if each]
    found = {}
    for key in dict.fromkeys(key for each in maps for key in each):
        values = list(dict.fromkeys(str(each.get(key, "absent")) for each in maps))
        if len(values) > 1:
            found[key] = ", ".join(values)
    return found
