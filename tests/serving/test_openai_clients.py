"""Real clients of a simulated server on a local socket."""

import asyncio
import json

import numpy as np
import pytest

for package in ("fastapi", "uvicorn", "prometheus_client", "openai", "httpx"):
    pytest.importorskip(package, reason=f"serving needs {package}")

import httpx  # noqa: E402
import openai  # noqa: E402
from served import LONG_S, get, running, wait_until  # noqa: E402
from stalls import stalls_measured  # noqa: E402

MODEL = "opt-13b"


@pytest.fixture(scope="module")
def server():
    with running(speed=20.0) as started:
        yield started


def client_of(server):
    return openai.OpenAI(base_url=f"{server.url}/v1", api_key="x", max_retries=0)


def post(server, path="completions", **body):
    url = f"{server.url}/v1/{path}"
    return httpx.post(url, json={"model": MODEL, **body}, timeout=LONG_S)


def test_a_completion_has_max_tokens_words_and_counts_them(server):
    answer = client_of(server).completions.create(
        model=MODEL, prompt=["one two", "three"], max_tokens=4, n=2, temperature=0.5
    )
    assert [choice.index for choice in answer.choices] == [0, 1, 2, 3]
    assert {choice.text for choice in answer.choices} == {" w1 w2 w3 w4"}
    assert {choice.finish_reason for choice in answer.choices} == {"length"}
    assert (answer.usage.prompt_tokens, answer.usage.completion_tokens) == (3, 16)


def test_a_chat_streams_a_word_a_token_and_its_usage(server):
    stream = client_of(server).chat.completions.create(
        model=MODEL,
        messages=[{"role": "user", "content": "hello"}],
        max_tokens=5,
        stream=True,
        stream_options={"include_usage": True},
    )
    *chunks, last = list(stream)
    words = "".join(chunk.choices[0].delta.content for chunk in chunks).split()
    assert words == [f"w{i}" for i in range(1, 6)]
    assert chunks[0].choices[0].delta.role == "assistant"
    assert chunks[-1].choices[0].finish_reason == "length"
    assert last.usage.completion_tokens == 5


def test_async_clients_are_served_together(server):
    async def served():
        async with openai.AsyncOpenAI(base_url=f"{server.url}/v1", api_key="x") as client:
            calls = [
                client.completions.create(model=MODEL, prompt=[1, 2, 3], max_tokens=i + 1)
                for i in range(20)
            ]
            return await asyncio.gather(*calls)

    answers = asyncio.run(served())
    assert [answer.usage.completion_tokens for answer in answers] == list(range(1, 21))
    assert server.held == 0


def test_a_beam_is_served_and_what_has_no_meaning_is_named(server):
    answer = post(server, prompt="a", max_tokens=3, best_of=4, n=2, use_beam_search=True, seed=7)
    assert answer.status_code == 200
    assert len(answer.json()["choices"]) == 2
    assert answer.headers["x-testbed-ignored"] == "seed"
    assert answer.headers["x-testbed-simulated"] == "true"
    assert float(answer.headers["x-testbed-max-lag-seconds"]) >= 0


def test_the_model_says_that_it_is_simulated(server):
    (model,) = client_of(server).models.list().data
    assert (model.id, model.simulated) == (MODEL, True)
    assert get(f"{server.url}/health").status_code == 200


def test_metrics_have_the_names_of_vllm(server):
    post(server, prompt="a", max_tokens=3)
    text = get(f"{server.url}/metrics").text
    for name in (
        "num_requests_running",
        "num_requests_waiting",
        "kv_cache_usage_perc",
        "num_preemptions_total",
        "time_to_first_token_seconds_bucket",
        "inter_token_latency_seconds_bucket",
    ):
        assert f"vllm:{name}{{" in text
    assert "testbed:lag_seconds{" in text
    assert 'vllm:e2e_request_latency_seconds_bucket{le="7680.0"' in text


def metrics_of(server):
    """The counts and sums of /metrics by name."""
    lines = [line for line in get(f"{server.url}/metrics").text.splitlines() if line[0] != "#"]
    named = [line.removeprefix("vllm:").rsplit(" ", 1) for line in lines if "_bucket" not in line]
    return {name.partition("{")[0]: float(value) for name, value in named}


def test_tokens_of_one_iteration_are_one_output_in_the_metrics():
    """vLLM observes the gap between two outputs of the engine, whatever each has of tokens."""
    words = (
        f"model={MODEL}",
        "scheduler=vllm_v1",
        "speculation=ngram",
        "speculation.found_share=1",
    )
    with running(words, speed=20.0) as server:
        post(server, prompt=[1, 2, 3], max_tokens=60)
        seen = metrics_of(server)
    gaps, gaps_s = (seen[f"inter_token_latency_seconds_{name}"] for name in ("count", "sum"))
    assert seen["generation_tokens_total"] == 60
    assert 10 < gaps < 40
    first_s, whole_s = (
        seen["time_to_first_token_seconds_sum"],
        seen["e2e_request_latency_seconds_sum"],
    )
    assert gaps_s == pytest.approx(whole_s - first_s)


def test_each_sequence_of_a_request_counts_as_one_in_the_metrics():
    """As vLLM's children of a request do; how many it had is in request_params_n."""
    long = {"model": MODEL, "prompt": [1] * 5, "max_tokens": 2000, "n": 3, "stream": True}
    with running((f"model={MODEL}",), speed=1.0) as server:
        post(server, prompt=[1, 2, 3], max_tokens=4, n=3)
        post(server, prompt=[1, 2, 3], max_tokens=4)
        seen = metrics_of(server)
        with httpx.stream("POST", f"{server.url}/v1/completions", json=long) as answer:
            lines = answer.iter_lines()
            assert next(lines).startswith("data: ")
            assert metrics_of(server)["num_requests_running"] == 3
    assert seen["request_params_n_count"] == 2
    assert seen["request_params_n_sum"] == 4
    assert seen["prompt_tokens_total"] == 4 * 3
    assert seen["generation_tokens_total"] == 4 * 4
    assert seen["request_success_total"] == 4
    for name in ("time_to_first_token", "e2e_request_latency"):
        assert seen[f"{name}_seconds_count"] == 4
    assert seen["inter_token_latency_seconds_count"] == 4 * 3


def test_the_prompt_of_a_request_that_leaves_counts(server):
    before = metrics_of(server)["prompt_tokens_total"]
    body = {"model": MODEL, "prompt": [1] * 70, "max_tokens": 1000, "stream": True}
    with httpx.stream("POST", f"{server.url}/v1/completions", json=body) as answer:
        next(answer.iter_lines())
    wait_until(lambda: not server.live.unfinished)
    assert metrics_of(server)["prompt_tokens_total"] == before + 70


def test_sglang_s_scheduler_reserves_what_a_request_may_generate(tmp_path):
    """Two requests of 50 tokens at most run together in a pool of 3,000, which has no place for
    two of unknown length.
    """
    log = tmp_path / "requests.jsonl"
    words = (f"model={MODEL}", "+system=sglang", "server.num_blocks=3000", "~server.kv_memory_gib")
    with running(words, speed=20.0, log=log) as server:
        post(server, prompt=[[1, 2, 3], [4, 5, 6]], max_tokens=50)
    rows = [json.loads(line) for line in log.read_text().splitlines()]
    assert max(row["first_token_ts"] for row in rows) < min(row["last_token_ts"] for row in rows)


def test_a_priority_is_obeyed_by_a_scheduler_that_reads_it():
    with running((f"model={MODEL}", "scheduler=vllm_v1", "order=priority"), speed=20.0) as server:
        assert post(server, prompt="a", max_tokens=1, priority=7).status_code == 200


WRONG = {
    "no model": ({"model": None}, 400),
    "another model": ({"model": "gpt-9"}, 404),
    "no prompt": ({"prompt": None}, 400),
    "empty prompt": ({"prompt": ""}, 400),
    "no prompts": ({"prompt": []}, 400),
    "an empty prompt among others": ({"prompt": ["a", ""]}, 400),
    "negative token": ({"prompt": [-1]}, 400),
    "mixed prompt": ({"prompt": ["a", 1]}, 400),
    "no tokens": ({"max_tokens": 0}, 400),
    "tokens as text": ({"max_tokens": "5"}, 400),
    "half a token": ({"max_tokens": 1.5}, 400),
    "beyond the context": ({"max_tokens": 1 << 20}, 400),
    "huge number": ({"max_tokens": 10**40}, 400),
    "no choice": ({"n": 0}, 400),
    "too many choices": ({"n": 65}, 400),
    "best_of below n": ({"n": 3, "best_of": 2}, 400),
    "a beam of one": ({"use_beam_search": True}, 400),
    "a streamed beam": ({"use_beam_search": True, "n": 2, "stream": True}, 400),
    "streamed best_of": ({"best_of": 2, "stream": True}, 400),
    "options without a stream": ({"stream_options": {"include_usage": True}}, 400),
    "unknown option of streams": ({"stream": True, "stream_options": {"x": 1}}, 400),
    "unknown parameter": ({"max_token": 5}, 400),
    "temperature below 0": ({"temperature": -1}, 400),
    "temperature as a list": ({"temperature": [1]}, 400),
    "top_p of 0": ({"top_p": 0}, 400),
    "logprobs": ({"logprobs": 1}, 400),
    "logprobs of the tokens alone": ({"logprobs": 0}, 400),
    "echo": ({"echo": True}, 400),
    "suffix": ({"suffix": "x"}, 400),
    "logit_bias": ({"logit_bias": {"1": 1}}, 400),
    "JSON mode": ({"response_format": {"type": "json_object"}}, 400),
    "min_tokens above max_tokens": ({"min_tokens": 9, "max_tokens": 8}, 400),
    "a priority that nothing reads": ({"priority": 7}, 400),
    "an empty stop string": ({"stop": ["x", ""]}, 400),
    "too many stop strings": ({"stop": list("abcde")}, 400),
    "a long stop string": ({"stop": "x" * 257}, 400),
    "too many prompts": ({"prompt": ["a"] * 65}, 400),
    "prompts by choices": ({"prompt": ["a"] * 33, "n": 2}, 400),
    "a beam that is too wide": ({"use_beam_search": True, "n": 17}, 400),
    "a key as long as a body": ({"k" * 100_000: 1}, 400),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_request_is_refused_in_the_shape_of_openai(server, name):
    change, status = WRONG[name]
    answer = post(server, **{"prompt": "a", "max_tokens": 2, **change})
    assert answer.status_code == status, answer.text
    error = answer.json()["error"]
    assert error["message"]
    assert error["type"] == "invalid_request_error"
    assert len(answer.text) < 1000
    assert "Traceback" not in answer.text


BODIES = {
    "no JSON": (b"{", 400),
    "nothing": (b"", 400),
    "a list": (b"[]", 400),
    "no UTF-8": (b'{"model": "\xff"}', 400),
    "nested": (b"[" * 100_000, 400),
    "not a number": (b'{"model": "opt-13b", "prompt": "a", "temperature": NaN}', 400),
    "no length": (b'{"model": "opt-13b", "prompt": "a", "length_penalty": NaN}', 400),
    "5 MB": (b" " * (5 << 20), 400),
}


@pytest.mark.parametrize("name", BODIES)
def test_a_body_that_attacks_is_refused_and_the_server_lives(server, name):
    body, status = BODIES[name]
    answer = httpx.post(f"{server.url}/v1/completions", content=body, timeout=LONG_S)
    assert answer.status_code == status, answer.text
    assert answer.json()["error"]["message"]
    assert post(server, prompt="a", max_tokens=1).status_code == 200


def test_other_paths_answer_in_the_same_shape(server):
    assert get(f"{server.url}/v1/nothing").json()["error"]["type"] == "invalid_request_error"
    assert get(f"{server.url}/v1/completions").status_code == 405


@pytest.mark.parametrize("is_streamed", [False, True])
def test_clients_that_go_away_leave_no_slot(is_streamed):
    async def leave(server):
        async with httpx.AsyncClient(limits=httpx.Limits(max_connections=200)) as client:
            body = {"model": MODEL, "prompt": "a b c", "max_tokens": 1500, "stream": is_streamed}
            url = f"{server.url}/v1/completions"
            calls = [
                asyncio.create_task(client.post(url, json=body, timeout=LONG_S)) for _ in range(200)
            ]
            while len(server.live.unfinished) < 200:
                await asyncio.sleep(0.01)
            for call in calls:
                call.cancel()
            await asyncio.gather(*calls, return_exceptions=True)

    with running(speed=1.0) as server:
        asyncio.run(leave(server))
        wait_until(lambda: not server.live.unfinished)
        assert server.live.num_cancelled == 200
        assert server.held == 0
        assert post(server, prompt="a", max_tokens=1).status_code == 200


def test_a_full_queue_answers_429():
    from testbed.serving.client_limits import Limits

    with running(speed=1.0, limits=Limits(max_unfinished=1)) as server:
        body = {"model": MODEL, "prompt": "a", "max_tokens": 1000, "stream": True}
        url = f"{server.url}/v1/completions"
        with httpx.stream("POST", url, json=body, timeout=LONG_S) as first:
            lines = first.iter_lines()  # kept: its end would close the connection
            assert next(lines).startswith("data: ")
            answer = post(server, prompt="a")
            assert answer.status_code == 429
            assert answer.json()["error"]["type"] == "rate_limit_error"


def test_time_per_token_that_clients_measure_is_the_simulations(tmp_path):
    """50 streams in flight at speed 1: the median TPOT within 5% or 2 ms, and what this machine has
    kept a first or a last token waiting. TTFT is printed only: with clients in the server's process
    it exceeds the simulation's by more than that.
    """
    log = tmp_path / "requests.jsonl"

    async def measured(url):
        loop, times = asyncio.get_running_loop(), []

        async def stream(client, delay_s):
            await asyncio.sleep(delay_s)
            body = {"model": MODEL, "prompt": [5] * 100, "max_tokens": 100, "stream": True}
            sent_s, stamps = loop.time(), []
            async with client.stream("POST", f"{url}/v1/completions", json=body) as answer:
                async for line in answer.aiter_lines():
                    if line.startswith("data: {"):
                        stamps.append(loop.time())
            times.append((stamps[0] - sent_s, (stamps[-1] - stamps[0]) / 99))

        limits = httpx.Limits(max_connections=50)
        async with httpx.AsyncClient(limits=limits, timeout=LONG_S) as client:
            await asyncio.gather(*[stream(client, 0.01 * i) for i in range(50)])
        return np.median(times, axis=0)

    with running(speed=1.0, log=log) as server:
        post(server, prompt=[1] * 100, max_tokens=2)
        with stalls_measured() as stalls:
            ttft_s, tpot_s = asyncio.run(measured(server.url))
        waited_s = stalls.worst_s + server.live.lags[1]
    rows = [json.loads(line) for line in log.read_text().splitlines()][1:]
    assert len(rows) == 50
    own_ttft = np.median([row["first_token_ts"] - row["queued_ts"] for row in rows])
    own_tpot = np.median([(row["last_token_ts"] - row["first_token_ts"]) / 99 for row in rows])
    print(f"TTFT {ttft_s:.4f} {own_ttft:.4f}, TPOT {tpot_s:.5f} {own_tpot:.5f}, {waited_s}")
    assert abs(tpot_s - own_tpot) <= max(0.05 * own_tpot, 0.002) + waited_s / 99


def test_a_log_validates_against_the_server_that_wrote_it(tmp_path):
    from testbed.traces.vllm_log import VllmLog

    log = tmp_path / "requests.jsonl"
    with running(speed=20.0, log=log) as server:
        for i in range(8):
            post(server, prompt=[1] * (50 + i), max_tokens=10 + i)
    read = VllmLog(str(log))
    assert read.read().prompt_len.tolist() == [50 + i for i in range(8)]
    assert read.times.output_len.tolist() == [10 + i for i in range(8)]
