"""What a real server logged: vLLM's benchmark (requests.jsonl), or a CSV with first_token_s and finish_s."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from testbed.core.errors import InputError
from testbed.core.request import Rows
from traces.files import json_lines, lengths, read_table, seconds
from traces.reader import FileTrace, columns

TIMES = ("queued_ts", "first_token_ts", "last_token_ts")


@dataclass(frozen=True)
class Served:
    """What was asked of a server, in order of arrival, and when it answered; seconds since the first arrival."""

    rows: Rows
    arrival_s: NDArray[np.float64]
    first_token_s: NDArray[np.float64]
    finish_s: NDArray[np.float64]


def read_served(path: str, workload: str | None = None) -> Served:
    """The requests of a log; `workload` is the file with their token ids, for a log that has none.

    A request arrives when the engine gets it: `queued_ts` in vLLM's logs, whose `arrival_time` is another clock.
    """
    name = str(path).removesuffix(".gz")
    if name.endswith(".jsonl"):
        return _in_order(*_vllm(path, workload))
    if workload is not None:
        raise InputError(f"{path}: a workload with token ids goes with a vLLM log (requests.jsonl), not with a CSV")
    return _in_order(*_csv(path))


class VllmLog(FileTrace):
    """The requests of a vLLM benchmark log, with the token ids of their prompts where a workload file has them."""

    def __init__(self, path: str, workload: str | None = None) -> None:
        super().__init__(path)
        self.workload = workload

    @cached_property
    def served(self) -> Served:
        """The requests, and when the server answered."""
        return read_served(self.path, self.workload)

    def read(self) -> Rows:
        """All rows in order of arrival."""
        return self.served.rows


def _vllm(path: str, workload: str | None) -> tuple[Rows, NDArray[np.float64]]:
    items = [_checked(path, number, item) for number, item in json_lines(path)]
    if not items:
        raise InputError(f"{path}: is empty; give a log with requests")
    prompts, outputs = columns([(item["input_toks"], item["output_toks"]) for item in items])
    ids = None if workload is None else _token_ids(workload, [item["input_toks"] for item in items])
    times = np.array([[float(item[name]) for name in TIMES] for item in items])
    return Rows(prompts, outputs, times[:, 0], ids), times


def _csv(path: str) -> tuple[Rows, NDArray[np.float64]]:
    names = ("arrival_s", "first_token_s", "finish_s")
    table = read_table(path, ["input_tokens", "output_tokens", *names])
    prompts, outputs = (lengths(path, name, table[name]) for name in ("input_tokens", "output_tokens"))
    times = np.stack([seconds(path, name, table[name]) for name in names], axis=1)
    return Rows(prompts, outputs, times[:, 0]), times


def _in_order(rows: Rows, times: NDArray[np.float64]) -> Served:
    order = np.argsort(times[:, 0], kind="stable")
    times = times[order] - times[order[0], 0]
    taken = rows.take(order)
    timed = Rows(taken.prompt_len, taken.output_len, times[:, 0].copy(), taken.prompt_ids)
    return Served(timed, times[:, 0], times[:, 1], times[:, 2])


def _checked(path: str, number: int, item: Any) -> Mapping[str, Any]:
    where = f"{path}, line {number}"
    if not isinstance(item, dict):
        raise InputError(f"{where}: is not a JSON object; mend or remove the line")
    for key in ("input_toks", "output_toks"):
        if type(item.get(key)) is not int or item[key] < 1:
            raise InputError(f"{where}: {key} is {item.get(key)!r}, not a whole number of tokens; remove the line")
    for key in TIMES:
        if type(item.get(key)) not in (int, float):
            raise InputError(f"{where}: {key} is {item.get(key)!r}, not a time in seconds; remove the line")
    if not item["queued_ts"] <= item["first_token_ts"] <= item["last_token_ts"]:
        raise InputError(f"{where}: its times are not in order ({', '.join(TIMES)}); mend or remove the line")
    return item


def _token_ids(path: str, prompt_lens: list[int]) -> list[tuple[int, ...]]:
    """The prompts' token ids, line by line as in the log."""
    found: list[tuple[int, ...]] = []
    for number, item in json_lines(path):
        ids = item.get("input_tok_ids") if isinstance(item, dict) else None
        place = len(found)
        if not isinstance(ids, list) or place >= len(prompt_lens) or len(ids) != prompt_lens[place]:
            wanted = f"{prompt_lens[place]} token ids" if place < len(prompt_lens) else "no further line"
            raise InputError(f"{path}, line {number}: the log has {wanted} here; give the workload of that very log")
        found.append(tuple(ids))
    if len(found) != len(prompt_lens):
        raise InputError(f"{path}: {len(found)} prompts for {len(prompt_lens)} requests of the log")
    return found


def beside(path: str, name: str) -> Path | None:
    """A file of the same folder, plain or gzip, if there is one."""
    for file in (Path(path).parent / name, Path(path).parent / f"{name}.gz"):
        if file.is_file():
            return file
    return None
