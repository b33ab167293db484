"""On two GPUs: ranks over NCCL against one GPU, and what becomes of a run whose worker fails."""

import fcntl
import os
import signal
import time
from contextlib import closing

import pytest

pytestmark = pytest.mark.gpu
torch = pytest.importorskip("torch", reason="torch is not installed")
if torch.cuda.device_count() < 2:
    pytest.skip("needs two NVIDIA GPUs", allow_module_level=True)
pytest.importorskip("cupy", reason="CuPy is not installed")

from refusals import refuses  # noqa: E402

from testbed.core.errors import InputError  # noqa: E402
from testbed.core.request import Request  # noqa: E402
from testbed.engine.wall_clock import StepClock  # noqa: E402
from testbed.kernels.engine.parallel import processes  # noqa: E402
from testbed.kernels.engine.parallel.watch import WorkerError  # noqa: E402
from testbed.kernels.engine.parallel.worker import Source  # noqa: E402
from testbed.kernels.engine.served_run import Options, assemble  # noqa: E402
from testbed.kernels.engine.verify import against_one_gpu  # noqa: E402
from testbed.kernels.engine.verify.against_one_gpu import FAMILIES  # noqa: E402
from testbed.memory.paged.paged import Paged  # noqa: E402
from testbed.memory.policy import PoolSpec  # noqa: E402
from testbed.sched.mixed import MixedPrefill  # noqa: E402
from testbed.sched.preemption import Recompute  # noqa: E402

LIMIT_S = 10
GRAPHS = 16


@pytest.fixture(autouse=True)
def _no_other_test_on_the_second_gpu(tmp_path_factory):
    """These tests read the second GPU's free memory, so pytest-xdist's processes take turns."""
    with open(tmp_path_factory.getbasetemp().parent / "second GPU", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def some(*names):
    return [scenario for scenario in against_one_gpu.chosen() if scenario.name in names]


@pytest.mark.parametrize("family", FAMILIES)
def test_ranks_compute_what_one_gpu_does(family):
    model = Source(FAMILIES[family], device="cuda", dtype="float32")
    scenarios = some("prefix hit", "swap and back", "chunked prefill")
    for name, _, judged in against_one_gpu.compare(model, 2, scenarios, (0,)):
        assert judged.is_right, f"{name}: {judged}"


def test_ranks_compute_by_graphs_what_they_do_kernel_by_kernel():
    """Sums over ranks are rounded to bfloat16, so one GPU's would differ: the tolerance too is of
    the ranks kernel by kernel.
    """
    model = Source(FAMILIES["llama"], device="cuda", dtype="bfloat16")
    ranks = processes.start(model, 2)

    def plain(scenario):
        return against_one_gpu.recorded(ranks, scenario, 0)

    with closing(ranks.lead):
        tolerance = against_one_gpu.tolerance_of(plain)
        for scenario in some("blocks of 16", "launched ahead, recompute", "beams of 4"):
            graphs = against_one_gpu.recorded(ranks, scenario, GRAPHS)
            judged = against_one_gpu.judge(plain(scenario), graphs, tolerance)
            assert judged.is_right, f"{scenario.name}: {judged}"


def served(struck_s, number, place):
    """Serve by two GPUs, and strike worker 1 at a place."""
    model = Source(FAMILIES["llama"], device="cuda", dtype="bfloat16")
    ranks = processes.start(model, 2)
    worker = ranks.lead._guard.workers[0].process

    def strike():
        struck_s.append(time.monotonic())
        os.kill(worker.pid, number)

    if place == "start":
        strike()
    pool = PoolSpec(4096, 512)
    scheduler = MixedPrefill(
        Paged(pool, block_size=16), Recompute(), max_num_batched_tokens=512, max_num_seqs=16
    )
    options = Options(clock=StepClock(), graphs=GRAPHS, prompt_graphs=64, warm=(64,))
    with assemble(scheduler, pool, ranks.arch, ranks.weights, options, ranks.lead) as engine:
        forward, calls = engine.runner.forward, []

        def counted(batch):
            calls.append(batch)
            if place == "iteration" and len(calls) == 3:
                strike()
            return forward(batch)

        engine.runner.forward = counted
        engine.serve(
            [Request(i, arrival_ps=i * 10**12, prompt_len=20, output_len=30) for i in range(4)]
        )
        if place == "end":
            strike()


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
@pytest.mark.parametrize("place", ["start", "iteration", "end"])
def test_a_worker_that_fails_ends_the_run_and_leaves_no_memory(number, place):
    struck_s = []
    free = torch.cuda.mem_get_info(1)[0]
    refuses(r"worker 1 \(process [0-9]+\):", served, struck_s, number, place, error=WorkerError)
    assert time.monotonic() - struck_s[0] < LIMIT_S
    assert torch.cuda.mem_get_info(1)[0] > free - 2**30


def test_more_ranks_than_gpus_are_refused():
    model = Source(FAMILIES["opt"], device="cuda", dtype="float16")
    if torch.cuda.device_count() < 4:
        refuses("this machine has", processes.start, model, 4, error=InputError)
