"""`--from-vllm "vllm serve MODEL --flag value ..."`: options of vLLM's server as ours, and what has no counterpart."""

import re
import shlex
import sys
from collections.abc import Mapping, Sequence

import yaml

from testbed.core.errors import InputError
from testbed.core.specs import GIB
from testbed.experiments.runs.choice_names import files_of, names_of
from testbed.experiments.runs.overrides import user_folders

FLAG = "--from-vllm"
SHORT = {"-tp": "--tensor-parallel-size", "-n": "--nnodes", "-pp": "--pipeline-parallel-size"}
SWITCHES = {  # of vLLM 0.19: a flag, and the options that it stands for
    "--no-enable-prefix-caching": ("policy=paged", "policy.watermark=0"),
    "--enable-prefix-caching": (),
    "--no-async-scheduling": ("scheduler=vllm_v1",),
    "--async-scheduling": (),
    "--no-enable-chunked-prefill": ("scheduler.enable_chunked_prefill=false",),
    "--enable-chunked-prefill": (),
}
VALUES = {
    "--tensor-parallel-size": ("server.num_gpus",),
    "--gpu-memory-utilization": ("server.memory_utilization",),
    "--num-gpu-blocks-override": ("server.num_blocks",),
    "--max-model-len": ("model.max_len", "workload.max_len"),
    "--max-num-batched-tokens": ("scheduler.max_num_batched_tokens",),
    "--max-num-seqs": ("scheduler.max_num_seqs",),
    "--long-prefill-token-threshold": ("scheduler.long_prefill_token_threshold",),
    "--block-size": ("policy.block_size",),
}
KV_TYPES = {"auto": "", "fp8": "1", "fp8_e4m3": "1", "fp8_e5m2": "1", "float16": "2", "bfloat16": "2"}
CHANGES_RESULT = {"--pipeline-parallel-size", "--data-parallel-size", "--quantization", "--speculative-config"}
LARGE_BYTES = 70 * GIB  # from here on `vllm serve` takes larger defaults, on an A100 excepted
LARGE, SMALL = (8192, 1024), (2048, 256)  # max_num_batched_tokens and max_num_seqs of `vllm serve`
UTILIZATION = "0.9"  # of vLLM 0.19


def expand(command: str, others: Sequence[str]) -> list[str]:
    """The options that a command stands for, before the other arguments, which win; prints them and what was ignored.
    Raises InputError for a command without a GPU, a shape, or a counterpart that changes results."""
    options, ignored = translated(command, others)
    print(f"testbed: note: {FLAG}: {' '.join(options)}", file=sys.stderr)
    if ignored:
        print(f"testbed: note: {FLAG}: ignored: {', '.join(ignored)}", file=sys.stderr)
    given = {word.partition("=")[0].lstrip("+") for word in others}
    return [*(word for word in options if word.partition("=")[0].lstrip("+") not in given), *others]


def translated(command: str, others: Sequence[str]) -> tuple[list[str], list[str]]:
    """Our options for a command, and its ignored flags; `others` name the GPU, and may name the model."""
    try:
        words = shlex.split(command)
    except ValueError as error:
        raise InputError(f"{FLAG}: cannot be read: {error}") from None
    if words[:2] != ["vllm", "serve"]:
        raise InputError(f"{FLAG} {command!r}: is not a command of vLLM's server (vllm serve MODEL ...)")
    flags = dict(_flags(words[2:]))
    chosen = {key: value for key, _, value in (word.partition("=") for word in others)}
    name = flags.pop("", None) or flags.pop("--model", None)
    model = [] if "model" in chosen else [f"model={_model(name, others)}"]
    batched_tokens, seqs = _defaults(chosen, others)
    options = {
        "+system": "vllm-v1", "server.memory_utilization": UTILIZATION, "server.kv_memory_gib": "{}",
        "scheduler.max_num_batched_tokens": str(batched_tokens), "scheduler.max_num_seqs": str(seqs),
    }  # fmt: skip
    ignored = []
    for flag, value in flags.items():
        if flag in CHANGES_RESULT:
            raise InputError(f"{FLAG}: {flag} {value}: has no counterpart, and changes the result (leave it out)")
        if flag == "--kv-cache-dtype":
            options |= {"++model.kv_dtype_bytes": _kv_bytes(value)} if _kv_bytes(value) else {}
        elif flag in SWITCHES:
            options |= dict(word.split("=") for word in SWITCHES[flag])
        elif flag in VALUES:
            options |= dict.fromkeys(VALUES[flag], _value(flag, value))
        else:
            ignored.append(f"{flag} {value}".strip())
    return [*model, *(f"{key}={value}" for key, value in options.items())], ignored


def _flags(words: Sequence[str]) -> list[tuple[str, str]]:
    found: list[tuple[str, str]] = []
    for word in words:
        flag, _, value = word.partition("=")
        if word.startswith("-"):
            found.append((SHORT.get(flag, flag.replace("_", "-")), value))
        elif found and found[-1][0] and not found[-1][1] and found[-1][0] not in SWITCHES:
            found[-1] = (found[-1][0], word)
        else:
            found.append(("", word))
    return found


def _value(flag: str, value: str) -> str:
    """A number as vLLM reads it: 8k is 8,000, 8K is 8,192."""
    scaled = re.fullmatch(r"(\d+)([kK])", value)
    text = str(int(scaled[1]) * (1000 if scaled[2] == "k" else 1024)) if scaled else value
    if not re.fullmatch(r"\d+(\.\d+)?", text):
        raise InputError(f"{FLAG}: {flag} {value}: is no number")
    return text


def _kv_bytes(value: str) -> str:
    if value not in KV_TYPES:
        raise InputError(f"{FLAG}: --kv-cache-dtype {value}: is unknown (choose from {', '.join(KV_TYPES)})")
    return KV_TYPES[value]


def _model(name: str | None, others: Sequence[str]) -> str:
    """Our name of a model of Hugging Face: without its owner and its training, and without its version if need be."""
    known = names_of("model", user_folders(others))
    short = (name or "").rpartition("/")[2].lower().removeprefix("meta-")
    short = re.sub(r"-(instruct|chat|hf|it|base)$", "", short)
    short = short if short in known else re.sub(r"^(llama-3)\.\d", r"\1", short)
    if short not in known:
        raise InputError(
            f"{FLAG}: model {name}: has no shape here (testbed import-model writes one; or add model= of "
            f"{', '.join(known)})"
        )
    return short


def _defaults(chosen: Mapping[str, str], others: Sequence[str]) -> tuple[int, int]:
    folders = user_folders(others)
    gpu = chosen.get("gpu", chosen.get("server", "").partition("-x")[0])
    files = files_of("gpu", folders)
    if gpu not in files:
        raise InputError(f"{FLAG}: the command does not say on which GPU (add gpu=NAME of {', '.join(sorted(files))})")
    sheet = yaml.safe_load(files[gpu].read_text(encoding="utf-8"))
    is_large = sheet["memory_bytes"] >= LARGE_BYTES and "a100" not in gpu
    return LARGE if is_large else SMALL
