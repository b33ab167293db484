"""`fits` beside the installed vLLM, for every config.json of a folder on three generations of GPUs.

Both get the same file, GPU and bytes of KV cache. A family's base file is varied first.
"""

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from testbed.core.errors import InputError
from testbed.experiments.real.lockstep.config_variations import variations
from testbed.experiments.real.lockstep.vllm_installation import installed_release
from testbed.experiments.real.lockstep.vllm_starts import Start, Starter
from testbed.experiments.vllm_server.answer import Question, concurrency, longest, num_tokens
from testbed.experiments.vllm_server.named import gpu_named
from testbed.vllm.command import read_command
from testbed.vllm.releases import Release, nearest_release
from testbed.vllm.server import plans_ahead

GPUS = ("a100-80gb", "h100-80gb", "b200")
KV_BYTES = 4 << 30
FAMILIES = Path(__file__).with_name("families.json")
NGRAM = {"method": "ngram", "num_speculative_tokens": 3}
OPTIONS: Mapping[str, Mapping[str, Any]] = {  # of the command, for each unchanged file
    "--kv-cache-dtype fp8": {"kv_cache_dtype": "fp8"},
    "--dtype float16": {"dtype": "float16"},
    "--quantization fp8": {"quantization": "fp8"},
    "--block-size 32": {"block_size": 32},
    "--attention-backend FLASH_ATTN": {"attention_backend": "FLASH_ATTN"},
    "--max-model-len auto": {"max_model_len": -1},
    "--max-model-len 3000": {"max_model_len": 3000},
    "--no-enable-prefix-caching": {"enable_prefix_caching": False},
    f"--speculative-config '{json.dumps(NGRAM)}'": {"speculative_config": NGRAM},
}
TOO_OLD = "does not recognize this architecture"
EXACT = tuple(entry.name for entry in fields(Start) if entry.name != "weight_bytes")


@dataclass
class Tally:
    """Counts of outcomes, and a line for each that is not equal."""

    counts: Counter[str] = field(default_factory=Counter)
    lines: list[str] = field(default_factory=list)
    weight_errors: list[tuple[float, str]] = field(default_factory=list)

    def weigh(self, ours: Start, theirs: Start, where: str) -> None:
        """Note how far the bytes of the weights are apart."""
        self.weight_errors.append((abs(ours.weight_bytes / theirs.weight_bytes - 1), where))

    def summary(self) -> str:
        """One line of counts."""
        counts = ", ".join(f"{count:,} {key}" for key, count in sorted(self.counts.items()))
        errors = sorted(self.weight_errors) or [(0.0, "none")]
        median, (worst, where) = errors[len(errors) // 2][0], errors[-1]
        return (
            f"{sum(self.counts.values()):,} starts: {counts}; weights differ by {median:.2%} in "
            f"the median, {worst:.2%} at most ({where})"
        )


def write_families(folder: Path) -> None:
    """Write a folder with a config.json for each family that the project claims."""
    for name, config in json.loads(FAMILIES.read_text(encoding="utf-8")).items():
        path = folder / name / "config.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(config, indent=1), encoding="utf-8")


def check_configs(folder: Path, gpus: Sequence[str] = GPUS) -> Iterator[str]:
    """Compare every config.json below a folder and its variations; a line for each difference, and
    the counts last. A folder without any is filled with the families that ship.
    """
    release = nearest_release(installed_release())
    paths = sorted(folder.rglob("config.json"))
    if not paths:
        write_families(folder)
        paths = sorted(folder.rglob("config.json"))
    starter, tally = Starter(), Tally()
    for path in paths:
        for name, config, words, options in _asked(path):
            for gpu in gpus:
                where = f"{path.parent.name} {name} {gpu}"
                line = _compare(starter, release, tally, path, config, gpu, words, options, where)
                if line:
                    yield f"{where}: {line}"
    yield tally.summary()


def _asked(path: Path) -> Iterator[tuple[str, Mapping[str, Any], str, Mapping[str, Any]]]:
    """The questions to a file: its name, the file, the words of the command and the same for vLLM's
    EngineArgs.
    """
    config = json.loads(path.read_text(encoding="utf-8"))
    for name, varied in variations(config):
        yield name, varied, "", {}
    for words, options in OPTIONS.items():
        yield words, config, words, options


def _compare(
    starter: Starter,
    release: Release,
    tally: Tally,
    path: Path,
    config: Mapping[str, Any],
    gpu: str,
    words: str,
    options: Mapping[str, Any],
    where: str,
) -> str:
    """The first difference of one start; empty: none."""
    folder = path.parent / "varied"
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    try:
        theirs = starter.start(folder, gpu_named(gpu), kv_cache_memory_bytes=KV_BYTES, **options)
        ours = _ours(folder, gpu, release, words)
    finally:
        (folder / "config.json").unlink()
        folder.rmdir()
    is_loaded_wide = "quantization" in options  # vLLM has the file's type until weights are loaded
    if isinstance(ours, Start) and isinstance(theirs, Start) and not is_loaded_wide:
        tally.weigh(ours, theirs, where)
    outcome, line = _outcome(ours, theirs, has_length="max_model_len" in options)
    tally.counts[outcome] += 1
    return line


def _ours(folder: Path, gpu: str, release: Release, words: str) -> Start | str:
    """The same numbers by the project's own functions; a refusal's text."""
    command = read_command(f"vllm serve {folder} --kv-cache-memory-bytes {KV_BYTES} {words}")
    question = Question(command, gpu, release)
    try:
        server = question.server
    except InputError as error:
        return str(error)
    speculation = None if server.speculative is None else server.speculative.speculation
    return Start(
        num_blocks=server.num_blocks,
        block_size=server.block_size,
        kv_tokens=num_tokens(server),
        max_concurrency=round(concurrency(server), 2),
        max_model_len=server.model.max_len,
        longest_model_len=longest(question, server),
        max_num_seqs=server.limits.max_num_seqs,
        max_num_batched_tokens=server.limits.max_num_batched_tokens,
        caches_prefixes=server.caches_prefixes,
        plans_ahead=plans_ahead(server.values, speculation),
        weight_bytes=server.model.weight_bytes,
    )


def _outcome(ours: Start | str, theirs: Start | str, *, has_length: bool) -> tuple[str, str]:
    """The kind of the outcome, and a line if it is not equal."""
    if isinstance(theirs, str):
        if TOO_OLD in theirs:
            return "of a type that its Transformers does not know", ""
        if isinstance(ours, str):
            return "refused by both", ""
        return "refused by vLLM alone", f"vLLM: {theirs[:160]}"
    if isinstance(ours, str):
        return "refused here", f"here: {ours[-160:]}"
    for name in EXACT:
        if name == "longest_model_len" and has_length:
            continue  # vLLM looks for it below the length that is asked for
        here, there = getattr(ours, name), getattr(theirs, name)
        if here != there:
            return "different", f"{name} {here}, vLLM {there}"
    return "equal", ""
