"""BurstGPT (CSV): lengths and arrival times of ChatGPT and GPT-4 requests of a university."""

import numpy as np

from testbed.core.errors import InputError
from testbed.core.request import Rows
from testbed.traces.files import SECONDS, TOKENS, Numbers, numbered, read_numbers, read_table
from testbed.traces.time_units import BareTimes, in_seconds

TIME, PROMPT, OUTPUT = "Timestamp", "Request tokens", "Response tokens"
SESSION = "Session ID"  # in the releases with conversations
ANSWERED = Numbers("a whole number of tokens, 0 for a failure", 0, are_whole=True)
IGNORED = ("Elapsed time", "Model", "Total tokens", "Log Type")


class BurstGptCsv(BareTimes):
    """A CSV of github.com/HPMLL/BurstGPT, without requests that failed: those that have no response
    tokens.
    """

    def read(self) -> Rows:
        """The requests in file order; arrival_s counts from midnight of the first day."""
        table = read_table(self.path, [TIME, PROMPT, OUTPUT], [SESSION], IGNORED)
        answered = read_numbers(self.path, OUTPUT, table[OUTPUT], ANSWERED)
        kept = answered > 0
        if not kept.any():
            raise InputError(
                key=self.path, problem="no request was answered", remedy="give another file"
            )
        times = read_numbers(self.path, TIME, table[TIME], SECONDS)
        # A failed request may have no prompt; only the lengths of those that are kept must be
        # sound.
        prompts = [
            "1" if not keep else text
            for keep, text in zip(kept.tolist(), table[PROMPT], strict=True)
        ]
        session = numbered(table[SESSION]) if SESSION in table else None
        rows = Rows(
            read_numbers(self.path, PROMPT, prompts, TOKENS),
            answered.clip(1),
            in_seconds(self.path, times, self.time_unit),
            session=session,
        )
        return rows.take(np.flatnonzero(kept))
