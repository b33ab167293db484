#!/bin/sh
# behaviour: GDSF of libcachesim lets an object in only when it was requested as often as what would leave, where the published rule always lets it in
# package: libcachesim 0.3.5
# date: 2026-11-28
# guess: GreedyDual-Size-Frequency evicts the object of least priority and takes in the requested one, so the second request of an object is a hit
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q libcachesim==0.3.5
cd "$folder"
"$folder/venv/bin/python" - <<'END'
from importlib.metadata import version

import libcachesim


def hits(kind, objects):
    cache, found = kind(1), 0
    for name in objects:
        request = libcachesim.Request()
        request.obj_id, request.obj_size = name, 1
        found += cache.get(request)
    return found


print("libcachesim", version("libcachesim"), "- a cache of one object of size 1")
objects = [1] * 50 + [2] * 200
seen = {kind.__name__: hits(kind, objects) for kind in (libcachesim.LRU, libcachesim.GDSF)}
print("object 1 fifty times, then object 2 two hundred times; guess: 49 + 199 = 248 hits")
print("hits:", seen)
assert seen == {"LRU": 248, "GDSF": 199}, seen
print("GDSF has kept object 2 out for its first fifty requests")
END
