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
    """What clients in environments of their own need: a tokenizer's folder, a folder for their
    results, and one that keeps the environments.
    """

    tokenizer: Path
    results: Path
    environments: Path


def by_openai(url, load):
    """Tokens a second of the streams of the asynchronous `openai` client, in this process."""

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
        http = httpx.AsyncClient(limits=httpx.Limits(max_connections=None), timeout=500)
        address = f"{url}/v1"
        async with openai.AsyncOpenAI(base_url=address, api_key="x", http_client=http) as session:
            return await asyncio.gather(*[streamed(session, i) for i in range(load.num_requests)])

    began_s = time.perf_counter()
    counts = asyncio.run(all_streamed())
    assert sum(counts) == load.num_tokens
    return load.num_tokens / (time.perf_counter() - began_s)


def by_vllm(url, load, outside):
    """Tokens a second by `vllm bench serve`."""
    where = ["--backend=openai", f"--base-url={url}", f"--model={load.model}"]
    lengths = [f"--random-input-len={load.prompt_len}", f"--random-output-len={load.output_len}"]
    data = [f"--tokenizer={outside.tokenizer}", "--dataset-name=random", "--ignore-eos", *lengths]
    out = ["--save-result", f"--result-dir={outside.results}", "--result-filename=vllm.json"]
    count = [f"--num-prompts={load.num_requests}", "--request-rate=inf", "--temperature=0"]
    call(
        [
            client("vllm", outside.environments) / "vllm",
            "bench",
            "serve",
            *where,
            *data,
            *count,
            *out,
        ]
    )
    result = json.loads((outside.results / "vllm.json").read_text())
    assert (result["completed"], result["failed"]) == (load.num_requests, 0)
    assert result["total_output_tokens"] == load.num_tokens
    return result["output_throughput"]


def by_guidellm(url, load, outside):
    """Tokens a second by GuideLLM, from its first request's start to its last one's end."""
    out = outside.results / "guidellm.json"
    lengths = f"prompt_tokens={load.prompt_len},output_tokens={load.output_len}"
    kinds = {
        "backend": f"openai_http,target={url},model={load.model},request_format=/v1/completions",
        "profile": f"concurrent,streams={load.num_requests}",
        "constraint": f"max_requests,count={load.num_requests}",
        "tokenizer": f"huggingface_auto,model={outside.tokenizer}",
        "data": f"synthetic_text,{lengths}",
        "output": f"json,path={out}",
    }
    options = [word for name, kind in kinds.items() for word in (f"--{name}", f"kind={kind}")]
    call(
        [
            client("guidellm", outside.environments) / "guidellm",
            "run",
            *options,
            "--disable-console",
        ]
    )
    requests = json.loads(out.read_text())["benchmarks"][0]["requests"]
    answered = requests["successful"]
    assert (len(answered), len(requests["errored"])) == (load.num_requests, 0)
    began_s = min(request["request_start_time"] for request in answered)
    ended_s = max(request["request_end_time"] for request in answered)
    assert sum(request["output_tokens"] for request in answered) == load.num_tokens
    return load.num_tokens / (ended_s - began_s)
