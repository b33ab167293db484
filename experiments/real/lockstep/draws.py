"""Random configurations for the comparison with vLLM, and requests for them."""

from collections.abc import Sequence
from random import Random

from testbed.core.errors import InputError
from testbed.core.request import Request
from testbed.core.specs import GIB
from testbed.experiments.real.lockstep.comparison import ITERATION_PS
from testbed.experiments.real.lockstep.state_draws import draw_states
from testbed.experiments.real.lockstep.turn_draws import with_later_turns
from testbed.experiments.vllm_server.release_words import words_of_groups

MODEL = "gemma-3-27b"  # 10 layers of full attention, 52 with a window, in pages of 10 layers
ONE_VOCABULARY = "model=llama-3.2-3b", "model.max_len=2048", "speculation.drafter=llama-3.2-1b"
PAGES_OF_A_BLOCK, PAGE_BYTES_OF_A_TOKEN = 7, 10 * 8192


def draw(
    random: Random,
    base: Sequence[str],
    num_requests: int,
    *,
    drafts: bool = False,
    windows: bool = False,
    priority: bool = False,
    states: bool = False,
) -> tuple[tuple[str, ...], list[Request]]:
    """A random configuration as words after `base`, and requests that keep its pool full. drafts:
    with speculative decoding. windows: with groups of layers of which most have a window. priority:
    requests of several priorities, in their order. states: of a model with states, whose prefixes
    are cached.
    """
    base = base or ("+system=vllm-v1",)
    if states:
        _check_alone(drafts=drafts, windows=windows)
        words, drawn = draw_states(random, base, num_requests)
    else:
        words, drawn = _draw(random, base, num_requests, drafts=drafts, windows=windows)
    return by_priority(random, words, drawn) if priority else (words, drawn)


def _check_alone(*, drafts: bool, windows: bool) -> None:
    """Raise InputError for what models with states are not drawn with."""
    if drafts or windows:
        raise InputError(
            key="--states",
            problem="is drawn without --drafts and --windows",
            remedy="leave one out",
        )


def _draw(
    random: Random, base: Sequence[str], num_requests: int, *, drafts: bool, windows: bool
) -> tuple[tuple[str, ...], list[Request]]:
    """A server of full attention or of windows, and its requests."""
    block_size = random.choice([4, 8, 16, 32])
    longest = random.choice([64, 200, 600])
    num_blocks = 2 + longest * random.choice([2, 3, 5]) // block_size
    caches = random.random() < 0.65
    is_async = random.random() < 0.5
    limits, spare_budget = draw_limits(random, is_async=is_async)
    words = (
        *base,
        f"scheduler={'vllm_v1_async' if is_async else 'vllm_v1'}",
        *(() if caches else ("policy=paged",)),
        "policy.watermark=0",
        f"policy.block_size={block_size}",
        "~server.kv_memory_gib",
        f"server.num_blocks={num_blocks}",
        *limits,
    )
    if drafts:
        words = (*words, *draw_speculation(random, is_async=is_async))
        if "speculation=draft_model" in words:  # takes a token of the budget for each sequence
            words = (*words, f"scheduler.max_num_batched_tokens={spare_budget}", *ONE_VOCABULARY)
    if windows:
        num_pages = num_blocks * PAGES_OF_A_BLOCK
        words = (*words, *draw_windows(random, num_pages * block_size * PAGE_BYTES_OF_A_TOKEN))
        words = (*words, *words_of_groups(caches=caches))
    drawn = requests(random, num_requests, longest, caches)
    if caches and random.random() < 0.5:
        drawn = with_later_turns(random, drawn, longest)
    return words, drawn


def by_priority(
    random: Random, words: tuple[str, ...], drawn: list[Request]
) -> tuple[tuple[str, ...], list[Request]]:
    """The drawn requests with random priorities, of which few or most are equal."""
    most = random.choice([1, 3, 1000])
    ranked = [request._replace(priority=random.randint(-most, most)) for request in drawn]
    return (*words, "order=priority"), ranked


def draw_limits(random: Random, *, is_async: bool) -> tuple[tuple[str, ...], int]:
    """Random limits of the scheduler; and its budget with one token more for each sequence."""
    max_num_seqs = random.choice([4, 12, 64])
    chunked = random.random() < 0.8
    least = max_num_seqs if chunked else 2048
    budget = random.choice([max(least, 16), max(least, 64), max(least, 256), max(least, 2048)])
    words: tuple[str, ...] = (
        f"scheduler.max_num_batched_tokens={budget}",
        f"scheduler.max_num_seqs={max_num_seqs}",
        f"scheduler.long_prefill_token_threshold={random.choice([0, 0, 0, 8, 50])}",
        f"scheduler.scheduler_reserve_full_isl={'true' if random.random() < 0.7 else 'false'}",
        f"scheduler.enable_chunked_prefill={'true' if chunked else 'false'}",
    )
    if is_async:
        words = (*words, f"scheduler.ignore_eos={'true' if random.random() < 0.7 else 'false'}")
    return words, budget + max_num_seqs


def draw_windows(random: Random, pool_bytes: int) -> tuple[str, ...]:
    """The layers of Gemma-3-27B with a random window, in a pool of pool_bytes bytes."""
    return (
        f"model={MODEL}",
        "model.name=windows",
        "model.max_len=2048",
        f"++model.window.size={random.choice([8, 24, 50, 200])}",
        f"server.kv_memory_gib={{windows: {pool_bytes / GIB!r}}}",
        "server.num_blocks=null",
        "null_blocks=0",
    )


def draw_speculation(random: Random, *, is_async: bool) -> tuple[str, ...]:
    """A random way to speculate, of those that the scheduler has; few drafts or all are
    accepted.
    """
    ways = ("ngram_gpu" if is_async else "ngram", "heads", "draft_model")
    way = random.choice(ways)
    words = [
        f"speculation={way}",
        f"speculation.num_drafts={random.randint(1, 5)}",
        f"acceptance@speculation.acceptance={random.choice(['constant', 'markov'])}",
    ]
    if way.startswith("ngram"):
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
