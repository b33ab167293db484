"""Clients as people use them, each in an environment of its own, of a server in a process of its
own. They take minutes, and what they measure depends on what else the machine does.
"""

import asyncio
import json
import re
import shlex
import sys
from pathlib import Path

import numpy as np
import pytest

pytestmark = pytest.mark.slow
for package in ("fastapi", "uvicorn", "prometheus_client", "httpx"):
    pytest.importorskip(package, reason=f"serving needs {package}")

import httpx  # noqa: E402
from served_elsewhere import call, client, rows_of, serving, train_tokenizer  # noqa: E402

ROOT = Path(__file__).parents[2]
README = ROOT / "README.md"
QUESTIONS = ROOT / "experiments" / "QUESTIONS.md"
LLAMA = "vllm serve meta-llama/Llama-3.1-8B-Instruct"
NUM_REQUESTS, OUTPUT_LEN = 150, 60


@pytest.fixture(scope="module", autouse=True)
def no_certificates():
    """pip, which installs the clients, needs those of the machine."""


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory):
    return train_tokenizer(tmp_path_factory.mktemp("tokenizer"), [README.read_text("utf-8")])


@pytest.fixture(scope="module")
def environments(tmp_path_factory):
    return tmp_path_factory.mktemp("environments")


def own_times(log):
    """The medians of the simulation's own time to first token and per output token, in ms, of the
    requests that the client has counted.
    """
    rows = [row for row in rows_of(log) if row["output_toks"] == OUTPUT_LEN][-NUM_REQUESTS:]
    assert len(rows) == NUM_REQUESTS
    first = np.array([row["first_token_ts"] for row in rows])
    queued = np.array([row["queued_ts"] for row in rows])
    last = np.array([row["last_token_ts"] for row in rows])
    return 1e3 * np.median(first - queued), 1e3 * np.median(last - first) / (OUTPUT_LEN - 1)


def is_near(measured_ms, own_ms):
    return abs(measured_ms - own_ms) <= max(0.05 * own_ms, 2.0)


def test_vllm_bench_serve_measures_the_simulated_server(tokenizer, environments, tmp_path):
    vllm = client("vllm", environments) / "vllm"
    log = tmp_path / "requests.jsonl"
    with serving("model=opt-13b", f"--tokenizer={tokenizer}", f"--log={log}") as url:
        address = ["--backend=openai", f"--base-url={url}", "--model=opt-13b"]
        lengths = ["--random-input-len=64", f"--random-output-len={OUTPUT_LEN}", "--ignore-eos"]
        load = [f"--num-prompts={NUM_REQUESTS}", "--request-rate=30", "--max-concurrency=50"]
        out = ["--save-result", f"--result-dir={tmp_path}", "--result-filename=result.json"]
        data = [f"--tokenizer={tokenizer}", "--dataset-name=random"]
        call([vllm, "bench", "serve", *address, *data, *lengths, *load, *out])
    result = json.loads((tmp_path / "result.json").read_text())
    assert (result["completed"], result["failed"]) == (NUM_REQUESTS, 0)
    assert result["total_output_tokens"] == NUM_REQUESTS * OUTPUT_LEN
    own_ttft_ms, own_tpot_ms = own_times(log)
    ttft_ms, tpot_ms = result["median_ttft_ms"], result["median_tpot_ms"]
    print(f"vllm: TTFT {ttft_ms:.1f} of {own_ttft_ms:.1f}, TPOT {tpot_ms:.2f} of {own_tpot_ms:.2f}")
    assert is_near(tpot_ms, own_tpot_ms)


def test_guidellm_measures_the_simulated_server(tokenizer, environments, tmp_path):
    guidellm = client("guidellm", environments) / "guidellm"
    log, out = tmp_path / "requests.jsonl", tmp_path / "result.json"
    with serving("model=opt-13b", f"--tokenizer={tokenizer}", f"--log={log}") as url:
        kinds = {
            "backend": f"openai_http,target={url},model=opt-13b,request_format=/v1/completions",
            "profile": "concurrent,streams=50",
            "constraint": f"max_requests,count={NUM_REQUESTS}",
            "tokenizer": f"huggingface_auto,model={tokenizer}",
            "data": f"synthetic_text,prompt_tokens=64,output_tokens={OUTPUT_LEN}",
            "output": f"json,path={out}",
        }
        options = [word for name, kind in kinds.items() for word in (f"--{name}", f"kind={kind}")]
        call([guidellm, "run", *options, "--disable-console"])
    benchmark = json.loads(out.read_text())["benchmarks"][0]
    requests = benchmark["requests"]
    assert (len(requests["successful"]), len(requests["errored"])) == (NUM_REQUESTS, 0)
    tpot_ms = benchmark["metrics"]["inter_token_latency_ms"]["successful"]["median"]
    _, own_tpot_ms = own_times(log)
    print(f"guidellm: TPOT {tpot_ms:.2f} of {own_tpot_ms:.2f}")
    assert is_near(tpot_ms, own_tpot_ms)


@pytest.mark.parametrize(
    ("name", "written"), [("vllm", "bench.json"), ("guidellm", "guidellm.json")]
)
def test_the_commands_of_the_questions_run_and_validate_reads_what_they_write(
    name, written, tokenizer, environments, tmp_path, monkeypatch
):
    """As the page has them, with a tokenizer that needs no hub and 20 requests in place of 200."""
    monkeypatch.chdir(tmp_path)
    page = QUESTIONS.read_text("utf-8")
    (line,) = re.findall(rf"^{name} (?:bench serve|run) .*", page, re.MULTILINE)
    folder = client(name, environments)
    with serving("--from-vllm", LLAMA, "gpu=h100-80gb", f"--tokenizer={tokenizer}") as url:
        here = line.replace("http://127.0.0.1:8000", url).replace("200", "20")
        _, *words = shlex.split(re.sub(r"\bDIR\b", str(tokenizer), here))
        call([folder / name, *words])
    validate = ["validate", written, "--from-vllm", LLAMA, "gpu=h100-80gb"]
    call([sys.executable, "-m", "testbed.experiments.cli.main", *validate])


def test_five_hundred_connections_are_held(tmp_path):
    """All wait for their answers at once, and all get them."""

    async def held(url):
        body = {"model": "opt-13b", "prompt": [5] * 20, "max_tokens": 30, "stream": True}
        limits = httpx.Limits(max_connections=500)
        async with httpx.AsyncClient(limits=limits, timeout=240) as session:
            calls = [session.post(f"{url}/v1/completions", json=body) for _ in range(500)]
            return await asyncio.gather(*calls)

    with serving("model=opt-13b") as url:
        answers = asyncio.run(held(url))
        metrics = httpx.get(f"{url}/metrics").text
    assert {answer.status_code for answer in answers} == {200}
    assert all(answer.text.endswith("data: [DONE]\n\n") for answer in answers)
    assert 'vllm:num_requests_running{model_name="opt-13b"} 0.0' in metrics


def test_ten_thousand_requests_at_speed_100_are_all_answered_and_the_lag_is_reported(tmp_path):
    log = tmp_path / "requests.jsonl"

    async def sent(url):
        limits = httpx.Limits(max_connections=200, max_keepalive_connections=200)
        async with httpx.AsyncClient(limits=limits, timeout=240) as session:
            gate = asyncio.Semaphore(200)

            async def one(number):
                body = {"model": "opt-13b", "prompt": [number % 1000] * 20, "max_tokens": 10}
                async with gate:
                    answer = await session.post(f"{url}/v1/completions", json=body)
                return answer.status_code, answer.json()["usage"]["completion_tokens"]

            return await asyncio.gather(*[one(i) for i in range(10_000)])

    with serving("model=opt-13b", "--speed=100", f"--log={log}") as url:
        answers = asyncio.run(sent(url))
        metrics = httpx.get(f"{url}/metrics").text
    assert set(answers) == {(200, 10)}
    assert len(rows_of(log)) == 10_000
    (lag,) = [line for line in metrics.splitlines() if line.startswith("testbed:max_lag_seconds{")]
    print(lag)
    assert float(lag.split()[1]) > 0
