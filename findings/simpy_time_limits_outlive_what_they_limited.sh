#!/bin/sh
# behaviour: the timeout of a condition that something else has fulfilled stays in the queue until it is due, so that run() ends with the last time limit, not with the last event that matters, and a long run keeps every limit that is not due
# package: simpy 4.1.1
# date: 2026-11-29
# guess: run() ends when the last request has left, so that env.now is the time that the load took
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q simpy==4.1.1
cd "$folder"
"$folder/venv/bin/python" - <<'END'
from importlib.metadata import version

import simpy

LIMIT_S = 3600
env = simpy.Environment()
slots = simpy.Container(env, capacity=10, init=10)
left = []


def request(arrival):
    """Five slots for a second, or it leaves after an hour in the queue."""
    yield env.timeout(arrival)
    got = slots.get(5)
    yield got | env.timeout(LIMIT_S)
    assert got.triggered  # all are served
    yield env.timeout(1)
    yield slots.put(5)
    left.append(env.now)


for number in range(1000):
    env.process(request(number))
env.run(until=1001)
print("simpy", version("simpy"), "- 1,000 requests, one each second, served at once for a second")
print("guess: nothing is to come at 1,001 s, and run() ends at 1,000 s")
to_come = 0
while env.peek() < float("inf"):
    env.step()
    to_come += 1
print(f"seen: {to_come:,} events to come; the last request left at {left[-1]} s, run() at {env.now}")
assert (left[-1], env.now, to_come) == (1000, 999 + LIMIT_S, 1000)
END
