"""BurstGPT (CSV): lengths and arrival times of ChatGPT and GPT-4 requests of a university."""

import numpy as np

from testbed.core.errors import InputError
from testbed.core.request import Rows
from testbed.traces.files import MAX_LEN, lengths, numbers, read_table, require, seconds
from testbed.traces.reader import FileTrace

TIME, PROMPT, OUTPUT = "Timestamp", "Request tokens", "Response tokens"
CHOICES = {"model": "Model", "log_type": "Log Type"}


class BurstGptCsv(FileTrace):
    """A CSV of github.com/HPMLL/BurstGPT, of any release.

    Requests without response tokens failed and are left out, as in the authors' own files "without fails". model
    (ChatGPT, GPT-4) and log_type ("Conversation log", "API log") keep only those requests; None keeps all.
    """

    def __init__(self, path: str, model: str | None = None, log_type: str | None = None) -> None:
        super().__init__(path)
        self.chosen = {"model": model, "log_type": log_type}

    def read(self) -> Rows:
        """The requests in file order; arrival_s counts from midnight of the first day."""
        wanted = {name: value for name, value in self.chosen.items() if value is not None}
        table = read_table(self.path, [TIME, PROMPT, OUTPUT, *(CHOICES[name] for name in wanted)])
        answered = numbers(table[OUTPUT])
        sound = (answered >= 0) & (answered <= MAX_LEN) & (answered == np.floor(answered))
        require(self.path, OUTPUT, table[OUTPUT], sound, "a whole number of tokens, 0 for a failure")
        kept = answered > 0
        for name, value in wanted.items():
            found = np.array(table[CHOICES[name]])
            if not (found == value).any():
                raise InputError(f"{self.path}: trace.{name}={value!r}: is none of {', '.join(sorted(set(found)))}")
            kept &= found == value
        if not kept.any():
            raise InputError(f"{self.path}: no request was answered (give another file)")
        times = seconds(self.path, TIME, table[TIME])
        # A failed request may have no prompt; only the lengths of those that are kept must be sound.
        prompts = ["1" if not keep else text for keep, text in zip(kept.tolist(), table[PROMPT], strict=True)]
        rows = Rows(lengths(self.path, PROMPT, prompts), np.maximum(answered, 1).astype(np.int64), times)
        return rows.take(np.flatnonzero(kept))
