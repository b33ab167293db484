#!/bin/sh
# behaviour: LIRS of libcachesim can evict an object at a hit, so that a full cache has fewer objects after it
# package: libcachesim 0.3.5
# date: 2026-11-28
# guess: a hit needs no room, so a cache that is full stays full
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q libcachesim==0.3.5
cd "$folder"
"$folder/venv/bin/python" - 2>errors <<'END' || { cat errors >&2; exit 1; }
from importlib.metadata import version

import libcachesim

cache, seen = libcachesim.LIRS(3), []
for name in [1, 2, 3, 1, 4, 1, 2, 5, 3, 1, 2, 3]:
    request = libcachesim.Request()
    request.obj_id, request.obj_size = name, 1
    seen.append((name, cache.get(request), cache.get_n_obj()))
print("libcachesim", version("libcachesim"), "- a cache of three objects")
print("the last accesses, hits and objects in the cache:", seen[-3:])
assert seen[-3:] == [(1, True, 3), (2, True, 3), (3, True, 2)]
END
