"""The argument parser of every command."""

import argparse
from typing import Any, NoReturn

from testbed.core.errors import InputError


class Parser(argparse.ArgumentParser):
    """The arguments of a command; its errors are one line, like all others."""

    def __init__(self, command: str = "", description: str | None = "", **options: Any) -> None:
        super().__init__(**{"prog": f"testbed {command}", "description": description, **options})

    def error(self, message: str) -> NoReturn:
        raise InputError(f"{message}; see {self.prog} --help")
