"""Arguments of the plain subcommands."""

import argparse
from typing import NoReturn

from testbed.core.errors import InputError


class Parser(argparse.ArgumentParser):
    """An argument parser whose errors are one line, like all others."""

    def error(self, message: str) -> NoReturn:
        """Say what is wrong and where help is."""
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
