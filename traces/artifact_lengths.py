"""The data sets of the paper's artifact, the pickles in `datasets` of sosp-ae-39/sosp-ae-astra.

Each is a list of (prompt, output) in OPT tokens, in the order of the data set: ShareGPT has lengths, Alpaca the ids of
the tokens, which are counted. Reading a pickle runs no code, and nothing is fetched.
"""

import hashlib
import pickle
from typing import NoReturn

from testbed.core.errors import InputError
from testbed.core.request import Rows
from testbed.traces.reader import columns

# SHA-256 of the rows, as lines "prompt,output": it does not depend on the file that they are read from.
PUBLISHED = {
    "57b29944279c18794b4bb0c51fe598afbe94b8f255ae06bcf5b8e53e4d9fd130": "ShareGPT, all 84,226 rows of the artifact"
}


class PlainData(pickle.Unpickler):
    """Reads numbers, lists and tuples only; a pickle that names a class or a function could run any code."""

    def find_class(self, module: str, name: str) -> NoReturn:
        raise InputError(f"the pickle: names {module}.{name} (only plain lists of numbers are read)")


def read_pairs(path: str) -> Rows:
    try:
        with open(path, "rb") as file:
            pairs = PlainData(file).load()
    except (pickle.UnpicklingError, EOFError, ValueError, IndexError, KeyError) as error:
        raise InputError(f"{path}: {error}") from error
    if not isinstance(pairs, list) or not pairs or any(not isinstance(p, list | tuple) or len(p) != 2 for p in pairs):
        raise InputError(f"{path}: contains no list of (prompt, output) pairs")
    return Rows(*columns([(_length(path, prompt), _length(path, output)) for prompt, output in pairs]))


def _length(path: str, tokens: object) -> int:
    if type(tokens) is int:
        return tokens
    if isinstance(tokens, list | tuple) and all(type(token) is int for token in tokens):
        return len(tokens)
    raise InputError(f"{path}: contains {str(tokens)[:40]!r}, which is neither a length nor a list of token ids")


def rows_sha256(rows: Rows) -> str:
    """The SHA-256 by which `PUBLISHED` names rows."""
    pairs = zip(rows.prompt_len.tolist(), rows.output_len.tolist(), strict=True)
    return hashlib.sha256("".join(f"{prompt},{output}\n" for prompt, output in pairs).encode()).hexdigest()
