"""One server's start here and in the installed vLLM: the numbers that follow, or the refusals."""

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from testbed.core.errors import DoesNotStart, InputError
from testbed.experiments.real.lockstep.vllm_installation import installed_release
from testbed.experiments.real.lockstep.vllm_starts import Start, Starter
from testbed.experiments.vllm_server.answer import Question, concurrency, longest, num_tokens
from testbed.experiments.vllm_server.named import gpu_named
from testbed.vllm.command import read_command
from testbed.vllm.releases import Release, nearest_release
from testbed.vllm.server import plans_ahead

KV_BYTES = 4 << 30
UNBUILT = ("does not recognize this architecture", "failed to be inspected")
EXACT = tuple(entry.name for entry in fields(Start) if entry.name != "weight_bytes")
LOADED_WIDE = "--quantization"  # vLLM has the file's type until weights are loaded
LENGTH = "--max-model-len"  # below which vLLM looks for the longest
DIVIDED = ("--tensor-parallel-size", "-tp")


@dataclass(frozen=True)
class Asked:
    """A server: a config.json in a folder, the GPU's name and words of the command."""

    name: str
    config: Mapping[str, Any]
    gpu: str
    words: str = ""

    def __str__(self) -> str:
        return f"{self.name} {self.words} {self.gpu}" if self.words else f"{self.name} {self.gpu}"


@dataclass
class Tally:
    """Counts of outcomes, and a line for each that is not equal."""

    counts: Counter[str] = field(default_factory=Counter)
    lines: list[str] = field(default_factory=list)
    weight_errors: list[tuple[float, str]] = field(default_factory=list)

    def weigh(self, ours: Start, theirs: Start, where: str) -> None:
        """Note how far the bytes of the weights are apart."""
        for here, there in zip(ours.weight_bytes, theirs.weight_bytes, strict=True):
            self.weight_errors.append((abs(here / there - 1), where))

    def summary(self) -> str:
        """One line of counts."""
        counts = ", ".join(f"{count:,} {key}" for key, count in sorted(self.counts.items()))
        errors = sorted(self.weight_errors) or [(0.0, "none")]
        median, (worst, where) = errors[len(errors) // 2][0], errors[-1]
        return (
            f"{sum(self.counts.values()):,} starts: {counts}; weights differ by {median:.2%} in "
            f"the median, {worst:.2%} at most ({where})"
        )


class SideBySide:
    """Starts servers on both sides and counts the outcomes. folder: has the config.json of each
    server in turn.
    """

    def __init__(self, folder: Path) -> None:
        self.release = nearest_release(installed_release())
        self.tally = Tally()
        self._starter = Starter()
        self._folder = folder

    def compare(self, asked: Asked) -> str:
        """The first difference of one start; empty: none."""
        file = self._folder / "config.json"
        file.write_text(json.dumps(asked.config), encoding="utf-8")
        theirs = self._starter.start(self._folder, gpu_named(asked.gpu), KV_BYTES, asked.words)
        ours = started_here(self._folder, asked.gpu, self.release, asked.words)
        is_whole = not any(word in asked.words for word in (LOADED_WIDE, *DIVIDED))
        if isinstance(ours, Start) and isinstance(theirs, Start) and is_whole:
            self.tally.weigh(ours, theirs, str(asked))
        outcome, line = outcome_of(ours, theirs, has_length=LENGTH in asked.words)
        self.tally.counts[outcome] += 1
        return line


def compared(questions: Iterable[Asked]) -> Iterator[str]:
    """A line for each start that differs, and the counts last."""
    with TemporaryDirectory(prefix="lockstep-") as folder:
        sides = SideBySide(Path(folder))
        for asked in questions:
            if line := sides.compare(asked):
                yield f"{asked}: {line}"
        yield sides.tally.summary()


def started_here(folder: Path, gpu: str, release: Release, words: str) -> Start | InputError:
    """The numbers of a start by the project's own functions, or its refusal."""
    command = read_command(f"vllm serve {folder} --kv-cache-memory-bytes {KV_BYTES} {words}")
    question = Question(command, gpu, release)
    try:
        server = question.server
    except InputError as error:
        return error
    speculation = None if server.speculative is None else server.speculative.speculation
    return Start(
        num_blocks=server.pool.num_blocks,
        block_size=server.pages.block_size,
        kv_tokens=num_tokens(server),
        max_concurrency=round(concurrency(server), 2),
        max_model_len=server.model.max_len,
        longest_model_len=longest(question, server),
        max_num_seqs=server.limits.max_num_seqs,
        max_num_batched_tokens=server.limits.max_num_batched_tokens,
        caches_prefixes=server.caches_prefixes,
        plans_ahead=plans_ahead(server.values, speculation),
        weight_bytes=tuple(stage.weight_bytes for stage in server.stages),
    )


def outcome_of(
    ours: Start | InputError, theirs: Start | str, *, has_length: bool
) -> tuple[str, str]:
    """The kind of the outcome, and a line if it is not equal. has_length: the command gives the
    longest sequence.
    """
    if isinstance(theirs, str):
        if any(words in theirs for words in UNBUILT):
            return "of a type that this installation does not build", ""
        if isinstance(ours, InputError):
            return "refused by both", ""
        return "refused by vLLM alone", f"vLLM: {theirs[:160]}"
    if isinstance(ours, InputError):
        kind = "start in vLLM alone" if isinstance(ours, DoesNotStart) else "not modelled here"
        return kind, f"here: {str(ours)[-160:]}"
    for name in EXACT:
        if name == "longest_model_len" and has_length:
            continue
        here, there = getattr(ours, name), getattr(theirs, name)
        if here != there:
            return "different", f"{name} {here}, vLLM {there}"
    return "equal", ""
