"""On a GPU: a server's tokens are those of the engine's own run, and so is their rate. Minutes."""

import asyncio
import time

import pytest

pytestmark = pytest.mark.gpu
torch = pytest.importorskip("torch", reason="torch is not installed")
if not torch.cuda.is_available():
    pytest.skip("needs an NVIDIA GPU", allow_module_level=True)
for package in ("cupy", "fastapi", "uvicorn", "prometheus_client", "openai", "httpx"):
    pytest.importorskip(package, reason=f"serving a GPU needs {package}")

import httpx  # noqa: E402
import openai  # noqa: E402
from generating import ON_GPU, ids_of  # noqa: E402
from served import running  # noqa: E402
from served_elsewhere import rows_of, serving  # noqa: E402

from testbed.build import build  # noqa: E402
from testbed.core.request import PS, Request  # noqa: E402
from testbed.experiments.runs.compose import configured  # noqa: E402
from testbed.kernels.engine.bench import free  # noqa: E402
from testbed.kernels.engine.serve import make_engine  # noqa: E402

KINDS = {
    "plain": {"temperature": 0},
    "samples": {"n": 3},
    "beam": {"n": 4, "use_beam_search": True},
}
LARGE = (
    "model=opt-13b",
    "server=h100-80gb",
    "server.num_blocks=2500",
    "swap_space_gib=0",
    "engine=gpu",
    "arrivals.duration_s=1",
    "arrivals.rate=1",
)
NUM_WARM, NUM_REQUESTS, OUTPUT_LEN = 20, 1000, 256
PROMPTS = [tuple((37 * i + j) % 50_000 for j in range(100 + i % 100)) for i in range(NUM_REQUESTS)]


async def answers(url, model, bodies, gap_s):
    """The answers to these bodies, which are sent in order, gap_s apart."""
    async with openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="x", timeout=500) as client:
        calls = []
        for body in bodies:
            extra = {"ignore_eos": True} | body.pop("extra", {})
            answer = client.completions.create(model=model, extra_body=extra, **body)
            calls.append(asyncio.create_task(answer))
            await asyncio.sleep(gap_s)
        return await asyncio.gather(*calls)


async def count_streamed(url, num_requests):
    """Output tokens and seconds of the large model's requests, all sent at once and streamed."""
    http = httpx.AsyncClient(limits=httpx.Limits(max_connections=num_requests), timeout=500)
    async with openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="x", http_client=http) as client:

        async def one(ids):
            stream = await client.completions.create(
                model="opt-13b",
                prompt=list(ids),
                max_tokens=OUTPUT_LEN,
                temperature=0,
                stream=True,
                stream_options={"include_usage": True},
                extra_body={"ignore_eos": True},
            )
            chunks = [chunk async for chunk in stream]
            return chunks[-1].usage.completion_tokens

        began_s = time.perf_counter()
        counts = await asyncio.gather(*[one(ids) for ids in PROMPTS[:num_requests]])
        return sum(counts), time.perf_counter() - began_s


def test_tokens_are_those_of_the_engines_own_run():
    """One at a time: batches of other sizes round otherwise on a GPU, and change a close call."""
    kinds, prompts = list(KINDS) * 2, [tuple(range(i, i + 12)) for i in range(6)]
    engine = make_engine(build(configured(list(ON_GPU))))
    own = []
    with running(ON_GPU) as server:
        for i, (kind, ids) in enumerate(zip(kinds, prompts, strict=True)):
            body = {"prompt": list(ids), "max_tokens": 30, "extra": dict(KINDS[kind])}
            (answer,) = asyncio.run(answers(server.url, "small", [body], 0.0))
            num_seqs = KINDS[kind].get("n", 1)
            request = Request(i, 0, len(ids), 30, num_seqs, kind == "beam", prompt_ids=ids)
            own.append((kind, request, [ids_of(choice.text) for choice in answer.choices]))
    tokens = engine.serve(
        [request._replace(arrival_ps=i * 10**12) for i, (_, request, _) in enumerate(own)]
    ).outputs
    for kind, request, got in own:
        order = sorted if kind == "beam" else list
        assert order(got) == order(tokens[request.request_id])


def test_beams_samples_and_plain_requests_are_served_together():
    """Section 4.4, under load: everything is answered in full and nothing stays in the pool."""
    kinds = list(KINDS) * 8
    bodies = [
        {"prompt": [i + j for j in range(12)], "max_tokens": 60, "extra": dict(KINDS[kind])}
        for i, kind in enumerate(kinds)
    ]
    with running(ON_GPU) as server:
        got = asyncio.run(answers(server.url, "small", bodies, 0.001))
        assert server.held == 0
    for kind, answer in zip(kinds, got, strict=True):
        assert {len(ids_of(choice.text)) for choice in answer.choices} == {60}
        assert len(answer.choices) == KINDS[kind].get("n", 1)


def own_rate(arrivals_ps):
    """Tokens a second of the engine alone, with the same prompts at these times."""
    free()  # the engine before: two do not fit
    engine = make_engine(build(configured(list(LARGE))))
    requests = [
        Request(i, at_ps, len(ids), OUTPUT_LEN, prompt_ids=ids)
        for i, (at_ps, ids) in enumerate(zip(sorted(arrivals_ps), PROMPTS, strict=True))
    ]
    with engine:
        end_ps = engine.serve(requests).recorder.end_ps
    return NUM_REQUESTS * OUTPUT_LEN * PS / (end_ps - min(arrivals_ps))


def test_tokens_per_second_are_those_of_the_engines_own_run(tmp_path):
    """opt-13b with random weights, the same requests when they came: within 5%. And what it would
    be without the time that a client takes to send a thousand, or to read a quarter of a million
    tokens.
    """
    log = tmp_path / "log.jsonl"
    with serving(*LARGE, "--log", str(log)) as url:
        asyncio.run(count_streamed(url, NUM_WARM))  # what is loaded at first use
        began_s = time.process_time()
        num_tokens, served_s = asyncio.run(count_streamed(url, NUM_REQUESTS))
        client_s = time.process_time() - began_s
    assert num_tokens == NUM_REQUESTS * OUTPUT_LEN
    rows = sorted(rows_of(log), key=lambda row: row["queued_ts"])[NUM_WARM:]
    logged_s = max(row["last_token_ts"] for row in rows) - rows[0]["queued_ts"]
    queued_ps = [round(row["queued_ts"] * PS) for row in rows]
    arrivals_ps = [at_ps - queued_ps[0] for at_ps in queued_ps]
    rate, as_they_came, at_once = (
        num_tokens / served_s,
        own_rate(arrivals_ps),
        own_rate([0] * NUM_REQUESTS),
    )
    print(
        f"tokens/s: {rate:.0f} by the server, {num_tokens / logged_s:.0f} by its log (the client "
        f"computed for {client_s:.0f} of {served_s:.0f} s); by the engine alone {as_they_came:.0f} "
        f"with requests that come in {arrivals_ps[-1] / PS:.1f} s so, {at_once:.0f} at once"
    )
    assert abs(rate - as_they_came) <= 0.05 * as_they_came
