#!/bin/sh
# behaviour: a process that is interrupted while it waits at a Container leaves its get in the queue, which later takes the amount although nothing will put it back
# package: simpy 4.1.1
# date: 2026-11-28
# guess: an interrupted process waits for nothing any more, so a pool of KV slots modelled as a Container serves the next one
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q simpy==4.1.1
cd "$folder"
"$folder/venv/bin/python" - 2>errors <<'END' || { cat errors >&2; exit 1; }
from importlib.metadata import version

import simpy

env = simpy.Environment()
slots = simpy.Container(env, capacity=10, init=0)
served = []


def request(name, num_slots):
    try:
        yield slots.get(num_slots)
        served.append((env.now, name))
    except simpy.Interrupt:
        served.append((env.now, f"{name} is cancelled"))


def server(cancelled):
    yield env.timeout(1)
    cancelled.interrupt()
    yield env.timeout(1)
    yield slots.put(10)


first = env.process(request("first", 8))
env.process(request("second", 4))
env.process(server(first))
env.run()
print("simpy", version("simpy"), "- 10 slots come free at 2 s, the first request was cancelled at 1 s")
print("guess: the second request gets its 4 slots, 6 stay; seen:", served, "left:", slots.level)
assert served == [(1, "first is cancelled")] and slots.level == 2
END
