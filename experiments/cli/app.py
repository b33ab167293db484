"""The Cyclopts app of `testbed`, and its pages of help. A command's module is imported when the
command is called.
"""

import re
from typing import TYPE_CHECKING, Any

from cyclopts import App, Parameter

from testbed.experiments.cli.commands import ABOUT, COMMANDS

if TYPE_CHECKING:
    from cyclopts.help import DefaultFormatter, HelpPanel
    from rich.console import Console, ConsoleOptions


class HelpPage:
    """A Cyclopts help formatter. The library's own one, which takes long to import, is imported
    when help is printed.
    """

    def __call__(self, console: "Console", options: "ConsoleOptions", panel: "HelpPanel") -> None:
        """Print a table of commands or parameters."""
        _library()(console, options, panel)

    def render_usage(self, console: "Console", options: "ConsoleOptions", usage: Any) -> None:
        """Print the line of the usage."""
        _library().render_usage(console, options, usage)

    def render_description(
        self, console: "Console", options: "ConsoleOptions", description: Any
    ) -> None:
        """Print the docstring, whose lines end where its paragraphs do."""
        text = getattr(description, "primary_renderable", None)
        if text is not None:
            console.print(joined_paragraphs(text.plain), markup=False, highlight=False)
            console.print()


def joined_paragraphs(text: str) -> str:
    """The text with each paragraph in one line; paragraphs are separated by empty lines."""
    paragraphs = re.split(r"\n\s*\n", text.strip())
    return "\n\n".join(" ".join(paragraph.split()) for paragraph in paragraphs)


def _library() -> "DefaultFormatter":
    from cyclopts.help import DefaultFormatter

    return DefaultFormatter()


def shown_default(value: object) -> str | None:
    """A default as help shows it; None if it would say nothing."""
    return None if value in (None, False, "") else str(value)


application = App(
    name="testbed",
    help=ABOUT,
    help_format="plaintext",
    help_formatter=HelpPage(),
    version_flags=[],
    default_parameter=Parameter(negative=(), show_default=shown_default),
    result_action="return_value",
    suppress_keyboard_interrupt=False,
)
for name, function, _ in COMMANDS:
    application.command(f"{__package__}.{function}", name=name)
