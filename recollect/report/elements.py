"""The few pieces of HTML that sections are built from. Every argument is escaped unless it is Markup already."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from jinja2.utils import htmlsafe_json_dumps
from markupsafe import Markup

from recollect.report.figures import Figure


def join(parts: Iterable[str]) -> Markup:
    """Concatenate, escaping what is not Markup."""
    return Markup("\n").join(parts)


def section(title: str, body: str) -> Markup:
    """A part of the page under its own heading."""
    name = "".join(letter if letter.isalnum() else "-" for letter in title.lower())
    return Markup('<section aria-labelledby="{0}"><h2 id="{0}">{1}</h2>\n{2}\n</section>').format(name, title, body)


def note(text: str) -> Markup:
    """A quiet line of text."""
    return Markup('<p class="note">{}</p>').format(text)


def bullets(lines: Sequence[str]) -> Markup:
    """Lines that the reader should not overlook."""
    return Markup('<ul class="note">{}</ul>').format(join(Markup("<li>{}</li>").format(line) for line in lines))


def details(summary: str, body: str, opened: bool = False) -> Markup:
    """A part that folds away; charts inside are drawn when it is first opened."""
    state = Markup(" open") if opened else ""
    return Markup("<details{}><summary>{}</summary>\n{}\n</details>").format(state, summary, body)


def chart(caption: str, figure: Figure) -> Markup:
    """A plotly figure: its data as JSON in the page, drawn by the page's one script."""
    data = htmlsafe_json_dumps(figure, allow_nan=False, separators=(",", ":"))
    return Markup(
        '<figure class="chart"><figcaption>{0}</figcaption>'
        '<div class="plot" role="img" aria-label="Chart: {0}" style="min-height:{1}px"></div>'
        '<script type="application/json">{2}</script></figure>'
    ).format(caption, figure["layout"]["height"], data)


def table(caption: str, header: Sequence[str], rows: Iterable[Sequence[str]], text_columns: int = 1) -> Markup:
    """A table which scrolls by itself where the screen is narrow. The first ``text_columns`` columns are words."""
    css = ["" if at < text_columns else Markup(' class="number"') for at in range(len(header))]
    head = join(Markup('<th scope="col"{}>{}</th>').format(kind, cell) for kind, cell in zip(css, header, strict=True))
    body = []
    for row in rows:
        first = Markup('<th scope="row">{}</th>').format(row[0])
        rest = (Markup("<td{}>{}</td>").format(kind, cell) for kind, cell in zip(css[1:], row[1:], strict=True))
        body.append(Markup("<tr>{}{}</tr>").format(first, join(rest)))
    return Markup(
        '<div class="scroll" role="region" tabindex="0" aria-label="{0}"><table><caption>{0}</caption>'
        "<thead><tr>{1}</tr></thead><tbody>{2}</tbody></table></div>"
    ).format(caption, head, join(body))


def definitions(title: str, values: Mapping[str, Any]) -> Markup:
    """Names and values, as of a card."""
    pair = Markup("<div><dt>{}</dt><dd>{}</dd></div>")
    pairs = join(pair.format(key, _plain(value)) for key, value in values.items())
    return Markup('<div class="card"><h3>{}</h3><dl>{}</dl></div>').format(title, pairs)


def _plain(value: object) -> str:
    if value in (None, "", {}):
        return "none"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:,}" if isinstance(value, int) else str(value)


def code(text: str) -> Markup:
    """Text to be copied as it stands."""
    return Markup('<pre tabindex="0"><code>{}</code></pre>').format(text)
