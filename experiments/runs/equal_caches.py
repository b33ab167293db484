"""Prefix caches that differ and find the same, with the reason."""

from collections.abc import Iterator, Mapping, Sequence
from statistics import fmean
from typing import Any

from testbed.run.simulate import COUNTERS
from testbed.run.summaries import RUN

ALIKE = 1.1  # pools whose sizes differ by a smaller factor, as another budget makes them
LOST = "evicted_below", "evicted_tokens_below", "evictions"  # counters: of the lowest tier first
Summary = Mapping[str, Any]


def remark_on_caches(runs: Mapping[str, Sequence[Summary]]) -> Iterator[str]:
    """A remark on each set of unlike caches that find the same number of tokens in the same
    prompts, with every seed, if one of them loses nothing; runs: the summaries of the seeds by
    name.
    """
    alike = dict[tuple[tuple[int, int], ...], list[str]]()
    for name, summaries in runs.items():
        counts = [summary.get(COUNTERS, {}) for summary in summaries]
        if all("hit_tokens" in of for of in counts):
            found = tuple((of["tokens"], of["hit_tokens"]) for of in counts)
            alike.setdefault(found, []).append(name)
    for found, names in alike.items():
        of_set = [runs[name] for name in names]
        if _differ([summaries[0][RUN] for summaries in of_set]) and any(
            not _counted(LOST, summaries) for summaries in of_set
        ):
            evicted = max(_counted(LOST[-1:], summaries) for summaries in of_set)
            yield f"{'; '.join(names)}: {_why(sum(hits for _, hits in found), evicted)}"


def _differ(runs: Sequence[Summary]) -> bool:
    """True if these runs have caches of several kinds or sizes."""
    sizes = [run.get("pool_slots") or 0 for run in runs]
    kinds = {run.get("policy") for run in runs}
    return len(kinds) > 1 or max(sizes) > ALIKE * min(sizes)


def _counted(names: Sequence[str], summaries: Sequence[Summary]) -> float:
    """The mean of the first of these counters that there is."""
    counters = [summary[COUNTERS] for summary in summaries]
    return fmean(next(of[name] for name in names if name in of) for of in counters)


def _why(hits: int, evicted: float) -> str:
    if not hits:
        return "the caches find nothing, for no prompt begins as one before it"
    if not evicted:
        return "the caches find the same, for none evicts a block: each holds all that is stored"
    return (
        f"the caches find the same, for no later prompt asks for the {evicted:,.0f} blocks that "
        "are evicted (mean of the seeds; more sessions at once fill the pool)"
    )
