"""ServeGen (a folder): clients whose rates, burstiness and lengths change with time."""

import ast
import csv
from collections.abc import Iterator, Mapping
from itertools import pairwise
from math import gamma
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from testbed.core.errors import InputError
from testbed.core.request import Column, Rows
from testbed.core.units import Seconds
from testbed.traces.files import LATEST, MAX_LEN, open_text, read_json
from testbed.traces.reader import Trace, stream

MAX_RATE = 1e5  # requests/s of one client
# Least shape of the gaps by distribution, below the least that is published (0.0067 and 0.15), and
# the largest of both: with others, sums of gaps hardly grow or overflow
SHAPES, MOST_SHAPE = {"Gamma": 1e-3, "Weibull": 0.1}, 1e4
LENGTHS = ("input_tokens", "output_tokens")
Floats = NDArray[np.float64]
# Errors of reading a table of shares that is nested too deeply or has other names or types
UNREADABLE = (
    ValueError,
    SyntaxError,
    KeyError,
    TypeError,
    AttributeError,
    OverflowError,
    RecursionError,
    MemoryError,
)


class Window(NamedTuple):
    """A time window of one client: its rate (requests/s), and the gaps' distribution and shape."""

    start_s: float
    end_s: float
    rate: float
    pattern: str
    shape: float


class ServeGenFolder(Trace):
    """A folder of github.com/alibaba/ServeGen's data, such as data/language/m-small.

    chunk-I-trace.csv has the windows of client I: start, rate, coefficient of variation,
    distribution, shape and scale. chunk-I-dataset.json has its distributions of prompt and answer
    lengths, each from a time on. The clients are those of Alibaba Cloud Model Studio.

    Requests from start_s to start_s + duration_s are drawn. Gaps have the file's distribution and
    shape and the mean 1 / rate, and restart in every window; lengths are independent. The rows have
    arrival times (arrivals=replay).
    """

    def __init__(self, path: str, start_s: Seconds = 0.0, duration_s: Seconds = 3600.0) -> None:
        if start_s < 0 or not duration_s > 0:
            raise InputError(
                key="trace.start_s",
                value=f"{start_s}, duration_s={duration_s}",
                problem="must be at least 0, and above 0",
            )
        self.path = str(path)
        self.start_s, self.end_s = start_s, start_s + duration_s

    def rows(self, num_rows: int | None, seed: int, max_len: int | None = None) -> Rows:
        if Path(self.path).is_file():
            raise InputError(
                key=self.path,
                problem=(
                    "is a file, and trace=servegen reads a folder of clients (a list of requests "
                    "is for trace=csv or trace=mooncake)"
                ),
            )
        if num_rows is not None:
            raise InputError(
                key=self.path,
                problem="its clients determine arrival times",
                remedy="choose arrivals=replay",
            )
        names = sorted(Path(self.path).glob("chunk-*-trace.csv"), key=_client_number)
        if not names:
            raise InputError(
                key=self.path,
                problem="no file chunk-*-trace.csv",
                remedy="give a folder such as data/language/m-small",
            )
        rng = stream(seed, "servegen")
        parts = [part for name in names for part in self._client(name, rng)]
        if not any(len(times) for times, *_ in parts):
            raise InputError(
                key=self.path,
                problem=f"no client sends from {self.start_s:g} s to {self.end_s:g} s",
                remedy="choose other times",
            )
        times, prompts, outputs = (np.concatenate(column) for column in zip(*parts, strict=True))
        order = np.argsort(times, kind="stable")
        rows = Rows(prompts[order], outputs[order], times[order] - self.start_s)
        return rows if max_len is None else rows.at_most(max_len)

    def _client(
        self, path: Path, rng: np.random.Generator
    ) -> Iterator[tuple[Floats, Column, Column]]:
        """Times (s), prompt and output lengths of a client's requests, for each of its windows."""
        lengths = self._lengths(path.with_name(path.name.replace("-trace.csv", "-dataset.json")))
        for window in self._windows(path):
            times = arrivals(window, rng)
            begun = [start for start in lengths if start <= window.start_s]
            if len(times) and begun:
                prompts, outputs = (
                    rng.choice(values, len(times), p=shares)
                    for values, shares in lengths[max(begun)]
                )
                inside = (times >= self.start_s) & (times < self.end_s)
                yield times[inside], prompts[inside], outputs[inside]

    def _windows(self, path: Path) -> Iterator[Window]:
        """The windows that overlap the interval; the last is as long as the one before it."""
        with open_text(str(path)) as file:
            lines = [
                _numbers(str(path), number, line)
                for number, line in enumerate(csv.reader(file), start=1)
                if line
            ]
        starts = [line[0] for line in lines]
        if any(later <= start for start, later in pairwise(starts)):
            raise InputError(
                key=path,
                problem="its windows do not follow each other in time",
                remedy="sort its lines by their start",
            )
        last_s = starts[-1] - starts[-2] if len(starts) > 1 else 600.0
        ends = [*starts[1:], *(start + last_s for start in starts[-1:])]
        for (start, rate, pattern, shape), end in zip(lines, ends, strict=True):
            if pattern and rate > 0 and end > self.start_s and start < self.end_s:
                yield Window(start_s=start, end_s=end, rate=rate, pattern=pattern, shape=shape)

    def _lengths(self, path: Path) -> Mapping[float, list[tuple[Column, Floats]]]:
        """The distributions of prompt and output lengths, by the time (s) from which they hold."""
        content = read_json(str(path))
        try:
            tables = {
                float(start): [_table(fields[name]) for name in LENGTHS]
                for start, fields in content.items()
            }
        except UNREADABLE as error:
            hint = f"not ServeGen's format, times with {' and '.join(LENGTHS)} as tables of shares"
            raise InputError(
                key=path, problem=f"{hint} ({type(error).__name__}: {error})"
            ) from error
        return {
            start: [_distribution(path, table) for table in both]
            for start, both in tables.items()
            if all(both)
        }


def arrivals(window: Window, rng: np.random.Generator) -> Floats:
    """The arrival times (s) of a renewal process within the window."""
    length = window.end_s - window.start_s
    times, last = [np.empty(0)], 0.0
    while last < length:
        size = int(window.rate * length * 1.2) + 16
        if window.pattern == "Gamma":
            gaps = rng.gamma(window.shape, 1 / (window.rate * window.shape), size)
        else:
            gaps = rng.weibull(window.shape, size) / (window.rate * gamma(1 + 1 / window.shape))
        times.append(last + np.cumsum(gaps))
        last = float(times[-1][-1])
    seconds = np.concatenate(times)
    return window.start_s + seconds[: np.searchsorted(seconds, length)]


def _numbers(path: str, number: int, line: list[str]) -> tuple[float, float, str, float]:
    """Start, rate, distribution and shape of a line; raises InputError for wrong values."""
    try:
        start, rate, _, pattern, shape, _ = line
        values = float(start), float(rate), pattern, float(shape)
    except ValueError:
        raise InputError(
            key=f"{path}, line {number}",
            problem="needs start, rate, cv, distribution, shape, scale",
        ) from None
    least = SHAPES.get(pattern)
    has_gaps = least is not None and least <= values[3] <= MOST_SHAPE
    is_rate = 0 <= values[0] <= LATEST and 0 <= values[1] <= MAX_RATE
    if not (is_rate and (has_gaps or not pattern)):
        raise InputError(
            key=f"{path}, line {number}",
            problem=(
                f"{pattern} gaps from {start} s on, of rate {rate} and shape {shape}; they must be "
                f"Gamma or Weibull, of at most {MAX_RATE:,.0f} requests/s and shape "
                f"{SHAPES['Gamma']} or {SHAPES['Weibull']} to {MOST_SHAPE:,.0f}"
            ),
        )
    return values


def _client_number(path: Path) -> int:
    """The number of the client in chunk-I-trace.csv."""
    number = path.name.removeprefix("chunk-").removesuffix("-trace.csv")
    if not (number.isascii() and number.isdigit()):
        raise InputError(
            key=path,
            problem=f"the client of this file is {number!r}, which is no number",
            remedy="name it chunk-I-trace.csv, from 0 on",
        )
    return int(number)


def _table(field: Any) -> Mapping[int, float]:
    table = ast.literal_eval(field) if isinstance(field, str) else field
    return {_whole(key): float(share) for key, share in table.items()}


def _whole(key: Any) -> int:
    """A length, which JSON may have as text; 1.7 is none."""
    if type(key) not in (int, str):
        raise ValueError(f"{key!r} is no length")
    return int(key)


def _distribution(path: Path, table: Mapping[int, float]) -> tuple[Column, Floats]:
    """Lengths and their probabilities."""
    shares = np.array(list(table.values()), np.float64)
    are_shares = (shares >= 0).all() and 0 < shares.sum() < np.inf
    if not are_shares or min(table) < 0 or max(table) > MAX_LEN:
        raise InputError(
            key=path, problem=f"shares must be finite and at least 0, lengths from 0 to {MAX_LEN}"
        )
    return np.array(list(table), np.int64).clip(1), shares / shares.sum()
