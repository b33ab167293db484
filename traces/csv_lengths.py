"""CSV files of lengths, the simplest format of a trace, and the pickles of the paper's artifact."""

import gzip
import hashlib
import os
import pickle
import reprlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from functools import lru_cache
from pathlib import Path
from typing import Any, NoReturn

import numpy as np

from testbed.core.content_hash import content_hash
from testbed.core.errors import InputError, check_least
from testbed.core.request import Column, Rows
from testbed.core.units import PositiveTokens
from testbed.traces.contents import with_answers, with_unknown
from testbed.traces.files import (
    MAX_LEN,
    SECONDS,
    TOKENS,
    WHOLE_NUMBERS,
    Numbers,
    flags,
    numbered,
    read_numbers,
    read_table,
)
from testbed.traces.reader import FileTrace, columns
from testbed.traces.time_units import TimeUnit, checked_unit, in_seconds

# Optional columns. A column that the user gave another name must exist.
BEAM, SESSION, PRIORITY, LIMIT = "beam", "session", "priority", "max_new_tokens"
THINK, ANSWER_OF = "think_s", "answer_of"
NAMED_SO = (BEAM, SESSION, PRIORITY, LIMIT, THINK, ANSWER_OF)
DEFAULTS = ("arrival_s", "prompt_ids", "n", *NAMED_SO)
RESULTS = (  # what a run's own requests.csv says of them besides
    "request_id",
    "first_token_s",
    "finish_s",
    "num_swaps",
    "num_recomputes",
    "hit_tokens",
    "rejected",
    "cancelled_s",
    "ttft_s",
    "tpot_s",
    "itl_max_s",
    "e2e_s",
)
THINK_TIMES = Numbers("a think time in seconds, at least 0", 0)
MISSING = (
    "rename one, or name yours: trace.input_column=NAME, trace.output_column=NAME, "
    "trace.arrival_column=NAME"
)
REMEDY = "rename or remove it, or name it in trace.ignored_columns"
# Names of rows by the SHA-256 of their lines "prompt,output", whatever file has them.
PUBLISHED = {
    "57b29944279c18794b4bb0c51fe598afbe94b8f255ae06bcf5b8e53e4d9fd130": (
        "ShareGPT, all 84,226 rows of the artifact"
    )
}


@dataclass(eq=False, repr=False)
class CsvLengths(FileTrace):
    """Prompt and output lengths from a CSV, with the optional columns of conf/trace/csv.yaml.

    The content of a prompt is ids separated by spaces, one for each tokens_per_id tokens. As in
    Mooncake's traces, an id identifies these tokens and all before them. The last id may cover
    fewer tokens. With tokens_per_id=1 the ids are token ids. A row without ids has a content that
    no other has. answer_of: the row, counted from 0, with whose prompt and answer a row's prompt
    begins, empty for none; then that answer is found. time_unit: of arrival_column; None: seconds,
    refused if over 99 requests would come at over 100 a second, or over 9 at one every 100
    seconds. ignored_columns: names of columns that say
    nothing here; any other column that nothing reads is refused.
    """

    path: str
    input_column: str = "input_tokens"
    output_column: str = "output_tokens"
    arrival_column: str = "arrival_s"
    prompt_ids_column: str = "prompt_ids"
    tokens_per_id: PositiveTokens = 16
    num_seqs_column: str = "n"
    ignored_columns: tuple[str, ...] = ()
    time_unit: TimeUnit | None = None

    def __post_init__(self) -> None:
        super().__init__(self.path)
        check_least(1, tokens_per_id=self.tokens_per_id)
        checked_unit(self.time_unit)

    def read(self) -> Rows:
        """See FileTrace; a file whose content was read last, with the same options, is not parsed
        again.
        """
        if type(self) is not CsvLengths or not os.path.isfile(self.path):
            return self.parse()  # of a pipe too, which can be read once
        try:
            digest = content_hash(self.path)
        except OSError:  # which parsing tells
            return self.parse()
        options = {field.name: getattr(self, field.name) for field in fields(self)}
        options["ignored_columns"] = tuple(self.ignored_columns)
        return parsed(digest, **options)

    def parse(self) -> Rows:
        """All rows in file order."""
        table = self._table()
        beam, content, session = map(table.get, (BEAM, self.prompt_ids_column, SESSION))

        def numbers(name: str, kind: Numbers) -> Any:
            return read_numbers(self.path, name, table[name], kind) if name in table else None

        prompts = numbers(self.input_column, TOKENS)
        arrivals = numbers(self.arrival_column, SECONDS)
        rows = Rows(
            prompt_len=prompts,
            output_len=numbers(self.output_column, TOKENS),
            arrival_s=(
                None if arrivals is None else in_seconds(self.path, arrivals, self.time_unit)
            ),
            prompt_ids=None if content is None else self._ids(content, prompts),
            tokens_per_id=1 if content is None else self.tokens_per_id,
            num_seqs=numbers(self.num_seqs_column, TOKENS),
            beam=None if beam is None else flags(self.path, BEAM, beam),
            session=None if session is None else numbered(session),
            priority=numbers(PRIORITY, WHOLE_NUMBERS),
            max_new_tokens=numbers(LIMIT, TOKENS),
            think_s=numbers(THINK, THINK_TIMES),
        )
        if ANSWER_OF not in table:
            return rows
        return with_answers(self.path, rows, self._answered(table[ANSWER_OF]))

    def _answered(self, texts: Sequence[str]) -> list[int | None]:
        """The row whose answer each row contains; None if the cell is empty."""
        wrong = next((i for i, cell in enumerate(texts) if cell and not cell.isdecimal()), None)
        if wrong is not None:
            raise InputError(
                key=f"{self.path}, line {wrong + 2}, column {ANSWER_OF}",
                problem=f"{texts[wrong][:40]!r} is no number of a row",
                remedy="from 0, or empty",
            )
        return [int(cell) if cell else None for cell in texts]

    def _table(self) -> Mapping[str, Sequence[str]]:
        """The columns of lengths, and the optional columns that the file has."""
        named = (self.arrival_column, self.prompt_ids_column, self.num_seqs_column)
        renamed = [name for name in named if name not in DEFAULTS]
        others = [name for name in named if name in DEFAULTS]
        return self.table([self.input_column, self.output_column, *renamed], [*others, *NAMED_SO])

    def table(self, names: Sequence[str], optional: Sequence[str]) -> Mapping[str, Sequence[str]]:
        """The named columns as text, and the optional ones that exist."""
        ignored = (*RESULTS, *self.ignored_columns)
        return read_table(self.path, names, optional, ignored, REMEDY, MISSING)

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
                    key=where,
                    problem=f"{text[:40]!r} is not whole numbers separated by spaces",
                    remedy="fix it",
                ) from None
            wanted = -(-prompt_len // self.tokens_per_id)
            if ids and len(ids) != wanted:
                raise InputError(
                    key=where,
                    problem=(
                        f"{len(ids)} ids for {prompt_len} tokens, {wanted} wanted at one for each "
                        f"{self.tokens_per_id}"
                    ),
                    remedy="give as many, or set trace.tokens_per_id",
                )
            all_ids.append(ids)
        return with_unknown(all_ids, prompts.tolist(), self.tokens_per_id)


@lru_cache(2)
def parsed(digest: str, **options: Any) -> Rows:
    """The rows of a file with this content. All runs that read it share them, so that no column can
    be written to.
    """
    rows = CsvLengths(**options).parse()
    for column in (getattr(rows, field.name) for field in fields(rows)):
        if isinstance(column, np.ndarray):
            column.flags.writeable = False
    return rows


def write_lengths(path: str, rows: Rows) -> None:
    """Write rows as a CSV, compressed if the name ends in .gz, so that a slow reader runs once.

    Prompt ids are read again with the same tokens_per_id.
    """
    ids = None if rows.prompt_ids is None else [" ".join(map(str, ids)) for ids in rows.prompt_ids]
    every = {
        "input_tokens": rows.prompt_len,
        "output_tokens": rows.output_len,
        "arrival_s": rows.arrival_s,
        "prompt_ids": ids,
        "session": rows.session,
        "priority": rows.priority,
        "max_new_tokens": rows.max_new_tokens,
        "think_s": rows.think_s,
    }
    columns = {name: list(column) for name, column in every.items() if column is not None}
    lines = [columns, *zip(*columns.values(), strict=True)]
    content = "".join(",".join(map(str, line)) + "\n" for line in lines).encode()
    Path(path).write_bytes(
        gzip.compress(content, mtime=0) if str(path).endswith(".gz") else content
    )


class PlainData(pickle.Unpickler):
    """Reads only numbers, lists and tuples: a pickle that names a function could run any code."""

    def find_class(self, module: str, name: str) -> NoReturn:
        raise InputError(
            key="the pickle",
            problem=f"names {module}.{name} (only plain lists of numbers are read)",
        )


def read_pairs(path: str) -> Rows:
    """The lengths in a pickle of (prompt, output) pairs, each a length or a list of token ids.

    The artifact sosp-ae-39/sosp-ae-astra has such files in `datasets`.
    """
    try:
        with open(path, "rb") as file:
            pairs = PlainData(file).load()
    except OSError:
        raise
    except Exception as error:  # a damaged pickle may end in any
        raise InputError(key=path, problem=f"is no pickle that can be read: {error}") from error
    if (
        not isinstance(pairs, list)
        or not pairs
        or any(not isinstance(p, list | tuple) or len(p) != 2 for p in pairs)
    ):
        raise InputError(key=path, problem="contains no list of (prompt, output) pairs")
    return Rows(
        *columns([(_length(path, prompt), _length(path, output)) for prompt, output in pairs])
    )


def _length(path: str, tokens: object) -> int:
    is_list = isinstance(tokens, list | tuple) and all(type(token) is int for token in tokens)
    length = len(tokens) if is_list and isinstance(tokens, list | tuple) else tokens
    if type(length) is int and 1 <= length <= MAX_LEN:
        return length
    raise InputError(
        key=path,
        problem=(
            f"contains {reprlib.repr(tokens)}, which is neither a length from 1 to {MAX_LEN} nor a "
            "list of token ids"
        ),
    )


def rows_sha256(rows: Rows) -> str:
    """The SHA-256 of rows, as in PUBLISHED."""
    pairs = zip(rows.prompt_len.tolist(), rows.output_len.tolist(), strict=True)
    text = "".join(f"{prompt},{output}\n" for prompt, output in pairs)
    return hashlib.sha256(text.encode()).hexdigest()
