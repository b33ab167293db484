"""A summary names what reads the future, which no real server can."""

import pytest
from rich.console import Console

from testbed import simulate
from testbed.core.request import Request
from testbed.experiments.runs.summary_table import described
from testbed.experiments.runs.sweeps import Point, shown
from testbed.memory.contiguous.reservations import ContiguousOracle

SHORT = {"rate": 1, "duration_s": 3}


@pytest.mark.parametrize("policy", ["contiguous_oracle", ContiguousOracle])
def test_an_oracle_of_output_lengths_is_named(policy):
    run = simulate(policy=policy, **SHORT).summary["run"]
    assert run["future_read"] == "policy: true output lengths"
    assert described(run)["reads the future"] == run["future_read"]


def test_an_eviction_order_that_foresees_prompts_is_named():
    requests = [Request(i, i, 32, 2, prompt_ids=tuple(range(32))) for i in range(2)]
    words = ("policy=prefix_caching", "eviction@policy.eviction=belady")
    run = simulate(*words, trace=requests).summary["run"]
    assert run["future_read"] == "policy.eviction: the prompts to come"


def test_table_of_a_sweep_names_the_points_that_read_the_future():
    points = [
        Point({"policy": policy}, simulate(policy=policy, **SHORT).summary, policy)
        for policy in ("paged", "contiguous_oracle")
    ]
    console = Console(width=200, record=True)
    console.print(shown(points, 200))
    lines = console.export_text().splitlines()
    assert [line.split()[1] for line in lines if "true output lengths" in line] == [
        "contiguous_oracle"
    ]


def test_nothing_is_said_of_other_policies():
    run = simulate(policy="paged", **SHORT).summary["run"]
    assert run["future_read"] is None
    assert "reads the future" not in described(run)
