"""WMT translation (CSV of sentence lengths): a shared k-shot prefix and one sentence to translate (section 6.4)."""

import numpy as np

from testbed.core.errors import InputError
from testbed.core.request import Rows
from traces.files import lengths, read_table
from traces.reader import FileTrace


class WmtCsv(FileTrace):
    """Prompt = prefix + source sentence, output = its translation, in tokens.

    prefix is the length of the provider's k-shot prefix (the artifact's, in LLaMA tokens with BOS: 80 for 1-shot, 341
    for 5-shot). year picks the test set's year (the paper's is 2016), None takes every row.
    """

    def __init__(
        self,
        path: str,
        prefix: int,
        year: int | None = 2016,
        source_column: str = "src_tokens_llama",
        target_column: str = "tgt_tokens_llama",
    ) -> None:
        super().__init__(path)
        if prefix < 0:
            raise InputError(f"trace {path}: prefix is {prefix}; it must be 0 or more tokens")
        self.prefix, self.year = prefix, year
        self.source_column, self.target_column = source_column, target_column

    def read(self) -> Rows:
        """The rows of that year in file order, with the prefix before each and named in Rows.prefix."""
        names = [self.source_column, self.target_column]
        table = read_table(self.path, names if self.year is None else [*names, "year"])
        sources, targets = (lengths(self.path, name, table[name]) for name in names)
        rows = Rows(sources + self.prefix, targets, prefix=self.prefix)
        return rows if self.year is None else self._of_year(rows, table["year"])

    def _of_year(self, rows: Rows, years: list[str]) -> Rows:
        chosen = np.flatnonzero([year.strip() == str(self.year) for year in years])
        if not len(chosen):
            found = ", ".join(sorted(set(years))[:9])
            raise InputError(f"{self.path}: no row of year {self.year}; it has {found}")
        return rows.take(chosen)
