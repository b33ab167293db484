"""Translates a command of SGLang's server into overrides for the same pool, limits and rules."""

import sys
from collections.abc import Sequence

from testbed.core.errors import InputError
from testbed.core.specs import GIB
from testbed.experiments.runs.words import chosen, user_folders
from testbed.experiments.vllm_server.named import gpu_named, model_named
from testbed.run.override_words import key_of
from testbed.sglang.command import FLAG, read_command
from testbed.sglang.server import notes_of, words_of


def expand(command: str | None, others: Sequence[str]) -> list[str]:
    """The overrides that `command` stands for, followed by `others`, which take precedence. Without
    a command: the others alone.

    Prints on stderr the overrides, and the options that were read and change nothing.

    Raises:
        InputError: the command names no GPU or no model whose shape ships, or an option of it is
            not modelled.
    """
    if command is None:
        return [*others]
    read, choices, folders = read_command(command), chosen(others), user_folders(others)
    notes = notes_of(read)
    for key in ("policy", "policy.block_size"):
        if key in choices:
            raise InputError(
                f"{key}: the command has the pool in tokens, and its own policy and pages (give "
                f"--page-size or --disable-radix-cache in {FLAG}, or +system=sglang with "
                "server.num_blocks)"
            )
    sheet = gpu_named(choices.get("gpu", choices.get("server", "").partition("-x")[0]), folders)
    named = model_named(choices.get("model", read.values.get("--model-path")), folders)
    if named.option is None:
        raise InputError(
            f"{FLAG}: --model-path: is no model that ships (testbed import model its config.json, "
            "and add --config-dir . model=NAME)"
        )
    words = [
        f"model={named.option}",
        *words_of(read, sheet.memory_bytes / GIB, named.shape.max_len),
    ]
    print(f"testbed: note: {FLAG}: {' '.join(words)}", file=sys.stderr)
    for note in notes:
        print(f"testbed: note: {FLAG}: harmless, ignored: {note}", file=sys.stderr)
    return [*(word for word in words if key_of(word) not in choices), *others]
