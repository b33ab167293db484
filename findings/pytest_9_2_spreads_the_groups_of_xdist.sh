#!/bin/sh
# behaviour: under pytest 9.2 --dist loadgroup of pytest-xdist 3.8 spreads the tests of one xdist_group over all workers; under 9.1 one worker runs them
# package: pytest 9.2.0
# date: 2026-11-29
# guess: tests of one xdist_group run in one process, one after the other, so they may share a port or a GPU
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
cd "$folder"
cat > test_group.py <<'END'
import time

import pytest


@pytest.mark.parametrize("number", range(8))
@pytest.mark.xdist_group("one")
def test_number(number, worker_id):
    time.sleep(0.2)
    with open("workers.txt", "a") as log:
        print(worker_id, file=log)
END

workers_of() {  # workers_of REQUIREMENT: number of workers that ran the group
    "$folder/venv/bin/pip" install -q "$1" pytest-xdist==3.8.0
    rm -f workers.txt
    "$folder/venv/bin/python" -m pytest -q -n 2 --dist loadgroup test_group.py > run.txt
    sort -u workers.txt | wc -l | tr -d ' '
}

before=$(workers_of pytest==9.1.1)
after=$(workers_of pytest==9.2.0)
echo "pytest-xdist 3.8.0, eight tests of one group, two workers"
echo "guess: 1 worker runs them under any pytest"
echo "seen: $before under pytest 9.1.1, $after under 9.2.0"
[ "$before $after" = "1 2" ]
