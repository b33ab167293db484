#!/bin/sh
# behaviour: a PriorityStore gives items of equal priority in the order of a heap, not in the order of their arrival, whereas the queue of a PriorityResource keeps it
# package: simpy 4.1.2
# date: 2026-11-29
# guess: requests of equal priority that wait in a PriorityStore are served first come, first served, as a server with priority scheduling does
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q simpy==4.1.2
cd "$folder"
"$folder/venv/bin/python" - <<'END'
from importlib.metadata import version

import simpy

NUM_REQUESTS = 8


def by_store():
    """The order in which requests leave a PriorityStore that had all of them."""
    env = simpy.Environment()
    queue = simpy.PriorityStore(env)
    order = []

    def server():
        for number in range(NUM_REQUESTS):
            yield queue.put(simpy.PriorityItem(priority=0, item=number))
        for _ in range(NUM_REQUESTS):
            request = yield queue.get()
            order.append(request.item)

    env.process(server())
    env.run()
    return order


def by_resource():
    """The order in which requests get a PriorityResource of one place."""
    env = simpy.Environment()
    server = simpy.PriorityResource(env)
    order = []

    def request(number):
        with server.request(priority=0) as place:
            yield place
            order.append(number)
            yield env.timeout(1)

    for number in range(NUM_REQUESTS):
        env.process(request(number))
    env.run()
    return order


print("simpy", version("simpy"), "- requests 0 to 7, all of priority 0, in this order")
print("guess: they are served in this order; seen:")
print("PriorityStore:   ", *by_store())
print("PriorityResource:", *by_resource())
assert by_store() == [0, 2, 6, 5, 7, 4, 1, 3], by_store()
assert by_resource() == [*range(NUM_REQUESTS)], by_resource()
END
