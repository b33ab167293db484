"""Random servers of models with states whose prefixes are cached, and requests that share parts of
their prompts.
"""

from collections.abc import Sequence
from random import Random

from testbed.core.request import Request
from testbed.core.shapes import read_model
from testbed.core.slots import ceil_div
from testbed.core.specs import GIB, ModelSpec
from testbed.experiments.real.lockstep.comparison import ITERATION_PS
from testbed.experiments.vllm_server.named import gpu_named
from testbed.experiments.vllm_server.release_words import release_chosen
from testbed.vllm.attention_backends import block_size_of
from testbed.vllm.pages import pages_of
from testbed.vllm.releases import Release
from testbed.vllm.server import of_states

MODELS = ("qwen3-next-80b-a3b", "qwen3.5-27b", "nemotron-h-8b")
GPUS = ("a100-80gb", "h100-80gb")
BUDGETS = (1024, 2048, 4096, 8192, 16384)
NAME = "states"
TOKENS_PER_ID = 16  # of which every block has a whole number


def draw_states(
    random: Random, base: Sequence[str], num_requests: int
) -> tuple[tuple[str, ...], list[Request]]:
    """A configuration as words after `base`, and requests that keep its pool full."""
    release = release_chosen(dict(word.lstrip("+").split("=", 1) for word in base))
    assert release is not None, "the base names vLLM's system"
    gpu = gpu_named(random.choice(GPUS))
    model = of_states(read_model(random.choice(MODELS)), release)
    block_size = block_size_of(model, 1, gpu, release)
    longest = block_size * random.choice([2, 4, 9])  # tokens of a prompt
    is_async = random.random() < 0.5
    words = (
        *base,
        f"scheduler={'vllm_v1_async' if is_async else 'vllm_v1'}",
        f"gpu={gpu.name}",
        "server.num_gpus=1",
        "policy=grouped_caching_v1",
        "policy.watermark=0",
        f"policy.block_size={block_size}",
        *_model_words(random, model, block_size, longest),
        *_limits(random, block_size, release),
        *(["scheduler.ignore_eos=false"] if is_async and random.random() < 0.3 else []),
    )
    return words, _requests(random, num_requests, longest, block_size)


def _model_words(
    random: Random, model: ModelSpec, block_size: int, longest: int
) -> tuple[str, ...]:
    """The model, and a pool of a few of its longest sequences."""
    assert model.states is not None, "all of MODELS have states"
    pages = pages_of(model, 1, block_size)
    num_states = pages.windows.count(0)
    of_longest = ceil_div(2 * longest, block_size) + 3 * num_states
    num_pages = random.choice([2, 4, 10]) * of_longest
    num_tokens = ceil_div(num_pages * pages.page_bytes, model.kv_bytes_per_token)
    pool = (num_tokens * model.kv_bytes_per_token + 1) / GIB
    return (
        f"model={model.name}",
        f"model.name={NAME}",
        "++model.weight_bits=2",  # so that one GPU has room for the weights
        f"model.states.state_bytes={model.states.state_bytes}",
        f"model.max_len={2 * longest}",
        f"server.kv_memory_gib={{{NAME}: {pool!r}}}",
        "server.num_blocks=null",
        "null_blocks=0",
    )


def _limits(random: Random, block_size: int, release: Release) -> tuple[str, ...]:
    """The limits of the scheduler. A release that does not cut at junctions starts only if a block
    fits into an iteration, and into a chunk.
    """
    cuts = release.cuts_at_junctions
    budgets = [budget for budget in BUDGETS if cuts or budget >= block_size]
    threshold = random.choice([0, 0, 0, block_size, 3 * block_size, *([500] if cuts else [])])
    return (
        f"scheduler.max_num_batched_tokens={random.choice(budgets)}",
        f"scheduler.max_num_seqs={random.choice([4, 12, 64])}",
        f"scheduler.long_prefill_token_threshold={threshold}",
        f"scheduler.scheduler_reserve_full_isl={'true' if random.random() < 0.7 else 'false'}",
    )


def _requests(random: Random, count: int, longest: int, block_size: int) -> list[Request]:
    """Requests that arrive in bursts, whose prompts begin with a part of one of a few stories."""
    stories = [_ids(random, longest) for _ in range(random.choice([1, 3]))]
    most_shared = random.choice([0.0, 0.3, 0.6, 0.9])
    mean_gap = random.choice([0.5, 5, 40]) * ITERATION_PS
    most_output = random.choice([8, block_size // 2, 2 * block_size])
    now_ps, drawn = 0, list[Request]()
    for request_id in range(count):
        now_ps += 0 if random.random() < 0.3 else round(random.expovariate(1 / mean_gap))
        prompt_len = random.choice([random.randint(1, longest), longest // block_size * block_size])
        shared = round(random.choice([most_shared, random.uniform(0, most_shared)]) * prompt_len)
        story = random.choice(stories)[: shared // TOKENS_PER_ID]
        ids = (*story, *_ids(random, prompt_len - len(story) * TOKENS_PER_ID))
        output_len = random.choice([1, random.randint(1, 8), random.randint(1, most_output)])
        output_len = min(output_len, 2 * longest - prompt_len)
        drawn.append(
            Request(
                request_id,
                now_ps,
                prompt_len,
                output_len,
                prompt_ids=ids,
                tokens_per_id=TOKENS_PER_ID,
            )
        )
    return drawn


def _ids(random: Random, num_tokens: int) -> list[int]:
    return [random.randrange(10**9) for _ in range(ceil_div(num_tokens, TOKENS_PER_ID))]
