"""A CSV (or CSV.gz) of lengths, one request a line; also the plainest form to keep any trace in."""

import csv
import gzip
import io
from collections.abc import Sequence
from pathlib import Path

from testbed.core.errors import InputError
from testbed.core.request import Column, Rows
from traces.files import lengths, read_table, seconds
from traces.reader import FileTrace


class CsvLengths(FileTrace):
    """Prompt and output lengths in tokens, from a CSV with a header; with arrival times in seconds and with the
    content of prompts where the file has these columns.

    Content is written as whole numbers with spaces between, one for each tokens_per_id tokens, the last of which may
    be fewer. One number stands for these tokens and, as in Mooncake's traces, for all before them, or with
    tokens_per_id 1 for one token.
    """

    def __init__(
        self,
        path: str,
        input_column: str = "input_tokens",
        output_column: str = "output_tokens",
        arrival_column: str = "arrival_s",
        content_column: str = "content_ids",
        tokens_per_id: int = 16,
    ) -> None:
        super().__init__(path)
        self.input_column, self.output_column, self.arrival_column = input_column, output_column, arrival_column
        self.content_column, self.tokens_per_id = content_column, tokens_per_id
        if tokens_per_id < 1:
            raise InputError(f"trace.tokens_per_id is {tokens_per_id}; it must be at least 1")

    def read(self) -> Rows:
        """All rows in file order; arrival_s and prompt_ids are set where the file has their columns."""
        optional = [self.arrival_column, self.content_column]
        table = read_table(self.path, [self.input_column, self.output_column], optional=optional)
        prompts, outputs = (lengths(self.path, name, table[name]) for name in (self.input_column, self.output_column))
        times, content = (table.get(name) for name in optional)
        arrival_s = None if times is None else seconds(self.path, self.arrival_column, times)
        if content is None:
            return Rows(prompts, outputs, arrival_s)
        return Rows(prompts, outputs, arrival_s, self._ids(content, prompts), self.tokens_per_id)

    def _ids(self, texts: Sequence[str], prompts: Column) -> list[tuple[int, ...]]:
        """The content of every prompt; the first line whose content does not go with its length is named."""
        found = []
        for number, (text, prompt_len) in enumerate(zip(texts, prompts.tolist(), strict=True), start=2):
            where = f"{self.path}, line {number}, column {self.content_column}"
            try:
                ids = tuple(map(int, text.split()))
            except ValueError:
                raise InputError(f"{where}: {text[:40]!r} is not whole numbers with spaces between; mend it") from None
            wanted = -(-prompt_len // self.tokens_per_id)
            if len(ids) != wanted:
                raise InputError(f"{where}: {len(ids)} ids for {prompt_len} tokens, {wanted} wanted at one for each "
                                 f"{self.tokens_per_id}; say trace.tokens_per_id")  # fmt: skip
            found.append(ids)
        return found


def write_lengths(path: str, rows: Rows) -> None:
    """Keep rows as a CSV (gzip where the name ends in .gz), so that a slow reader need run only once.

    Content ids go with them; who reads them again says how many tokens each stands for.
    """
    columns: dict[str, Sequence[object]] = {
        "input_tokens": rows.prompt_len.tolist(),
        "output_tokens": rows.output_len.tolist(),
    }
    if rows.arrival_s is not None:
        columns["arrival_s"] = rows.arrival_s.tolist()
    if rows.prompt_ids is not None:
        columns["content_ids"] = [" ".join(map(str, ids)) for ids in rows.prompt_ids]
    text = io.StringIO()
    table = csv.writer(text, lineterminator="\n")
    table.writerow(columns)
    table.writerows(zip(*columns.values(), strict=True))
    content = text.getvalue().encode()
    Path(path).write_bytes(gzip.compress(content, mtime=0) if str(path).endswith(".gz") else content)
