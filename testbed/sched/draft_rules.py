"""What vLLM's releases do differently when they speculate."""

from collections.abc import Mapping
from dataclasses import dataclass

from testbed.core.errors import InputError


@dataclass(frozen=True, slots=True)
class DraftRules:
    """The rules of a release.

    admits_with_drafts: see DraftingPrefills; else the tokens that a drafter's batch has on top of
    the model's are taken off the budget for max_num_seqs sequences, and the first chunk of a prompt
    has no look-ahead. hashes_results: blocks are findable as soon as the results of their tokens
    are in; else when the next iteration is scheduled. hashes_next_token: a block is known by the
    token behind it too; else the last block of a hit is dropped, for drafters that read hidden
    states.
    """

    admits_with_drafts: bool
    hashes_results: bool
    hashes_next_token: bool


OLDEST = "vllm-0.19"
RULES: Mapping[str, DraftRules] = {
    OLDEST: DraftRules(admits_with_drafts=False, hashes_results=False, hashes_next_token=False),
    "vllm-0.33": DraftRules(admits_with_drafts=True, hashes_results=True, hashes_next_token=True),
}


def draft_rules(release: object) -> DraftRules:
    """The rules of a release of vLLM. Raises InputError for one whose rules are not known."""
    if not isinstance(release, str) or release not in RULES:
        releases = ", ".join(RULES)
        raise InputError(f"scheduler.drafts_as={release}: is no release of vLLM here ({releases})")
    return RULES[release]
