#!/bin/sh
# behaviour: the chat client of vLLM bench takes the event that names the role for the first token, which ends TTFT and adds a time between tokens; 0.33 does not
# package: vllm 0.28.0
# date: 2026-11-29
# guess: an answer of three tokens has two times between tokens
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q torch==2.13.0 transformers==5.20.2 aiohttp cachetools cbor2 \
    cloudpickle einops fastapi msgspec numpy openai openai-harmony opentelemetry-api pandas pillow \
    prometheus-client psutil py-cpuinfo pybase64 pydantic pyzmq requests tqdm
"$folder/venv/bin/pip" install -q --no-deps vllm==0.28.0
export HOME="$folder" TMPDIR="$folder"
cd "$folder"
cat > times_of_an_answer.py <<'END'
import asyncio
import json
import sys
import time

import aiohttp
from aiohttp import web
from vllm.benchmarks.lib.endpoint_request_func import (
    RequestFuncInput,
    async_request_openai_chat_completions,
)

WAIT_S = 0.5  # from the role to the first token, as a server that computes the prompt meanwhile


def event(delta):
    return f"data: {json.dumps({'choices': [{'index': 0, 'delta': delta}]})}\n\n".encode()


async def answer(request):
    response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
    await response.prepare(request)
    await response.write(event({"role": "assistant", "content": ""}))
    await asyncio.sleep(WAIT_S)
    for word in ("one ", "two ", "three"):
        await response.write(event({"content": word}))
        await asyncio.sleep(0.05)
    await response.write(b"data: [DONE]\n\n")
    return response


async def measured():
    app = web.Application()
    app.router.add_post("/v1/chat/completions", answer)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    port = site._server.sockets[0].getsockname()[1]
    asked = RequestFuncInput(
        prompt="a question",
        api_url=f"http://127.0.0.1:{port}/v1/chat/completions",
        prompt_len=2,
        output_len=3,
        model="any",
    )
    async with aiohttp.ClientSession() as session:
        output = await async_request_openai_chat_completions(asked, session)
    await runner.cleanup()
    return output


output = asyncio.run(measured())
assert output.success, output.error
print("guess: 2 times between tokens, none near", WAIT_S, "s; TTFT above", WAIT_S, "s")
print(f"seen: {len(output.itl)} times, the first {output.itl[0]:.2f} s; TTFT {output.ttft:.2f} s")
is_as_seen = len(output.itl) == 3 and output.itl[0] > 0.9 * WAIT_S > output.ttft
sys.exit(0 if is_as_seen else 1)
END
PYTHONWARNINGS=ignore "$folder/venv/bin/python" times_of_an_answer.py
