"""The command line: ``recollect <verb>``. Results go to standard output, progress and complaints to standard error."""

import dataclasses
import json
import os
import re
import shlex
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import tyro

from recollect import __version__
from recollect.config import choose, is_external, limit, place_of
from recollect.flags import (
    as_flags,
    as_table,
    emit,
    external_in,
    external_of,
    flag_value,
    parse,
    same_setting,
    say,
    split_positionals,
    train_command,
    wants_help,
    writable,
    write_any_letter,
)
from recollect.run.memory import keep_freed_memory

WATCHED_STEPS = 1000  # decisions of an episode over which attention is averaged, at most

# train


def train(argv: Sequence[str]) -> int:
    """train EXPERIMENT [flags] | train --resume RUN"""
    from recollect import api

    names, flags = split_positionals(argv)
    resumed = flag_value(flags, "resume")
    if resumed and names:
        raise ValueError(f"--resume goes on with a run as it is; leave {names[0]!r} out")
    if resumed and not wants_help(flags):
        return resume(resumed, flags)
    if len(names) != 1 and not wants_help(flags):
        raise ValueError("train takes one experiment, before its flags (see 'recollect list'), or --resume RUN")
    name = names[0] if names else "cartpole-ppo"  # --help alone shows some experiment's defaults
    config = api.experiment_config(name, flag_value(flags, "algo"))
    command = parse(train_command(config, name), "train EXPERIMENT", flags)
    run, _ = api.start(name, command.config, command.algo)
    return after_training(run, command)


def resume(path: str, flags: Sequence[str]) -> int:
    """train --resume RUN [flags that may change]"""
    from recollect import api
    from recollect.run.folder import RunFolder

    folder, given = RunFolder.open(path), external_in(flags)
    stored, _ = api.stored_config(folder, given)
    command = parse(train_command(stored, path), "train --resume RUN", flags)
    changes = api.changed(stored, command.config)
    run, *_ = api.go_on(folder, changes, given, command.restart_episodes)
    return after_training(run, command)


def after_training(run: Any, command: Any) -> int:
    """Evaluation, video, what it attends to, and report; or, after Ctrl-C, how to go on."""
    from recollect import api

    result, folder, settings = run.result(), run.folder, command.config.run
    external = external_of(command)
    if run.status == "stopped":
        again = ["recollect", "train", "--resume", str(folder.path), *as_flags(external)]
        say(f"stopped; go on with: {shlex.join(again)}")
        emit(command.json, result, f"run: {folder.path}")
        return 130
    lines = [f"run: {folder.path}", f"{run.env_steps:,} steps in {result['wall_s']:.1f} s"]
    if settings.eval_episodes:
        lines.append(sentence(save_evaluation(folder, {}, settings.eval_episodes, external)))
    if settings.capture_video:
        lines.append(f"video: {write_video(folder, external, None)}")
    elif settings.eval_episodes:  # the video's own episode is watched as well
        save_attention(api.load(folder.path, **external), None)
    control = recorded_control(run.experiment, command.config)
    if control:
        lines.append(f"beside it, recorded: {control.stem} {json.loads(control.read_text())['headline']}")
    lines.append(f"report: {write_page([folder.path], folder.report, [control] if control else [])}")
    emit(command.json, result, "\n".join(lines))
    return 0


def recorded_control(name: str, config: Any) -> Path | None:
    """The recorded result of the experiment's control, where the run plays the very same game."""
    from recollect.experiments import experiment, recorded

    row = experiment(name)
    same = dataclasses.replace(config.env, num_envs=row.config().env.num_envs) == row.config().env
    return recorded(row.control) if row.control and same else None


# eval, watch, report


@dataclasses.dataclass(frozen=True)
class Outside:
    """Code of one's own that a run was trained with: it is loaded only when it is named again here."""

    core: str | None = None
    """Your own core, if the run was trained with one: mine.py:MyCore."""
    encoder: str | None = None
    """Likewise an encoder."""
    algo: str | None = None
    """Likewise an algorithm."""
    env_id: str | None = None
    """Likewise an environment; eval takes any other one, too."""

    def __post_init__(self) -> None:
        for name in ("core", "encoder", "algo"):
            if (value := getattr(self, name)) is not None and not is_external(value):
                raise ValueError(f"--{name} names code of your own, as mine.py:Name, got {value!r}")


@dataclasses.dataclass(frozen=True)
class Eval(Outside):
    """Score a run on environments it was never trained on."""

    episodes: int = 100
    """How many, the same number in every environment."""
    protocol: str | None = None
    """Another Atari protocol."""
    env_options: tuple[str, ...] | None = None
    """Other environment options, key=value."""
    seed: int | None = None
    """Another seed than the run's; evaluation has streams of its own either way."""
    json: bool = False
    """Print the result as one JSON object."""

    def __post_init__(self) -> None:
        super().__post_init__()
        limit(self, "episodes", low=1)


def one_run(verb: str, argv: Sequence[str], command: type) -> tuple[Any, Any, dict[str, str]]:
    """The run that a verb is given, its flags parsed, and the outside code that they name."""
    from recollect.run.folder import RunFolder

    names, flags = split_positionals(argv)
    parsed = parse(command, f"{verb} RUN", flags)
    if len(names) != 1 or not names[0]:
        raise ValueError(f"{verb} takes one run folder, before its flags")
    return RunFolder.open(names[0]), parsed, external_in(flags)


def evaluate(argv: Sequence[str]) -> int:
    """eval RUN [flags]"""
    folder, command, external = one_run("eval", argv, Eval)
    settings = {n: v for n in ("env_id", "protocol", "env_options") if (v := getattr(command, n)) is not None}
    result = save_evaluation(folder, settings, command.episodes, external, command.seed)
    emit(command.json, result, sentence(result))
    return 0


def save_evaluation(
    folder: Any, settings: dict[str, Any], episodes: int, external: dict[str, str], seed: int | None = None
) -> dict[str, Any]:
    """Evaluate and write it down: eval.json for the run's own environment, eval__{...}.json for another."""
    from recollect import api

    result = api.evaluate(folder.path, episodes=episodes, seed=seed, **{**external, **settings})
    own = folder.read_config()["env"]
    other = [value for name, value in settings.items() if not same_setting(own.get(name), value)]
    words = [word for value in other for word in ([value] if isinstance(value, str) else value)]
    label = "__".join(re.sub(r"[^\w.=-]+", "-", word) for word in words)
    folder.write_json(folder.path / (f"eval__{label}.json" if label else "eval.json"), result)
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
class Watch(Outside):
    """Play one episode: an mp4, and frames in the terminal where there is no screen."""

    out: Path | None = None
    """The mp4; by default video/episode.mp4 in the run's folder."""
    seed: int | None = None
    """Another episode."""
    max_steps: int = 5000
    """Stop filming after so many decisions."""
    fps: int = 30
    """Frames a second."""
    terminal: Literal["auto", "on", "off"] = "auto"
    """Play in the terminal as well; auto does so where standard output is one and there is no screen."""

    def __post_init__(self) -> None:
        super().__post_init__()
        limit(self, "max_steps", "fps", low=1)


def watch(argv: Sequence[str]) -> int:
    """watch RUN [flags]"""
    folder, command, external = one_run("watch", argv, Watch)
    if command.env_id and not is_external(command.env_id):
        raise ValueError(f"watch plays the run's own environment, not {command.env_id!r}")
    print(write_video(folder, external, command))
    return 0


def write_video(folder: Any, external: dict[str, str], command: Watch | None) -> Path:
    """Film one episode of the newest checkpoint."""
    from recollect import api
    from recollect.report import video

    command = command or Watch(terminal="off")
    path = writable(command.out or folder.video / "episode.mp4", "mp4")
    player = api.load(folder.path, **external)
    frames = api.film(player, command.seed, command.max_steps)
    video.write_mp4(frames, path, command.fps)
    if command.out is None:  # of the episode that the report shows
        save_attention(player, command.seed)
    auto = sys.stdout.isatty() and not video.has_screen()
    if command.terminal == "on" or (command.terminal == "auto" and auto):
        video.play_in_terminal(frames, command.fps)
    return path


def save_attention(player: Any, seed: int | None) -> None:
    """What an agent attends to, into its run's folder for the report; nothing of a core that does not attend."""
    from recollect import api

    watched = api.attended(player, seed, WATCHED_STEPS)
    if watched is not None:
        player.folder.write_json(player.folder.attention, watched, indent=None)


@dataclasses.dataclass(frozen=True)
class Report:
    """One self-contained page about one run or several."""

    out: Annotated[Path | None, tyro.conf.arg(aliases=["-o"])] = None
    """The page; by default report.html in the first run's folder."""
    beside: tuple[Path, ...] = ()
    """Results that were recorded earlier, results/NAME.json, as rows of the table to compare with."""


def report(argv: Sequence[str]) -> int:
    """report RUN... -o FILE.html"""
    names, flags = split_positionals(argv)
    command = parse(Report, "report RUN [RUN ...]", flags)
    if not names or "" in names:
        raise ValueError("report takes at least one run folder, before its flags")
    out = command.out or Path(names[0]) / "report.html"
    print(write_page([Path(name) for name in names], out, command.beside))
    return 0


def write_page(runs: list[Path], out: Path, beside: Sequence[Path] = ()) -> Path:
    """The report of some runs, with recorded results beside them."""
    from recollect.report.page import write_report
    from recollect.run.folder import RunFolder

    folders = [RunFolder.open(run).path for run in runs]
    return write_report(folders, writable(out, "HTML"), beside)


# list, bench


@dataclasses.dataclass(frozen=True)
class List:
    """Every experiment: environment, algorithm, network, what its source reported, what we measured."""

    json: bool = False
    """Print a JSON list."""


def list_experiments(argv: Sequence[str]) -> int:
    """list"""
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
    emit(command.json, rows, as_table(rows, ("name", "env_id", "algorithm", "network", "reported", "measured")))
    return 0


def bench(argv: Sequence[str]) -> int:
    """bench NAME [flags]"""
    from recollect.bench import BENCHES

    names, flags = split_positionals(argv)
    if not names and wants_help(flags):
        print(f"usage: recollect bench {{{','.join(BENCHES)}}} [flags]; each takes --help")
        return 0
    if len(names) != 1:
        raise ValueError(f"bench takes one of {', '.join(BENCHES)}, before its flags")
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
  recollect report RUN... -o FILE.html    curves, table, video, attention, card on one page
  recollect bench NAME                    encoders, env, memory, pong or train: measure this machine

Every verb takes --help."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one verb. Exit codes: 0 done, 1 failed, 2 bad input, 130 stopped by Ctrl-C."""
    try:
        write_any_letter()
        keep_freed_memory()
        return run_verb(list(sys.argv[1:] if argv is None else argv))
    except ValueError as error:
        say(f"recollect: {' '.join(str(error).split())}{place_of(error)}")
        return 2
    except KeyboardInterrupt:
        say("recollect: stopped")
        return 130
    except BrokenPipeError:  # whoever read our output (head, a pager) has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except OSError as error:  # a full disk, a folder that went away
        say(f"recollect: {error}{place_of(error)}")
        return 1
    except RuntimeError as error:
        if type(error).__name__ != "NotANumber":
            raise
        say(f"recollect: {error}")
        return 1


def run_verb(argv: list[str]) -> int:
    """What the first word asks for."""
    try:
        if not argv or argv[0] in ("-h", "--help", "help", "--version"):
            print(__version__ if argv[:1] == ["--version"] else USAGE)
            return 0
        return choose("verb", argv[0], VERBS)(argv[1:])
    finally:
        if sys.stdout is not None:  # closed by whoever started us
            sys.stdout.flush()  # a reader that has gone is noticed here, not at the interpreter's end
