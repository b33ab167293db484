#!/bin/sh
# behaviour: sglang.bench_serving's data set mooncake sends 128 words for each hash id of a request, whatever its input_length says, so that a prompt of the trace has about a quarter of its tokens
# package: sglang 0.5.23
# date: 2026-11-29
# guess: a replay of Mooncake's trace sends prompts of input_length tokens, 512 for each hash id and fewer for the last
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q torch==2.13.0 transformers==5.19.0 datasets triton numpy IPython \
    aiohttp msgspec orjson packaging pillow psutil pybase64 pydantic pyzmq requests starlette tqdm
"$folder/venv/bin/pip" install -q --no-deps sglang==0.5.23
cd "$folder"
"$folder/venv/bin/python" - 2>errors <<'END' || { cat errors >&2; exit 1; }
import asyncio
import json
from importlib.metadata import version
from pathlib import Path

from sglang.benchmark.datasets.mooncake import MooncakeDataset, get_mooncake_request_over_time
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

trace = [
    {"timestamp": 0, "input_length": 6758, "output_length": 50, "hash_ids": [*range(14)]},
    {"timestamp": 10, "input_length": 520, "output_length": 5, "hash_ids": [0, 99]},
]
Path("trace.jsonl").write_text("".join(json.dumps(request) + "\n" for request in trace))
words = Tokenizer(models.WordLevel({"[UNK]": 0}, unk_token="[UNK]"))  # a token for each word
words.pre_tokenizer = pre_tokenizers.Whitespace()
tokenizer = PreTrainedTokenizerFast(tokenizer_object=words, unk_token="[UNK]")
requests = MooncakeDataset("trace.jsonl", "conversation", len(trace)).load()


async def sent():
    """What the client sends, at the trace's speed and with one round a session, as by default."""
    return [row async for row in get_mooncake_request_over_time(requests, tokenizer, 1.0, 1)]


rows = asyncio.run(sent())
print("sglang", version("sglang"), "- guess: prompts of", [r["input_length"] for r in trace])
print("seen: prompts of", [row.prompt_len for row in rows], "words")
for row, request in zip(rows, trace, strict=True):
    behind = row.prompt_len - 128 * len(request["hash_ids"])
    assert -len(request["hash_ids"]) < behind < 20, row.prompt_len  # a sentence ends each prompt
    assert row.output_len == request["output_length"]
END
