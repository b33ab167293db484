"""The shortest calls that still break a clause: calls are left out, then their numbers are made smaller."""

from collections.abc import Callable, Iterator
from dataclasses import fields, replace
from typing import Any

from testbed.contract.calls import Call

MAX_TRIES = 2000
AT_LEAST_ONE = {"prompt_len", "output_len", "num_tokens", "num_seqs"}


def shortest(calls: list[Call], breaks: Callable[[list[Call]], bool]) -> list[Call]:
    """The calls, which break something, without whatever is not needed for that."""
    tries = 0
    better: list[Call] | None = calls
    while better is not None:
        calls, better = better, None
        for candidate in smaller(calls):
            tries += 1
            if tries > MAX_TRIES:
                return calls
            if breaks(candidate):
                better = candidate
                break
    return calls


def smaller(calls: list[Call]) -> Iterator[list[Call]]:
    """The same calls but for some, the longest runs first; then with one number smaller."""
    size = len(calls)
    while size := size // 2:
        for start in range(len(calls) - size, -1, -size):
            yield calls[:start] + calls[start + size :]
    for i, call in enumerate(calls):
        for field in fields(call):
            value, least = int(getattr(call, field.name)), int(field.name in AT_LEAST_ONE)
            for less in dict.fromkeys((least, value // 2, value - 1)):
                if least <= less < value:
                    changed: dict[str, Any] = {field.name: bool(less) if field.type is bool else less}
                    yield [*calls[:i], replace(call, **changed), *calls[i + 1 :]]
