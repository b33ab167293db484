"""The tables of kernels/results/speed.md, from the rows kept in the FOLDERs beside it.

python -m testbed.kernels.measure.speed_beside_vllm FOLDER
"""

import sys
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd


class Log(NamedTuple):
    """requests: queued_s, first_token_s, finish_s, output_len. ends_s: when the result of each
    iteration was there; has_prompts: whether it computed some.
    """

    requests: pd.DataFrame
    ends_s: np.ndarray
    has_prompts: np.ndarray


class Figures(NamedTuple):
    """Output tokens a second, mean time per output token and the median decode, both in ms."""

    tokens_per_s: float
    tpot_ms: float
    decode_ms: float


def of_engine(folder: Path, name: str) -> Log:
    """A run of the engine."""
    requests = pd.read_csv(folder / f"{name}-requests.csv.gz")
    rows = pd.read_csv(folder / f"{name}-iterations.csv.gz")
    ends_s = (rows.start_s + rows.duration_s).to_numpy()
    renamed = requests.rename(columns={"arrival_s": "queued_s"})
    return Log(renamed, ends_s, (rows.prefill_tokens > 0).to_numpy())


def of_vllm(folder: Path, name: str) -> Log:
    """The same requests, served by vLLM."""
    requests = pd.read_csv(folder / "vllm" / f"{name}-requests.csv.gz")
    rows = pd.read_csv(folder / "vllm" / f"{name}-steps.csv.gz").dropna(subset="result_s")
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
    )


def main(folder: Path) -> None:
    """Print the table of a folder's runs in Markdown."""
    print("| run | system | output tokens/s | TPOT | decode |")
    print("|---|---|---|---|---|")
    for path in sorted(folder.glob("*-requests.csv.gz")):
        name = path.name.removesuffix("-requests.csv.gz")
        for system, read in (("vLLM", of_vllm), ("this engine", of_engine)):
            tokens_per_s, *times_ms = figures(read(folder, name))
            cells = " | ".join(f"{time_ms:.2f}" for time_ms in times_ms)
            print(f"| {name} | {system} | {tokens_per_s:,.0f} | {cells} |")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
