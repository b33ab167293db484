"""On a GPU: three clients get as many tokens a second as the engine computes alone. Minutes."""

from pathlib import Path

import pytest

pytestmark = pytest.mark.gpu
torch = pytest.importorskip("torch", reason="torch is not installed")
if not torch.cuda.is_available():
    pytest.skip("needs an NVIDIA GPU", allow_module_level=True)
for package in ("cupy", "fastapi", "uvicorn", "prometheus_client", "openai", "httpx", "tokenizers"):
    pytest.importorskip(package, reason=f"clients of a GPU's server need {package}")

import httpx  # noqa: E402
from loading_clients import Load, Outside, by_guidellm, by_openai, by_vllm  # noqa: E402
from served_elsewhere import rows_of, serving, train_tokenizer  # noqa: E402

from testbed.core.request import PS, Request  # noqa: E402
from testbed.experiments.runs.compose import configured  # noqa: E402
from testbed.kernels.engine.served_run import make_engine  # noqa: E402
from testbed.run.build import build  # noqa: E402

LARGE = (
    "model=opt-13b",
    "server=h100-80gb",
    "server.num_blocks=2500",
    "swap_space_gib=0",
    "engine=gpu",
    "arrivals.duration_s=1",
    "arrivals.rate=1",
)
LOAD = Load("opt-13b", num_requests=1000, prompt_len=150, output_len=256)  # about a minute
WARM_UP = LOAD._replace(num_requests=20)
README = Path(__file__).parents[2] / "README.md"


def mark(url):
    """Ask for one token, which no load does: the log then shows where the next load begins."""
    body = {"model": LOAD.model, "prompt": [1], "max_tokens": 1, "ignore_eos": True}
    assert httpx.post(f"{url}/v1/completions", json=body, timeout=60).is_success


def loads_of(log):
    """The logged requests behind each mark, in order of arrival; as many as a load has, so that
    a request by which a client tries the server first is left out.
    """
    loads = []
    for row in sorted(rows_of(log), key=lambda row: row["queued_ts"]):
        if row["output_toks"] == 1:
            loads.append([])
        elif loads:
            loads[-1].append(row)
    return [rows[-LOAD.num_requests :] for rows in loads]


def logged_rate(rows):
    """Tokens a second from the first arrival to the last token, by the server's clock."""
    return LOAD.num_tokens / (max(row["last_token_ts"] for row in rows) - rows[0]["queued_ts"])


def own_rate(rows):
    """Tokens a second of the engine alone, with prompts of these lengths at these times."""
    engine = make_engine(build(configured(list(LARGE))))
    requests = []
    for number, row in enumerate(rows):
        arrival_ps = round((row["queued_ts"] - rows[0]["queued_ts"]) * PS)
        prompt = tuple((37 * number + place) % 50_000 for place in range(row["input_toks"]))
        requests.append(
            Request(number, arrival_ps, len(prompt), LOAD.output_len, prompt_ids=prompt)
        )
    with engine:
        return LOAD.num_tokens * PS / engine.serve(requests).recorder.end_ps


def rates_of_clients(log, folder):
    """Tokens a second that each client counts, by its name; all of one server."""
    tokenizer = train_tokenizer(folder / "tokenizer", [README.read_text("utf-8")])
    outside = Outside(tokenizer, results=folder, environments=folder)
    rates = {}
    with serving(*LARGE, "--log", str(log)) as url:
        by_openai(url, WARM_UP)  # what is loaded at first use
        mark(url)
        rates["openai"] = by_openai(url, LOAD)
        mark(url)
        rates["vllm bench serve"] = by_vllm(url, LOAD, outside)
        mark(url)
        rates["guidellm"] = by_guidellm(url, LOAD, outside)
    return rates


def test_tokens_per_second_of_clients_are_those_of_the_engines_own_run(tmp_path):
    """opt-13b with random weights; for each client the same requests when they came: within 5%."""
    log, own_rates = tmp_path / "log.jsonl", {}
    rates = rates_of_clients(log, tmp_path)
    for name, rows in zip(rates, loads_of(log), strict=True):
        own_rates[name] = own_rate(rows)
        arrived_s = rows[-1]["queued_ts"] - rows[0]["queued_ts"]
        print(
            f"{name}, tokens/s: {rates[name]:.0f} by the client, {logged_rate(rows):.0f} by the "
            f"log; {own_rates[name]:.0f} by the engine alone (arrivals over {arrived_s:.1f} s)"
        )
    assert rates == pytest.approx(own_rates, rel=0.05)
