#!/bin/sh
# behaviour: WTinyLFU of libcachesim counts no hit of an object while that is in the window, so that an object of a hundred uses in a burst loses to objects of one
# package: libcachesim 0.3.5
# date: 2026-11-28
# guess: TinyLFU counts every access, so what leaves the window after a hundred uses replaces an object of the main cache that was used once
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q libcachesim==0.3.5
cd "$folder"
"$folder/venv/bin/python" - <<'END'
from importlib.metadata import version

import libcachesim

cache = libcachesim.WTinyLFU(200)  # a window of two objects


def ask(name):
    request = libcachesim.Request()
    request.obj_id, request.obj_size = name, 1
    return cache.get(request)


for name in range(1, 203):  # fills the main cache with objects of one use
    ask(name)
burst = sum(ask(500) for _ in range(100))
newcomers = [ask(name) for name in (601, 602, 603)]
kept = sum(ask(name) for name in range(100, 110))
print("libcachesim", version("libcachesim"), "- WTinyLFU of 200 objects, 202 are asked for once,")
print("then one a hundred times in a row, then three others; hits of the burst:", burst)
print("objects 100 to 109, used once, are still there:", kept, "of 10")
found = ask(500)
print("guess: so is the one of a hundred uses; seen:", found)
assert (burst, kept, any(newcomers), found) == (99, 10, False, False)
END
