"""Self-contained HTML pages from templates; every value is escaped, and a page needs no other file."""

import base64
from collections.abc import Sequence
from functools import cache
from typing import Any, NamedTuple

from jinja2 import Environment, PackageLoader
from markupsafe import Markup

from testbed.experiments.pages.chart import svg

NUMBER, VERDICT = "number", "verdict"  # classes of columns


class Table(NamedTuple):
    """A table that scrolls horizontally. classes: of each column, such as "number"; row_classes: of each row; look."""

    caption: str
    head: Sequence[str]
    rows: Sequence[Sequence[str]]
    classes: Sequence[str] = ()
    row_classes: Sequence[str] = ()
    look: str = ""


class Picture(NamedTuple):
    """A picture of one page column's width. alt: its text alternative."""

    png: bytes
    alt: str

    @property
    def is_wide(self) -> bool:
        """Whether it was drawn for more than one column: it has 1,000 pixels a row."""
        return int.from_bytes(self.png[16:20]) >= 1000


def render(template: str, **values: Any) -> Markup:
    """A template filled with these values."""
    return Markup(environment().get_template(template).render(values))


@cache
def environment() -> Environment:
    """The templates below experiments."""
    found = Environment(loader=PackageLoader("testbed.experiments", "."), autoescape=True, trim_blocks=True,
                        lstrip_blocks=True, keep_trailing_newline=True)  # fmt: skip
    found.filters["base64"] = lambda content: base64.b64encode(content).decode()
    found.filters["svg"] = svg
    return found
