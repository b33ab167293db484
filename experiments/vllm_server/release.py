"""vLLM's releases, by the preset that serves as each of them does: what follows from the number."""

from dataclasses import dataclass

from testbed.core.errors import InputError


@dataclass(frozen=True)
class Release:
    """A release and its rules.

    policy_of_groups: the option that is its manager of KV groups with prefix caching. utilization:
    the default of --gpu-memory-utilization. subtracts_graphs: the KV cache is what is left after
    CUDA graphs, whose memory is estimated first. has_largest_limits: GPUs of 160 GiB have a default
    of 16,384 tokens. caches_states: prefixes of models with states are cached unless told
    otherwise. frees_after_run: a block outside a window is freed when the iterations that read it
    have ended, though the next is scheduled while one runs. caps_windows: a prompt is admitted if
    its chunks would fit, not all blocks of its windows at once. checks_usable_blocks: it starts if
    one longest sequence fits into the pool without its null block, whatever the pool follows from;
    else if it fits into the memory that profiling finds, or into --kv-cache-memory-bytes.
    exports_states: a prefill exports a state within it where its kernel can, and blocks are aligned
    to that. multiplies_yarn: the positions of a YaRN rope are multiplied. has_wide_states: a state
    whose type the model's file does not say is of float32, else of 16 bits. logs_longest: "GPU KV
    cache size" is the concurrency times the longest sequence, else the blocks of one group.
    null_is_untied: as of Fields, by the Transformers that it installs.
    """

    number: str
    preset: str
    policy_of_groups: str
    utilization: float
    subtracts_graphs: bool
    has_largest_limits: bool
    caches_states: bool
    frees_after_run: bool
    caps_windows: bool
    checks_usable_blocks: bool
    exports_states: bool
    multiplies_yarn: bool
    has_wide_states: bool
    logs_longest: bool
    null_is_untied: bool

    def words_of_groups(self, *, caches: bool, plans_ahead: bool) -> list[str]:
        """Overrides for its manager of KV groups, with or without prefix caching. plans_ahead: the
        scheduler is asynchronous.
        """
        frees_after_run = str(self.frees_after_run and plans_ahead).lower()
        cap = ["policy.max_batched_tokens=${scheduler.max_num_batched_tokens}"]
        return [
            f"policy={self.policy_of_groups if caches else 'grouped'}",
            "policy.watermark=0",
            f"policy.frees_after_run={frees_after_run}",
            *(cap if self.caps_windows else []),
        ]


RELEASES = {
    "0.19": Release(
        "0.19",
        "vllm-v1",
        "grouped_caching_v1",
        0.9,
        subtracts_graphs=False,
        has_largest_limits=False,
        caches_states=False,
        frees_after_run=False,
        caps_windows=False,
        checks_usable_blocks=False,
        exports_states=False,
        multiplies_yarn=True,
        has_wide_states=False,
        logs_longest=False,
        null_is_untied=True,
    ),
    "0.33": Release(
        "0.33",
        "vllm-v1-0.33",
        "grouped_caching_v1_33",
        0.92,
        subtracts_graphs=True,
        has_largest_limits=True,
        caches_states=True,
        frees_after_run=True,
        caps_windows=True,
        checks_usable_blocks=True,
        exports_states=True,
        multiplies_yarn=False,
        has_wide_states=True,
        logs_longest=True,
        null_is_untied=False,
    ),
}
DEFAULT = RELEASES["0.19"]


def release_numbered(number: str) -> Release:
    """The release of a number such as 0.19.0. Raises InputError for one without a preset."""
    short = ".".join(number.removeprefix("v").split(".")[:2])
    if short not in RELEASES:
        numbers = ", ".join(RELEASES)
        raise InputError(f"vLLM {number}: has no preset (choose from {numbers})")
    return RELEASES[short]


def release_of_preset(preset: str) -> Release | None:
    """The release of +system=NAME; None: the system is no vLLM V1."""
    return next((release for release in RELEASES.values() if release.preset == preset), None)


def nearest_release(number: str) -> Release:
    """The newest release with a preset that is no newer than `number`, else the oldest."""
    wanted = _parts(number)
    older = [release for release in RELEASES.values() if _parts(release.number) <= wanted]
    return older[-1] if older else DEFAULT


def _parts(number: str) -> tuple[int, ...]:
    return tuple(int(part) for part in number.split(".")[:2] if part.isdigit())
