#!/bin/sh
# behaviour: of a ShareGPT file vLLM's client leaves out prompts of more than 1,024 tokens and repeats the others until it has --num-prompts, which a prefix cache then finds; SGLang's (0.5.23) keeps the long ones and ends with the file
# package: vllm 0.33.0
# date: 2026-11-29
# guess: --num-prompts is an upper bound, and the two clients send the same requests of one file, each once
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q torch==2.13.0 transformers==5.20.2 aiohttp cachetools cbor2 \
    cloudpickle datasets einops fastapi IPython llguidance msgspec numpy openai openai-harmony \
    opentelemetry-api orjson packaging pandas partial-json-parser pillow prometheus-client psutil \
    py-cpuinfo pybase64 pydantic pyzmq requests scipy starlette tqdm triton uvloop xgrammar
"$folder/venv/bin/pip" install -q --no-deps vllm==0.33.0 sglang==0.5.23
export HOME="$folder" TMPDIR="$folder"
cd "$folder"
cat > requests_of_a_file.py <<'END'
import json
import sys
from collections import Counter
from importlib.metadata import version
from pathlib import Path

from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

NUM_PROMPTS, NUM_SHORT, NUM_LONG = 100, 10, 30
SHORT, LONG, ANSWER = 100, 2000, 50  # tokens
words = {word: i for i, word in enumerate(["[UNK]", *(f"w{i}" for i in range(200))])}
tokenizer = Tokenizer(models.WordLevel(words, unk_token="[UNK]"))
tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
tokenizer = PreTrainedTokenizerFast(tokenizer_object=tokenizer)


def turn(speaker, length, number):
    text = " ".join(f"w{(7 * number + place) % 200}" for place in range(length))
    return {"from": speaker, "value": text}


def by_vllm(path):
    from vllm.benchmarks.datasets import ShareGPTDataset

    data = ShareGPTDataset(random_seed=0, dataset_path=path)
    return data.sample(tokenizer=tokenizer, num_requests=NUM_PROMPTS)


def by_sglang(path):
    from sglang.benchmark.datasets.sharegpt import sample_sharegpt_requests

    return sample_sharegpt_requests(path, NUM_PROMPTS, tokenizer)


talks = []
for number in range(NUM_SHORT + NUM_LONG):
    length = SHORT if number < NUM_SHORT else LONG
    turns = [turn("human", length, number), turn("gpt", ANSWER, number)]
    talks.append({"id": str(number), "conversations": turns})
Path("talks.json").write_text(json.dumps(talks))
client, expected = {
    "vllm": (by_vllm, (NUM_PROMPTS, NUM_SHORT, {SHORT: NUM_PROMPTS})),
    "sglang": (by_sglang, (len(talks), len(talks), {SHORT: NUM_SHORT, LONG: NUM_LONG})),
}[sys.argv[1]]
requests = client("talks.json")
lengths = Counter(request.prompt_len for request in requests)
seen = len(requests), len({request.prompt for request in requests}), dict(lengths)
print(f"seen, {sys.argv[1]} {version(sys.argv[1])}: {seen[0]} requests, {seen[1]} of them different,")
print("  by tokens of the prompt:", *(f"{count} of {length}" for length, count in lengths.items()))
assert seen == expected, seen
END
echo "a file of 10 conversations of 100 tokens and 30 of 2,000, --num-prompts 100"
echo "guess: 40 requests by either client"
for client in vllm sglang; do
    "$folder/venv/bin/python" requests_of_a_file.py $client 2>errors || { cat errors >&2; exit 1; }
done
