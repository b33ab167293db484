"""The lengths of the paper's own artifact as a CSV: python -m traces.artifact_lengths FILE.pkl OUT.csv

The file is datasets/sharegpt_opt_text_completion_length.pkl of the repository sosp-ae-39/sosp-ae-astra on GitHub: a
pickled list of (prompt, output) lengths in OPT tokens, in the order of the file. It is read as data alone.
"""

import pickle
import sys
from pathlib import Path
from typing import NoReturn

from testbed.core.errors import InputError
from testbed.core.request import Rows
from traces.csv_lengths import write_lengths
from traces.reader import columns


class PlainData(pickle.Unpickler):
    """Reads numbers, lists and tuples; a pickle that names a class or a function could run anything."""

    def find_class(self, module: str, name: str) -> NoReturn:
        """Refuse."""
        raise InputError(f"the pickle names {module}.{name}; only plain lists of numbers are read")


def read_pairs(path: str) -> Rows:
    """The (prompt, output) pairs of a pickled list."""
    try:
        with open(path, "rb") as file:
            pairs = PlainData(file).load()
    except (pickle.UnpicklingError, EOFError, ValueError, IndexError, KeyError) as error:
        raise InputError(f"{path}: {error}") from error
    if not isinstance(pairs, list) or not all(_is_pair(pair) for pair in pairs):
        raise InputError(f"{path}: holds no list of (prompt, output) lengths")
    return Rows(*columns(pairs))


def _is_pair(pair: object) -> bool:
    return isinstance(pair, list | tuple) and len(pair) == 2 and all(type(length) is int for length in pair)


def main(argv: list[str]) -> None:
    """Convert a file; errors are one line."""
    if len(argv) != 2:
        sys.exit(f"usage: python -m {__spec__.name} FILE.pkl OUT.csv")
    try:
        rows = read_pairs(argv[0])
        write_lengths(argv[1], rows)
    except (InputError, OSError) as error:
        sys.exit(f"error: {error}")
    print(f"{len(rows):,} requests: {Path(argv[1])}")


if __name__ == "__main__":
    main(sys.argv[1:])
