"""Token counts of texts, by any Hugging Face tokenizer file (needs the `tokenizers` extra)."""

from collections.abc import Sequence
from importlib import import_module
from typing import Any

import numpy as np

from testbed.core.errors import InputError
from testbed.core.request import Column
from traces.files import open_text


def count_tokens(tokenizer_path: str, texts: Sequence[str]) -> Column:
    """Tokens of each text, with the special tokens that the tokenizer file itself adds (OPT: one BOS)."""
    tokenizer = _load(tokenizer_path)
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return np.array([len(encoding.ids) for encoding in tokenizer.encode_batch(list(texts))], dtype=np.int64)


def _load(path: str) -> Any:
    with open_text(path) as file:
        content = file.read()
    try:
        tokenizers = import_module("tokenizers")
    except ImportError as error:
        raise InputError(f"{path}: counting tokens needs the package tokenizers; install it first") from error
    try:
        return tokenizers.Tokenizer.from_str(content)
    except Exception as error:  # the Rust side raises bare Exception
        raise InputError(f"{path}: not a tokenizer; give the model's tokenizer.json from Hugging Face") from error


def require_tokens(path: str, items: Sequence[int], prompts: Column, outputs: Column) -> None:
    """Every text of these items of a JSON list must have become at least one token."""
    bad = np.flatnonzero(np.minimum(prompts, outputs) < 1)
    if len(bad):
        raise InputError(f"{path}, item {items[bad[0]]}: a text has no tokens; remove the item")
