#!/bin/sh
# behaviour: compute_block_hash_for_seq hashes each block by its own tokens, so that equal blocks behind different beginnings have one hash
# package: ai-dynamo-runtime 1.6.1
# date: 2026-11-28
# guess: as a prefix cache's, a block's hash covers all tokens before it, and names one place of one prompt
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q ai-dynamo-runtime==1.6.1
cd "$folder"
"$folder/venv/bin/python" - <<'END'
from importlib.metadata import version

from dynamo._core import compute_block_hash_for_seq

print("ai-dynamo-runtime", version("ai-dynamo-runtime"), "- blocks of four tokens")
block, other = [1, 2, 3, 4], [9, 9, 9, 9]
twice = compute_block_hash_for_seq(block + block, 4)
behind = compute_block_hash_for_seq(other + block, 4)
part = compute_block_hash_for_seq(block + [5, 6, 7], 4)
print("guess: the two blocks of 1 2 3 4 1 2 3 4 have two hashes, and that behind 9 9 9 9 a third")
print("hashes:", twice, behind)
assert twice[0] == twice[1] == behind[1] != behind[0]
print("a last block of three tokens has none:", part)
assert part == twice[:1]
END
