"""On a GPU: a server's tokens are those of the engine's own run."""

import asyncio

import pytest

pytestmark = pytest.mark.gpu
torch = pytest.importorskip("torch", reason="torch is not installed")
if not torch.cuda.is_available():
    pytest.skip("needs an NVIDIA GPU", allow_module_level=True)
for package in ("cupy", "fastapi", "uvicorn", "prometheus_client", "openai", "httpx"):
    pytest.importorskip(package, reason=f"serving a GPU needs {package}")

import openai  # noqa: E402
from generating import ON_GPU, ids_of  # noqa: E402
from served import running  # noqa: E402

from testbed.core.request import Request  # noqa: E402
from testbed.experiments.runs.compose import configured  # noqa: E402
from testbed.kernels.engine.served_run import make_engine  # noqa: E402
from testbed.run.build import build  # noqa: E402

KINDS = {
    "plain": {"temperature": 0},
    "samples": {"n": 3},
    "beam": {"n": 4, "use_beam_search": True},
}


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
