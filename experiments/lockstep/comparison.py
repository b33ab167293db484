"""Two schedulers on one workload: their equal iterations, and the first difference."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from random import Random
from typing import Any, NamedTuple, Protocol

from testbed.contract import search
from testbed.core.request import PS, Request

MAX_IDS = 12
MAX_TRIES = 300
ITERATION_PS = PS // 100


class Iteration(NamedTuple):
    """One iteration of a scheduler.

    now_ps: its begin. tokens: the number of computed tokens by request. preempted: the requests
    preempted since the iteration before.
    """

    now_ps: int
    tokens: Mapping[int, int]
    preempted: tuple[int, ...]

    def decides_as(self, other: "Iteration | None") -> bool:
        """Whether both compute the same tokens and preempt the same requests, in any order."""
        if other is None or self.tokens != other.tokens:
            return False
        return sorted(self.preempted) == sorted(other.preempted)

    def __str__(self) -> str:
        counts = sorted(self.tokens.items())
        tokens = ", ".join(f"{request_id}: {count}" for request_id, count in counts)
        preempted = f"; preempted {', '.join(map(str, self.preempted))}" if self.preempted else ""
        return f"at {self.now_ps / PS:.6g} s tokens by request {{{tokens}}}{preempted}"


class Side(Protocol):
    """A scheduler on a clock of constant iterations."""

    name: str

    def iterations(self, requests: Sequence[Request], iteration_ps: int) -> Iterator[Iteration]:
        """The iterations that compute something, until all have ended. May be called only once."""

    def state(self) -> list[str]:
        """Its requests and its pool now, in words."""


Sides = tuple[Side, Side]


@dataclass(slots=True)
class Comparison:
    """The result of a comparison.

    num_iterations: of the longer side. preemptions: of each side. first: the number of the first
    iteration that differs, or None. difference: lines on both sides' decision and state there.
    """

    num_iterations: int
    num_equal: int
    preemptions: list[int]
    first: int | None
    difference: list[str]


def compare(
    sides: Sides, requests: Sequence[Request], iteration_ps: int, *, to_the_end: bool = True
) -> Comparison:
    """Serve the requests on both sides, and compare their iterations by number.

    requests: in order of arrival. iteration_ps: the time of every iteration. to_the_end: go on
    after the first difference.
    """
    comparison = Comparison(0, 0, [0, 0], None, [])
    for pair in zip_longest(*(side.iterations(requests, iteration_ps) for side in sides)):
        same = pair[0] is not None and pair[0].decides_as(pair[1])
        if not same and comparison.first is None:
            comparison.first = comparison.num_iterations
            for side, iteration in zip(sides, pair, strict=True):
                comparison.difference += [
                    f"  {side.name}: {iteration or 'has ended'}",
                    *(f"    {line}" for line in side.state()),
                ]
        comparison.num_iterations += 1
        comparison.num_equal += same
        comparison.preemptions = [
            n + len(iteration.preempted) if iteration else n
            for n, iteration in zip(comparison.preemptions, pair, strict=True)
        ]
        if not same and not to_the_end:
            break
    return comparison


def report(sides: Sides, comparison: Comparison) -> list[str]:
    """Lines: the number of equal iterations, and the first difference with both sides' state."""
    preemptions = " and ".join(
        f"{n:,} ({side.name})" for n, side in zip(comparison.preemptions, sides, strict=True)
    )
    head = (
        f"{comparison.num_equal:,} of {comparison.num_iterations:,} iterations are equal; "
        f"preemptions {preemptions}"
    )
    if comparison.first is None:
        return [head]
    return [head, f"first difference: iteration {comparison.first + 1:,}", *comparison.difference]


def shortest(
    make: Callable[[], Sides], requests: Sequence[Request], iteration_ps: int
) -> list[Request]:
    """The fewest and smallest requests that show a difference, found in MAX_TRIES tries."""
    return search.shortest(
        list(requests),
        lambda fewer: compare(make(), fewer, iteration_ps, to_the_end=False).first is not None,
        smaller,
        MAX_TRIES,
    )


def smaller(requests: list[Request]) -> Iterator[list[Request]]:
    """Smaller workloads: without a run of requests, or with an earlier arrival or a shorter length.

    The longest runs are left out first.
    """
    yield from search.without_runs(requests)
    for i, request in enumerate(requests):
        before = requests[i - 1].arrival_ps if i else 0
        for name, value, least in (
            ("arrival_ps", request.arrival_ps, before),
            ("output_len", request.output_len, 1),
            ("prompt_len", request.prompt_len, 1),
        ):
            for less in dict.fromkeys((least, (least + value) // 2, value - 1)):
                if least <= less < value:
                    changed: dict[str, Any] = {name: less}
                    yield [*requests[:i], request._replace(**changed), *requests[i + 1 :]]


def workload(requests: Sequence[Request]) -> Iterator[str]:
    """A line for each request: arrival, lengths, and the first ids of its prompt."""
    for request in requests:
        ids, contents = request.prompt_ids, ""
        if ids is not None:
            contents = f", content {list(ids[:MAX_IDS])}{' ...' if len(ids) > MAX_IDS else ''}"
        yield (
            f"  request {request.request_id} at {request.arrival_ps / PS:.6g} s: "
            f"{request.prompt_len} tokens in, {request.output_len} out{contents}"
        )


def draw(
    random: Random, base: Sequence[str], num_requests: int, *, drafts: bool = False
) -> tuple[tuple[str, ...], list[Request]]:
    """A random configuration as words after `base`, and requests that keep its pool full. drafts:
    with speculative decoding.
    """
    block_size = random.choice([4, 8, 16, 32])
    longest = random.choice([64, 200, 600])
    num_blocks = 2 + longest * random.choice([2, 3, 5]) // block_size
    caches = random.random() < 0.65
    is_async = random.random() < 0.5
    max_num_seqs = random.choice([4, 12, 64])
    chunked = random.random() < 0.8
    least = max_num_seqs if chunked else 2048
    budget = random.choice([max(least, 16), max(least, 64), max(least, 256), max(least, 2048)])
    words = (
        *(base or ("+system=vllm-v1",)),
        f"scheduler={'vllm_v1_async' if is_async else 'vllm_v1'}",
        *(() if caches else ("policy=paged",)),
        "policy.watermark=0",
        f"policy.block_size={block_size}",
        "~server.kv_memory_gib",
        f"server.num_blocks={num_blocks}",
        f"scheduler.max_num_batched_tokens={budget}",
        f"scheduler.max_num_seqs={max_num_seqs}",
        f"scheduler.long_prefill_token_threshold={random.choice([0, 0, 0, 8, 50])}",
        f"scheduler.scheduler_reserve_full_isl={'true' if random.random() < 0.7 else 'false'}",
        f"scheduler.enable_chunked_prefill={'true' if chunked else 'false'}",
        *(
            (f"scheduler.ignore_eos={'true' if random.random() < 0.7 else 'false'}",)
            if is_async
            else ()
        ),
    )
    if drafts:
        words = (*words, *draw_speculation(random, is_async=is_async))
        if "speculation=draft_model" in words:  # takes a token of the budget for each sequence
            words = (*words, f"scheduler.max_num_batched_tokens={budget + max_num_seqs}")
    return words, requests(random, num_requests, longest, caches)


def draw_speculation(random: Random, *, is_async: bool) -> tuple[str, ...]:
    """A random way to speculate, of those that the scheduler has; few drafts or all are
    accepted.
    """
    ways = ("heads", "draft_model") if is_async else ("ngram", "heads", "draft_model")
    way = random.choice(ways)
    words = [
        f"speculation={way}",
        f"speculation.num_drafts={random.randint(1, 5)}",
        f"acceptance@speculation.acceptance={random.choice(['constant', 'markov'])}",
    ]
    if way == "ngram":
        words.append(f"speculation.found_share={random.choice([1.0, 0.5])}")
    if not is_async and random.random() < 0.3:
        words.append("speculation.off_above=4")
    if words[2].endswith("constant"):
        words.append(f"speculation.acceptance.rate={random.choice([0.2, 0.6, 0.9])}")
    return tuple(words)


def requests(random: Random, count: int, longest: int, caches: bool) -> list[Request]:
    """Requests of at most `longest` tokens, which arrive in bursts.

    caches: most prompts begin with one of a few stories, so a prefix cache has hits.
    """
    now_ps, drawn = 0, list[Request]()
    stories = [[random.randrange(10**6) for _ in range(longest)] for _ in range(4)]
    mean_gap = random.choice([0.5, 3, 12]) * ITERATION_PS
    for request_id in range(count):
        now_ps += 0 if random.random() < 0.3 else round(random.expovariate(1 / mean_gap))
        output_len = random.choice([1, random.randint(1, 8), random.randint(1, longest // 2)])
        prompt_len = random.randint(1, longest - output_len)
        ids = None
        if caches and random.random() < 0.9:
            shared = random.choice([prompt_len, random.randint(0, prompt_len)])
            own = (random.randrange(10**6) for _ in range(prompt_len - shared))
            ids = (*random.choice(stories)[:shared], *own)
        drawn.append(Request(request_id, now_ps, prompt_len, output_len, prompt_ids=ids))
    return drawn
