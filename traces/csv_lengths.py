"""A CSV (or CSV.gz) of lengths, also the simplest format to store any trace in; and the artifact's
pickles.
"""

import gzip
import hashlib
import pickle
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from testbed.core.errors import InputError, check_least
from testbed.core.request import Column, Rows
from testbed.core.units import PositiveTokens
from testbed.traces.files import flags, lengths, numbered, read_table, seconds, whole_numbers
from testbed.traces.reader import FileTrace, columns

# The columns that a file need not have. A column of another name must be there.
DEFAULTS = ("arrival_s", "prompt_ids", "n", "beam", "session", "priority")
# SHA-256 of the rows, as lines "prompt,output": it does not depend on the file that they are read
# from.
PUBLISHED = {
    "57b29944279c18794b4bb0c51fe598afbe94b8f255ae06bcf5b8e53e4d9fd130": (
        "ShareGPT, all 84,226 rows of the artifact"
    )
}


@dataclass(eq=False, repr=False)
class CsvLengths(FileTrace):
    """Prompt and output lengths from a CSV, and what else it has of the columns in
    experiments/conf/trace/csv.yaml.

    Content is whole numbers with spaces, one for each tokens_per_id tokens, which identifies these
    and, as in Mooncake's traces, all before them; the last may cover fewer, and with tokens_per_id
    1 it is a token id.
    """

    path: str
    input_column: str = "input_tokens"
    output_column: str = "output_tokens"
    arrival_column: str = "arrival_s"
    prompt_ids_column: str = "prompt_ids"
    tokens_per_id: PositiveTokens = 16
    num_seqs_column: str = "n"
    beam_column: str = "beam"
    session_column: str = "session"
    priority_column: str = "priority"

    def __post_init__(self) -> None:
        super().__init__(self.path)
        check_least(1, tokens_per_id=self.tokens_per_id)

    def read(self) -> Rows:
        optional = [
            self.arrival_column,
            self.prompt_ids_column,
            self.num_seqs_column,
            self.beam_column,
        ]
        optional += [self.session_column, self.priority_column]
        requested = [name for name in optional if name not in DEFAULTS]
        table = self.table([self.input_column, self.output_column, *requested], DEFAULTS)
        prompts, outputs = (
            lengths(self.path, name, table[name])
            for name in (self.input_column, self.output_column)
        )
        times, content, num_seqs, beam, session, priority = (table.get(name) for name in optional)
        arrival_s = None if times is None else seconds(self.path, self.arrival_column, times)
        ids, tokens_per_id = (
            (None, 1) if content is None else (self._ids(content, prompts), self.tokens_per_id)
        )
        return Rows(
            prompts,
            outputs,
            arrival_s,
            ids,
            tokens_per_id,
            num_seqs=None
            if num_seqs is None
            else lengths(self.path, self.num_seqs_column, num_seqs),
            beam=None if beam is None else flags(self.path, self.beam_column, beam),
            session=None if session is None else numbered(session),
            priority=None
            if priority is None
            else whole_numbers(self.path, self.priority_column, priority),
        )

    def table(self, names: Sequence[str], optional: Sequence[str]) -> Mapping[str, Sequence[str]]:
        """The named columns as text, optional ones where there are such."""
        return read_table(self.path, names, optional)

    def _ids(self, texts: Sequence[str], prompts: Column) -> list[tuple[int, ...]]:
        all_ids = []
        for number, (text, prompt_len) in enumerate(
            zip(texts, prompts.tolist(), strict=True), start=2
        ):
            where = f"{self.path}, line {number}, column {self.prompt_ids_column}"
            try:
                ids = tuple(map(int, text.split()))
            except ValueError:
                raise InputError(
                    f"{where}: {text[:40]!r} is not whole numbers separated by spaces (fix it)"
                ) from None
            wanted = -(-prompt_len // self.tokens_per_id)
            if len(ids) != wanted:
                raise InputError(
                    f"{where}: {len(ids)} ids for {prompt_len} tokens, {wanted} wanted at one for "
                    f"each {self.tokens_per_id} (give as many, or set trace.tokens_per_id)"
                )
            all_ids.append(ids)
        return all_ids


def write_lengths(path: str, rows: Rows) -> None:
    """Write rows as a CSV (gzip by its name), for which a slow reader runs once; ids need the same
    tokens_per_id.
    """
    ids = None if rows.prompt_ids is None else [" ".join(map(str, ids)) for ids in rows.prompt_ids]
    every = {
        "input_tokens": rows.prompt_len,
        "output_tokens": rows.output_len,
        "arrival_s": rows.arrival_s,
        "prompt_ids": ids,
        "session": rows.session,
        "priority": rows.priority,
    }
    columns = {name: list(column) for name, column in every.items() if column is not None}
    lines = [columns, *zip(*columns.values(), strict=True)]
    content = "".join(",".join(map(str, line)) + "\n" for line in lines).encode()
    Path(path).write_bytes(
        gzip.compress(content, mtime=0) if str(path).endswith(".gz") else content
    )


class PlainData(pickle.Unpickler):
    """Reads numbers, lists and tuples only; a pickle that names a class or a function could run any
    code.
    """

    def find_class(self, module: str, name: str) -> NoReturn:
        raise InputError(
            f"the pickle: names {module}.{name} (only plain lists of numbers are read)"
        )


def read_pairs(path: str) -> Rows:
    """The (prompt, output) pairs, lengths or ids to count, of a pickle in `datasets` of
    sosp-ae-39/sosp-ae-astra.
    """
    try:
        with open(path, "rb") as file:
            pairs = PlainData(file).load()
    except OSError:
        raise
    except Exception as error:  # a damaged pickle may end in any
        raise InputError(f"{path}: is no pickle that can be read: {error}") from error
    if (
        not isinstance(pairs, list)
        or not pairs
        or any(not isinstance(p, list | tuple) or len(p) != 2 for p in pairs)
    ):
        raise InputError(f"{path}: contains no list of (prompt, output) pairs")
    return Rows(
        *columns([(_length(path, prompt), _length(path, output)) for prompt, output in pairs])
    )


def _length(path: str, tokens: object) -> int:
    if type(tokens) is int:
        return tokens
    if isinstance(tokens, list | tuple) and all(type(token) is int for token in tokens):
        return len(tokens)
    raise InputError(
        f"{path}: contains {str(tokens)[:40]!r}, which is neither a length nor a list of token ids"
    )


def rows_sha256(rows: Rows) -> str:
    """The SHA-256 by which `PUBLISHED` names rows."""
    pairs = zip(rows.prompt_len.tolist(), rows.output_len.tolist(), strict=True)
    return hashlib.sha256(
        "".join(f"{prompt},{output}\n" for prompt, output in pairs).encode()
    ).hexdigest()
