"""The command line: ``recollect <verb>``. Results go to standard output, progress and complaints to standard error."""

import contextlib
import dataclasses
import io
import json
import re
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Any

import tyro

from recollect import __version__
from recollect.config import flat_fields, nearest, setting

Flat = tyro.conf.OmitArgPrefixes
FLAGS = (tyro.conf.OmitArgPrefixes, tyro.conf.OmitSubcommandPrefixes)


def say(line: str) -> None:
    """To the person, not to the program that reads our output."""
    print(line, file=sys.stderr)


def emit(as_json: bool, data: dict[str, Any] | list, text: str) -> None:
    """The result: one JSON value on the last line for a program, else words."""
    print(json.dumps(data) if as_json else text)


def parse(command: type, verb: str, argv: Sequence[str], default: Any = None) -> Any:
    """Parse flags into a dataclass; what cannot be parsed is one clear line and exit code 2."""
    known = {f"--{name.replace('_', '-')}" for name in flat_fields(command)}
    known |= {f"--no-{name[2:]}" for name in known} | {"--help", "-h"}
    for word in argv:
        flag = word.partition("=")[0].replace("_", "-")
        if word.startswith("--") and flag not in known:
            raise ValueError(f"unknown flag {flag}{nearest(flag, sorted(known))}")
    complaint = io.StringIO()
    try:
        with contextlib.redirect_stderr(complaint):
            extra = {} if default is None else {"default": default}
            return tyro.cli(command, args=list(argv), prog=f"recollect {verb}", config=FLAGS, **extra)
    except SystemExit as stop:
        if stop.code in (0, None):
            raise
        raise ValueError(one_line(complaint.getvalue())) from None


def one_line(box: str) -> str:
    """The words of a drawn error box, without its frame."""
    lines = [re.sub(r"[│╭╮╰╯─]+", " ", line).strip() for line in box.splitlines()]
    words = [w for w in lines if w and not w.startswith("For full helptext")]
    return re.sub(r"\s+", " ", " ".join(words)).removeprefix("Parsing error").strip() or "cannot parse the flags"


def external_in(argv: Sequence[str]) -> dict[str, str]:
    """Code of the user's own that *this* command line names: {"core": "mine.py:MyCore"}."""
    found = {}
    for name in ("core", "encoder", "env_id", "algo"):
        value = flag_value(argv, name)
        if value is not None:
            found[name] = value
    return found


def flag_value(argv: Sequence[str], name: str) -> str | None:
    """The value that ``--name`` has in ``argv``, written either way."""
    flag = f"--{name.replace('_', '-')}"
    for i, word in enumerate(argv):
        if word.replace("_", "-") == flag and i + 1 < len(argv):
            return argv[i + 1]
        if word.partition("=")[0].replace("_", "-") == flag and "=" in word:
            return word.partition("=")[2]
    return None


def split_positionals(argv: Sequence[str]) -> tuple[list[str], list[str]]:
    """Leading words without a dash, and the rest."""
    count = next((i for i, word in enumerate(argv) if word.startswith("-")), len(argv))
    return list(argv[:count]), list(argv[count:])


# train


def train_command(config: Any) -> type:
    """The flags of ``train`` for one algorithm: all of its Config, and what belongs to the command."""
    arg = tyro.conf.arg
    return dataclasses.make_dataclass(
        "Train",
        [
            ("config", type(config), dataclasses.field(default=config)),
            ("algo", Annotated[str | None, arg(help="ppo, or a file of your own with Config and train().")], None),
            ("resume", Annotated[Path | None, arg(help="Go on with this run instead of starting one.")], None),
            ("restart_episodes", Annotated[bool, arg(help="On resume, begin open episodes anew.")], False),
            ("json", Annotated[bool, arg(help="Print the result as one JSON object.")], False),
        ],
        namespace={"__doc__": "Train a named experiment; every setting is a flag."},
    )


def train(argv: Sequence[str]) -> int:
    """train EXPERIMENT [flags] | train --resume RUN"""
    from recollect import api
    from recollect.run.folder import RunFolder

    names, flags = split_positionals(argv)
    resume = flag_value(flags, "resume")
    if len(names) > 1 or (not names and not resume and not {"-h", "--help"} & set(flags)):
        raise ValueError("train takes one experiment (see 'recollect list') or --resume RUN")
    if resume and names:
        raise ValueError(f"--resume goes on with a run as it is; leave {names[0]!r} out")
    if resume:
        folder, given = RunFolder.open(resume), external_in(flags)
        stored, _ = api.stored_config(folder, given)
        command = parse(train_command(stored), "train", flags)
        changes = api.changed(stored, command.config)
        run, agent, damaged = api.go_on(folder, changes, given, command.restart_episodes)
        for line in damaged:
            say(f"recollect: passed over a damaged checkpoint: {line}")
        return after_training(run, agent, command.config, command.json)
    name = names[0] if names else "cartpole-ppo"  # --help alone shows some experiment's defaults
    command = parse(train_command(api.experiment_config(name, flag_value(flags, "algo"))), "train", flags)
    run, agent = api.start(name, command.config, command.algo)
    return after_training(run, agent, command.config, command.json)


def after_training(run: Any, agent: Any, config: Any, as_json: bool) -> int:
    """Evaluation, video and report; or, after Ctrl-C, how to go on."""
    result = run.result()
    if run.status == "stopped":
        say(f"stopped; go on with: recollect train --resume {run.folder.path}")
        emit(as_json, result, f"run: {run.folder.path}")
        return 130
    lines = [f"run: {run.folder.path}", f"{run.env_steps:,} steps in {result['wall_s']:.1f} s"]
    if config.run.eval_episodes:
        scored = save_evaluation(run.folder, {}, config.run.eval_episodes, flags=external_of(config))
        lines.append(sentence(scored))
    if config.run.capture_video:
        lines.append(f"video: {write_video(run.folder, external_of(config), None)}")
    lines.append(f"report: {write_page([run.folder.path], run.folder.report)}")
    emit(as_json, result, "\n".join(lines))
    return 0


def external_of(config: Any) -> dict[str, str]:
    """The outside code that a configuration from this very command names."""
    from recollect.api import EXTERNAL_FIELDS
    from recollect.config import is_external

    return {name: setting(config, name) for name in EXTERNAL_FIELDS if is_external(setting(config, name))}


# eval, watch, report


@dataclasses.dataclass(frozen=True)
class Eval:
    """Score a run on environments it was never trained on."""

    episodes: int = 100
    """How many, the same number in every environment."""
    env_id: str | None = None
    """Another environment than the run's own."""
    protocol: str | None = None
    """Another Atari protocol."""
    env_options: tuple[str, ...] | None = None
    """Other environment options, key=value."""
    seed: int | None = None
    """Another seed than the run's; evaluation has streams of its own either way."""
    core: str | None = None
    """Your own core, if the run was trained with one: mine.py:MyCore."""
    encoder: str | None = None
    """Likewise an encoder."""
    algo: str | None = None
    """Likewise an algorithm."""
    json: bool = False
    """Print the result as one JSON object."""


def one_run(verb: str, argv: Sequence[str]) -> tuple[str, list[str]]:
    """The run that a verb is given, and its flags."""
    names, flags = split_positionals(argv)
    if len(names) != 1 and not {"-h", "--help"} & set(flags):
        raise ValueError(f"{verb} takes one run folder")
    return (names or [""])[0], flags


def evaluate(argv: Sequence[str]) -> int:
    """eval RUN [flags]"""
    from recollect.run.folder import RunFolder

    name, flags = one_run("eval", argv)
    command = parse(Eval, "eval", flags)
    settings = {
        k: getattr(command, k) for k in ("env_id", "protocol", "env_options") if getattr(command, k) is not None
    }
    result = save_evaluation(RunFolder.open(name), settings, command.episodes, external_in(flags), command.seed)
    emit(command.json, result, sentence(result))
    return 0


def save_evaluation(
    folder: Any, settings: dict[str, Any], episodes: int, flags: dict[str, str], seed: int | None = None
) -> dict[str, Any]:
    """Evaluate and write it down: eval.json for the run's own environment, eval__{...}.json for another."""
    from recollect import api

    result = api.evaluate(folder.path, episodes=episodes, seed=seed, **{**flags, **settings})
    other = "__".join(re.sub(r"[^\w.=-]+", "-", str(value)) for value in settings.values())
    folder.write_json(folder.path / (f"eval__{other}.json" if other else "eval.json"), result)
    return result


def sentence(result: dict[str, Any]) -> str:
    """An evaluation in words."""
    low, high = result["ci95"]
    return (
        f"{result['env_id']} ({result['protocol']['name']}), {result['episodes']} episodes: "
        f"mean {result['mean']:.2f} [{low:.2f}, {high:.2f}], IQM {result['iqm']:.2f}, "
        f"greedy mean {result['greedy']['mean']:.2f}"
    )


@dataclasses.dataclass(frozen=True)
class Watch:
    """Play one episode: an mp4, and frames in the terminal where there is no screen."""

    out: Path | None = None
    """The mp4; by default video/episode.mp4 in the run's folder."""
    seed: int | None = None
    """Another episode."""
    max_steps: int = 5000
    """Stop filming after so many decisions."""
    fps: int = 30
    """Frames a second."""
    terminal: bool | None = None
    """Play in the terminal as well; by default where standard output is one and there is no screen."""
    core: str | None = None
    """Your own core, if the run was trained with one: mine.py:MyCore."""
    encoder: str | None = None
    """Likewise an encoder."""
    env_id: str | None = None
    """Likewise an environment."""
    algo: str | None = None
    """Likewise an algorithm."""


def watch(argv: Sequence[str]) -> int:
    """watch RUN [flags]"""
    from recollect.run.folder import RunFolder

    name, flags = one_run("watch", argv)
    print(write_video(RunFolder.open(name), external_in(flags), parse(Watch, "watch", flags)))
    return 0


def write_video(folder: Any, external: dict[str, str], command: Watch | None) -> Path:
    """Film one episode of the newest checkpoint."""
    from recollect import api
    from recollect.report import video

    command = command or Watch(terminal=False)
    frames = api.film(folder.path, command.seed, command.max_steps, external)
    path = command.out or folder.video / "episode.mp4"
    path.parent.mkdir(parents=True, exist_ok=True)
    video.write_mp4(frames, path, command.fps)
    in_terminal = not video.has_screen() and sys.stdout.isatty() if command.terminal is None else command.terminal
    if in_terminal:
        video.play_in_terminal(frames, command.fps)
    return path


@dataclasses.dataclass(frozen=True)
class Report:
    """One self-contained page about one run or several."""

    out: Annotated[Path | None, tyro.conf.arg(aliases=["-o"])] = None
    """The page; by default report.html in the first run's folder."""


def report(argv: Sequence[str]) -> int:
    """report RUN... -o FILE.html"""
    names, flags = split_positionals(argv)
    command = parse(Report, "report", flags)
    if not names:
        raise ValueError("report takes at least one run folder")
    print(write_page([Path(name) for name in names], command.out or Path(names[0]) / "report.html"))
    return 0


def write_page(runs: list[Path], out: Path) -> Path:
    """The report of some runs."""
    from recollect.report.page import write_report
    from recollect.run.folder import RunFolder

    return write_report([RunFolder.open(run).path for run in runs], out)


# list, bench


@dataclasses.dataclass(frozen=True)
class List:
    """Every experiment: environment, algorithm, network, what its source reported, what we measured."""

    json: bool = False
    """Print a JSON list."""


def list_experiments(argv: Sequence[str]) -> int:
    """list"""
    from rich.console import Console
    from rich.table import Table

    from recollect.experiments import ROWS, measured

    command = parse(List, "list", argv)
    rows = []
    for row in ROWS:
        config = row.config()
        core = "" if config.net.core == "none" else f" + {config.net.core}"
        rows.append(
            {
                "name": row.name,
                "env_id": config.env.env_id,
                "algorithm": row.algorithm,
                "network": config.net.encoder + core,
                "reported": row.reported,
                "measured": measured(row.name),
                "about": row.about,
            }
        )
    if command.json:
        print(json.dumps(rows))
        return 0
    table = Table(box=None, header_style="bold")
    for column in ("name", "env_id", "algorithm", "network", "reported", "measured"):
        table.add_column(column, overflow="fold")
    for row in rows:
        table.add_row(*(row[c] for c in ("name", "env_id", "algorithm", "network", "reported", "measured")))
    Console().print(table)
    return 0


def bench(argv: Sequence[str]) -> int:
    """bench NAME [flags]"""
    from recollect.bench import BENCHES
    from recollect.config import choose

    names, flags = split_positionals(argv)
    if len(names) != 1:
        raise ValueError(f"bench takes one of {', '.join(BENCHES)}")
    module = choose("bench", names[0], BENCHES)
    return module.main(parse(module.Bench, f"bench {names[0]}", flags))


VERBS: dict[str, Callable[[Sequence[str]], int]] = {
    "list": list_experiments,
    "train": train,
    "eval": evaluate,
    "watch": watch,
    "report": report,
    "bench": bench,
}

USAGE = f"""recollect {__version__}: reinforcement-learning agents that remember

  recollect list                          every experiment, reported and measured
  recollect train EXPERIMENT [flags]      train it; --resume RUN goes on
  recollect eval RUN [--episodes N]       score it on fresh environments
  recollect watch RUN                     a video of one episode
  recollect report RUN... -o FILE.html    curves, table, video, card on one page
  recollect bench env|train               measure this machine, side by side

Every verb takes --help."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one verb. Exit codes: 0 done, 1 failed, 2 bad input, 130 stopped by Ctrl-C."""
    argv = list(sys.argv[1:] if argv is None else argv)
    if not argv or argv[0] in ("-h", "--help", "help"):
        print(USAGE)
        return 0
    if argv[0] == "--version":
        print(__version__)
        return 0
    try:
        if argv[0] not in VERBS:
            raise ValueError(f"unknown verb {argv[0]!r}{nearest(argv[0], VERBS)}")
        return VERBS[argv[0]](argv[1:])
    except ValueError as error:
        say(f"recollect: {' '.join(str(error).split())}")
        return 2
    except KeyboardInterrupt:
        say("recollect: stopped")
        return 130
    except RuntimeError as error:
        if type(error).__name__ != "NotANumber":
            raise
        say(f"recollect: {error}")
        return 1
