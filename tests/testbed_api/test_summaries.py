"""The line that says of which servers a run's numbers are."""

from testbed.run.summaries import about


def test_each_engine_of_a_fleet_has_the_gpus_that_are_named():
    run = {"model": "m", "num_gpus": 2, "gpu": "g", "trace": "t"}
    assert about({"run": run}) == "m on 2 x g; requests: t"
    assert about({"run": run | {"replicas": 3}}) == "3 engines, each m on 2 x g; requests: t"
