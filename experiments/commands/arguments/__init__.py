"""Arguments of the plain subcommands, a module each, so that help is there before what only the work needs."""

import argparse
from typing import NoReturn


class Parser(argparse.ArgumentParser):
    """An argument parser whose errors are one line, like all others."""

    def error(self, message: str) -> NoReturn:
        """Say what is wrong and where help is."""
        from testbed.core.errors import InputError  # not above: a stale build refuses it, and has a command to mend it

        raise InputError(f"{message}; see {self.prog} --help")


def at_least_one(text: str) -> int:
    """A whole number of at least 1."""
    try:
        value = int(text)
    except ValueError:
        value = 0
    if value < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number of at least 1")
    return value


def seconds(text: str) -> float:
    """A time of a run."""
    from testbed.core.request import PS
    from testbed.cost.model import UNBOUNDED

    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value < UNBOUNDED / PS:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of seconds, at least 0")
    return value
