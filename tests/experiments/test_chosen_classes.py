"""A class named on the command line runs as `custom`, never under the name of a built-in choice."""

import pytest

WRONG = {
    "policy=paged": ["policy._target_=example_policy.Slabs"],
    "scheduler=mixed": ["++scheduler._target_=my.Scheduler"],
    "eviction@policy.eviction=lru": ["policy=prefix_caching", "policy.eviction._target_=my.Order"],
    "gpu@server.gpu=a100-40gb": ["server.gpu._target_=my.Gpu"],
}


@pytest.mark.parametrize("name", WRONG)
def test_it_is_refused_beside_another_choice(testbed, tmp_path, name):
    code, _, error = testbed("run", *WRONG[name], "outputs=summary", "hydra.run.dir=out")
    assert code == 2
    assert error.count("\n") == 1
    assert name in error
    assert WRONG[name][-1].lstrip("+") in error
    assert not (tmp_path / "out").exists()


def test_a_sweep_does_not_run_it_twice(testbed, tmp_path):
    sweep = ("-m", "policy=paged,custom", "policy._target_=example_policy.Slabs", "arrivals.duration_s=5")
    code, _, error = testbed("run", *sweep, "outputs=summary")
    assert (code, error.count("\n")) == (2, 1)
    assert "policy=paged" in error
    assert len(list(tmp_path.glob("runs/*/summary.json"))) < 2
