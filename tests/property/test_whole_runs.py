"""Thousands of runs of every kind: each is the same in spans and step by step, bit for bit. Fresh
ones by `--hypothesis-profile=explore`.
"""

import hypothesis.strategies as st
import pytest
from hypothesis import HealthCheck, given, settings
from test_drafts import RUNS, check_whole_run, drafting_runs
from test_fast_equals_slow import whole_runs
from test_fast_equals_slow_sglang import sglang_runs

WITH_DRAFTS = st.sampled_from(sorted(RUNS)).flatmap(lambda name: drafting_runs(RUNS[name]))
EVERY_KIND = st.one_of(whole_runs(), whole_runs(), sglang_runs(), WITH_DRAFTS)


@pytest.mark.slow
@settings(max_examples=2000, deadline=None, suppress_health_check=list(HealthCheck))
@given(EVERY_KIND)
def test_fast_equals_slow_in_2000_whole_runs(whole_run):
    check_whole_run(whole_run)
