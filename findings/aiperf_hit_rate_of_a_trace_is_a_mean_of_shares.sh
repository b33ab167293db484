#!/bin/sh
# behaviour: the cache hit rate that aiperf analyze-trace prints is the mean over requests of each one's share, whatever their lengths
# package: aiperf 0.13.0
# date: 2026-11-28
# guess: a trace's hit rate is the share of all its blocks (or tokens) that a cache without limit finds, as Mooncake's is
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q aiperf==0.13.0
export HOME="$folder" TMPDIR="$folder"
cd "$folder"
"$folder/venv/bin/python" - 2>errors <<'END' || { cat errors >&2; exit 1; }
import json
import re
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

rows = [list(range(100)), *([[1000]] * 4)]  # a prompt of 100 new blocks, one of one block four times
requests = [
    {"timestamp": i, "input_length": 512 * len(ids), "output_length": 1, "hash_ids": ids}
    for i, ids in enumerate(rows)
]
Path("trace.jsonl").write_text("".join(json.dumps(request) + "\n" for request in requests))
command = [Path(sys.executable).with_name("aiperf"), "analyze-trace", "trace.jsonl"]
done = subprocess.run(command, capture_output=True, text=True, check=True)
print(done.stdout)
shown = re.search(r"hit rate[^0-9]*([0-9.]+)", done.stdout, re.IGNORECASE)[1]
print("aiperf", version("aiperf"), "- guess: 3 of 104 blocks, 2.9%; seen:", shown)
assert float(shown) in (60.0, 0.6)
END
