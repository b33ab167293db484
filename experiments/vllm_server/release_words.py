"""The words of a command line that concern vLLM's release: `release=NUMBER` and what follows."""

from collections.abc import Mapping

from testbed.vllm.releases import Release, release_numbered

SYSTEM, KEY = "vllm-v1", "release"
QUOTES = "'\""


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
