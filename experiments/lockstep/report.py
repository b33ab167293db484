"""What a comparison found, in lines that people read."""

from collections.abc import Iterator, Sequence

from testbed.core.request import PS, Request
from testbed.experiments.lockstep.comparison import Comparison
from testbed.experiments.lockstep.iterations import Iteration

MAX_IDS = 12


def report(names: tuple[str, str], found: Comparison) -> Iterator[str]:
    """How many iterations are equal, and the first that is not, with both sides' state."""
    yield (
        f"{found.num_equal:,} of {found.num_iterations:,} iterations are equal; preemptions "
        f"{found.preemptions[0]:,} ({names[0]}) and {found.preemptions[1]:,} ({names[1]})"
    )
    if found.first is None:
        return
    yield f"first difference: iteration {found.first + 1:,}"
    for name, one, state in zip(names, found.decided, found.states, strict=True):
        yield f"  {name}: {decision(one)}"
        yield from (f"    {line}" for line in state)


def decision(one: Iteration | None) -> str:
    """What an iteration computes."""
    if one is None:
        return "has ended"
    tokens = ", ".join(f"{request_id}: {count}" for request_id, count in sorted(one.tokens.items()))
    preempted = f"; preempted {', '.join(map(str, one.preempted))}" if one.preempted else ""
    return f"at {one.now_ps / PS:.6g} s tokens by request {{{tokens}}}{preempted}"


def workload(requests: Sequence[Request]) -> Iterator[str]:
    """Requests as lines: when, how long, and what they contain where somebody else could ask for it."""
    for one in requests:
        ids = one.prompt_ids
        contents = "" if ids is None else f", content {list(ids[:MAX_IDS])}{' ...' if len(ids) > MAX_IDS else ''}"
        yield (
            f"  request {one.request_id} at {one.arrival_ps / PS:.6g} s: {one.prompt_len} tokens in, "
            f"{one.output_len} out{contents}"
        )
