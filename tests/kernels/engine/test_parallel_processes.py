"""Workers as processes over gloo: the whole path of `server.num_gpus`, and what becomes of a run
whose worker fails.
"""

import gc
import os
import signal
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path
from weakref import ref

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

import test_engine_config as configs  # noqa: E402
import tiny_models as tiny  # noqa: E402
from refusals import refuses  # noqa: E402

from testbed.kernels.engine.loaded_model import Bench, in_turn  # noqa: E402
from testbed.kernels.engine.parallel import processes  # noqa: E402
from testbed.kernels.engine.parallel.processes import start  # noqa: E402
from testbed.kernels.engine.parallel.watch import WorkerError  # noqa: E402
from testbed.kernels.engine.parallel.worker import Source  # noqa: E402
from testbed.kernels.engine.phases import Phase  # noqa: E402
from testbed.kernels.engine.served_run import Options, make_engine, serve_into  # noqa: E402
from testbed.kernels.engine.verify import against_one_gpu  # noqa: E402
from testbed.kernels.engine.verify.scenarios import SCENARIOS  # noqa: E402
from testbed.memory.paged.paged import Paged  # noqa: E402
from testbed.run.build import build  # noqa: E402
from testbed.run.config import RunConfig  # noqa: E402

LIMIT_S = 10
CPU = {"device": "cpu", "dtype": "float32"}


def setup(tmp_path, num_gpus, **changes):
    values = configs.run_config(tmp_path, **changes)
    values["server"]["num_gpus"] = num_gpus
    return build(RunConfig.from_values(values))


@pytest.fixture
def workers(monkeypatch):
    """The workers that a test starts, all of which must have ended after it."""
    started, start = [], processes._process

    def noted(job):
        started.append(start(job))
        return started[-1]

    monkeypatch.setattr(processes, "_process", noted)
    yield started
    assert all(worker.process.poll() is not None for worker in started)


@pytest.mark.parametrize("num_gpus", [2, pytest.param(4, marks=pytest.mark.slow)])
def test_processes_give_the_tables_and_tokens_of_one(tmp_path, workers, num_gpus):
    outputs = []
    for n in (1, num_gpus):
        built = setup(tmp_path, n)
        engine = make_engine(built)
        summary = serve_into(tmp_path / f"out{n}", built, engine)
        assert summary["requests"] == {"arrived": 3, "finished": 3, "rejected": 0}
        outputs.append(engine.records.outputs)
    assert outputs[0] == outputs[1]
    assert [worker.process.returncode for worker in workers] == [0] * (num_gpus - 1)


def after(number, call, strike):
    """`call`, which strikes before it is called for the last of `number` times."""
    count = iter(range(1, number + 1))

    def counted(*arguments, **options):
        if next(count, 0) == number:
            strike()
        return call(*arguments, **options)

    return counted


@pytest.mark.parametrize(
    ("number", "words"),
    [
        (signal.SIGKILL, "was killed by SIGKILL"),
        pytest.param(signal.SIGSTOP, "hangs: no sign of life for", marks=pytest.mark.slow),
    ],
)
@pytest.mark.parametrize("place", ["start", "iteration", "end"])
def test_a_worker_that_fails_ends_the_run_with_its_name(
    tmp_path, monkeypatch, workers, number, words, place
):
    struck_s = []

    def strike():
        struck_s.append(time.monotonic())
        os.kill(workers[-1].process.pid, number)

    def run():
        if place == "start":
            begin = processes.Distributed
            monkeypatch.setattr(processes, "Distributed", after(1, begin, strike))
        engine = make_engine(setup(tmp_path, 2, engine=CPU))
        if place == "iteration":
            engine.runner.forward = after(3, engine.runner.forward, strike)
        if place == "end":
            engine.close = after(1, engine.close, strike)
        serve_into(tmp_path / "out", setup(tmp_path, 2, engine=CPU), engine)

    at_end = "was killed by SIGKILL at its end" if place == "end" else words
    refuses(rf"worker 1 \(process [0-9]+\): {at_end}", run, error=WorkerError)
    assert time.monotonic() - struck_s[0] < LIMIT_S


def test_an_engine_that_has_served_is_free_while_its_workers_wait_for_the_next(workers):
    """As in a calibration, whose engines have GiBs of pools."""
    source = Source(tiny.architecture("llama"), "random", 0, "cpu", "float32")
    arch, weights, lead = start(source, 2)
    with closing(lead):
        one = Bench(arch, weights, Options(), lead)
        served = one.engine(Paged, in_turn, [Phase(tiny.requests([(9, 3)]))], 1)
        assert len(served.serve(tiny.requests([(9, 3)])).iterations) == 3
        pools = ref(served.runner.attention.pools.device)
        del served
        gc.collect()
        assert pools() is None


LEFT_OPEN = """
import os, signal
import tiny_models as tiny
from testbed.kernels.engine.parallel.processes import start
from testbed.kernels.engine.parallel.worker import Source

arch, weights, lead = start(Source(tiny.architecture("llama"), "random", 0, "cpu", "float32"), 2)
os.kill(lead._guard.workers[0].process.pid, signal.SIGKILL)
"""


def test_a_program_that_closes_nothing_ends_without_a_traceback():
    environment = {**os.environ, "PYTHONPATH": str(Path(tiny.__file__).parent)}
    ended = subprocess.run(
        [sys.executable, "-c", LEFT_OPEN], env=environment, capture_output=True, text=True
    )
    assert (ended.returncode, ended.stderr) == (0, "")


def test_an_error_of_a_worker_is_raised_in_its_words(tmp_path, monkeypatch, workers):
    """As of one whose memory is too small."""
    process = processes._process

    def start(job):
        return process(job._replace(source=job.source._replace(dtype="float3")))

    monkeypatch.setattr(processes, "_process", start)
    words = r"worker 1 .*: failed: AttributeError: .*float3"
    refuses(words, make_engine, setup(tmp_path, 2), error=WorkerError)


ORPHANS = """
import os, sys, pathlib
sys.path[:0] = sys.argv[2:]
import test_parallel_processes as tests
engine = tests.make_engine(tests.setup(pathlib.Path(sys.argv[1]), 2))
print(*[w.process.pid for w in engine.close.__self__._guard.workers], flush=True)
os.kill(os.getpid(), 9)
"""


@pytest.mark.slow
def test_no_worker_outlives_rank_0(tmp_path):
    words = [sys.executable, "-c", ORPHANS, str(tmp_path), *sys.path]
    done = subprocess.run(words, capture_output=True, text=True, timeout=120)
    (pid,) = map(int, done.stdout.split())
    end_s = time.monotonic() + LIMIT_S
    while is_there(pid) and time.monotonic() < end_s:
        time.sleep(0.05)
    assert not is_there(pid)


def is_there(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


@pytest.mark.slow
@pytest.mark.parametrize(("family", "num_ranks"), [("opt", 4), ("one kv head", 2)])
def test_logits_differ_by_no_more_than_those_of_two_batch_sizes(family, num_ranks):
    model = Source(against_one_gpu.FAMILIES[family], device="cpu", dtype="float32")
    names = ("prefix hit", "swap and back", "beams of 4")
    scenarios = [scenario for scenario in SCENARIOS if scenario.name in names]
    judged = list(against_one_gpu.compare(model, num_ranks, scenarios, (0,)))
    assert [name for name, _, _ in judged] == ["prefix hit", "swap and back", "beams of 4"]
    for _, _, of_ranks in judged:
        assert of_ranks.is_right, str(of_ranks)
        assert of_ranks.difference > 0  # the ranks' sums are not one rank's
