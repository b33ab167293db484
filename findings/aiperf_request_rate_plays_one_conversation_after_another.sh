#!/bin/sh
# behaviour: with a request rate aiperf gives the next place to the next turn of the conversation that was just answered, so that conversations are played one after another as long as answers come within a gap
# package: aiperf 0.13.0
# date: 2026-11-28
# guess: a rate of requests over twelve conversations keeps several of them open, as users do, so that a prefix cache has to keep more than one
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

asked = []  # the first word of each request's conversation


class Server(BaseHTTPRequestHandler):
    """A chat server that answers after 0.1 s."""

    protocol_version = "HTTP/1.1"

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        asked.append(str(body["messages"][0]["content"]).split()[0])
        time.sleep(0.1)
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
talks = [
    {"session_id": f"s{s}", "turns": [{"text": f"w{s} w{t}"} for t in range(5)]} for s in range(12)
]
Path("talks.jsonl").write_text("".join(json.dumps(talk) + "\n" for talk in talks))
server = ThreadingHTTPServer(("127.0.0.1", 0), Server)
Thread(target=server.serve_forever, daemon=True).start()
command = [str(Path(sys.executable).with_name("aiperf")), "profile", "--model", "m"]
command += ["--url", f"http://127.0.0.1:{server.server_port}", "--endpoint-type", "chat"]
command += ["--custom-dataset-type", "multi_turn", "--input-file", "talks.jsonl"]
command += ["--request-rate", "1", "--arrival-pattern", "constant", "--request-count", "25"]
command += ["--tokenizer", "tokenizer", "--ui", "none"]
ran = subprocess.run(command, capture_output=True, text=True)
assert ran.returncode == 0, ran.stdout + ran.stderr
changes = sum(one != other for one, other in zip(asked, asked[1:]))
print("aiperf", version("aiperf"), "- 12 conversations of 5 turns, 1 request/s, answers after 0.1 s")
print("conversations of the 25 requests, in order:", *asked)
print("guess: most requests are of another conversation than the one before; seen:", changes, "of 24")
assert len(asked) == 25 and changes <= 10, asked
END
