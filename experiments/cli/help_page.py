"""The help page of a command: the library's, with each paragraph of a docstring wrapped anew."""

import re
from typing import TYPE_CHECKING, Any

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
