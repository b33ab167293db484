#!/bin/sh
# behaviour: the queue of a Container is first come, first served, so that a small request waits behind one that is too large, and the queue of a FilterStore is not
# package: simpy 4.1.1
# date: 2026-11-28
# guess: the queues of SimPy's shared resources have one rule
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q simpy==4.1.1
cd "$folder"
"$folder/venv/bin/python" - 2>errors <<'END' || { cat errors >&2; exit 1; }
from importlib.metadata import version

import simpy


def served(env, get):
    names = []

    def request(name, num_slots):
        yield get(num_slots)
        names.append(name)

    env.process(request("large", 8))
    env.process(request("small", 1))
    env.run()
    return names


print("simpy", version("simpy"), "- 4 slots are free, a request of 8 waits before one of 1")
env = simpy.Environment()
container = simpy.Container(env, capacity=10, init=4)
by_amount = served(env, container.get)
env = simpy.Environment()
store = simpy.FilterStore(env, capacity=10)
store.items.append(4)
by_filter = served(env, lambda num_slots: store.get(lambda free: free >= num_slots))
print("served from a Container:", by_amount, "- from a FilterStore with the same slots:", by_filter)
assert by_amount == [] and by_filter == ["small"]
END
