"""Random configurations for the comparison with SGLang, and requests for them."""

from collections.abc import Sequence
from math import ceil
from random import Random

from testbed.core.request import Request
from testbed.experiments.real.lockstep.comparison import ITERATION_PS
from testbed.experiments.real.lockstep.turn_draws import with_turns
from testbed.memory.radix.strategies import STRATEGIES

ORDERS = ["fcfs", "lpm", "priority", "lof", "random", "dfs-weight", "hrrn"]
ORDERS += ["shortest-prefill-first"]  # the last one needs a tree


def draw(
    random: Random, base: Sequence[str], num_requests: int
) -> tuple[tuple[str, ...], list[Request]]:
    """A random configuration as words after `base`, and requests that keep its pool full."""
    block_size = random.choice([1, 16])
    longest = random.choice([64, 64, 200, 600])
    only_long = random.random() < 0.5
    num_blocks = 1 + longest * random.choice([5] if only_long else [2, 3, 5]) // block_size
    factor = random.choice([1.01, 1.01, 2] if only_long else [1, 1.01, 2, 4])
    shares = random.choice([0, 0.3, 0.6, 0.9])
    has_tree = random.random() < 0.8
    max_running = random.choice([4, 12, 64, 64])
    mixes = random.random() < 0.5
    chunks = [n for n in (16, 128, 2048) if not mixes or n > max_running]
    chunk = random.choice(["null", *map(str, chunks)])
    overlaps = random.random() < 0.5
    strategy = random.choice(["lru", *STRATEGIES])
    words = (
        *base,
        f"scheduler={'sglang' if overlaps else 'sglang_no_overlap'}",
        f"policy={'radix' if has_tree else 'paged'}",
        *(strategy_words(random, strategy) if has_tree else ("policy.watermark=0",)),
        f"policy.block_size={block_size}",
        "preemption=recompute",
        "model=llama-3-8b",
        "~server.kv_memory_gib",
        f"server.num_blocks={num_blocks}",
        f"scheduler.max_running_requests={max_running}",
        f"scheduler.max_prefill_tokens={random.choice([64, 512, 16384])}",
        f"scheduler.chunked_prefill_size={chunk}",
        f"scheduler.enable_mixed_chunk={str(mixes).lower()}",
        f"scheduler.schedule_conservativeness={random.choice([0.1, 0.1, 0.3, 1.0])}",
        f"scheduler.new_token_ratio_decay_steps={random.choice([30, 30, 600])}",
        f"scheduler.ignore_eos={str(factor == 1).lower()}",
        *draw_order(random, has_tree=has_tree),
    )
    drawn = requests(random, num_requests, longest, shares, factor, only_long=only_long)
    return words, with_turns(random, drawn, longest) if random.random() < 0.5 else drawn


def strategy_words(random: Random, strategy: str) -> tuple[str, ...]:
    """The words of an eviction strategy, with random parameters if it has any."""
    name, config = "policy.radix_eviction_policy", draw_config(random, strategy)
    if config is None:
        return (f"{name}={strategy}",)
    values = ",".join(f"{key}:{value}" for key, value in config.items())
    return (f"{name}={strategy}", f"{name}_config={{{values}}}")


def draw_config(random: Random, strategy: str) -> dict[str, int] | None:
    """Random parameters of an eviction strategy; None if it has none."""
    if strategy == "slru":
        return {"protected_threshold": random.choice([1, 2, 3])}
    if strategy != "tlru":
        return None
    estimate = random.choice([0, random.randint(1, 40)])
    return {"threshold": estimate + random.randint(1, 80), "next_prompt_estimate": estimate}


def draw_order(random: Random, *, has_tree: bool) -> tuple[str, ...]:
    """A random order of the queue and of retraction."""
    order = random.choice(ORDERS if has_tree else ORDERS[:-1])
    if order != "priority":
        return (f"scheduler.schedule_policy={order}",)
    low_first = str(random.random() < 0.5).lower()
    return (
        f"scheduler.schedule_policy={random.choice(['fcfs', 'lof'])}",
        "scheduler.enable_priority_scheduling=true",
        f"scheduler.schedule_low_priority_values_first={low_first}",
        f"scheduler.retraction_policy={random.choice(['length', 'priority'])}",
    )


def requests(
    random: Random, count: int, longest: int, shares: float, factor: float, *, only_long: bool
) -> list[Request]:
    """Requests of at most `longest` tokens, which arrive in bursts and declare `factor` times their
    output. A share of their prompts begins with one of a few stories. only_long: all outputs are
    long and prompts short, so that more are admitted than memory has the future of.
    """
    now_ps, drawn = 0, list[Request]()
    stories = [[random.randrange(10**6) for _ in range(longest)] for _ in range(4)]
    mean_gap = random.choice([0.5, 2, 8]) * ITERATION_PS
    for request_id in range(count):
        now_ps += 0 if random.random() < 0.3 else round(random.expovariate(1 / mean_gap))
        most = random.choice([1, 8, longest // 2, longest * 3 // 4])
        least, most = (longest // 2, longest * 3 // 4) if only_long else (1, most)
        output_len = random.randint(least, most)
        prompt_len = random.randint(1, longest // 8 if only_long else longest - output_len)
        is_shared = random.random() < shares
        shared = random.choice([prompt_len, random.randint(0, prompt_len)]) if is_shared else 0
        own = (random.randrange(10**6) for _ in range(prompt_len - shared))
        drawn.append(
            Request(
                request_id,
                now_ps,
                prompt_len,
                output_len,
                prompt_ids=(*random.choice(stories)[:shared], *own),
                priority=random.randint(0, 2),
                max_new_tokens=ceil(output_len * factor),
            )
        )
    return drawn
