"""Logs of a workload that the user's vLLM serves: `testbed gpu record`.

The folder is what `testbed validate` reads: requests.jsonl has the engine's times and the client's
(arrival_time), steps.csv every iteration, meta.json the server, workload.jsonl what is in the
prompts, if their contents are known. With a profile to refresh, steps.csv begins with a sweep of
the host's present speed, and profile.json is that profile at this speed.
"""

import csv
import json
from collections.abc import Mapping, Sequence
from pathlib import Path

from testbed.core.errors import InputError
from testbed.core.request import PS, Request, Workload
from testbed.cost.sections import dump
from testbed.experiments.real.vllm_engine.asked import (
    CONTENTS,
    check_new,
    plain_requests,
    token_ids,
    write_contents,
)
from testbed.experiments.real.vllm_engine.host_refresh import check_refreshable, refreshed, words
from testbed.experiments.real.vllm_engine.in_vllm.sweeps import PRESENT, WARM_UP, prompts
from testbed.experiments.real.vllm_engine.installed import check_installed, engine_words, run_plan
from testbed.experiments.runs.whole_files import write_text
from testbed.experiments.vllm_server.named import model_named
from testbed.traces.vllm_log import META
from testbed.vllm.command import read_command, serve_words

WARM_UP_WAVE = prompts(WARM_UP, 0, [[1, new, 0] for new in (16, 128, 512, 1024)])
SERVED = "serve"
REQUESTS = "requests.jsonl"
PROFILE = "profile.json"


def record(
    command: str,
    workload: Workload,
    python: str,
    out: Path,
    limit_s: float,
    refresh: Path | None = None,
) -> None:
    """Serve the workload by the vLLM that `command` starts; `out` is the new folder of its log.

    refresh: the profile whose host's present speed is swept before. Raises InputError for a command
    that cannot be read, a vLLM that fails, one that is out of time, and a profile of another
    server.
    """
    requests = plain_requests(workload)
    model = read_command(command).model
    if refresh is not None:
        check_refreshable(refresh, model_named(model).shape)
    check_new(out, "--out")
    check_installed(python)
    out.mkdir(parents=True)
    plan = {
        "arguments": engine_words(serve_words(command)),
        "waves": [WARM_UP_WAVE, *([PRESENT] if refresh else []), _wave(requests)],
        "deadline_s": limit_s,
    }
    run_plan(python, plan, out, limit_s + requests[-1].arrival_ps / PS)
    (out / "plan.json").unlink()
    _check_all_served(add_preemptions(out), len(requests), limit_s)
    write_meta(out, command)
    write_contents(out / CONTENTS, requests)
    if refresh is not None:
        profile = refreshed(refresh, out)
        write_text(out / PROFILE, dump(profile))
        print(words(profile), f"profile: {out / PROFILE}", sep="\n")


def _check_all_served(num_served: int, num_requests: int, limit_s: float) -> None:
    if num_served < num_requests:
        raise InputError(
            key="vLLM",
            problem=(
                f"served {num_served} of {num_requests} requests within {limit_s:.0f} s, which is "
                "no log of the workload"
            ),
            remedy="--limit-s",
        )


def _wave(requests: Sequence[Request], seed: int = 0) -> Mapping[str, object]:
    """The requests as a wave of a plan: the tokens of their prompts are drawn by the seed."""
    return {
        "name": SERVED,
        "arrivals_s": [request.arrival_ps / PS for request in requests],
        "requests": [
            {"prompt": token_ids(request, seed), "output": request.output_len}
            for request in requests
        ],
    }


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
    """Facts of the server that validate needs."""
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
