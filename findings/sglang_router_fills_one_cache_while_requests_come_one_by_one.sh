#!/bin/sh
# behaviour: the policy cache_aware of sglang-router sends prompts that have nothing in common all to one worker while one request is in flight at a time, so that the caches of the others stay empty
# package: sglang-router 0.3.2
# date: 2026-11-28
# guess: prompts without a cached prefix go to the worker that has the smallest part of the tree, so that N workers give N caches
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q sglang-router==0.3.2
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
from random import Random
from string import ascii_lowercase
from threading import Thread

seen = Counter()  # chats by port


class Worker(BaseHTTPRequestHandler):
    """The endpoints of a server that the router uses."""

    protocol_version = "HTTP/1.1"

    def do_GET(self):
        self.answer({"status": "ok", "model_path": "m", "object": "list", "data": [{"id": "m", "object": "model"}]})

    def do_POST(self):
        self.rfile.read(int(self.headers["Content-Length"]))
        seen[self.server.server_port] += 1
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
command = [sys.executable, "-m", "sglang_router.launch_router", "--policy", "cache_aware"]
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
        random = Random(0)
        for _ in range(40):
            ask("".join(random.choices(ascii_lowercase, k=2000)))
    finally:
        router.terminate()
print("sglang-router", version("sglang-router"), "--policy cache_aware, three workers,")
print("40 prompts of 2,000 random letters, one after the other; guess: 13 or 14 at each worker")
print("seen:", [seen[worker.server_port] for worker in workers])
assert sorted(seen.values()) == [40], seen
END
