"""Releases of vLLM that differ from the default one in the facts of a test."""

from dataclasses import replace

from testbed.memory.served import Batching
from testbed.vllm.releases import DEFAULT

UNCACHED_FIRST = replace(DEFAULT, uncached_first=True)
CAPS_WINDOWS = replace(DEFAULT, caps_windows=True)
FREES_AFTER_RUN = replace(DEFAULT, frees_after_run=True)
AHEAD = Batching(1 << 20, plans_ahead=True)  # a scheduler that plans ahead, whatever its tokens


def freeing_after_run():
    """Parameters of a policy that gives blocks back when those that read them have run."""
    return {"release": FREES_AFTER_RUN, "batching": AHEAD}


def capping_windows(num_tokens, *, frees_after_run=False):
    """Parameters of a policy that admits by what windows have at once in iterations of num_tokens
    tokens; no cap if num_tokens is None.
    """
    if num_tokens is None:
        return {}
    release = replace(CAPS_WINDOWS, frees_after_run=frees_after_run)
    return {"release": release, "batching": Batching(num_tokens, plans_ahead=frees_after_run)}
