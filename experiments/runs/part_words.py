"""The parts of a run in words: `Paged(block_size=16)` of a summary is "paged (block_size 16)"."""

import re
from itertools import pairwise

CALL = re.compile(r"\b([A-Za-z]\w*)\(([^()]*)\)")  # the innermost of nested parts
WORD_STARTS = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|_")
# How a file is read, and what was left out: not what is simulated
SILENT = re.compile(r"\w+_column=.*|\w+=(None|\[\])")
BANDWIDTH = re.compile(r"(\w*bandwidth)=([0-9.e+]+)")  # bytes/s, as every bandwidth
OPEN, CLOSE = "\x01\x02"  # brackets of parts that are in words already


def part_words(text: str) -> str:
    """The text with each part as a name and, in brackets, its parameters."""
    before = ""
    while before != text:
        before, text = text, CALL.sub(_words, text)
    return text.replace(OPEN, "(").replace(CLOSE, ")")


def name_words(name: str) -> str:
    """The name of a class or function in words."""
    starts = [0, *(match.end() for match in WORD_STARTS.finditer(name)), len(name)]
    return " ".join(name[a:b].strip("_").lower() for a, b in pairwise(starts) if a < b)


def _words(call: re.Match[str]) -> str:
    texts = [text for text in call[2].split(", ") if text]
    parameters = [_parameter(text) for text in texts if not SILENT.fullmatch(text)]
    name = name_words(call[1])
    return f"{name} {OPEN}{', '.join(parameters)}{CLOSE}" if parameters else name


def _parameter(text: str) -> str:
    if match := BANDWIDTH.fullmatch(text):
        return f"{match[1]} {float(match[2]) / 1e9:g} GB/s"
    return text.replace("=", " ", 1)
