"""WMT translation (CSV of sentence lengths): a shared k-shot prefix and one sentence to translate
(section 6.4).
"""

from dataclasses import dataclass

import numpy as np

from testbed.core.errors import InputError
from testbed.core.request import Rows
from testbed.core.units import Count, NumTokens
from testbed.traces.files import TOKENS, WHOLE_NUMBERS, read_numbers, read_table
from testbed.traces.reader import FileTrace

MISSING = "rename one, or name yours: trace.source_column=NAME, trace.target_column=NAME"
IGNORED = (  # of the file of all tokenizers, from which two columns are chosen
    "line",
    "prompt_1shot_llama",
    "prompt_5shot_llama",
    "src_tokens_llama",
    "tgt_tokens_llama",
    "src_tokens_gpt2",
    "tgt_tokens_gpt2",
)


@dataclass(eq=False, repr=False)
class WmtCsv(FileTrace):
    """Prompt = prefix + source sentence, output = its translation, in tokens.

    registered_prefix: of the k-shot prefix (the artifact's: 80 for 1-shot, 341 for 5-shot); year:
    of the rows that are kept; each row must have one. None keeps every row, whatever its year.
    """

    path: str
    registered_prefix: NumTokens
    year: Count | None = 2016
    source_column: str = "src_tokens_llama"
    target_column: str = "tgt_tokens_llama"

    def __post_init__(self) -> None:
        super().__init__(self.path)
        if self.registered_prefix < 0:
            raise InputError(
                key=f"trace {self.path}: registered_prefix",
                value=self.registered_prefix,
                problem="must be 0 or more tokens",
            )

    def read(self) -> Rows:
        names = [self.source_column, self.target_column]
        needed, unused = ([*names, "year"], ()) if self.year is not None else (names, ("year",))
        table = read_table(self.path, needed, ignored=(*IGNORED, *unused), missing=MISSING)
        sources, targets = (read_numbers(self.path, name, table[name], TOKENS) for name in names)
        rows = Rows(
            sources + self.registered_prefix, targets, registered_prefix=self.registered_prefix
        )
        if self.year is None:
            return rows
        years = read_numbers(self.path, "year", table["year"], WHOLE_NUMBERS)
        chosen = np.flatnonzero(years == self.year)
        if not len(chosen):
            listed = ", ".join(map(str, sorted({*years.tolist()})[:9]))
            raise InputError(
                key=f"{self.path}: year",
                value=self.year,
                problem=f"is none of the file's years ({listed})",
            )
        return rows.take(chosen)
