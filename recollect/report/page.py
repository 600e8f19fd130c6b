"""One HTML page from run folders: everything inside it, nothing fetched from anywhere."""

import base64
import hashlib
import os
import shlex
from collections.abc import Sequence
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup
from plotly.offline import get_plotlyjs

from recollect.report.loading import Run, load_runs, mapping
from recollect.report.recorded import Recorded, load_recorded
from recollect.report.sections import sections
from recollect.report.style import SURFACES, count, duration

TEMPLATES = Path(__file__).parent / "templates"


def write_report(runs: Sequence[Path], out: Path, beside: Sequence[Path] = ()) -> Path:
    """Write the page on these run folders to ``out`` and return its path. ValueError names a folder that is no run.

    ``beside``: files of recorded results, shown in the table.
    """
    out = Path(out)
    if out.is_dir():
        raise ValueError(f"{out} is a folder; give the name of an HTML file")
    recorded = [load_recorded(path) for path in beside]
    words = [
        "recollect",
        "report",
        *map(str, runs),
        "-o",
        str(out),
        *(["--beside", *map(str, beside)] if beside else []),
    ]
    html = render(load_runs(runs), words, recorded)
    out.parent.mkdir(parents=True, exist_ok=True)
    # beside its final name first: a reader or a second report never sees half a page
    partial = out.with_name(f".{out.name}.partial")
    partial.write_text(html, encoding="utf-8", newline="\n")
    os.replace(partial, out)
    return out


def render(runs: Sequence[Run], command: Sequence[str], recorded: Sequence[Recorded] = ()) -> str:
    """The page's HTML."""
    environment = Environment(loader=FileSystemLoader(TEMPLATES), autoescape=True, undefined=StrictUndefined)
    # a browser hashes a script after folding line ends, so they are folded here too
    scripts = [Markup(text.replace("\r\n", "\n")) for text in (get_plotlyjs(), _asset("page.js"))]
    return environment.get_template("page.html.j2").render(
        title=title(runs),
        sentence=sentence(runs),
        sections=[html for section in sections(recorded) if (html := section(runs)) is not None],
        style=Markup(_asset("page.css")),
        scripts=scripts,
        policy=content_policy(scripts),
        surfaces=SURFACES,
        command=shlex.join(command),
    )


def _asset(name: str) -> str:
    return (TEMPLATES / name).read_text(encoding="utf-8")


def content_policy(scripts: Sequence[str]) -> str:
    """What the browser may do with this page: run exactly these scripts, and load nothing from anywhere.

    Everything is escaped already; this is the second lock, and it holds for sections written later too.
    """
    hashes = (base64.b64encode(hashlib.sha256(script.encode()).digest()).decode() for script in scripts)
    allowed = " ".join(f"'sha256-{digest}'" for digest in hashes)
    return (
        f"default-src 'none'; script-src {allowed}; style-src 'unsafe-inline'; img-src data: blob:; "
        "media-src data:; base-uri 'none'; form-action 'none'"
    )


def title(runs: Sequence[Run]) -> str:
    """The experiments by name, as many as a title takes."""
    names = list(dict.fromkeys(run.experiment for run in runs))
    return ", ".join(names) if len(names) <= 3 else f"{', '.join(names[:3])} and {len(names) - 3} more"


def sentence(runs: Sequence[Run]) -> str:
    """What was run, in one sentence."""
    if len(runs) == 1:
        run = runs[0]
        steps, wall = count(run.card.get("env_steps")), duration(run.card.get("wall_s"))
        done = f"{steps} environment steps in {wall} on {hardware(run)}"
        return f"{run.algorithm} on {run.env_id}, seed {run.seed}: {done}."
    steps = count(sum(each for run in runs if isinstance(each := run.card.get("env_steps"), int)))
    return (
        f"{len(runs)} runs of {_listed({run.experiment: None for run in runs}, 'experiment')} "
        f"({', '.join(dict.fromkeys(run.algorithm for run in runs))}) "
        f"on {_listed({run.env_id: None for run in runs}, 'environment')}: "
        f"{steps} environment steps in all, on {', '.join(dict.fromkeys(hardware(run) for run in runs))}."
    )


def _listed(names: dict[str, None], noun: str) -> str:
    return next(iter(names)) if len(names) == 1 else f"{len(names)} {noun}s"


def hardware(run: Run) -> str:
    """The machine in a few words."""
    card = mapping(run.card.get("hardware"))
    cpu = f"{card.get('cores', '?')} cores of {card.get('cpu') or 'an unknown CPU'}"
    return f"{card['gpu']} with {cpu}" if card.get("gpu") else cpu
