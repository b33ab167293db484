#!/bin/sh
# behaviour: WTinyLFU of libcachesim with its default window stores nothing in a cache of less than a hundred objects, and says nothing
# package: libcachesim 0.3.5
# date: 2026-11-28
# guess: a window of 1% of a small cache has at least one place, so a cache of 99 objects finds about as much as one of 100
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q libcachesim==0.3.5
cd "$folder"
"$folder/venv/bin/python" - <<'END'
from importlib.metadata import version
from random import Random

import libcachesim


def hits(size, objects):
    cache, found = libcachesim.WTinyLFU(size), 0
    for name in objects:
        request = libcachesim.Request()
        request.obj_id, request.obj_size = name, 1
        found += cache.get(request)
    return found


print("libcachesim", version("libcachesim"), "- 20,000 requests of 1,000 objects, the k-th as 1/k")
weights = [1 / rank for rank in range(1, 1001)]
objects = Random(0).choices(range(1, 1001), weights, k=20000)
seen = {size: hits(size, objects) for size in (50, 99, 100)}
print("guess: a cache of 99 finds almost as much as one of 100; hits by size:", seen)
assert seen[50] == seen[99] == 0 and seen[100] > 10000, seen
print("below 100 objects the window has no place, and no object is let in")
END
