"""Starts, attacks and ends of a server in a process of its own."""

import contextlib
import logging
import os
import socket
import subprocess
import sys
import threading
import time

import pytest

for package in ("fastapi", "uvicorn", "prometheus_client", "httpx"):
    pytest.importorskip(package, reason=f"serving needs {package}")

import httpx  # noqa: E402
from served import LONG_S, MODEL, get, running, wait_until  # noqa: E402
from served_elsewhere import rows_of, started  # noqa: E402
from stalls import stalls_measured  # noqa: E402

from testbed.experiments.cli.main import main  # noqa: E402
from testbed.serving import http_server  # noqa: E402
from testbed.traces.vllm_log import VllmLog  # noqa: E402

BOTH_RUNNING = f'num_requests_running{{model_name="{MODEL}"}} 2.0'
BODY = {"model": MODEL, "prompt": "a b c", "max_tokens": 3}


def post(server, **changes):
    return httpx.post(f"{server.url}/v1/completions", json=BODY | changes, timeout=LONG_S)


def raw(server, data):
    """The server's answer to these bytes; the connection stays open until then."""
    address = server.url.removeprefix("http://").split(":")
    with socket.create_connection((address[0], int(address[1])), timeout=LONG_S) as connection:
        with contextlib.suppress(ConnectionError):  # it has answered, and reads no more
            connection.sendall(data)
        return connection.recv(4096)


HEAD = b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"
ATTACKS = {
    "no HTTP": b"\x16\x03\x01\x02\x00" * 50,
    "two lengths": HEAD + b"content-length: 5\r\ncontent-length: 6\r\n\r\n{}",
    "a negative length": HEAD + b"content-length: -1\r\n\r\n",
    "a length that is none": HEAD + b"content-length: five\r\n\r\n",
    "a huge header": HEAD + b"x-a: " + b"a" * (8 << 20) + b"\r\n\r\n",
    "headers without an end": HEAD + b"x-a: a\r\n" * (1 << 18),
    "20,000 short headers at once": HEAD + b"x-a: bcd\r\n" * 20_000 + b"\r\n",
    "a header of 200 kB at once": HEAD + b"x-a: " + b"a" * 200_000 + b"\r\n\r\n",
    "a path of 200 kB at once": b"GET /" + b"a" * 200_000 + b" HTTP/1.1\r\nhost: x\r\n\r\n",
    "a huge path": b"GET /" + b"a" * (8 << 20),
    "a chunk of no size": HEAD + b"transfer-encoding: chunked\r\n\r\nzz\r\n",
}
LONGEST_ROW = 150  # bytes
MORE_ROOMS = [pytest.param(size, marks=pytest.mark.slow) for size in range(0, 1500, 50)]
STATUS = {
    "a path of 200 kB at once": (400, 404),  # too long, or whole if one read has all of it
}


@pytest.fixture(scope="module")
def server():
    with running(speed=20.0) as started:
        yield started


@pytest.mark.parametrize("name", ATTACKS)
def test_bytes_that_attack_are_refused_and_the_server_lives(server, name):
    answer = raw(server, ATTACKS[name])
    assert int(answer.split()[1]) in STATUS.get(name, (400,))
    assert b"Traceback" not in answer
    assert post(server).status_code == 200


def test_a_client_that_leaves_within_its_body_leaves_no_traceback(server, caplog):
    logging.getLogger("uvicorn.error").addHandler(caplog.handler)
    for _ in range(5):
        with socket.socket() as connection:
            connection.connect(server.socket.getsockname())
            connection.sendall(HEAD + b"content-length: 100\r\n\r\n{")
    wait_until(lambda: not server.server.server_state.tasks)
    assert post(server).status_code == 200
    assert "Traceback" not in caplog.text


def test_a_wide_beam_does_not_hold_up_others(server):
    """The changes of a beam take a second to compute; another width than other tests'."""
    waits_s = []
    body = {"n": 9, "use_beam_search": True}
    sender = threading.Thread(target=post, args=(server,), kwargs=body)
    with stalls_measured() as stalls:
        sender.start()
        while sender.is_alive():
            began_s = time.monotonic()
            assert get(f"{server.url}/health").status_code == 200
            waits_s.append(time.monotonic() - began_s)
    assert len(waits_s) > 3
    assert max(waits_s) - stalls.worst_s < sum(waits_s) / 2


def test_prompts_are_not_in_the_log(tmp_path):
    log = tmp_path / "requests.jsonl"
    with running(speed=20.0, log=log) as server:
        post(server, prompt="a secret")
    (row,) = rows_of(log)
    assert "secret" not in log.read_text()
    assert row["output_toks"] == 3


def read_log(path):
    """The log as `testbed validate` reads it."""
    log = VllmLog(str(path))
    log.read()
    return log


def test_the_log_of_a_server_that_is_killed_has_every_answer(tmp_path):
    log = tmp_path / "requests.jsonl"
    with started("model=opt-13b", f"--log={log}", "--speed=100") as (server, url):
        for _ in range(10):
            httpx.post(f"{url}/v1/completions", json=BODY, timeout=LONG_S).raise_for_status()
        server.kill()
    assert [row["output_toks"] for row in rows_of(log)] == [3] * 10
    assert any("simulated" in remark for remark in read_log(log).remarks)


@pytest.mark.parametrize("num_bytes", [490, *MORE_ROOMS])
def test_a_log_that_cannot_be_written_ends_the_server(tmp_path, num_bytes):
    """Its rows are whole, and the exit code says that some are missing."""
    log = tmp_path / "requests.jsonl"
    with started("model=opt-13b", f"--log={log}", "--speed=100", max_file_bytes=num_bytes) as (
        server,
        url,
    ):
        with contextlib.suppress(httpx.HTTPError):
            while True:
                httpx.post(f"{url}/v1/completions", json=BODY, timeout=LONG_S)
        errors = server.communicate(timeout=LONG_S)[1].decode().splitlines()
    assert server.returncode == 2
    assert str(log) in errors[-1]
    assert not any("Traceback" in line for line in errors)
    assert 0 <= num_bytes - log.stat().st_size < LONGEST_ROW
    assert all(row["output_toks"] == 3 for row in rows_of(log))


def test_answers_that_outlive_the_drain_end_in_order():
    """The clients of a stream and of a whole answer get an error; no traceback is printed."""
    texts = []

    def send(url, stream):
        body = BODY | {"max_tokens": 1900, "stream": stream}
        texts.append(httpx.post(f"{url}/v1/completions", json=body, timeout=LONG_S).text)

    with started("model=opt-13b", "--drain-s=1") as (server, url):
        senders = [threading.Thread(target=send, args=(url, stream)) for stream in (True, False)]
        for sender in senders:
            sender.start()
        wait_until(lambda: BOTH_RUNNING in get(f"{url}/metrics").text)
        server.terminate()
        errors = server.communicate(timeout=LONG_S)[1].decode()
        for sender in senders:
            sender.join()
    assert "Traceback" not in errors
    assert len(texts) == 2
    assert all("was cancelled" in text for text in texts)


def test_a_server_that_must_end_lets_requests_end(tmp_path):
    """The answer that is under way is whole; the log has it."""
    log, answers = tmp_path / "requests.jsonl", []
    with running(speed=1.0, log=log) as server:
        sender = threading.Thread(target=lambda: answers.append(post(server, max_tokens=20)))
        sender.start()
        wait_until(lambda: server.live.unfinished)
    sender.join()
    assert answers[0].json()["usage"]["completion_tokens"] == 20
    assert [row["output_toks"] for row in rows_of(log)] == [20]


def test_a_server_does_not_wait_for_requests_beyond_its_time():
    """drain_s is over: what is left is cancelled, and its client gets an error."""
    answers = []

    def send(server):
        try:
            answers.append(post(server, max_tokens=1900).status_code)
        except httpx.HTTPError:
            answers.append(None)

    with running(speed=1.0, drain_s=1) as server:
        sender = threading.Thread(target=send, args=(server,))
        sender.start()
        wait_until(lambda: server.live.unfinished)
        began_s = time.monotonic()
    sender.join()
    assert time.monotonic() - began_s < 15
    assert answers[0] != 200
    assert server.held == 0


def test_answers_draw_their_lengths_from_a_model():
    with running(speed=100.0, output_lengths="alpaca") as server:
        ids = [post(server, max_tokens=500).json()["usage"]["completion_tokens"] for _ in range(12)]
        fixed = post(server, max_tokens=50, ignore_eos=True).json()
        (choice,) = post(server, max_tokens=1).json()["choices"]
    assert len(set(ids)) > 5
    assert max(ids) <= 500
    assert fixed["usage"]["completion_tokens"] == 50
    assert choice["finish_reason"] == "length"


def test_a_chat_without_max_tokens_draws_its_length():
    """A real model ends its answer long before the context does."""
    chat = {"model": MODEL, "messages": [{"role": "user", "content": "hello"}]}

    def answer(server, **changes):
        address = f"{server.url}/v1/chat/completions"
        return httpx.post(address, json=chat | changes, timeout=LONG_S)

    with running(speed=100.0) as server:
        answers = [answer(server) for _ in range(5)]
        bounded = answer(server, max_completion_tokens=7)
        endless = answer(server, ignore_eos=True).json()["usage"]
    lengths = [found.json()["usage"]["completion_tokens"] for found in answers]
    assert len(set(lengths)) > 2
    assert max(lengths) < endless["total_tokens"] == 2048
    assert {found.headers["x-testbed-output-drawn-from"] for found in answers} == {"sharegpt"}
    assert bounded.json()["usage"]["completion_tokens"] == 7
    assert "x-testbed-output-drawn-from" not in bounded.headers


WRONG = {
    "no port": ["--port=0"],
    "a log that is none": ["--log=x.csv"],
    "no such lengths": ["--output-lengths=nobody"],
    "no tokenizer": ["--tokenizer=/nowhere"],
    "no policy": ["policy=nothing"],
}


def test_a_server_says_the_error_of_its_times_before_it_serves(capsys, monkeypatch):
    served = []
    monkeypatch.setattr(http_server, "serve", lambda config, options: served.append(options))
    assert main(["serve", "model=opt-13b"]) == 0
    errors = capsys.readouterr().err
    assert "error when tested: " in errors
    assert "--tokenizer DIR" in errors
    assert len(served) == 1


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_command_is_refused_in_one_line(name, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(["serve", "model=opt-13b", *WRONG[name]]) != 0
    errors = capsys.readouterr().err
    assert errors.strip()
    assert "Traceback" not in errors


NEW_MODULES = """
import asyncio, json, sys
from served import MODEL, WORDS
from testbed.experiments.runs.compose import configured
from testbed.serving.fastapi_app import make_app
from testbed.serving.http_server import ServeOptions, make_service

app = make_app(make_service(configured(list(WORDS)), ServeOptions()))
body = {"model": MODEL, "prompt": "a b c", "max_tokens": 3, "stream": True}
messages = iter([{"type": "http.request", "body": json.dumps(body).encode()}])
scope = {"type": "http", "method": "POST", "path": "/v1/completions", "query_string": b""}
sent = []

async def receive():
    return next(messages, None) or await asyncio.sleep(100)

async def send(message):
    sent.append(message)

async def main():
    async with app.router.lifespan_context(app):
        before = set(sys.modules)
        await app({**scope, "headers": []}, receive, send)
        print(sent[0]["status"], sorted(set(sys.modules) - before))

asyncio.run(main())
"""


def test_the_first_stream_imports_nothing():
    """It would wait for it, and no clock of the simulation sees that."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-c", NEW_MODULES]
    found = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    assert found.stdout.split(maxsplit=1) == ["200", "[]\n"]
