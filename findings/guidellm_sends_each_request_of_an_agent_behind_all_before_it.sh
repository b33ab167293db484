#!/bin/sh
# behaviour: GuideLLM's format weka takes a request's "in", which is its whole prompt, for what the turn adds, so that each request of a session is sent behind the prompts and answers of all before it, and its length is their sum
# package: guidellm 0.8.1
# date: 2026-11-29
# guess: the n-th request of a session has "in" tokens, and begins with the blocks of the one before, as its hash_ids say
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q torch==2.13.0 transformers==5.20.2 guidellm==0.8.1
export HOME="$folder" TMPDIR="$folder"
cd "$folder"
"$folder/venv/bin/python" - 2>errors <<'END' || { cat errors >&2; exit 1; }
import json
import subprocess
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.metadata import version
from pathlib import Path
from threading import Thread

from tokenizers import Tokenizer, decoders, models, pre_tokenizers

BLOCK, ANSWER = 64, "fine"
asked = []  # the messages of each request


class Server(BaseHTTPRequestHandler):
    """A chat server that streams one short answer to all."""

    protocol_version = "HTTP/1.1"

    def do_GET(self):
        self.send("application/json", json.dumps({"object": "list", "data": [{"id": "m"}]}))

    def do_POST(self):
        asked.append(json.loads(self.rfile.read(int(self.headers["Content-Length"])))["messages"])
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


def num_tokens(message):
    """A token is a byte."""
    content = message["content"]
    parts = [content] if isinstance(content, str) else [part["text"] for part in content]
    return sum(len(part.encode()) for part in parts)


letters = {letter: i for i, letter in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
tokenizer = Tokenizer(models.BPE(letters, []))
tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
tokenizer.decoder = decoders.ByteLevel()
Path("bytes").mkdir()
tokenizer.save("bytes/tokenizer.json")
kind = {"tokenizer_class": "PreTrainedTokenizerFast"}
Path("bytes/tokenizer_config.json").write_text(json.dumps(kind))
requests = [
    {
        "t": 0.5 * turn,
        "type": "n",
        "model": "m",
        "in": BLOCK * (turn + 2),
        "out": len(ANSWER),
        "hash_ids": [*range(1, turn + 3)],
        "api_time": 0.1,
        "think_time": 0.4 if turn else 0.0,
    }
    for turn in range(4)
]
session = {"id": "s", "models": ["m"], "block_size": BLOCK, "hash_id_scope": "local"}
session |= {"tool_tokens": 0, "system_tokens": 0, "requests": requests}
Path("session.jsonl").write_text(json.dumps(session) + "\n")
server = ThreadingHTTPServer(("127.0.0.1", 0), Server)
Thread(target=server.serve_forever, daemon=True).start()
target = f"kind=openai_http,target=http://127.0.0.1:{server.server_port},model=m"
data = {"kind": "weka", "source": {"kind": "json_file", "path": "session.jsonl"}}
command = [str(Path(sys.executable).with_name("guidellm")), "run", "--backend", target]
command += ["--profile", "kind=replay", "--tokenizer", "kind=huggingface_auto,model=bytes"]
command += ["--data", json.dumps(data), "--disable-console", "--output", "kind=json,path=out.json"]
ran = subprocess.run(command, capture_output=True, text=True)
assert ran.returncode == 0, ran.stdout + ran.stderr
print("guidellm", version("guidellm"), "- a session of four requests, format weka, profile replay")
print("guess: prompts of", [request["in"] for request in requests], "tokens, and those are new to a")
print(f"prefix cache but for what came before: {BLOCK * 2}, then {BLOCK} of each")
sent = [[num_tokens(message) for message in messages] for messages in asked]
print("seen:", [sum(lengths) for lengths in sent], "tokens, with messages of", sent[-1], "in the last")
assert sent[-1] == [128, 4, 192, 4, 256, 4, 320], sent
assert sent == [sent[-1][: 2 * turn + 1] for turn in range(4)], sent
END
