"""The table of kernels/results/h100-speed.md, from the rows kept beside it.

    python -m testbed.kernels.measure.speed_beside_vllm

A log of vLLM's steps has when each result was read. Under asynchronous scheduling the result of one
iteration is read late if the next is being launched, and then the next seems short; so an
iteration with prompts is also taken with its two neighbours, less twice a decode beside them.
"""

from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd

FOLDER = Path(__file__).parents[1] / "results" / "engine" / "speed"
RUNS = ("full-8", "s2000-0.5", "s2000-sat")
NEAR = 9  # iterations before a prompt among which its decodes are looked for


class Log(NamedTuple):
    """requests: queued_s, first_token_s, finish_s, output_len. ends_s: when the result of each
    iteration was there; has_prompts: whether it computed some.
    """

    requests: pd.DataFrame
    ends_s: np.ndarray
    has_prompts: np.ndarray


class Figures(NamedTuple):
    """Output tokens a second, mean time per output token, and medians of iterations in ms: decodes,
    those with prompts, and those with prompts as far as they lengthen their neighbours too.
    """

    tokens_per_s: float
    tpot_ms: float
    decode_ms: float
    prompt_ms: float
    prompt_with_neighbours_ms: float


def of_engine(name: str) -> Log:
    """A run of the engine."""
    requests = pd.read_csv(FOLDER / f"{name}-requests.csv.gz")
    rows = pd.read_csv(FOLDER / f"{name}-iterations.csv.gz")
    ends_s = (rows.start_s + rows.duration_s).to_numpy()
    renamed = requests.rename(columns={"arrival_s": "queued_s"})
    return Log(renamed, ends_s, (rows.prefill_tokens > 0).to_numpy())


def of_vllm(name: str) -> Log:
    """The same requests, served by vLLM."""
    requests = pd.read_csv(FOLDER / "vllm" / f"{name}-requests.csv.gz")
    rows = pd.read_csv(FOLDER / "vllm" / f"{name}-steps.csv.gz").dropna(subset="result_s")
    return Log(requests, rows.result_s.to_numpy(), (rows.prompt_tokens > 0).to_numpy())


def figures(log: Log) -> Figures:
    """The figures of a log."""
    requests = log.requests
    several = requests[requests.output_len > 1]
    tpot_s = (several.finish_s - several.first_token_s) / (several.output_len - 1)
    serving_s = requests.finish_s.max() - requests.queued_s.min()
    lasting_s, prompts = np.diff(log.ends_s), log.has_prompts
    decodes = ~prompts[1:] & ~prompts[:-1]
    return Figures(
        tokens_per_s=float(requests.output_len.sum() / serving_s),
        tpot_ms=1e3 * float(tpot_s.mean()),
        decode_ms=1e3 * float(np.median(lasting_s[decodes])),
        prompt_ms=1e3 * float(np.median(lasting_s[prompts[1:]])),
        prompt_with_neighbours_ms=1e3 * float(np.median(with_neighbours_s(log.ends_s, prompts))),
    )


def with_neighbours_s(ends_s: np.ndarray, prompts: np.ndarray) -> list[float]:
    """Of each iteration with prompts between two decodes on either side: these three, less twice
    the median decode before them.
    """
    lasting_s = np.diff(ends_s, prepend=np.nan)
    alone = [
        i for i in range(3, len(ends_s) - 3) if prompts[i] and prompts[i - 2 : i + 3].sum() == 1
    ]
    times: list[float] = []
    for i in alone:
        before = range(max(1, i - NEAR - 1), i - 1)
        near_s = [lasting_s[j] for j in before if not prompts[j] and not prompts[j - 1]]
        if near_s:
            times.append(ends_s[i + 1] - ends_s[i - 2] - 2 * float(np.median(near_s)))
    return times


def main() -> None:
    """Print the table in Markdown."""
    print("| run | system | output tokens/s | TPOT | decode | prompt | prompt, with neighbours |")
    print("|---|---|---|---|---|---|---|")
    for name in RUNS:
        for system, read in (("vLLM", of_vllm), ("this engine", of_engine)):
            tokens_per_s, *times_ms = figures(read(name))
            cells = " | ".join(f"{time_ms:.2f}" for time_ms in times_ms)
            print(f"| {name} | {system} | {tokens_per_s:,.0f} | {cells} |")


if __name__ == "__main__":
    main()
