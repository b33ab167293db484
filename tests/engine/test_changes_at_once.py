"""The changes of many spans at once are those of each span, exactly."""

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given

from testbed.core.errors import InputError
from testbed.core.slots import NO_GROWTH, Growth, growth_of
from testbed.engine.changes_at_once import changes_at_once
from testbed.engine.totals import changes_of

EVENTS = st.lists(st.tuples(st.integers(0, 7), st.integers(1, 40)), max_size=4)
NUMBERS = st.one_of(st.integers(-40, 40), st.integers(0, 1 << 61), st.just(1 << 70))
GROWTHS = st.one_of(st.just(NO_GROWTH), st.builds(Growth, NUMBERS, NUMBERS, NUMBERS))
SPANS = st.tuples(
    st.integers(1, 1 << 20),
    st.integers(1, 1 << 50),
    st.one_of(st.none(), st.tuples(st.integers(1, 1 << 44), NUMBERS, NUMBERS, *[GROWTHS] * 3)),
)
SMALL = st.tuples(
    st.integers(1, 99),
    st.integers(1, 10**13),
    st.one_of(
        st.none(),
        st.tuples(
            st.integers(1, 10**12),
            st.integers(0, 10**6),
            st.integers(0, 256),
            *[EVENTS.map(growth_of)] * 3,
        ),
    ),
)


@given(st.one_of(st.lists(SMALL, min_size=1, max_size=9), st.lists(SPANS, min_size=1, max_size=3)))
def test_changes_at_once_are_those_of_each_span(spans):
    steps, durations_ps, grown = zip(*spans, strict=True)
    expected, expected_ps = changes_of(steps, durations_ps, grown)
    arguments = np.array(steps), np.array(durations_ps), grown
    if any(abs(count) >> 63 for row in expected for count in row):
        with pytest.raises(InputError):
            changes_at_once(*arguments)
        return
    rows, over_time = changes_at_once(*arguments)
    assert [*zip(*rows.tolist(), strict=True)] == expected
    assert over_time == expected_ps


def test_changes_of_usual_spans_are_summed_in_64_bits(monkeypatch):
    monkeypatch.setattr("testbed.engine.changes_at_once.changes_of", None)
    growth = growth_of((step, 16) for step in range(30) for _ in range(100))
    grown = 30 * 10**9, 10**7, 1600, growth, growth, growth
    changes_at_once(np.array([30] * 1024), np.array([10**12] * 1024), [grown] * 1024)
