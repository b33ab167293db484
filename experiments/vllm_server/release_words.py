"""The words that follow from +system=vllm-v1, its release and the model, which no file says."""

from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path

import yaml

from testbed.core.model_files import model_names
from testbed.core.shapes import read_model
from testbed.core.specs import ModelSpec
from testbed.experiments.runs.choice_names import CONF, is_named
from testbed.experiments.runs.taken_values import BLOCK_SIZE, policy_takes
from testbed.vllm.releases import Release, release_numbered

SYSTEM, KEY = "vllm-v1", "release"
POOL = ("server.num_blocks", "server.kv_memory_gib", "server.workspace_gib")
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


def words_of_system(choices: Mapping[str, str], folders: Sequence[Path]) -> list[str]:
    """The words that follow from the system and from these choices beside it."""
    return [*_software_words(choices), *_hybrid_words(choices, folders)]


def _software_words(choices: Mapping[str, str]) -> list[str]:
    """The measured software times of the release, if they are not those of the system."""
    release = release_chosen(choices)
    if release is None or "software" in choices:
        return []
    if release.software == release_numbered(None).software:
        return []
    return [f"software={release.software or 'engine'}"]


def _hybrid_words(choices: Mapping[str, str], folders: Sequence[Path]) -> list[str]:
    """The policy that stands for vLLM's hybrid manager, for a model with windows or states; beside
    a policy without blocks, which the words choose, the pool in GiB.
    """
    shape = _shape_chosen(choices.get("model", _default_model()), folders)
    if shape is None:
        return []
    if "policy" in choices:
        return _words_without_blocks(choices, shape.name)
    from testbed.vllm.pages import pages_of  # few runs are of vLLM's system

    if not pages_of(shape, 1, 16).is_grouped:
        return []
    return [*words_of_groups(caches=True), *_pool_words(choices, shape.name)]


def _shape_chosen(model: str, folders: Sequence[Path]) -> ModelSpec | None:
    """The shape of an option of the group; None of a name that it does not have."""
    if model in model_names():
        return read_model(model)
    if not is_named("model", model, folders):
        return None
    from testbed.experiments.vllm_server.named import model_named  # few models are the user's

    return model_named(model, folders).shape


def _words_without_blocks(choices: Mapping[str, str], model: str) -> list[str]:
    """Words beside a policy that takes no block_size: none of the preset's, and the pool in GiB."""
    if policy_takes(choices, BLOCK_SIZE):
        return []
    keys = {key.lstrip("~") for key in choices}
    return [*([] if BLOCK_SIZE in keys else [f"~{BLOCK_SIZE}"]), *_pool_words(choices, model)]


def _pool_words(choices: Mapping[str, str], model: str) -> list[str]:
    """The pool that vLLM makes for this model, in GiB; nothing if the words give one."""
    if any(key.startswith(POOL) for key in choices):
        return []
    pool = f"{{{model}: ${{vllm_server:pool_gib}}}}"
    return ["null_blocks=0", f"server.kv_memory_gib={pool}"]


@cache
def _default_model() -> str:
    """The model of a run that names none."""
    chosen_first = yaml.safe_load((CONF / "run.yaml").read_text(encoding="utf-8"))["defaults"]
    return next(str(choice["model"]) for choice in chosen_first if "model" in choice)
