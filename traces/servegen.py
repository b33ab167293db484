"""ServeGen (a folder): clients of Alibaba Cloud Model Studio, whose rates, burstiness and lengths change with time."""

import ast
import csv
import json
from collections.abc import Iterator, Mapping
from math import gamma
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from testbed.core.errors import InputError
from testbed.core.request import Column, Rows
from traces.files import MAX_LEN, open_text
from traces.reader import Trace, stream

LENGTHS = ("input_tokens", "output_tokens")
Floats = NDArray[np.float64]


class Window(NamedTuple):
    """A stretch of time of one client: rate in requests/s, and the gaps' distribution with its shape."""

    start_s: float
    end_s: float
    rate: float
    pattern: str
    shape: float


class ServeGenFolder(Trace):
    """A folder of github.com/alibaba/ServeGen's data, such as data/language/m-small: chunk-I-trace.csv says when client
    I sends how much (a window's start, rate, coefficient of variation, distribution, shape, scale), and
    chunk-I-dataset.json how long prompts and answers are (a probability by length, from a time on).

    Requests of start_s to start_s + duration_s are drawn: gaps of the file's distribution and shape, with the mean that
    the rate asks for, begun anew in every window; lengths independently. Arrival times come with them
    (arrivals=replay).
    """

    def __init__(self, path: str, start_s: float = 0.0, duration_s: float = 3600.0) -> None:
        if start_s < 0 or not duration_s > 0:
            raise InputError(
                f"trace.start_s is {start_s}, duration_s {duration_s}; they must be at least 0, and above 0"
            )
        self.path = str(path)
        self.start_s, self.end_s = start_s, start_s + duration_s

    def rows(self, num_rows: int | None, seed: int, max_len: int | None = None) -> Rows:
        """All requests of the stretch, in order of arrival."""
        if num_rows is not None:
            raise InputError(f"{self.path}: its clients say when requests come; choose arrivals=replay")
        names = sorted(Path(self.path).glob("chunk-*-trace.csv"), key=lambda name: int(name.name.split("-")[1]))
        if not names:
            raise InputError(f"{self.path}: has no file chunk-*-trace.csv; name a folder such as data/language/m-small")
        rng = stream(seed, "servegen")
        drawn = [self._client(name, rng) for name in names]
        times, prompts, outputs = (np.concatenate([part[i] for part in drawn]) for i in range(3))
        if not len(times):
            raise InputError(
                f"{self.path}: nobody sends from {self.start_s:g} s to {self.end_s:g} s; choose other times"
            )
        order = np.argsort(times, kind="stable")
        whole = Rows(prompts[order].astype(np.int64), outputs[order].astype(np.int64), times[order] - self.start_s)
        return whole if max_len is None else whole.at_most(max_len)

    def _client(self, path: Path, rng: np.random.Generator) -> tuple[Floats, Column, Column]:
        """Times, prompts and outputs of one client."""
        lengths = self._lengths(path.with_name(path.name.replace("-trace.csv", "-dataset.json")))
        parts = [(np.empty(0), np.empty(0, np.int64), np.empty(0, np.int64))]
        for window in self._windows(path):
            times = arrivals(window, rng)
            known = [start for start in lengths if start <= window.start_s]
            if len(times) and known:
                draws = [rng.choice(values, len(times), p=shares) for values, shares in lengths[max(known)]]
                inside = (times >= self.start_s) & (times < self.end_s)
                parts.append((times[inside], draws[0][inside], draws[1][inside]))
        return tuple(np.concatenate([part[i] for part in parts]) for i in range(3))  # type: ignore[return-value]

    def _windows(self, path: Path) -> Iterator[Window]:
        """The windows that overlap the stretch; the last is as long as the one before it."""
        with open_text(str(path)) as file:
            lines = [_numbers(str(path), number, line) for number, line in enumerate(csv.reader(file), start=1) if line]
        starts = [line[0] for line in lines]
        ends = [*starts[1:], starts[-1] + (starts[-1] - starts[-2] if len(starts) > 1 else 600.0)] if starts else []
        for (start, rate, pattern, shape), end in zip(lines, ends, strict=True):
            if pattern and rate > 0 and end > self.start_s and start < self.end_s:
                yield Window(start, end, rate, pattern, shape)

    def _lengths(self, path: Path) -> Mapping[float, list[tuple[Column, Floats]]]:
        """Values and shares of prompts and outputs, by the time from which they hold."""
        with open_text(str(path)) as file:
            try:
                content = json.load(file)
                return {
                    float(start): [_distribution(str(path), fields[name]) for name in LENGTHS]
                    for start, fields in content.items()
                    if all([_table(fields[name]) for name in LENGTHS])
                }
            except (ValueError, SyntaxError, KeyError, TypeError, AttributeError) as error:
                hint = f"not ServeGen's form, times with {' and '.join(LENGTHS)} as tables of shares"
                raise InputError(f"{path}: {hint} ({type(error).__name__}: {error})") from error


def arrivals(window: Window, rng: np.random.Generator) -> Floats:
    """Arrival times of a renewal process within the window."""
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
    return window.start_s + seconds[seconds < length]


def _numbers(path: str, number: int, line: list[str]) -> tuple[float, float, str, float]:
    """Start, rate, distribution and shape of one line."""
    try:
        start, rate, _, pattern, shape, _ = line
        values = float(start), float(rate), pattern, float(shape)
    except ValueError:
        raise InputError(f"{path}, line {number}: needs start, rate, cv, distribution, shape, scale") from None
    if pattern not in ("", "Gamma", "Weibull") or (pattern and not values[3] > 0) or not 0 <= values[1] < 1e9:
        raise InputError(f"{path}, line {number}: {pattern} gaps of rate {rate} and shape {shape}; Gamma or Weibull")
    return values


def _table(field: Any) -> Mapping[Any, float]:
    """A table {tokens: share}, which the published files keep as text."""
    table = ast.literal_eval(field) if isinstance(field, str) else field
    return {int(key): float(share) for key, share in table.items()}


def _distribution(path: str, field: Any) -> tuple[Column, Floats]:
    table = _table(field)
    values, shares = np.array(list(table), np.int64), np.array(list(table.values()), np.float64)
    if not (shares >= 0).all() or not shares.sum() > 0 or values.max() > MAX_LEN:
        raise InputError(f"{path}: shares must be at least 0, lengths at most {MAX_LEN}")
    return np.maximum(values, 1), shares / shares.sum()
