"""Arguments of the commands that measure."""

import argparse
from typing import NoReturn

from testbed.core.errors import InputError


class Arguments(argparse.ArgumentParser):
    """A parser whose errors are one line, like all others."""

    def error(self, message: str) -> NoReturn:
        """Say what is wrong and where help is."""
        raise InputError(f"{message}; see {self.prog} --help")
