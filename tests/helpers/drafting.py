"""Schedulers that speculate, drawn at random."""

from functools import partial

import hypothesis.strategies as st

from testbed.memory.prefix_cache.output_caching import OutputCaching
from testbed.memory.prefix_cache.prefix_caching import PrefixCaching
from testbed.sched.preemption import Recompute
from testbed.sched.vllm_v1 import AsyncVllmV1, VllmV1
from testbed.speculation.acceptance import Constant, Markov, PerPosition
from testbed.speculation.heads import Heads
from testbed.speculation.ngram import NGram
from testbed.vllm.releases import DEFAULT, RELEASES

ACCEPTANCES = (
    partial(Constant, 0.0),
    partial(Constant, 1.0),
    partial(Constant, 0.6),
    partial(PerPosition, [0.9, 0.5, 0.5]),
    partial(Markov, 0.9, 0.2, 0.1, 0.3),
)


@st.composite
def speculating_schedulers(draw, truncates):
    """A function that makes a scheduler that speculates, over a policy of the same make."""
    options = {
        "num_drafts": draw(st.integers(1, 5)),
        "acceptance": draw(st.sampled_from(ACCEPTANCES))(seed=draw(st.integers(0, 99))),
    }
    release = draw(st.sampled_from(list(RELEASES.values())))
    least_chunk = 1 + options["num_drafts"] if release.admits_with_drafts else 3
    limits = {
        "max_num_seqs": draw(st.sampled_from([2, 40])),
        "max_num_batched_tokens": draw(st.sampled_from([40, 60, 300])),
        "long_prefill_token_threshold": draw(st.sampled_from([0, least_chunk, 16])),
        "scheduler_reserve_full_isl": draw(st.booleans()),
        "release": release,
    }
    if draw(st.booleans()):
        speculation = Heads(**options)
        ahead = {"ignore_eos": draw(st.booleans())}
        return partial(made, AsyncVllmV1, speculation, limits | ahead)
    kind = draw(st.sampled_from([Heads, NGram, partial(NGram, found_share=0.4)]))
    keeps = not truncates or draw(st.booleans())
    off_above = draw(st.sampled_from([None, 1, 4]))
    speculation = kind(**options, keeps_slots=keeps, off_above=off_above)
    return partial(made, VllmV1, speculation, limits)


def made(scheduler, speculation, options, policy):
    """The scheduler; admissions beside drafts of 0.33 need a cache that knows of them."""
    if isinstance(policy, PrefixCaching) and not isinstance(policy, OutputCaching):
        options = options | {"release": DEFAULT}
    return scheduler(policy, Recompute(), drafter=speculation, max_len=policy.max_len, **options)
