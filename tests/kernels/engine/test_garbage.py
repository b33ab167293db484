"""Python's collector does not stop an engine that serves."""

import gc

import pytest

pytest.importorskip("torch", reason="torch is not installed")

import tiny_models as tiny

from testbed.kernels.engine.parallel.worker import Source
from testbed.kernels.engine.phases import Phase, in_phases
from testbed.kernels.engine.runner import Runner
from testbed.kernels.engine.verify.against_one_gpu import FAMILIES, weights_of_all
from testbed.kernels.engine.verify.scenarios import SCENARIOS, record


def in_order(engine, few):
    engine.serve(few)


def in_a_phase(engine, few):
    in_phases(engine, [Phase(few)])


@pytest.mark.parametrize("serve", [in_order, in_a_phase])
def test_what_there_was_before_is_left_alone_while_an_engine_serves(serve):
    engine, left_alone = tiny.engine("llama"), []
    engine.executor.while_computing = lambda: left_alone.append(gc.get_freeze_count())
    serve(engine, tiny.requests([(9, 3), (5, 4)]))
    assert min(left_alone) > 10_000  # what the tests have imported
    assert gc.get_freeze_count() == 0


def test_it_looks_at_all_again_where_an_engine_fails():
    def fail():
        raise ValueError("no device")

    engine = tiny.engine("llama")
    engine.executor.while_computing = fail
    with pytest.raises(ValueError, match="no device"):
        engine.serve(tiny.requests([(9, 3)]))
    assert gc.get_freeze_count() == 0


@pytest.fixture
def no_collections():
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def num_runners():
    return sum(type(found) is Runner for found in gc.get_objects())


def test_a_check_has_the_memory_of_one_engine_whatever_ran_before(no_collections):
    """Each has GiBs of pools on a GPU, and the parts of an engine refer to each other."""
    before, model = num_runners(), Source(FAMILIES["llama"], device="cpu", dtype="float32")
    weights = weights_of_all(model)
    for scenario in SCENARIOS[:3]:
        record(scenario, model.arch, weights)
        assert num_runners() <= before + 1
