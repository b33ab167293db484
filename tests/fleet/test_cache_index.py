"""A router's index of caches without age knows what one with the least age knows a moment later."""

from types import SimpleNamespace

from hypothesis import given
from hypothesis import strategies as st

from testbed.core.request import Incoming
from testbed.fleet.cache_index import CacheIndex


class Cache:
    """Reports what it is told to, in blocks of one token; codes are the ids themselves."""

    def report_cache(self, on_event):
        self.on_event = on_event
        return 1

    def prompt_codes(self, prompt_ids, tokens_per_id, prompt_len):
        return list(prompt_ids)


EVENTS = st.one_of(
    st.tuples(st.integers(0, 1), st.integers(0, 3), st.booleans()), st.integers(0, 1)
)


@given(st.lists(EVENTS, max_size=30))
def test_an_index_without_age_equals_one_that_queues_events(events):
    clock = SimpleNamespace(now_ps=0)
    indexes = [CacheIndex(clock, age_ps) for age_ps in (0, 1)]
    caches = [[Cache(), Cache()] for _ in indexes]
    for index, own in zip(indexes, caches, strict=True):
        for number, cache in enumerate(own):
            memory = SimpleNamespace(reports_cache=cache)
            index.follow(number, SimpleNamespace(scheduler=SimpleNamespace(memory=memory)))
    for event in events:
        for index, own in zip(indexes, caches, strict=True):
            if isinstance(event, int):
                index.lost(event)
            else:
                number, code, is_stored = event
                own[number].on_event([code], is_stored)
        clock.now_ps += 1
        request = Incoming(0, 0, 4, prompt_ids=(0, 1, 2, 3), tokens_per_id=1)
        found = [[index.num_cached(number, request) for number in (0, 1)] for index in indexes]
        assert found[0] == found[1]
