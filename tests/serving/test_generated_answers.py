"""Clients of an engine that computes tokens, of a tiny model on a CPU."""

import asyncio

import pytest

for package in ("fastapi", "uvicorn", "prometheus_client", "openai", "httpx", "torch"):
    pytest.importorskip(package, reason=f"serving an engine needs {package}")

import httpx  # noqa: E402
import openai  # noqa: E402
from generating import MODEL, WORDS, ids_of  # noqa: E402
from served import LONG_S, get, running, wait_until  # noqa: E402

from testbed.core.request import Request  # noqa: E402
from testbed.experiments.runs.compose import configured  # noqa: E402
from testbed.kernels.engine.served_run import make_engine  # noqa: E402
from testbed.run.build import build  # noqa: E402

PROMPTS = [tuple(range(i, i + 9 + i)) for i in range(6)]
KINDS = {
    "plain": {"temperature": 0},
    "samples": {"n": 3},
    "beam": {"n": 4, "use_beam_search": True},
}


@pytest.fixture(scope="module")
def server():
    with running(WORDS) as started:
        yield started


def post(server, path="completions", **body):
    url = f"{server.url}/v1/{path}"
    return httpx.post(url, json={"model": "small", **body}, timeout=LONG_S)


def own_run(kinds):
    """The tokens of the engine's own run of these requests, each candidate of a beam included."""
    engine = make_engine(build(configured(list(WORDS))))
    requests = [
        Request(i, 0, len(ids), 20, KINDS[kind].get("n", 1), kind == "beam", prompt_ids=ids)
        for i, (kind, ids) in enumerate(zip(kinds, PROMPTS, strict=True))
    ]
    return engine.serve(requests).outputs


def test_beams_samples_and_plain_requests_have_the_tokens_of_the_engines_run():
    """Section 4.4: decoded together, as without a server."""
    kinds = list(KINDS) * 2

    async def answers(server):
        async with openai.AsyncOpenAI(base_url=f"{server.url}/v1", api_key="x") as client:
            calls = []
            for number, (kind, ids) in enumerate(zip(kinds, PROMPTS, strict=True)):
                body = {"model": "small", "prompt": list(ids), "max_tokens": 20}
                extra = {"ignore_eos": True} | KINDS[kind]
                calls.append(
                    asyncio.create_task(client.completions.create(**body, extra_body=extra))
                )
                # The draws go by the order of arrival.
                while not (number in server.live.unfinished or calls[-1].done()):
                    await asyncio.sleep(0.001)
            return await asyncio.gather(*calls)

    with running(WORDS) as fresh:
        got = [
            [ids_of(choice.text) for choice in answer.choices]
            for answer in asyncio.run(answers(fresh))
        ]
    own = own_run(kinds)
    for i, kind in enumerate(kinds):
        order = sorted if kind == "beam" else list  # a beam answers with the best first
        assert order(got[i]) == order(own[i])


def test_a_beam_answers_with_the_best_first(server):
    body = {"prompt": [3, 4, 5], "max_tokens": 12, "use_beam_search": True, "best_of": 4}
    best = [post(server, n=n, **body).json()["choices"] for n in (1, 4)]
    assert best[0][0]["text"] == best[1][0]["text"]
    assert len({choice["text"] for choice in best[1]}) == 4


def test_a_stream_has_the_tokens_of_the_whole_answer(server):
    body = {"model": "small", "prompt": [1, 2, 3], "max_tokens": 20, "temperature": 0}
    client = openai.OpenAI(base_url=f"{server.url}/v1", api_key="x", max_retries=0)
    whole = client.completions.create(**body)
    chunks = list(
        client.completions.create(**body, stream=True, stream_options={"include_usage": True})
    )
    assert "".join(chunk.choices[0].text for chunk in chunks[:-1]) == whole.choices[0].text
    assert chunks[-1].usage == whole.usage
    assert whole.usage.completion_tokens == 20


def test_a_seed_repeats_an_answer_and_others_differ(server):
    body = {"prompt": [1, 2, 3], "max_tokens": 20}
    texts = [post(server, seed=seed, **body).json()["choices"][0]["text"] for seed in (5, 5, -6)]
    assert texts[0] == texts[1] != texts[2]
    fresh = {post(server, **body).json()["choices"][0]["text"] for _ in range(3)}
    assert len(fresh) == 3


def test_a_stop_string_ends_the_answer_before_it_and_frees_its_slots(server):
    body = {"prompt": [1, 2, 3], "max_tokens": 200, "temperature": 0}
    words = post(server, **body | {"max_tokens": 20}).json()["choices"][0]["text"].split()
    stop = f" {words[5]}"
    answer = post(server, stop=[stop, "never"], **body).json()
    text = answer["choices"][0]["text"]
    assert text.split() == words[: words.index(words[5])]
    assert answer["choices"][0]["finish_reason"] == "stop"
    assert answer["usage"]["completion_tokens"] == words.index(words[5]) + 1
    wait_until(lambda: not server.live.unfinished)
    assert server.live.num_cancelled == 0


def test_an_answer_is_not_simulated_and_the_pool_is_measured(server):
    answer = post(server, prompt=[1, 2], max_tokens=2)
    assert answer.headers["x-testbed-simulated"] == "false"
    assert "x-testbed-lag-seconds" not in answer.headers
    text = get(f"{server.url}/metrics").text
    assert 'vllm:num_requests_running{model_name="small"}' in text
    assert "testbed:lag_seconds" not in text


REFUSED = {
    "top_k": {"top_k": 5},
    "min_p": {"min_p": 0.1},
    "presence_penalty": {"presence_penalty": 1},
    "repetition_penalty": {"repetition_penalty": 1.5},
    "best_of": {"best_of": 2},
    "logprobs": {"logprobs": 1},
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_the_sampler_lacks_is_refused_by_name(server, name):
    answer = post(server, prompt="a", max_tokens=2, **REFUSED[name])
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == name


def test_what_changes_nothing_is_accepted(server):
    neutral = {"top_k": -1, "min_p": 0, "presence_penalty": 0.0, "repetition_penalty": 1.0}
    assert post(server, prompt="a", max_tokens=2, **neutral).status_code == 200


def test_clients_that_go_away_leave_no_slot(server):
    async def leave():
        async with httpx.AsyncClient(timeout=LONG_S) as client:
            body = {"model": "small", "prompt": [1] * 9, "max_tokens": 500, "stream": True}
            url = f"{server.url}/v1/completions"
            calls = [asyncio.create_task(client.post(url, json=body)) for _ in range(20)]
            while len(server.live.unfinished) < 20:
                await asyncio.sleep(0.001)
            for call in calls:
                call.cancel()
            await asyncio.gather(*calls, return_exceptions=True)

    asyncio.run(leave())
    wait_until(lambda: not server.live.unfinished)
    assert server.held == 0


def test_a_request_beyond_the_context_is_refused(server):
    answer = post(server, prompt=[1] * MODEL["max_len"], max_tokens=1)
    assert answer.status_code == 400


def test_requests_are_failed_when_the_engine_ends():
    """As after an error on the device: no client waits for ever, and the server says so."""
    with running(WORDS) as server:
        body = {"model": "small", "prompt": [1], "max_tokens": 500, "stream": True}
        with httpx.stream("POST", f"{server.url}/v1/completions", json=body) as answer:
            lines = answer.iter_lines()
            assert next(lines).startswith("data: ")
            server.live.engine_process.terminate()
            assert any("the engine: has ended" in line for line in lines)
        assert get(f"{server.url}/health").status_code == 503
        assert post(server, prompt=[1]).status_code == 503


@pytest.mark.slow
def test_drafts_change_no_answer_and_serve_one_sequence_of_a_prompt(server):
    bodies = [
        {"prompt": [1, 2, 3], "max_tokens": 40, "temperature": 0},
        {"prompt": [4, 5, 6], "max_tokens": 40, "seed": 5},
    ]
    drafting = ("scheduler=vllm_v1", "speculation=ngram", "speculation.lookup_min=1")
    with running((*WORDS, *drafting)) as speculating:
        for body in bodies:
            plain, drafted = (post(one, **body).json() for one in (server, speculating))
            assert drafted["choices"][0]["text"] == plain["choices"][0]["text"]
            assert drafted["usage"] == plain["usage"]
        text = get(f"{speculating.url}/metrics").text
        assert 'vllm:generation_tokens_total{model_name="small"} 80.0' in text
        answer = post(speculating, prompt=[1, 2], max_tokens=2, n=2)
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == "n"
