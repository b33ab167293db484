"""Translates a command of SGLang's server into overrides for the same pool, limits and rules."""

from collections.abc import Sequence
from dataclasses import replace

from testbed.core.errors import InputError
from testbed.experiments.runs.notes import OnNote, print_note
from testbed.experiments.runs.words import chosen, user_folders
from testbed.experiments.sglang_server.answer import logged_lines
from testbed.experiments.sglang_server.named_server import started
from testbed.experiments.vllm_server.overriding import displaced, replaced_values
from testbed.experiments.vllm_server.stand_in import check_stand_in
from testbed.experiments.vllm_server.translation import model_words
from testbed.run.override_words import key_of
from testbed.sglang.command import FLAG, SERVE, read_command
from testbed.sglang.memory import terms
from testbed.sglang.server_words import overrides_of

CHUNK = "scheduler.chunked_prefill_size"
OPTION_OF_OVERRIDE = {  # overrides that replace the value of an option of the command
    "model": "--model-path",
    "server.num_gpus": "--tp-size",
    "scheduler.max_running_requests": "--max-running-requests",
    CHUNK: "--chunked-prefill-size",
    "model.max_len": "--context-length",
    "scheduler.max_prefill_tokens": "--max-prefill-tokens",
}


def expand(command: str | None, others: Sequence[str], on_note: OnNote = print_note) -> list[str]:
    """The overrides that `command` stands for, followed by `others`, which take precedence. Without
    a command: the others alone.

    Notes are the overrides, the lines that SGLang itself would log about its pool, and the
    options that were read and change nothing.

    Raises:
        InputError: the command names no GPU or no model whose shape ships, an option of it is not
            modelled, or SGLang would not start.
    """
    if command is None:
        return [*others]
    choices, folders = chosen(others), user_folders(others)
    _check_policy(choices)
    read = read_command(command)
    if "model" in choices:
        check_stand_in(read.values.get("--model-path"), read.values, choices["model"], folders)
    values = replaced_values(read.values, choices, OPTION_OF_OVERRIDE, "--tp-size")
    if choices.get(CHUNK) == "null":
        values["--chunked-prefill-size"] = "-1"
    gpu = choices.get("gpu", choices.get("server", "").partition("-x")[0])
    server = started(replace(read, values=values), gpu, folders)
    of_model = model_words(server.model, server.option, server.cached_bytes)
    words = [*overrides_of(server), *of_model]
    lines = [" ".join(words)]
    if replaced := displaced(read.values, values):
        lines.append("; ".join(replaced))
    lines += [] if "server.num_blocks" in choices else logged_lines(server)
    if not {"--max-total-tokens", "server.num_blocks"} & {*values, *choices}:
        lines.append(f"the pool is right within {terms().expected_error_gib} GiB on each GPU")
    lines += [f"harmless, ignored: {note}" for note in server.notes]
    for line in lines:
        on_note(f"{SERVE}: {line}")
    return [*(word for word in words if key_of(word) not in choices), *others]


def _check_policy(choices: dict[str, str]) -> None:
    """Raise InputError for another policy or other blocks beside a command."""
    for key in ("policy", "policy.block_size"):
        if key in choices:
            raise InputError(
                key=key,
                problem="the command has the pool in tokens, and its own policy and pages",
                remedy=(
                    f"give --page-size or --disable-radix-cache in {FLAG}, or +system=sglang with "
                    "server.num_blocks"
                ),
            )
