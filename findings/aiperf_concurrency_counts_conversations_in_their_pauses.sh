#!/bin/sh
# behaviour: a conversation that pauses between turns keeps its place in aiperf's concurrency, so that N agents with tools that take a second keep less than N requests in flight
# package: aiperf 0.13.0
# date: 2026-11-28
# guess: a concurrency of 2 is two requests in flight while there are conversations left, so another one is served during a pause
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q aiperf==0.13.0
export HOME="$folder" TMPDIR="$folder"
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

from tokenizers import Tokenizer, models, pre_tokenizers

spans = []  # when each request came and was answered


class Server(BaseHTTPRequestHandler):
    """A chat server that answers after 0.25 s."""

    protocol_version = "HTTP/1.1"

    def do_POST(self):
        self.rfile.read(int(self.headers["Content-Length"]))
        began = time.monotonic()
        time.sleep(0.25)
        spans.append((began, time.monotonic()))
        message = {"role": "assistant", "content": "w9 w8"}
        choice = {"index": 0, "message": message, "finish_reason": "stop"}
        answer = {"id": "1", "object": "chat.completion", "created": 1, "model": "m"}
        text = json.dumps({**answer, "choices": [choice]}).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    def log_message(self, *_):
        pass


words = {word: i for i, word in enumerate(["[UNK]", *(f"w{i}" for i in range(200))])}
tokenizer = Tokenizer(models.WordLevel(words, unk_token="[UNK]"))
tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
Path("tokenizer").mkdir()
tokenizer.save("tokenizer/tokenizer.json")
kind = {"tokenizer_class": "PreTrainedTokenizerFast", "unk_token": "[UNK]"}
Path("tokenizer/tokenizer_config.json").write_text(json.dumps(kind))
turns = [{"text": "w1 w2"}, *([{"text": "w3", "delay": 1000}] * 3)]
talks = [{"session_id": f"s{s}", "turns": turns} for s in range(6)]
Path("talks.jsonl").write_text("".join(json.dumps(talk) + "\n" for talk in talks))
server = ThreadingHTTPServer(("127.0.0.1", 0), Server)
Thread(target=server.serve_forever, daemon=True).start()
command = [str(Path(sys.executable).with_name("aiperf")), "profile", "--model", "m"]
command += ["--url", f"http://127.0.0.1:{server.server_port}", "--endpoint-type", "chat"]
command += ["--custom-dataset-type", "multi_turn", "--input-file", "talks.jsonl"]
command += ["--concurrency", "2", "--request-count", "24"]
command += ["--tokenizer", "tokenizer", "--ui", "none"]
ran = subprocess.run(command, capture_output=True, text=True)
assert ran.returncode == 0, ran.stdout + ran.stderr
began, ended = min(spans)[0], max(end for _, end in spans)
in_flight = sum(end - start for start, end in spans) / (ended - began)
print("aiperf", version("aiperf"), "- 6 conversations of 4 turns with pauses of 1 s, --concurrency 2,")
print("answers after 0.25 s; guess: about 2 requests in flight; seen:", round(in_flight, 2))
assert len(spans) == 24 and in_flight < 1, (len(spans), in_flight)
END
