"""From prompts to token ids: a deterministic splitter, or the tokenizer of a folder."""

import hashlib
import re
from functools import lru_cache
from pathlib import Path
from typing import Protocol

from testbed.core.errors import InputError

# A word or a number in pieces of at most six characters with the space before it, one other
# character, or white space: about four characters a token in English prose.
PIECE = re.compile(r" ?\w{1,6}|[^\w\s]|\s+")
TOKENIZER = "tokenizer.json"


class TextToIds(Protocol):
    """Turns text into token ids."""

    def ids(self, text: str) -> tuple[int, ...]:
        """The ids of the text's tokens; equal texts have equal ids."""


class HashingSplitter:
    """Splits text by PIECE; the id of a piece is 31 bits of its BLAKE2 hash."""

    def ids(self, text: str) -> tuple[int, ...]:
        return tuple(piece_id(piece) for piece in PIECE.findall(text))


@lru_cache(maxsize=1 << 16)
def piece_id(piece: str) -> int:
    """The id of a piece, the same on every machine."""
    data = piece.encode("utf-8", "surrogatepass")
    return int.from_bytes(hashlib.blake2b(data, digest_size=4).digest(), "big") >> 1


class FolderTokenizer:
    """The tokenizer.json of a folder in Hugging Face's format; no code of the folder is run."""

    def __init__(self, folder: Path) -> None:
        path = folder / TOKENIZER
        try:
            from tokenizers import Tokenizer
        except ImportError:
            raise InputError(
                f"--tokenizer {folder}: tokenizers is not installed (install "
                "kvcache-testbed[tokenizers], or leave the option out)"
            ) from None
        if not path.is_file():
            raise InputError(f"--tokenizer {folder}: has no {TOKENIZER} (give a model's folder)")
        self._tokenizer = Tokenizer.from_file(str(path))

    def ids(self, text: str) -> tuple[int, ...]:
        return tuple(self._tokenizer.encode(text).ids)
