"""Logs of a workload that the user's vLLM serves: `testbed gpu record`.

The folder is what `testbed validate` reads: requests.jsonl has the engine's times and the client's
(arrival_time), steps.csv every iteration, meta.json the server, workload.jsonl what is in the
prompts, where their contents are known.
"""

import csv
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from testbed.core.errors import InputError
from testbed.core.request import PS, Request, Workload
from testbed.experiments.vllm_engine.in_vllm.sweeps import FIRST_ID, LAST_ID, WARM_UP, prompts
from testbed.experiments.vllm_engine.installed import check_installed, engine_words, run_plan
from testbed.experiments.vllm_server.command import serve_words

WARM_UP_WAVE = prompts(WARM_UP, 0, [[1, new, 0] for new in (16, 128, 512, 1024)])
SERVED = "serve"
REQUESTS, META, CONTENTS = "requests.jsonl", "meta.json", "workload.jsonl"


def record(command: str, workload: Workload, python: str, out: Path, limit_s: float) -> None:
    """Serve the workload by the vLLM that `command` starts; `out` is the new folder of its log."""
    requests = list(workload)
    check_plain(requests)
    if out.exists():
        raise InputError(f"--out {out}: is there already (name a new folder)")
    check_installed(python)
    out.mkdir(parents=True)
    seed = 0
    arrivals_s = [request.arrival_ps / PS for request in requests]
    wave = {
        "name": SERVED,
        "arrivals_s": arrivals_s,
        "requests": [
            {"prompt": token_ids(request, seed), "output": request.output_len}
            for request in requests
        ],
    }
    plan = {
        "arguments": engine_words(serve_words(command)),
        "waves": [WARM_UP_WAVE, wave],
        "deadline_s": limit_s,
    }
    run_plan(python, plan, out, limit_s + arrivals_s[-1])
    (out / "plan.json").unlink()
    num_served = add_preemptions(out)
    if num_served < len(requests):
        raise InputError(
            f"vLLM: served {num_served} of {len(requests)} requests within {limit_s:.0f} s, which "
            f"is no log of the workload (--limit-s)"
        )
    write_meta(out, command)
    write_contents(out / CONTENTS, requests)


def check_plain(requests: Sequence[Request]) -> None:
    """Raise InputError unless each request is one sequence of tokens that vLLM can be asked for."""
    if not requests:
        raise InputError("the workload has no request (arrivals.duration_s, arrivals.rate)")
    if any(request.num_seqs > 1 for request in requests):
        raise InputError("workload.num_seqs: several sequences a request are not recorded")


def token_ids(request: Request, seed: int) -> list[int]:
    """The prompt's tokens: each content id stands for the same tokens wherever it occurs; a prompt
    without contents has tokens of its own.
    """
    if request.prompt_ids is None:
        return _draw([seed, request.request_id], request.prompt_len)
    tokens = list[int]()
    for content in request.prompt_ids:
        tokens += _draw([seed, 1, content], request.tokens_per_id)
    return tokens[: request.prompt_len]


def _draw(seed: list[int], count: int) -> list[int]:
    ids: list[int] = np.random.default_rng(seed).integers(FIRST_ID, LAST_ID, count).tolist()
    return ids


def add_preemptions(folder: Path) -> int:
    """Put how often each request was preempted into its line, and leave the warm-up's out; returns
    the number of requests.

    vLLM adds letters to a request's name.
    """
    with (folder / "preempted.csv").open(newline="", encoding="utf-8") as file:
        counts = {
            row["request_id"].partition("-")[0]: int(row["preemptions"])
            for row in csv.DictReader(file)
        }
    path = folder / REQUESTS
    rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    rows = [row for row in rows if row.pop("wave", SERVED) == SERVED]
    rows.sort(key=lambda row: int(row["request_id"].removeprefix("r")))
    lines = [json.dumps(row | {"preemptions": counts.get(row["request_id"], 0)}) for row in rows]
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return len(lines)


def write_meta(folder: Path, command: str) -> None:
    """What validate needs to know of the server."""
    facts = json.loads((folder / "facts.json").read_text(encoding="utf-8"))
    about = json.loads((folder / "machine.json").read_text(encoding="utf-8"))
    meta = {
        "vllm_version": about["vllm"],
        "gpu": about["device"],
        "host": about["host"],
        "command": command,
        "num_gpu_blocks": facts["num_gpu_blocks"],
        "block_size": facts["block_size"],
        "engine_kwargs": {
            name: facts[name]
            for name in ("max_num_seqs", "max_num_batched_tokens", "max_model_len")
        },
    }
    (folder / META).write_text(json.dumps(meta, indent=1) + "\n", encoding="utf-8")


def write_contents(path: Path, requests: Sequence[Request]) -> None:
    """The content ids of each prompt, line by line as in the log; no file where none are known."""
    if any(request.prompt_ids is None for request in requests):
        return
    path.write_text("".join(_lines(requests)), encoding="utf-8")


def _lines(requests: Sequence[Request]) -> Iterator[str]:
    for request in requests:
        contents: dict[str, Any] = {"tokens_per_id": request.tokens_per_id}
        if request.tokens_per_id == 1:
            contents = {"input_tok_ids": list(request.prompt_ids or ())}
        else:
            contents["hash_ids"] = list(request.prompt_ids or ())
        yield json.dumps(contents) + "\n"
