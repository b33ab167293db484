#!/bin/sh
# behaviour: the files in which vLLM's file tier keeps the KV cache have the same names in every start without PYTHONHASHSEED, unless --prefix-caching-hash-algo is one of the two xxhash: then a start finds none of an earlier one's, and leaves them
# package: vllm 0.33.0
# date: 2026-11-29
# guess: the hash algorithm changes the time of a lookup alone, and whether files are found after a restart hangs on PYTHONHASHSEED, as it did in 0.19
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q torch==2.13.0 transformers==5.20.2 aiohttp cachetools cbor2 \
    cloudpickle einops fastapi llguidance msgspec numpy openai openai-harmony opentelemetry-api \
    partial-json-parser pillow prometheus-client psutil py-cpuinfo pybase64 pydantic pyzmq regex \
    requests scipy triton uvloop xgrammar xxhash
"$folder/venv/bin/pip" install -q --no-deps vllm==0.33.0
export HOME="$folder" TMPDIR="$folder" VLLM_LOGGING_LEVEL=ERROR
cd "$folder"
cat > start.py <<'END'
import sys

from vllm.utils.hashing import get_hash_fn_by_name
from vllm.v1.core.kv_cache_utils import hash_block_tokens, init_none_hash
from vllm.v1.kv_offload.base import make_offload_key
from vllm.v1.kv_offload.file_mapper import FileMapper

BLOCK = 16
algorithm = get_hash_fn_by_name(sys.argv[1])
init_none_hash(algorithm)
key = make_offload_key(hash_block_tokens(algorithm, None, tuple(range(BLOCK))), 0)
one = dict.fromkeys(("tp_size", "pp_size", "pcp_size", "dcp_size", "blocks_per_file"), 1)
names = FileMapper("", "org/model", tokens_per_hash=BLOCK, rank=0, dtype="bfloat16", **one)
print(names.get_file_name(key).rpartition("/")[2])
END
unset PYTHONHASHSEED
file_of_a_start() {
    "$folder/venv/bin/python" start.py "$1" 2>errors || { cat errors >&2; exit 1; }
}
echo "vllm 0.33.0 - the name of the file of a prompt's first block, in two starts"
echo "guess: another one in each start, whatever the algorithm"
for algorithm in sha256 sha256_cbor xxhash xxhash_cbor; do
    first=$(file_of_a_start $algorithm)
    second=$(file_of_a_start $algorithm)
    case $algorithm in sha256*) expected=same ;; *) expected=another ;; esac
    if [ "$first" = "$second" ]; then seen=same; else seen=another; fi
    echo "seen, $algorithm: $seen ($first, $second)"
    [ $seen = $expected ] || { echo "$algorithm: expected $expected" >&2; exit 1; }
done
