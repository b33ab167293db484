#!/bin/sh
# behaviour: the policy cache_aware of vllm-router posts every prompt to every worker's render endpoint before it chooses one, so that N workers tokenize each prompt N + 1 times in sum
# package: vllm-router 0.1.17
# date: 2026-11-28
# guess: a router compares the text that it has, and only the chosen worker sees a request
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q vllm-router==0.1.17
cd "$folder"
"$folder/venv/bin/python" - 2>errors <<'END' || { cat errors >&2; exit 1; }
import json
import socket
import subprocess
import sys
import time
import urllib.request
from collections import Counter
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.metadata import version
from pathlib import Path
from threading import Thread

seen = Counter()  # POSTs by port and path


class Worker(BaseHTTPRequestHandler):
    """The endpoints of a vLLM server that the router uses; a token is a character."""

    protocol_version = "HTTP/1.1"

    def do_GET(self):
        self.answer({"status": "ok", "object": "list", "data": [{"id": "m", "object": "model"}]})

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        seen[self.server.server_port, self.path] += 1
        if self.path.endswith("/render"):
            ids = [ord(letter) for letter in body["messages"][0]["content"]]
            self.answer({"request_id": "r", "token_ids": ids, "sampling_params": {}, "model": "m"})
        else:
            message = {"role": "assistant", "content": "yes"}
            choice = {"index": 0, "message": message, "finish_reason": "stop"}
            self.answer({"id": "1", "object": "chat.completion", "choices": [choice]})

    def answer(self, value):
        text = json.dumps(value).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    def log_message(self, *_):
        pass


def free_port():
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]


def ask(text):
    body = {"model": "m", "messages": [{"role": "user", "content": text}]}
    url = f"http://127.0.0.1:{port}/v1/chat/completions"
    head = {"Content-Type": "application/json"}
    urllib.request.urlopen(urllib.request.Request(url, json.dumps(body).encode(), head), timeout=9)


workers = [ThreadingHTTPServer(("127.0.0.1", 0), Worker) for _ in range(3)]
for worker in workers:
    Thread(target=worker.serve_forever, daemon=True).start()
urls = [f"http://127.0.0.1:{worker.server_port}" for worker in workers]
port, metrics = free_port(), free_port()
command = [str(Path(sys.executable).with_name("vllm-router")), "--policy", "cache_aware"]
command += ["--port", str(port), "--prometheus-port", str(metrics), "--worker-urls", *urls]
log = open("router.log", "w")
with subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT) as router:
    try:
        for _ in range(100):
            try:
                ask("hello")
                break
            except OSError:
                time.sleep(0.3)
        else:
            raise SystemExit("the router does not answer: " + Path("router.log").read_text())
        seen.clear()
        for turn in range(10):
            ask(f"question {turn}: what is a KV cache?")
    finally:
        router.terminate()
renders = {p: n for (p, path), n in sorted(seen.items()) if path.endswith("/render")}
chats = sum(n for (_, path), n in seen.items() if path.endswith("/completions"))
print("vllm-router", version("vllm-router"), "--policy cache_aware, three workers, ten chat requests")
print("guess: ten POSTs at the workers; seen:", chats, "chats, and renders at each worker:")
print([*renders.values()])
assert chats == 10 and [*renders.values()] == [10, 10, 10], seen
END
