"""A CSV (or CSV.gz) of lengths, one request a line; also the plainest form to keep any trace in."""

import csv
import gzip
import io
from pathlib import Path

from testbed.core.request import Rows
from traces.files import lengths, read_table, seconds
from traces.reader import FileTrace


class CsvLengths(FileTrace):
    """Prompt and output lengths in tokens, with optional arrival times in seconds, from a CSV with a header."""

    def __init__(
        self,
        path: str,
        input_column: str = "input_tokens",
        output_column: str = "output_tokens",
        arrival_column: str = "arrival_s",
    ) -> None:
        super().__init__(path)
        self.input_column, self.output_column, self.arrival_column = input_column, output_column, arrival_column

    def read(self) -> Rows:
        """All rows in file order; arrival_s is set where the file has that column."""
        table = read_table(self.path, [self.input_column, self.output_column], optional=[self.arrival_column])
        prompts, outputs = (lengths(self.path, name, table[name]) for name in (self.input_column, self.output_column))
        times = table.get(self.arrival_column)
        arrival_s = None if times is None else seconds(self.path, self.arrival_column, times)
        return Rows(prompts, outputs, arrival_s)


def write_lengths(path: str, rows: Rows) -> None:
    """Keep rows as a CSV of lengths (gzip where the name ends in .gz), so that a slow reader need run only once."""
    text = io.StringIO()
    table = csv.writer(text, lineterminator="\n")
    times = () if rows.arrival_s is None else (rows.arrival_s.tolist(),)
    table.writerow(["input_tokens", "output_tokens", "arrival_s"][: 2 + len(times)])
    table.writerows(zip(rows.prompt_len.tolist(), rows.output_len.tolist(), *times, strict=True))
    content = text.getvalue().encode()
    Path(path).write_bytes(gzip.compress(content, mtime=0) if str(path).endswith(".gz") else content)
