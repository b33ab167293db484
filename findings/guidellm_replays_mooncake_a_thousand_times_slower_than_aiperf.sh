#!/bin/sh
# behaviour: GuideLLM takes the timestamps of the format mooncake, which are milliseconds, for seconds, so that its replay takes a thousand times as long as that of aiperf 0.13.0
# package: guidellm 0.8.1
# date: 2026-11-29
# guess: two clients that name a trace after its authors send its requests at the same times
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q torch==2.13.0 transformers==5.20.2 guidellm==0.8.1
python3 -m venv "$folder/other"
"$folder/other/bin/pip" install -q aiperf==0.13.0
export HOME="$folder" TMPDIR="$folder"  # both clients keep files there
cd "$folder"
"$folder/venv/bin/python" - 2>errors <<'END' || { cat errors >&2; exit 1; }
import json
import subprocess
import sys
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.metadata import version
from pathlib import Path
from threading import Thread

from tokenizers import Tokenizer, decoders, models, pre_tokenizers

ANSWER = "fine"
asked = []  # when each request came (s)


class Server(BaseHTTPRequestHandler):
    """A chat server that streams one short answer to all."""

    protocol_version = "HTTP/1.1"

    def do_GET(self):
        self.send("application/json", json.dumps({"object": "list", "data": [{"id": "m"}]}))

    def do_POST(self):
        asked.append(time.monotonic())
        self.rfile.read(int(self.headers["Content-Length"]))
        delta = {"role": "assistant", "content": ANSWER}
        choice = {"index": 0, "delta": delta, "finish_reason": "stop"}
        part = {"id": "1", "object": "chat.completion.chunk", "created": 1, "model": "m"}
        data = json.dumps({**part, "choices": [choice]})
        self.send("text/event-stream", f"data: {data}\n\ndata: [DONE]\n\n")

    def send(self, kind, text):
        self.send_response(200)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text.encode())

    def log_message(self, *_):
        pass


def times(*command):
    """When a client's requests come, s after the first."""
    asked.clear()
    ran = subprocess.run(command, capture_output=True, text=True)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    return [round(moment - asked[0], 2) for moment in asked]


letters = {letter: i for i, letter in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
tokenizer = Tokenizer(models.BPE(letters, []))
tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
tokenizer.decoder = decoders.ByteLevel()
Path("bytes").mkdir()
tokenizer.save("bytes/tokenizer.json")
kind = {"tokenizer_class": "PreTrainedTokenizerFast"}
Path("bytes/tokenizer_config.json").write_text(json.dumps(kind))
rows = [
    {"timestamp": number, "input_length": 1000, "output_length": 4, "hash_ids": [1, 2 + number]}
    for number in range(4)
]
Path("trace.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
server = ThreadingHTTPServer(("127.0.0.1", 0), Server)
Thread(target=server.serve_forever, daemon=True).start()
url = f"http://127.0.0.1:{server.server_port}"
data = {"kind": "mooncake", "source": {"kind": "json_file", "path": "trace.jsonl"}}
guidellm = [str(Path(sys.executable).with_name("guidellm")), "run", "--profile", "kind=replay"]
guidellm += ["--backend", f"kind=openai_http,target={url},model=m", "--data", json.dumps(data)]
guidellm += ["--tokenizer", "kind=huggingface_auto,model=bytes", "--disable-console"]
guidellm += ["--output", "kind=json,path=out.json"]
aiperf = ["other/bin/aiperf", "profile", "--model", "m", "--url", url, "--endpoint-type", "chat"]
aiperf += ["--custom-dataset-type", "mooncake_trace", "--input-file", "trace.jsonl"]
aiperf += ["--fixed-schedule", "--tokenizer", "bytes", "--ui", "none"]
print("guidellm", version("guidellm"), "and aiperf 0.13.0 - four requests at 0, 1, 2 and 3 ms")
print("guess: both send them within a hundredth of a second; seen, s after the first:")
slow, fast = times(*guidellm), times(*aiperf)
print("guidellm:", slow)
print("aiperf:  ", fast)
assert len(slow) == len(fast) == 4, (slow, fast)
assert 2.5 < slow[-1] < 3.5 and fast[-1] < 0.5, (slow, fast)
END
