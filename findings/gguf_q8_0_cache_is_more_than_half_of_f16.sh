#!/bin/sh
# behaviour: a value of a q8_0 KV cache takes 8.5 bits and one of q4_0 4.5, because each block of 32 values has a 16-bit scale
# package: gguf 0.19.0
# date: 2026-11-28
# guess: q8_0 halves an f16 cache, and q4_0 quarters it
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q gguf==0.19.0
cd "$folder"
"$folder/venv/bin/python" - 2>errors <<'END' || { cat errors >&2; exit 1; }
from importlib.metadata import version

import numpy as np
from gguf import GGMLQuantizationType
from gguf.quants import quantize

heads = np.random.default_rng(0).normal(size=(8, 128)).astype(np.float32)  # of a token and layer
num_bytes = {
    name: quantize(heads, GGMLQuantizationType[name]).nbytes for name in ("F16", "Q8_0", "Q4_0")
}
shares = {name: size / num_bytes["F16"] for name, size in num_bytes.items()}
print("gguf", version("gguf"), "- 8 heads of 128 values; bytes:", num_bytes)
print("guess: shares of 1, 0.5 and 0.25 of f16; seen:", shares)
assert shares == {"F16": 1, "Q8_0": 0.53125, "Q4_0": 0.28125}
END
