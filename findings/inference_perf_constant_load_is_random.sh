#!/bin/sh
# behaviour: the load type constant of inference-perf sends requests after exponential gaps, as a Poisson process does, and the first of them a gap late
# package: inference-perf 0.7.0
# date: 2026-11-28
# guess: a constant load of 10 requests/s sends one each 0.1 s
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q numpy pydantic pydantic-settings aiohttp transformers==5.20.2 av pillow datasets uvloop google-cloud-storage boto3 prometheus-client
"$folder/venv/bin/pip" install -q --no-deps --ignore-requires-python inference-perf==0.7.0
cd "$folder"
"$folder/venv/bin/python" - 2>errors <<'END' || { cat errors >&2; exit 1; }
from importlib.metadata import version

import numpy as np
from inference_perf.loadgen.load_timer import ConstantLoadTimer

sent = np.array(list(ConstantLoadTimer(rate=10, duration=1000).start_timer(0.0)))
gaps = np.diff(sent)
spread = gaps.std() / gaps.mean()
print("inference-perf", version("inference-perf"), "- 10 requests/s for 1,000 s:", len(sent))
print(f"guess: gaps of 0.1 s, all alike; seen: mean {gaps.mean():.3f}, largest {gaps.max():.2f} s,")
print(f"their deviation is {spread:.2f} of their mean (1 in a Poisson process), the last at {sent[-1]:.1f} s")
assert len(sent) == 10000 and 0.9 < spread < 1.1 and sent[0] > 0
END
