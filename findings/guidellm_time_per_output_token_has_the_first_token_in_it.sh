#!/bin/sh
# behaviour: time_per_output_token_ms of GuideLLM divides the whole latency by all output tokens, the wait for the first token included; what other clients call TPOT is its inter_token_latency_ms
# package: guidellm 0.8.1
# date: 2026-11-28
# guess: time per output token is (last token - first token) / (output tokens - 1), as in vLLM's own client
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q 'pydantic>=2.11,<3' pydantic-settings loguru click rich pyyaml numpy
"$folder/venv/bin/pip" install -q --no-deps guidellm==0.8.1
cd "$folder"
"$folder/venv/bin/python" - 2>errors <<'END' || { cat errors >&2; exit 1; }
from importlib.metadata import version

from guidellm.schemas.base.info import RequestInfo, RequestTimings
from guidellm.schemas.base.request import UsageMetrics
from guidellm.schemas.base.request_stats import GenerativeRequestStats

timings = RequestTimings(
    request_start=0.0, first_token_iteration=1.0, last_token_iteration=1.9, request_end=1.9
)
request = GenerativeRequestStats(
    request_id="one",
    info=RequestInfo(status="completed", timings=timings),
    input_metrics=UsageMetrics(text_tokens=100),
    output_metrics=UsageMetrics(text_tokens=10),
)
tpot, gap = request.time_per_output_token_ms, request.inter_token_latency_ms
print("guidellm", version("guidellm"), "- first of 10 tokens after 1 s, the others 0.1 s apart")
print(f"guess: a TPOT of 100 ms; seen: {tpot:.0f} ms, inter-token latency {gap:.0f} ms")
assert (round(tpot), round(gap)) == (190, 100)
END
