"""The parts of a page: every value is escaped, every table scrolls by itself, every picture says what it shows."""

import base64
from collections.abc import Iterable, Sequence
from html import escape
from importlib import resources

NUMBER, VERDICT, LONG = "number", "verdict", "long"  # classes of columns
SMALL = "small"  # class of pictures that were made for one column of a page


def page(title: str, *parts: str) -> str:
    """A whole document, which needs no other file and no network."""
    style = (resources.files("experiments.pages") / "page.css").read_text(encoding="utf-8")
    head = (
        f'<meta charset="utf-8">\n<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{escape(title)}</title>\n<style>\n{style}</style>"
    )
    body = "\n".join(part for part in parts if part)
    return (
        f'<!doctype html>\n<html lang="en">\n<head>\n{head}\n</head>\n<body>\n<main>\n<h1>{escape(title)}</h1>\n'
        f"{body}\n</main>\n</body>\n</html>\n"
    )


def heading(level: int, text: str) -> str:
    """A heading of level 2 or below; the title is level 1."""
    return f"<h{level}>{escape(text)}</h{level}>"


def paragraph(text: str) -> str:
    """A sentence or two."""
    return f"<p>{escape(text)}</p>" if text else ""


def notes(lines: Iterable[str]) -> str:
    """Remarks as a list; nothing where there are none."""
    items = "".join(f"<li>{escape(line)}</li>" for line in lines)
    return f'<ul class="notes">{items}</ul>' if items else ""


def table(
    caption: str,
    head: Sequence[str],
    rows: Iterable[Sequence[str]],
    classes: Sequence[str] = (),
    row_classes: Iterable[str] = (),
) -> str:
    """A table that scrolls sideways by itself. classes: of each column, such as "number"; row_classes: of each row."""
    columns = [*classes, *[""] * (len(head) - len(classes))]
    names = "".join(f'<th scope="col"{_class(c)}>{escape(name)}</th>' for name, c in zip(head, columns, strict=True))
    kinds = iter(row_classes)
    body = "\n".join(f"<tr{_class(next(kinds, ''))}>{_cells(row, columns)}</tr>" for row in rows)
    label = escape(caption)
    return (
        f'<div class="scroll" role="region" tabindex="0" aria-label="{label}"><table>\n<caption>{label}</caption>\n'
        f"<thead><tr>{names}</tr></thead>\n<tbody>\n{body}\n</tbody></table></div>"
    )


def picture(png: bytes, alt: str, caption: str = "", size: str = "") -> str:
    """A picture inside the page. alt: what somebody who cannot see it would be told; size: "" or "small"."""
    data = base64.b64encode(png).decode()
    image = f'<img{_class(size)} alt="{escape(alt)}" src="data:image/png;base64,{data}">'
    below = f"<figcaption>{escape(caption)}</figcaption>" if caption else ""
    return f"<figure>{image}{below}</figure>"


def gallery(pictures: Iterable[str]) -> str:
    """Pictures side by side where there is room."""
    return f'<div class="gallery">{"".join(pictures)}</div>'


def section(*parts: str) -> str:
    """Parts that belong together."""
    return f"<section>{''.join(parts)}</section>"


def details(title: str, text: str) -> str:
    """Text that opens at a click."""
    return fold(title, f"<pre>{escape(text)}</pre>")


def fold(title: str, *parts: str) -> str:
    """Parts that open at a click."""
    return f"<details><summary>{escape(title)}</summary>{''.join(parts)}</details>"


def _cells(row: Sequence[str], columns: Sequence[str]) -> str:
    first, *rest = zip(row, columns, strict=True)
    cells = "".join(f"<td{_class(c)}>{escape(text)}</td>" for text, c in rest)
    return f'<th scope="row"{_class(first[1])}>{escape(first[0])}</th>{cells}'


def _class(name: str) -> str:
    return f' class="{escape(name)}"' if name else ""
