"""From text to token ids and back: a deterministic splitter, or the tokenizer of a folder."""

import hashlib
import re
from functools import lru_cache
from pathlib import Path
from typing import Any, Protocol

from testbed.core.errors import InputError

# A word or a number in pieces of at most six characters with the space before it, one other
# character, or white space: about four characters a token in English prose.
PIECE = re.compile(r" ?\w{1,6}|[^\w\s]|\s+")
TOKENIZER = "tokenizer.json"


class Decoder(Protocol):
    """Turns the tokens of one sequence into text, one after the other."""

    def text(self, token: int) -> str:
        """The text that the token adds; empty while a character is not whole."""

    def rest(self) -> str:
        """The text of the tokens whose character has never become whole."""


class Tokenizer(Protocol):
    """Turns text into token ids, and token ids into text. num_ids: ids are below it; None: of
    any size.
    """

    num_ids: int | None

    def ids(self, text: str, is_whole: bool = False) -> tuple[int, ...]:
        """The ids of the text's tokens; equal texts have equal ids. is_whole: the text has its
        special tokens already.
        """

    def decoder(self) -> Decoder:
        """A decoder for one sequence."""


class HashingSplitter:
    """Splits text by PIECE; the id of a piece is 31 bits of its BLAKE2 hash. The text of a token is
    its number.
    """

    num_ids: int | None = None

    def ids(self, text: str, is_whole: bool = False) -> tuple[int, ...]:
        return tuple(piece_id(piece) for piece in PIECE.findall(text))

    def decoder(self) -> Decoder:
        return Numbers()


class Numbers:
    """The text of a token is its id."""

    def text(self, token: int) -> str:
        return f" t{token}"

    def rest(self) -> str:
        return ""


@lru_cache(maxsize=1 << 16)
def piece_id(piece: str) -> int:
    """The id of a piece, the same on every machine."""
    encoded = piece.encode("utf-8", "surrogatepass")
    return int.from_bytes(hashlib.blake2b(encoded, digest_size=4).digest(), "big") >> 1


class FolderTokenizer:
    """The tokenizer.json of a folder in Hugging Face's format; no code of the folder is run."""

    def __init__(self, folder: Path) -> None:
        path = folder / TOKENIZER
        try:
            from tokenizers import Tokenizer
        except ImportError:
            raise InputError(
                key="--tokenizer",
                value=folder,
                problem="tokenizers is not installed",
                remedy="install kvcache-testbed[serve], or leave the option out",
            ) from None
        if not path.is_file():
            raise InputError(
                key="--tokenizer",
                value=folder,
                problem=f"has no {TOKENIZER}",
                remedy="give a model's folder",
            )
        try:
            self._tokenizer = Tokenizer.from_file(str(path))
        except Exception as error:  # the library raises nothing more specific
            raise InputError(
                key=path, problem=str(error), remedy="give a model's tokenizer.json"
            ) from None
        self.num_ids: int | None = self._tokenizer.get_vocab_size()

    def ids(self, text: str, is_whole: bool = False) -> tuple[int, ...]:
        return tuple(self._tokenizer.encode(text, add_special_tokens=not is_whole).ids)

    def decoder(self) -> Decoder:
        return FolderDecoder(self._tokenizer)


class FolderDecoder:
    """Decodes the tokens of one sequence, without special tokens."""

    def __init__(self, tokenizer: Any) -> None:
        from tokenizers.decoders import DecodeStream

        self._tokenizer = tokenizer
        self._stream = DecodeStream(skip_special_tokens=True)
        self._ids: list[int] = []
        self._num_sent = 0

    def text(self, token: int) -> str:
        self._ids.append(token)
        text = self._stream.step(self._tokenizer, token) or ""
        self._num_sent += len(text)
        return text

    def rest(self) -> str:
        text: str = self._tokenizer.decode(self._ids, skip_special_tokens=True)
        rest, self._num_sent = text[self._num_sent :], len(text)
        return rest
