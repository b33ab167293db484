"""Fast must equal slow where requests wait for answers: sessions, forks and joins, think times of nothing too."""

import hypothesis.strategies as st
import numpy as np
from hypothesis import HealthCheck, given, settings
from strategies import MAX_LEN, policies, schedulers
from test_fast_equals_slow import check_run

from testbed.core.request import Rows
from testbed.core.sessions import SessionWorkload, Turns
from testbed.memory.paged.paged import Paged
from testbed.memory.prefix_cache.prefix_caching import PrefixCaching


@st.composite
def session_workloads(draw):
    """A few sessions whose rows wait for up to two earlier ones, and whose prompts repeat what came before."""
    rng = np.random.default_rng(draw(st.integers(0, 10**6)))
    size, num_sessions = draw(st.sampled_from([1, 5, 30])), draw(st.sampled_from([1, 3, 8]))
    session = np.unique(np.sort(rng.integers(0, num_sessions, size)), return_inverse=True)[1].astype(np.int64)
    after = [tuple(sorted({int(i) for i in rng.integers(max(0, row - 3), row + 1, 2)} - {row})) for row in range(size)]
    after = [tuple(one for one in before if session[one] == session[row]) for row, before in enumerate(after)]
    longest = draw(st.sampled_from([0.0, 1e-3, 0.5]))
    waits = rng.choice([0.0, longest, longest / 3], size)
    prompts, outputs = rng.integers(1, MAX_LEN // 2 + 2, (2, size))
    ids = [tuple(range(s * MAX_LEN, s * MAX_LEN + n)) for s, n in zip(session.tolist(), prompts.tolist(), strict=True)]
    rows = Rows(prompts, outputs, prompt_ids=ids, turns=Turns(session, after, waits, np.zeros(size)))
    gap_ps = draw(st.sampled_from([0, 10**9]))
    arrivals = np.zeros(size, np.int64)
    return SessionWorkload(
        rows, arrivals, draw(st.sampled_from([1, 2])), False, draw(st.sampled_from([1, 2, 9])), gap_ps
    )


@settings(max_examples=150, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(policies([Paged, PrefixCaching]), schedulers(), session_workloads())
def test_sessions(make_policy, make_scheduler, workload):
    check_run(workload, lambda: make_scheduler(make_policy()))
