"""The page: complete, closed to the network and to other people's HTML, and honest about what is missing."""

import base64
import hashlib
import json
import re
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest

from recollect.report import sections
from recollect.report.loading import load_runs
from recollect.report.page import write_report
from recollect.report.png import write_curve_png
from recollect.report.style import NOTHING, PALETTE, SURFACES, duration, figure, interval
from recollect.report.tables import HEADER, evaluation_row, seeds_table
from recollect.report.video import write_mp4

HOSTILE = '<script>alert(1)</script><img src=x onerror="alert(2)">'


class Page(HTMLParser):
    """What a browser would find: tags, scripts that run, and text."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.programs: list[str] = []
        self.styles: list[str] = []
        self.words: list[str] = []
        self._inside = ""
        self.feed(html)
        self.text = " ".join(" ".join(self.words).split())

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = dict(attrs)
        self.tags.append((tag, values))
        self._inside = tag if tag in ("script", "style") else ""
        if tag == "script":
            self._inside = "data" if values.get("type") == "application/json" else "script"
            self.programs += [""] if self._inside == "script" else []

    def handle_endtag(self, tag: str) -> None:
        self._inside = ""

    def handle_data(self, data: str) -> None:
        if self._inside == "script":
            self.programs[-1] += data
        elif self._inside == "style":
            self.styles.append(data)
        elif not self._inside:
            self.words.append(data)

    def attributes(self, name: str) -> list[str]:
        return [values[name] or "" for _, values in self.tags if name in values]


def report(tmp_path: Path, *runs: Path) -> Page:
    return Page(write_report(list(runs), tmp_path / "out" / "report.html").read_text())


def movie(run: Path, name: str = "episode.mp4") -> Path:
    return write_mp4([np.full((16, 16, 3), at, np.uint8) for at in range(4)], run / "video" / name, 10)


def test_the_page_fetches_nothing(tmp_path, make_run) -> None:
    run = make_run()
    movie(run)
    page = report(tmp_path, run)
    for name in ("src", "href", "srcset", "poster", "action", "data", "background", "xlink:href"):
        assert all(value.startswith("data:") for value in page.attributes(name)), name
    assert not {"link", "iframe", "object", "embed", "base", "form"} & {tag for tag, _ in page.tags}
    assert not re.search(r"url\(|@import", "".join(page.styles))
    assert len(page.programs) == 2, "plotly once, and the page's own script"
    assert "showSendToCloud: false" in page.programs[1], "plotly offers by default to upload the figure"


def test_the_browser_is_told_to_run_these_scripts_and_nothing_else(tmp_path, make_run) -> None:
    page = report(tmp_path, make_run())
    policy = next(v["content"] for tag, v in page.tags if tag == "meta" and "http-equiv" in v) or ""
    assert "default-src 'none'" in policy
    assert "http" not in policy
    for program in page.programs:
        assert base64.b64encode(hashlib.sha256(program.encode()).digest()).decode() in policy


def test_text_from_files_never_becomes_html(tmp_path, make_run) -> None:
    run = make_run("<img src=x onerror=alert(3)>", experiment=HOSTILE, algorithm=HOSTILE, commit=HOSTILE, seed=HOSTILE)
    card = json.loads((run / "card.json").read_text())
    card["protocol"] |= {"env_id": HOSTILE, "name": HOSTILE, HOSTILE: 1}
    card["hardware"]["cpu"] = card["status"] = card["command"] = HOSTILE
    (run / "card.json").write_text(json.dumps(card))
    (run / "config.yaml").write_text(f"name: '{HOSTILE}'\n")
    (run / "metrics.jsonl").open("a").write(
        json.dumps({"step": 1, f"loss/{HOSTILE}": 1, "train/return_mean": 1}) + "\n"
    )
    movie(run, "<img src=x>.mp4")
    page = report(tmp_path, run)
    assert len(page.programs) == 2
    assert not any("alert" in program for program in page.programs)
    assert not {"img", "svg"} & {tag for tag, _ in page.tags}
    assert not [name for _, values in page.tags for name in values if name.startswith("on")]
    assert page.text.count("alert(1)") > 8, "shown, as text"


def test_plotly_is_given_no_html_either(make_run) -> None:
    run = make_run(experiment='<a href="https://example.org">x</a>%{x}')
    figures = sections.learning_curves(load_runs([run]))
    names = re.findall(r'"name":"(.*?)"', figures)
    assert names
    assert not any("\\u003c" in name or "%{" in name for name in names)


def test_one_run_is_shown_in_full(tmp_path, make_run) -> None:
    run = make_run()
    movie(run)
    page = report(tmp_path, run)
    assert "ppo on recollect/Pong-v0, seed 1: 100,000 environment steps in 50 s on 16 cores of AMD EPYC" in page.text
    for words in ("by environment steps", "by wall-clock time", "18.50", "18.75", "[17.50, 19.50]", "19.50", "2,000"):
        assert words in page.text
    for words in (
        "recollect train pong-ppo --seed 1",
        "clip_coef: 0.1",
        "0123abc",
        "ale-v5",
        "2.13.0",
        "env 50 %",
    ):
        assert words in page.text
    assert {f"{key} (1)" for key in ("train", "parity")} <= set(page.words)
    assert "loss/value (no number yet)" in page.text
    assert sum(tag == "caption" for tag, _ in page.tags) == sum(tag == "table" for tag, _ in page.tags) == 1
    assert "Please note" not in page.text, "nothing is wrong with this run"


def test_video_is_inside_the_page_and_a_large_one_is_named(tmp_path, make_run, monkeypatch) -> None:
    run = make_run()
    path = movie(run)
    (run / "video" / ".half.partial.mp4").write_bytes(b"not yet")
    sources = report(tmp_path, run).attributes("src")
    assert [base64.b64decode(each.partition(",")[2]) for each in sources] == [path.read_bytes()]
    monkeypatch.setattr(sections, "VIDEO_LIMIT_MB", path.stat().st_size / 1e6 / 2)
    page = report(tmp_path, run)
    assert not page.attributes("src")
    assert "video/episode.mp4 (0.0 MB) is left out" in page.text


@pytest.mark.parametrize("name", ["metrics.jsonl", "eval.json", "config.yaml"])
@pytest.mark.parametrize("how", ["missing", "empty", "garbage"])
def test_missing_and_broken_parts_are_said(tmp_path, make_run, name: str, how: str) -> None:
    run = make_run()
    if how == "missing":
        (run / name).unlink()
    else:
        (run / name).write_bytes(b"" if how == "empty" else b"\xff{]: [\n{\n[1]\n3\n")
    text = report(tmp_path, run).text
    if name == "metrics.jsonl":
        assert "metrics.jsonl" in text
        assert "no learning curve" in text
    elif name == "eval.json":
        assert "`recollect eval RUN` writes it" in text
        assert ("eval.json is damaged" in text) == (how != "missing")
    else:
        assert {"missing": "config.yaml is missing", "garbage": "config.yaml is damaged"}.get(
            how, "no config.yaml"
        ) in text


def test_a_card_with_nothing_in_it_is_still_shown(tmp_path, make_run) -> None:
    run = make_run(mean=None)
    (run / "card.json").write_text('{"schema_version": 9, "protocol": "odd", "hardware": [], "env_steps": "many"}')
    text = report(tmp_path, run).text
    assert "card.json has schema_version 9" in text
    assert "an unnamed environment" in text


def test_an_unfinished_run_is_marked(tmp_path, make_run) -> None:
    assert "this run is running" in report(tmp_path, make_run(status="running")).text


def test_a_folder_that_is_no_run_is_named(tmp_path, make_run) -> None:
    other = tmp_path / "other"
    with pytest.raises(ValueError, match="other is not a run folder: there is no such folder"):
        write_report([make_run(), other], tmp_path / "r.html")
    other.mkdir()
    with pytest.raises(ValueError, match="other is not a run folder: it has no card"):
        write_report([other], tmp_path / "r.html")
    (other / "card.json").write_text("{")
    with pytest.raises(ValueError, match=r"other is not a readable run folder: card.json is damaged"):
        write_report([other], tmp_path / "r.html")
    with pytest.raises(ValueError, match="at least one run folder"):
        write_report([], tmp_path / "r.html")
    with pytest.raises(ValueError, match="is a folder"):
        write_report([make_run("x")], other)
    assert not (tmp_path / "r.html").exists()


def test_several_runs(tmp_path, make_run) -> None:
    folders = [make_run(f"a{seed}", seed=seed, mean=10.0 + seed) for seed in (1, 2, 3)]
    page = report(tmp_path, *folders, folders[0], make_run("b", experiment="pong-dqn", algorithm="dqn", mean=None))
    assert "4 runs of 2 experiments (ppo, dqn) on recollect/Pong-v0: 400,000 environment steps in all" in page.text
    for words in ("12.00", "[9.52, 14.48]", "11.00 to 13.00"):  # 11, 12, 13: 12 -+ 4.3027 / sqrt(3)
        assert words in page.text


def test_the_evaluation_row_follows_its_header(make_run) -> None:
    run = load_runs([make_run(mean=1.0)])[0]
    cells = dict(zip(HEADER, evaluation_row(run).cells(), strict=True))
    assert (cells["Mean"], cells["IQM"], cells["95 % interval"]) == ("1.00", "1.25", "[0.00, 2.00]")
    assert cells["Greedy"].startswith("2.00")
    assert cells["Sampled"].startswith("1.00")
    assert (cells["Wall time"], cells["Steps/s"], cells["Protocol"]) == ("50 s", "2,000", "ale-v5")
    assert seeds_table([run]) is None


def test_scores_from_another_environment_are_not_averaged_in(make_run) -> None:
    first, second = make_run("a1", seed=1), make_run("a2", seed=2)
    moved = json.loads((second / "eval.json").read_text()) | {"env_id": "elsewhere"}
    (second / "eval.json").write_text(json.dumps(moved))
    runs = load_runs([first, second])
    assert seeds_table(runs) is None
    assert evaluation_row(runs[1]).env_id == "elsewhere"


def test_words_for_numbers() -> None:
    assert [figure(value) for value in (0, 18.456, 1234.5, 0.00123, None, "x", float("nan"), True)] == [
        "0.00", "18.46", "1,234.50", "0.00123", NOTHING, NOTHING, NOTHING, NOTHING,
    ]  # fmt: skip
    assert [duration(value) for value in (1.25, 59.9, 200, 7500, None)] == [
        "1.2 s",
        "60 s",
        "3 min 20 s",
        "2 h 5 min",
        NOTHING,
    ]
    assert [interval(value) for value in ([1, 2], [1], "ab", None)] == ["[1.00, 2.00]", NOTHING, NOTHING, NOTHING]


def test_colours_stand_out_on_both_surfaces() -> None:
    def luminance(colour: str) -> float:
        parts = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
        linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    for surface in SURFACES.values():
        for colour in PALETTE:
            dark, light = sorted((luminance(surface), luminance(colour)))
            assert (light + 0.05) / (dark + 0.05) >= 3, (surface, colour)


def test_the_png_is_a_picture_even_of_nothing(tmp_path, make_run) -> None:
    folders = [make_run("a1", seed=1), make_run("a2", seed=2), make_run("b", experiment="co$t_", values=[1.0])]
    for runs in (folders, [make_run("empty", values=[])]):
        path = write_curve_png(runs, tmp_path / "results" / "curve.png")
        assert path.read_bytes().startswith(b"\x89PNG")
        assert path.stat().st_size > 5_000


def test_the_png_names_the_extra_that_it_needs(tmp_path, make_run, monkeypatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "matplotlib.figure", None)
    with pytest.raises(ValueError, match=r"recollect\[dev\]"):
        write_curve_png([make_run()], tmp_path / "curve.png")
