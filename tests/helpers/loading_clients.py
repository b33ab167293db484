"""Three clients that send a server the same number of requests at once, as people use them, and
how many tokens a second each of them counts.
"""

import asyncio
import json
import time
from pathlib import Path
from typing import NamedTuple

import httpx
import openai
from served_elsewhere import call, client


class Load(NamedTuple):
    """So many requests, all sent at once; lengths in tokens."""

    model: str
    num_requests: int
    prompt_len: int
    output_len: int

    @property
    def num_tokens(self):
        return self.num_requests * self.output_len


class Outside(NamedTuple):
    """Needs of clients in environments of their own: a tokenizer's folder, a folder for their
    results, and one that keeps the environments.
    """

    tokenizer: Path
    results: Path
    environments: Path


def by_openai(url, load):
    """Tokens a second of the streams of the asynchronous `openai` client, in this process, from the
    first request that is sent: it builds all of them before, which takes 2 ms each.
    """
    sent_s = []

    async def note_time(request):
        sent_s.append(time.perf_counter())

    async def streamed(session, number):
        prompt = [(37 * number + place) % 50_000 for place in range(load.prompt_len)]
        stream = await session.completions.create(
            model=load.model,
            prompt=prompt,
            max_tokens=load.output_len,
            temperature=0,
            stream=True,
            stream_options={"include_usage": True},
            extra_body={"ignore_eos": True},
        )
        chunks = [chunk async for chunk in stream]
        return chunks[-1].usage.completion_tokens

    async def all_streamed():
        limits, hooks = httpx.Limits(max_connections=None), {"request": [note_time]}
        http = httpx.AsyncClient(limits=limits, timeout=500, event_hooks=hooks)
        address = f"{url}/v1"
        async with openai.AsyncOpenAI(base_url=address, api_key="x", http_client=http) as session:
            return await asyncio.gather(*[streamed(session, i) for i in range(load.num_requests)])

    counts = asyncio.run(all_streamed())
    assert sum(counts) == load.num_tokens
    return load.num_tokens / (time.perf_counter() - sent_s[0])


def by_vllm(url, load, outside):
    """Tokens a second by `vllm bench serve`."""
    where = ["--backend=openai", f"--base-url={url}", f"--model={load.model}"]
    lengths = [f"--random-input-len={load.prompt_len}", f"--random-output-len={load.output_len}"]
    data = [f"--tokenizer={outside.tokenizer}", "--dataset-name=random", "--ignore-eos", *lengths]
    out = ["--save-result", f"--result-dir={outside.results}", "--result-filename=vllm.json"]
    count = [f"--num-prompts={load.num_requests}", "--request-rate=inf", "--temperature=0"]
    words = [*where, *data, *count, *out]
    call([client("vllm", outside.environments) / "vllm", "bench", "serve", *words])
    result = json.loads((outside.results / "vllm.json").read_text())
    assert (result["completed"], result["failed"]) == (load.num_requests, 0)
    assert result["total_output_tokens"] == load.num_tokens
    return result["output_throughput"]


def by_guidellm(url, load, outside):
    """Tokens a second by GuideLLM, from its first request's start to its last one's end."""
    out = outside.results / "guidellm.json"
    where = {"target": url, "model": load.model, "request_format": "/v1/completions"}
    greedy = {"body": {"temperature": 0}}
    lengths = {"prompt_tokens": load.prompt_len, "output_tokens": load.output_len}
    options = {
        "backend": {"kind": "openai_http", **where, "extras": greedy},
        "profile": {"kind": "concurrent", "streams": load.num_requests},
        "constraint": {"kind": "max_requests", "count": load.num_requests},
        "tokenizer": {"kind": "huggingface_auto", "model": str(outside.tokenizer)},
        "data": {"kind": "synthetic_text", **lengths},
        "output": {"kind": "json", "path": str(out)},
    }
    words = [word for name, kind in options.items() for word in (f"--{name}", json.dumps(kind))]
    call(
        [client("guidellm", outside.environments) / "guidellm", "run", *words, "--disable-console"]
    )
    requests = json.loads(out.read_text())["benchmarks"][0]["requests"]
    answered = requests["successful"]
    assert (len(answered), len(requests["errored"])) == (load.num_requests, 0)
    began_s = min(request["request_start_time"] for request in answered)
    ended_s = max(request["request_end_time"] for request in answered)
    assert sum(request["output_tokens"] for request in answered) == load.num_tokens
    return load.num_tokens / (ended_s - began_s)
