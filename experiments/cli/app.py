"""The Cyclopts app of `testbed`. A command's module is imported when the command is called."""

from cyclopts import App, Parameter

from testbed.experiments.cli.commands import ABOUT, COMMANDS
from testbed.experiments.cli.help_page import HelpPage


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
