"""A server whose engine has workers: its answers, and what becomes of it when one fails."""

import os
import signal
import time

import pytest

pytestmark = pytest.mark.slow
for package in ("fastapi", "uvicorn", "prometheus_client", "httpx", "torch"):
    pytest.importorskip(package, reason=f"serving an engine needs {package}")

import httpx  # noqa: E402
from generating import WORDS  # noqa: E402
from served_elsewhere import serving  # noqa: E402

TWO = ("server.num_gpus=2", "server.kv_memory_of.num_gpus=2")
BODY = {"model": "small", "prompt": [3, 4, 5, 6], "max_tokens": 20, "temperature": 0}


def answer(url):
    return httpx.post(f"{url}/v1/completions", json=BODY, timeout=60).json()["choices"][0]["text"]


def workers():
    """The processes of this machine that are workers."""
    found = []
    for name in filter(str.isdecimal, os.listdir("/proc")):
        try:
            with open(f"/proc/{name}/cmdline", "rb") as file:
                is_worker = b"testbed.kernels.engine.parallel.worker" in file.read()
        except OSError:
            continue
        found += [int(name)] if is_worker else []
    return found


def test_answers_are_those_of_one_rank_until_a_worker_fails():
    others = set(workers())
    with serving(*WORDS) as url:
        alone = answer(url)
    with serving(*WORDS, *TWO) as url:
        assert answer(url) == alone
        (worker,) = set(workers()) - others
        os.kill(worker, signal.SIGKILL)
        end_s = time.monotonic() + 10
        while httpx.get(f"{url}/health").status_code == 200 and time.monotonic() < end_s:
            time.sleep(0.05)
        assert httpx.get(f"{url}/health").status_code != 200
        assert not set(workers()) - others
