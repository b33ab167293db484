"""Notes on the drafts of a server: what its command does not say of them."""

from collections.abc import Iterator, Mapping

from testbed.speculation.acceptance import ASSUMED
from testbed.vllm.server import Speculative

RATE, RATES = "speculation.acceptance.rate", "speculation.acceptance.rates"
ACCEPTANCE, FOUND = "acceptance@speculation.acceptance", "speculation.found_share"


def draft_notes(speculative: Speculative, choices: Mapping[str, str]) -> Iterator[str]:
    """How many drafts are accepted, at how many positions they are found, and assumptions on the
    drafter's shape. choices: overrides by key.
    """
    yield _of_acceptance(choices)
    if hasattr(speculative.speculation, "found_share"):
        yield _of_found(choices)
    yield from speculative.notes


def _of_acceptance(choices: Mapping[str, str]) -> str:
    if given := [key for key in (ACCEPTANCE, RATE, RATES) if key in choices]:
        return f"drafts are accepted as {' and '.join(given)} {'say' if given[1:] else 'says'}"
    return (
        "how many drafts are accepted is not in a command: "
        f"each of their tokens is with probability {ASSUMED:g}, an assumption, unless "
        f"{RATE} says otherwise; {ACCEPTANCE}=per_position takes the rates that a server logs; "
        f"run -m --from-vllm WITHOUT --from-vllm WITH {RATE}=0.1,0.3,0.5 shows from which on "
        "drafts gain"
    )


def _of_found(choices: Mapping[str, str]) -> str:
    """The note on drafts that are looked for in the tokens."""
    if FOUND in choices:
        return f"drafts are found at the share of positions that {FOUND} says"
    return (
        "at how many positions drafts are found is not in a command: at every one, an assumption "
        f"and the best case, unless {FOUND} says otherwise"
    )
