#!/bin/sh
# behaviour: a start of LMCache finds nothing of what an earlier one wrote to local_disk, removes none of it, and does not count it, so that the folder outgrows max_local_disk_size by as much at each restart
# package: lmcache 0.5.6
# date: 2026-11-29
# guess: a KV cache on disk is there after a restart, and takes at most max_local_disk_size
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q torch==2.13.0 transformers==5.20.2 numpy numba msgspec aiofile \
    aiofiles aiohttp blake3 cachetools cryptography httpx nvtx opentelemetry-api opentelemetry-sdk \
    prometheus-client psutil py-cpuinfo pyyaml pyzmq redis requests safetensors sortedcontainers
"$folder/venv/bin/pip" install -q --no-deps lmcache==0.5.6
export HOME="$folder" TMPDIR="$folder"
cd "$folder"
cat > start.py <<'END'
import sys
import time
from importlib.metadata import version
from pathlib import Path

import torch
from lmcache.v1.cache_engine import LMCacheEngine
from lmcache.v1.config import LMCacheEngineConfig
from lmcache.v1.metadata import LMCacheMetadata
from lmcache.v1.token_database import ChunkedTokenDatabase

CHUNK = 16  # tokens
CHUNK_BYTES = 4096 * CHUNK
ROOM = 4  # chunks


class Copies:
    """There is no GPU to copy from or to."""

    def batched_from_gpu(self, *arguments, **options):
        pass

    def batched_to_gpu(self, *arguments, **options):
        pass


def start():
    """An engine with a cache on disk alone."""
    config = LMCacheEngineConfig.from_defaults(
        chunk_size=CHUNK,
        local_cpu=False,
        max_local_cpu_size=0.01,  # a buffer
        local_disk=Path("disk").absolute().as_uri() + "/",
        max_local_disk_size=ROOM * CHUNK_BYTES / 2**30,
    )
    metadata = LMCacheMetadata(
        model_name="m",
        world_size=1,
        local_world_size=1,
        worker_id=0,
        local_worker_id=0,
        kv_dtype=torch.float16,
        kv_shape=(1, 2, CHUNK, 1, 1024),
        role="worker",
        chunk_size=CHUNK,
    )
    database = ChunkedTokenDatabase(config, metadata)
    nothing = lambda *arguments: None  # noqa: E731
    engine = LMCacheEngine(config, metadata, database, Copies(), nothing, nothing)
    engine.post_init()
    return engine


def prompt(number):
    """A prompt that fills the disk."""
    return [1000 * number + place for place in range(ROOM * CHUNK)]


number = int(sys.argv[1])
engine = start()
earlier = engine.lookup(tokens=prompt(max(number - 1, 0)))
slots = torch.arange(ROOM * CHUNK)
engine.store(tokens=prompt(number), kvcaches=[None], slot_mapping=slots)
for _ in range(100):  # writes are in the background
    files = list(Path("disk").glob("*.pt"))
    if len(files) == ROOM * (number + 1):
        break
    time.sleep(0.1)
own = engine.lookup(tokens=prompt(number))
engine.close()
print("lmcache", version("lmcache"), "- start", number + 1, "finds", earlier, "tokens of an earlier")
print("  one, and", own, "of its own; files:", len(files), "chunks, max_local_disk_size:", ROOM)
assert (earlier, own) == (0, ROOM * CHUNK), (earlier, own)
assert len(files) == ROOM * (number + 1), files
assert sum(file.stat().st_size for file in files) == len(files) * CHUNK_BYTES
END
export LMCACHE_TRACK_USAGE=false LMCACHE_LOG_LEVEL=CRITICAL PYTHONHASHSEED=0
echo "guess: the second start finds the 64 tokens of the first, and keeps 4 chunks"
for number in 0 1 2; do
    "$folder/venv/bin/python" start.py $number 2>errors || { cat errors >&2; exit 1; }
done
