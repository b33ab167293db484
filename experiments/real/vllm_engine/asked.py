"""Requests of a workload to a real server: prompts as token ids, and what is known of them."""

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from testbed.core.errors import InputError
from testbed.core.request import Request, Workload
from testbed.engine.arrivals import AnswerDrivenWorkload
from testbed.experiments.real.vllm_engine.in_vllm.sweeps import FIRST_ID, LAST_ID

CONTENTS = "workload.jsonl"


def plain_requests(workload: Workload) -> list[Request]:
    """The requests. Raises InputError unless each is one sequence that is sent at its own time."""
    if isinstance(workload, AnswerDrivenWorkload):
        raise InputError(
            key="arrivals",
            problem="requests that wait for answers are not recorded",
            remedy="choose arrivals=poisson, or another process with times of its own",
        )
    requests = list(workload)
    if not requests:
        raise InputError(
            key="the workload",
            problem="has no request",
            remedy="raise arrivals.duration_s or arrivals.rate",
        )
    if any(request.num_seqs > 1 for request in requests):
        raise InputError(
            key="workload.num_seqs", problem="several sequences a request are not recorded"
        )
    return requests


def check_new(folder: Path, option: str) -> None:
    """Raise InputError for a folder of an option that is there already."""
    if folder.exists():
        raise InputError(
            key=option, value=folder, problem="is there already", remedy="name a new folder"
        )


def token_ids(request: Request, seed: int) -> list[int]:
    """The prompt's tokens: each content id stands for the same tokens wherever it occurs; a prompt
    without contents has tokens of its own.
    """
    if request.prompt_ids is None:
        return drawn_ids([seed, request.request_id], request.prompt_len)
    tokens = list[int]()
    for content in request.prompt_ids:
        tokens += drawn_ids([seed, 1, content], request.tokens_per_id)
    return tokens[: request.prompt_len]


def drawn_ids(seed: list[int], count: int) -> list[int]:
    """So many token ids that are nothing special in any vocabulary."""
    ids: list[int] = np.random.default_rng(seed).integers(FIRST_ID, LAST_ID, count).tolist()
    return ids


def write_contents(path: Path, requests: Sequence[Request]) -> None:
    """The content ids of each prompt, line by line as in the log; no file if none are known."""
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
