"""Random configurations and workloads in which memory is short: every option that both sides have."""

from collections.abc import Sequence
from random import Random

from testbed.core.request import PS, Request

ITERATION_PS = PS // 100
Drawn = tuple[tuple[str, ...], list[Request]]


def draw(random: Random, base: Sequence[str], num_requests: int) -> Drawn:
    """The words of a configuration on top of `base`, and requests that keep its pool full."""
    block_size = random.choice([4, 8, 16, 32])
    longest = random.choice([64, 200, 600])
    num_blocks = 2 + longest * random.choice([2, 3, 5]) // block_size
    caches = random.random() < 0.65
    is_async = random.random() < 0.5
    max_num_seqs = random.choice([4, 12, 64])
    chunked = random.random() < 0.8
    least = max_num_seqs if chunked else 2048
    budget = random.choice([max(least, 16), max(least, 64), max(least, 256), max(least, 2048)])
    words = [
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
    ]
    if is_async:
        words.append(f"scheduler.ignore_eos={'true' if random.random() < 0.7 else 'false'}")
    return tuple(words), list(requests(random, num_requests, longest, caches))


def requests(random: Random, count: int, longest: int, caches: bool) -> list[Request]:
    """Requests of at most `longest` tokens, in bursts; where contents count, most go on with one of few stories."""
    now_ps, made = 0, list[Request]()
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
        made.append(Request(request_id, now_ps, prompt_len, output_len, prompt_ids=ids))
    return made
