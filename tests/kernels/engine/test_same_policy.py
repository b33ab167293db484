"""The example policy and recorded beams: the same files serve the simulator and the engine, no line changed."""

import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

import tiny_models as tiny  # noqa: E402
from faulty_policies import SHAPE  # noqa: E402

from testbed.kernels.engine.records import StepClock, write_run  # noqa: E402
from testbed.kernels.engine.serve import Options, assemble  # noqa: E402
from testbed.kernels.engine.weights import random_weights  # noqa: E402

EXAMPLE = Path(__file__).parents[3] / "experiments" / "examples"


@pytest.fixture
def slabs(monkeypatch):
    monkeypatch.syspath_prepend(EXAMPLE)
    yield __import__("example_policy").Slabs
    sys.modules.pop("example_policy")


def test_example_policy_generates_correct_tokens(slabs):
    """Under the debug mode, with preemptions, every request gets the tokens that it gets alone."""

    def policy(pool):
        return slabs(pool, slab_size=8)

    engine = tiny.engine(policy=policy, spec=tiny.pool(120))
    records = engine.serve(tiny.requests(tiny.LENGTHS))
    assert sum(r.num_recomputes for r in records.requests) > 0
    alone = [tiny.engine(policy=policy).serve([r]).outputs[r.request_id] for r in tiny.requests(tiny.LENGTHS)]
    assert [records.outputs[i] for i in range(len(tiny.LENGTHS))] == alone


@pytest.mark.gpu
@pytest.mark.parametrize("debug", [True, False])
def test_example_policy_generates_correct_tokens_on_a_gpu(slabs, debug):
    if not torch.cuda.is_available():
        pytest.skip("needs an NVIDIA GPU")
    outputs = []
    for num_slots in (4096, 120):
        pool, arch = tiny.pool(num_slots), tiny.Architecture(SHAPE, "opt")
        scheduler = tiny.mixed(slabs(pool, slab_size=8))
        weights = random_weights(arch, 0, "cuda", torch.float16)
        options = Options("cuda", torch.float16, debug=debug, clock=StepClock(), graphs=0 if debug else 16)
        records = assemble(scheduler, pool, arch, weights, options).serve(tiny.requests(tiny.LENGTHS))
        outputs.append([len(records.outputs[i][0]) for i in range(len(tiny.LENGTHS))])
    assert sum(r.num_recomputes for r in records.requests) > 0
    assert outputs[0] == outputs[1] == [output for _, output in tiny.LENGTHS]


def test_simulator_replays_recorded_beams_of_the_engine(tmp_path):
    """With the engine's record for its beam model it copies, saves and holds the same, iteration by iteration."""
    pytest.importorskip("simpy", reason="SimPy is not installed")
    from ticks import OneSecond

    from testbed.memory.paged.paged import Paged
    from testbed.metrics import summarize
    from testbed.sched.beams import RecordedBeams
    from testbed.sim.simulation import simulate

    spec, requests = tiny.pool(4096), tiny.requests([(30, 9), (7, 20), (50, 12)], 3, True)
    records = tiny.engine(spec=spec).serve(requests)
    assert {request_id for request_id, *_ in records.beams} == {0, 1, 2}
    write_run(tmp_path, records, 4096, None, {})
    beams = RecordedBeams(str(tmp_path / "beams.csv"))
    simulated = simulate(requests, tiny.mixed(Paged(spec)), OneSecond(), 128, beams=beams, fast_forward=False)
    assert simulated.totals.copies > 0
    assert summarize(simulated, 4096) == summarize(records.recorder, 4096)
