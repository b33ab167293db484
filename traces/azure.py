"""Azure LLM inference traces (CSV): lengths and arrival times of a production service."""

from collections.abc import Sequence
from warnings import catch_warnings, simplefilter

import numpy as np

from testbed.core.errors import InputError
from testbed.core.request import Rows
from testbed.traces.files import SECONDS, TOKENS, read_numbers, read_table, require
from testbed.traces.length_model import Floats
from testbed.traces.time_units import KEY, BareTimes, in_seconds

PUBLISHED = ("TIMESTAMP", "ContextTokens", "GeneratedTokens")
YEARS = "1970", "2261"  # nanoseconds since 1970 in 64 bits
RELATIVE = ("arrival_s", "input_tokens", "output_tokens")


class AzureCsv(BareTimes):
    """A trace of github.com/Azure/AzurePublicDataset as published, or with relative times
    (RELATIVE's columns).
    """

    def read(self) -> Rows:
        table = read_table(self.path, [], optional=[*PUBLISHED, *RELATIVE])
        names = PUBLISHED if set(PUBLISHED) & set(table) else RELATIVE
        missing = [name for name in names if name not in table]
        if missing:
            wanted = f"{', '.join(PUBLISHED)} as published, or {', '.join(RELATIVE)}"
            raise InputError(key=self.path, problem=f"no column {missing[0]!r}; needs {wanted}")
        times, prompts, outputs = (table[name] for name in names)
        if names == RELATIVE:
            bare = read_numbers(self.path, names[0], times, SECONDS)
            arrival_s = in_seconds(self.path, bare, self.time_unit)
        elif self.time_unit is None:
            arrival_s = _time_stamps(self.path, names[0], times)
        else:
            raise InputError(
                key=KEY, problem="is not read: the times are dates", remedy="leave it out"
            )
        return Rows(
            read_numbers(self.path, names[1], prompts, TOKENS),
            read_numbers(self.path, names[2], outputs, TOKENS),
            arrival_s,
        )


def _time_stamps(path: str, column: str, texts: Sequence[str]) -> Floats:
    with catch_warnings():  # of offsets from UTC, which are converted
        simplefilter("ignore", UserWarning)
        times = np.array([_time(text) for text in texts])
    require(path, column, texts, ~np.isnat(times), "a time such as 2023-11-16 18:15:46.6805900")
    return np.asarray((times - times.min()) / np.timedelta64(1, "s"), dtype=np.float64)


def _time(text: str) -> np.datetime64:
    stamp = text.strip().removesuffix("+00:00").removesuffix("Z")
    is_whole = len(stamp) >= len("2023-11-16 18:15:46") and YEARS[0] <= stamp[:4] <= YEARS[1]
    try:
        return np.datetime64(stamp if is_whole else "NaT", "ns")
    except ValueError:
        return np.datetime64("NaT", "ns")
