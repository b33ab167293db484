"""A server in a process of its own, a tokenizer that is trained here, and clients in environments
of their own.
"""

import contextlib
import json
import os
import re
import resource
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
import venv
from functools import partial
from pathlib import Path

import pytest

ENVIRONMENTS = "TESTBED_CLIENT_ENVIRONMENTS"  # a folder that keeps them between runs
# The packages that each client needs; vLLM's own list brings a CUDA build of torch.
PACKAGES = {
    "guidellm": [["guidellm==0.8.1"]],
    "vllm": [
        ["torch==2.13.0", "transformers>=4.56,<5", "huggingface-hub<1", "aiohttp", "anthropic"],
        ["blake3", "cachetools", "cbor2", "cloudpickle", "compressed-tensors", "datasets", "depyf"],
        ["diskcache", "einops", "fastapi", "gguf", "ijson", "lark", "llguidance", "mcp", "msgspec"],
        ["mistral_common", "model-hosting-container-standards", "openai", "openai-harmony"],
        [
            "opentelemetry-api",
            "orjson",
            "pandas",
            "partial-json-parser",
            "pillow",
            "prometheus-client",
        ],
        ["prometheus-fastapi-instrumentator", "protobuf", "psutil", "py-cpuinfo", "pybase64"],
        ["python-json-logger", "pyzmq", "requests", "sentencepiece", "setproctitle", "tiktoken"],
        ["orjson", "uvloop", "watchfiles", "xgrammar", "huggingface-hub<1"],
        ["--no-deps", "vllm==0.19.0"],
    ],
}


def client(name, cache):
    """The folder of a client's commands; the test is skipped if it cannot be installed."""
    folder = Path(os.environ.get(ENVIRONMENTS, cache)) / name
    if not (folder / "bin" / name).exists():
        venv.create(folder, with_pip=True)
        for packages in PACKAGES[name]:
            command = [folder / "bin" / "pip", "install", "-q", *packages]
            if subprocess.run(command, capture_output=True, timeout=1500).returncode:
                pytest.skip(f"{name} cannot be installed here")
    return folder / "bin"


def call(command):
    """Run a client, which asks no hub; the test is skipped if its environment lacks a package."""
    environment = os.environ | {"HF_HUB_OFFLINE": "1"}
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, env=environment)
    lacks = re.search(r"ModuleNotFoundError: No module named '([\w.]+)'", done.stderr)
    if lacks and command[0] != sys.executable:
        pytest.skip(f"{command[0]} needs {lacks[1]}, which its environment lacks")
    assert not done.returncode, done.stderr[-2000:]


@contextlib.contextmanager
def serving(*words):
    """`testbed serve` with these words; its address."""
    with started(*words) as (server, url):
        yield url
        server.terminate()
        _, errors = server.communicate(timeout=60)
        assert b"Traceback" not in errors, errors.decode()


@contextlib.contextmanager
def started(*words, max_file_bytes=None):
    """The process of `testbed serve` with these words, and its address; what it writes of a file
    beyond max_file_bytes is refused, as on a full disk.
    """
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "testbed.experiments.cli.main", "serve", f"--port={port}"]

    limited, environment = None, dict(os.environ)
    if max_file_bytes is not None:
        limited = partial(_limit_files, max_file_bytes)
        environment["PYTHONDONTWRITEBYTECODE"] = "1"  # compiled modules would be cut off too
    server = subprocess.Popen(
        [*command, *words], stderr=subprocess.PIPE, preexec_fn=limited, env=environment
    )
    url = f"http://127.0.0.1:{port}"
    try:
        _wait_for(url, server)
        yield server, url
    finally:
        if server.poll() is None:
            server.kill()
            server.communicate()


def _limit_files(num_bytes):
    resource.setrlimit(resource.RLIMIT_FSIZE, (num_bytes, num_bytes))


def _wait_for(url, server, limit_s=300):
    end_s = time.monotonic() + limit_s
    while time.monotonic() < end_s and server.poll() is None:
        with contextlib.suppress(urllib.error.URLError, ConnectionError):
            urllib.request.urlopen(f"{url}/health", timeout=5)
            return
        time.sleep(0.1)
    raise AssertionError(f"it does not serve: {server.communicate()[1].decode()}")


def train_tokenizer(folder, texts, size=1000):
    """Byte-level BPE of so many ids, in Hugging Face's format."""
    tokenizers = pytest.importorskip("tokenizers", reason="tokenizers is not installed")
    byte_level = tokenizers.pre_tokenizers.ByteLevel
    tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE())
    tokenizer.pre_tokenizer = byte_level(add_prefix_space=False)
    tokenizer.decoder = tokenizers.decoders.ByteLevel()
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=size,
        special_tokens=["<|end|>"],
        initial_alphabet=byte_level.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    folder.mkdir(exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    config = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "<|end|>"}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return folder


def rows_of(log):
    """The lines of a server's log."""
    return [json.loads(line) for line in log.read_text().splitlines()]
