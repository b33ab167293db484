#!/bin/sh
# behaviour: Environment.run(until=3) ends before the events of time 3, so that a simulated server of n seconds lacks what ends at n, though its clock shows n
# package: simpy 4.1.2
# date: 2026-11-28
# guess: a run until 3 includes what happens at 3
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q simpy==4.1.2
cd "$folder"
"$folder/venv/bin/python" - <<'END'
import simpy

print("simpy", simpy.__version__)
served = []


def server(env):
    while True:
        yield env.timeout(1)
        served.append(env.now)


env = simpy.Environment()
env.process(server(env))
env.run(until=3)
print("one answer a second, run until 3; guess: answers at 1, 2 and 3")
print("clock", env.now, "answers", served)
assert (env.now, served) == (3, [1, 2])
env.run(until=3.5)
assert served == [1, 2, 3]
END
