"""`testbed gpu record --url`: a workload that is sent to a running server, and its log."""

import asyncio
import json
import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import numpy as np
import pandas as pd
import pytest

for package in ("fastapi", "uvicorn", "prometheus_client"):
    pytest.importorskip(package, reason=f"serving needs {package}")

from served import LONG_S, MODEL, running, wait_until  # noqa: E402
from stalls import stalls_measured  # noqa: E402

from testbed.core.errors import InputError  # noqa: E402
from testbed.core.request import PS, Rows, Workload  # noqa: E402
from testbed.experiments.cli.main import main  # noqa: E402
from testbed.experiments.real.endpoint.address import address_of  # noqa: E402
from testbed.experiments.real.endpoint.client import Ask, Client  # noqa: E402
from testbed.experiments.real.endpoint.client_log import record_endpoint  # noqa: E402
from testbed.experiments.real.endpoint.counters import counters_of  # noqa: E402
from testbed.traces.vllm_log import VllmLog  # noqa: E402

OUTPUT_LEN = 8


def workload(count=6, prompt_len=20, gap_s=0.02):
    rows = Rows(np.full(count, prompt_len), np.full(count, OUTPUT_LEN))
    return Workload(rows, np.arange(count) * round(gap_s * PS))


def test_a_log_of_a_simulated_server_validates(tmp_path, capsys):
    """Requests are sent when they are due and tokens come when the simulation says so, but for what
    this machine has kept them waiting; the server's facts are in the folder.
    """
    log = tmp_path / "log"
    with running(speed=1.0) as server, stalls_measured() as stalls:
        record_endpoint(server.url, None, None, workload(), log, LONG_S)
        waited_s = stalls.worst_s + server.live.lags[1]
        num_blocks = server.service.live.engines[0].scheduler.state.policy.usage().total // 16
    said = capsys.readouterr().out
    assert "6 requests in" in said
    assert "longer than the fastest, by the server's clock" in said
    recorded = VllmLog(str(log / "requests.csv"))
    assert recorded.preemptions == 0
    assert recorded.meta["num_gpu_blocks"] == num_blocks
    late_s = pd.read_csv(log / "requests.csv")["arrival_s"] - 0.02 * np.arange(6)
    assert -1e-6 < late_s.min() <= late_s.max() < 0.02 + waited_s
    words = [str(log / "requests.csv"), f"model={MODEL}", "--json"]
    main(["validate", *words])
    errors = {row["metric"]: row for row in json.loads(capsys.readouterr().out)["errors"]}
    assert errors["tpot_s_mean"]["simulated"] == pytest.approx(
        errors["tpot_s_mean"]["real"], abs=2e-3 + waited_s / (OUTPUT_LEN - 1)
    )
    assert errors["preemptions"]["real"] == 0


def test_arrivals_by_the_servers_clock_are_those_of_its_own_log(tmp_path):
    own, log = tmp_path / "own.jsonl", tmp_path / "log"
    with running(speed=1.0, log=own) as server:
        record_endpoint(server.url, None, MODEL, workload(count=3), log, LONG_S)
    queued = sorted(json.loads(line)["queued_ts"] for line in own.read_text().splitlines())
    lines = (log / "requests.csv").read_text().splitlines()
    reached = [float(line.rpartition(",")[2]) for line in lines[1:]]
    assert reached == pytest.approx(queued[-3:], abs=1e-5)  # the first one warmed the server up


def test_what_a_server_cannot_serve_is_refused(tmp_path):
    with running(speed=20.0) as server:
        with pytest.raises(InputError, match="20 times as fast as real time"):
            record_endpoint(server.url, None, None, workload(), tmp_path / "log", LONG_S)
        with pytest.raises(InputError, match=f"gpt-9: is not served .* serves {MODEL}"):
            record_endpoint(server.url, None, "gpt-9", workload(), tmp_path / "log", LONG_S)
        long = workload(prompt_len=4000)
        with pytest.raises(InputError, match="a request has 4008 tokens, and the server takes"):
            record_endpoint(server.url, None, None, long, tmp_path / "log", LONG_S)
    assert not (tmp_path / "log").exists()


def test_a_server_that_has_requests_of_others_is_refused(tmp_path):
    """While the client's log is made, another client is answered too: two seconds are left when the
    first recorded request, the second of all, is there.
    """
    with running(speed=1.0) as server:
        other = Client(address_of(server.url, None), MODEL)

        def ask():
            wait_until(lambda: 1 in server.live.unfinished)
            asyncio.run(other.send([Ask([1] * 20, 4, 0.0)], LONG_S))

        thread = threading.Thread(target=ask)
        thread.start()
        spread = workload(count=3, gap_s=1.0)
        with pytest.raises(InputError, match="no other client"):
            record_endpoint(server.url, None, None, spread, tmp_path / "log", LONG_S)
        thread.join()
    assert not (tmp_path / "log").exists()


def test_a_server_with_a_key_takes_only_the_key(tmp_path):
    with running(speed=1.0, api_key="k") as server:
        with pytest.raises(InputError, match="--api-key"):
            record_endpoint(server.url, None, None, workload(), tmp_path / "log", LONG_S)
        record_endpoint(server.url, "k", None, workload(count=1), tmp_path / "log", LONG_S)
    assert (tmp_path / "log" / "requests.csv").is_file()


@contextmanager
def a_server_that_answers(status, body):
    """A server that answers each POST with this."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self):
            self.rfile.read(int(self.headers["content-length"]))
            self.send_response(status)
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *words):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}/v1/"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def chunk(**more):
    return b"data: " + json.dumps({"choices": [{"text": "a"}], **more}).encode() + b"\n\n"


ANSWERS = {
    "an error": (429, b'{"error": {"message": "the queue is full"}}', "429: the queue is full"),
    "an error in the stream": (
        200,
        chunk() + b'data: {"error": {"message": "x"}}\n\n',
        "it answers x",
    ),
    "too few tokens": (
        200,
        chunk() * 3 + chunk(usage={"completion_tokens": 4}),
        "4 tokens in place",
    ),
    "no usage": (200, chunk() * 8 + b"data: [DONE]\n\n", "0 tokens in place of 8"),
    "no JSON": (200, b"data: {\n\n", "a request failed"),
}


@pytest.mark.parametrize("name", ANSWERS)
def test_an_answer_that_is_not_as_asked_ends_the_recording(name):
    status, body, message = ANSWERS[name]
    with a_server_that_answers(status, body) as url, pytest.raises(InputError, match=message):
        asyncio.run(Client(address_of(url, None), "m").send([Ask([1, 2], 8, 0.0)] * 2, LONG_S))


def test_a_body_without_chunks_is_read_too():
    body = chunk() * 7 + chunk(usage={"completion_tokens": 8})
    with a_server_that_answers(200, body) as url:
        asking = Client(address_of(url, None), "m").send([Ask([1], 8, 0.0)], LONG_S)
        (answered,) = asyncio.run(asking)
    assert 0 <= answered.sent_s < answered.first_token_s <= answered.finish_s
    assert answered.server_s is None


def test_a_server_that_is_too_slow_is_no_log():
    slow = [Ask([1] * 20, 500, 0.0)]
    with running(speed=1.0) as server, pytest.raises(InputError, match="within 0 s"):
        asyncio.run(Client(address_of(server.url, None), MODEL).send(slow, 0.4))


PAGE = """# HELP vllm:num_preemptions_total Preempted requests.
vllm:num_preemptions_total{engine="0",model_name="m"} 3.0
vllm:num_preemptions_total{engine="1",model_name="m"} 4.0
vllm:time_to_first_token_seconds_sum{model_name="m"} 1.5
vllm:time_to_first_token_seconds_count{model_name="m"} 10.0
vllm:cache_config_info{block_size="16",cache_dtype="auto",num_gpu_blocks="2000"} 1.0
"""


def test_counters_are_sums_over_engines_and_compared_with_those_before():
    before, after = counters_of(PAGE), counters_of(PAGE.replace("3.0", "5").replace("1.5", "1.6"))
    assert after.since("vllm:num_preemptions_total", before) == 2
    assert after.since("vllm:nothing", before) is None
    assert after.mean_ttft_s(before) is None  # no request since
    more = counters_of(PAGE.replace("10.0", "12").replace("1.5", "1.6"))
    assert more.mean_ttft_s(before) == pytest.approx(0.05)
    assert before.cache["num_gpu_blocks"] == "2000"


@pytest.mark.parametrize("url", ["localhost:8000", "http://", "ftp://a", "http://a:99999", ""])
def test_what_is_no_url_is_named(url):
    with pytest.raises(InputError, match="is no URL"):
        address_of(url, None)


CALLS = {
    "neither": ([], "--from-vllm"),
    "both": (["--url", "http://a", "--from-vllm", "vllm serve m"], "not both"),
    "a Python of none": (["--url", "http://a", "--python", "p"], "--python: nothing reads it"),
    "a key of none": (["--from-vllm", "vllm serve m", "--api-key", "k"], "--api-key: nothing"),
    "no server": (["--url", "http://127.0.0.1:9"], "does not answer"),
}


@pytest.mark.parametrize("name", CALLS)
def test_calls_that_are_refused_in_one_line(name, capsys, tmp_path, monkeypatch):
    words, message = CALLS[name]
    monkeypatch.chdir(tmp_path)
    assert main(["gpu", "record", *words, "--out", "log", "arrivals.duration_s=5"]) != 0
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1
