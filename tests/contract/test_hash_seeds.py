"""No part that ships follows hashes of strings: in one process for each of two seeds, as `testbed
check` has them, all orders, schedulers and a radix cache answer the same.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

from test_checked_parts import POOL, SCHEDULERS
from test_orders import ORDERS

from testbed.checks import hash_seeds
from testbed.checks.fast_and_slow import LIMITS
from testbed.memory.policy import PoolSpec
from testbed.memory.radix.radix import Radix

# A class, the pools in which it is asked, and its parameters
ASKED = [(order, (), {}) for order in ORDERS]
ASKED += [(scheduler, (POOL,), options or LIMITS) for scheduler, options in SCHEDULERS.items()]
ASKED += [(Radix, (PoolSpec(200, 64),), {"block_size": 16})]


def digests_of_all():
    """Digests of what each class answers, by its name."""
    return {
        kind.__name__: [hash_seeds._digest(example.ask) for example in examples]
        for kind, pools, parameters in ASKED
        if (examples := hash_seeds.examples_of(kind, pools, parameters))
    }


def digests_under(seed):
    """The digests of a process with this seed of the hash."""
    code = "import json, test_hash_seeds; print(json.dumps(test_hash_seeds.digests_of_all()))"
    places = os.pathsep.join([str(Path(__file__).parent), *filter(None, sys.path)])
    environ = {**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": places}
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, env=environ, capture_output=True, text=True, check=True)
    return json.loads(done.stdout)


def test_no_class_follows_the_hashes_of_strings():
    one, other = map(digests_under, hash_seeds.SEEDS)
    assert one == other
    assert one.keys() == {kind.__name__ for kind, *_ in ASKED}
    assert all(len(one[order.__name__]) > 10 for order in ORDERS)
    assert all(one.values())
