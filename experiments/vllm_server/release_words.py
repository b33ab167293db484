"""The words of a command line that concern vLLM's release: `release=NUMBER`, what else follows from
it, and the old words, which named a release each.
"""

import re
from collections.abc import Mapping, Sequence

from testbed.core.errors import InputError
from testbed.vllm.releases import Release, release_numbered

SYSTEM, KEY = "vllm-v1", "release"
QUOTES = "'\""
OLD_SYSTEM = re.compile(r"system=vllm-v1-(?P<number>[\d.]+)")
OLD_POLICY = re.compile(r"(?P<policy>policy=\w+_v1)_(?P<minor>\d+)")
OLD_SCHEDULERS = {  # which were orders
    "scheduler=priority": "scheduler=chunked order=aging",
    "scheduler=by_session": "scheduler=chunked order=by_session",
    "scheduler=time_to_live": "scheduler=chunked order=time_to_live",
}
OLD_KEYS = (
    "policy.uncached_first",
    "policy.frees_after_run",
    "policy.max_batched_tokens",
    "policy.num_hashed_behind",
    "policy.asks_ahead",
    "scheduler.cuts_lone_prompt",
    "scheduler.drafts_as",
)


def check_old_words(words: Sequence[str]) -> None:
    """Raise InputError for an old word, with the new one."""
    for word in words:
        plain = word.lstrip("+")
        if match := OLD_SYSTEM.fullmatch(plain):
            raise InputError(key=word, problem=f"is now +system={SYSTEM} {KEY}={match['number']}")
        if match := OLD_POLICY.fullmatch(plain):
            raise InputError(key=word, problem=f"is now {match['policy']} {KEY}=0.{match['minor']}")
        if plain in OLD_SCHEDULERS:
            raise InputError(key=word, problem=f"is now {OLD_SCHEDULERS[plain]}")
        if plain.partition("=")[0] in OLD_KEYS:
            raise InputError(key=word, problem=f"follows from the release ({KEY}=NUMBER)")


def quoted(word: str) -> str:
    """release=0.20 with the number as text, which Hydra would read as 0.2; several of a sweep."""
    key, equals, value = word.partition("=")
    if key != KEY or not equals or value == "null":
        return word
    numbers = (number.strip(QUOTES) for number in value.split(","))
    return f"{key}=" + ",".join(f"'{number}'" for number in numbers)


def release_chosen(choices: Mapping[str, str]) -> Release | None:
    """The release of the chosen system; None: the system is not vLLM V1."""
    if choices.get("system") != SYSTEM:
        return None
    number = choices.get(KEY, "null").strip(QUOTES)
    return release_numbered(None if number == "null" or "," in number else number)


def words_of_groups(*, caches: bool) -> list[str]:
    """Overrides for vLLM's manager of KV groups, with or without prefix caching."""
    return [f"policy={'grouped_caching_v1' if caches else 'grouped'}", "policy.watermark=0"]


def words_of_release(release: Release) -> list[str]:
    """Overrides for `+system=vllm-v1` and the release; the default one needs none."""
    if release is release_numbered(None):
        return []
    return [f"{KEY}={release.number}"]


def software_words(choices: Mapping[str, str]) -> list[str]:
    """The measured software times of the release, if they are not those of the system."""
    release = release_chosen(choices)
    if release is None or "software" in choices:
        return []
    if release.software == release_numbered(None).software:
        return []
    return [f"software={release.software or 'engine'}"]
