"""`fits` beside the pool that the installed SGLang computes: twelve models on five GPUs.

Both read the same config.json: a family's, with the layers and heads of a model that ships. SGLang
gets the free memory before and after the weights that `fits` takes.
"""

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, fields
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

from testbed.core.errors import DoesNotStart, InputError
from testbed.experiments.real.lockstep.model_configs import MODELS, config_of
from testbed.experiments.real.lockstep.sglang_starts import (
    NamedGpu,
    Start,
    Started,
    installed_starts,
)
from testbed.experiments.sglang_server.named_server import server_of
from testbed.experiments.vllm_server.named import gpu_named
from testbed.sglang.command import read_command
from testbed.sglang.memory import reported_mib
from testbed.sglang.server import Server
from testbed.vllm.generations import capability_of

GPUS = ("h100-80gb", "h200", "a100-80gb", "l40s", "b200")
OPTIONS = (
    "",
    "--page-size 64 --max-total-tokens 99999999",
    "--mem-fraction-static 0.8 --max-running-requests 100",
    "--max-total-tokens 5001 --page-size 16",
    "--chunked-prefill-size 2048 --disable-cuda-graph",
    "--chunked-prefill-size -1",
    "--kv-cache-dtype fp8_e4m3 --context-length 4096",
    "--swa-full-tokens-ratio 0.5 --cuda-graph-max-bs-decode 64",
    "--radix-eviction-policy tlru",
    "--disable-radix-cache --max-running-requests 100",
    "--max-total-tokens 160",
)
PARALLEL = (1, 2, 4, 8, 16, 32, 64)


class Question(NamedTuple):
    """A command, by the words behind `sglang serve`, on a GPU; options are the last of them."""

    name: str
    gpu: str
    model_words: str
    options: str = ""

    @property
    def words(self) -> str:
        return f"{self.model_words} {self.options}".strip()

    @property
    def without_options(self) -> "Question":
        """The server that starts, whose memory is the same."""
        return self._replace(options="")

    @property
    def server(self) -> Server:
        """Ours. Raises InputError if it would not start."""
        return server_of(read_command(f"sglang serve {self.words}"), self.gpu, for_memory=True)


def check_capacities(
    gpus: Sequence[str] = GPUS, models: Sequence[str] = tuple(MODELS)
) -> Iterator[str]:
    """A line for each command that SGLang computes otherwise, then how many are equal. Raises
    InputError if SGLang is not installed.
    """
    num_equal = num_asked = 0
    with TemporaryDirectory() as folder:
        for gpu in gpus:
            questions = [q for name in models for q in _questions(name, gpu, Path(folder))]
            ours = [_ours(question) for question in questions]
            theirs = _theirs(gpu, questions)
            for question, here, there in zip(questions, ours, theirs, strict=True):
                num_asked += 1
                if difference := _difference(here, there):
                    yield f"{question.name} on {gpu}, {question.words}: {difference}"
                else:
                    num_equal += 1
    yield f"{num_equal:,} of {num_asked:,} commands: the pool that the installed SGLang computes"


def _questions(name: str, gpu: str, folder: Path) -> Iterator[Question]:
    """The commands of a model on the fewest GPUs that start."""
    path = folder / name
    path.mkdir(exist_ok=True)
    (path / "config.json").write_text(json.dumps(config_of(name)), encoding="utf-8")
    plain = [Question(name, gpu, f"--model-path {path} --tp-size {count}") for count in PARALLEL]
    first = next((question for question in plain if _starts(question)), None)
    if first is None:
        raise InputError(key="model", value=name, problem=f"does not fit {PARALLEL[-1]} {gpu}")
    yield from (first._replace(options=options) for options in OPTIONS)


def _starts(question: Question) -> bool:
    return not _ours(question).error


def _ours(question: Question) -> Started:
    try:
        server = question.server
    except DoesNotStart as error:
        return Started(error=str(error))
    return Started(
        page_size=server.pool.page_size,
        chunked_prefill_size=server.limits.chunked_prefill_size,
        mem_fraction_static=server.memory.fraction,
        max_total_num_tokens=server.pool.num_tokens,
        swa_tokens=server.pool.window_tokens,
        max_running_requests=server.max_running_requests,
        context_len=server.model.max_len,
    )


def _theirs(gpu: str, questions: Sequence[Question]) -> list[Started]:
    sheet = gpu_named(gpu)
    named = NamedGpu(sheet.device or gpu, reported_mib(sheet), capability_of(sheet))
    starts = []
    for question in questions:
        memory = question.without_options.server.memory
        words = tuple(question.words.split())
        starts.append(Start(words, memory.free, memory.free - memory.weights))
    return installed_starts(named, starts)


def _difference(here: Started, there: Started) -> str:
    """The differing values, ours and theirs; empty if nothing does."""
    if here.error or there.error:
        same = bool(here.error) == bool(there.error)
        return "" if same else f"{here.error or 'starts'}, SGLang: {there.error or 'starts'}"
    ours, theirs = asdict(here), asdict(there)
    return ", ".join(
        f"{field.name} {ours[field.name]}, SGLang: {theirs[field.name]}"
        for field in fields(Started)
        if ours[field.name] != theirs[field.name]
    )
