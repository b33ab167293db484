"""Random requests whose prompts share beginnings, for a cache below the device."""

from testbed.core.request import Request


def requests_of(random, pool):
    """24 requests over time, from three stories; lengths fit a pool of so many slots."""
    now, stories = 0, [[random.randrange(10**6) for _ in range(pool)] for _ in range(3)]
    for i in range(24):
        now += round(random.expovariate(1 / random.choice([1, 20, 200])) * 10**9)
        length = random.randint(1, pool // 2)
        shared = random.choice([0, length, random.randint(0, length)])
        own = tuple(random.randrange(10**6) for _ in range(length - shared))
        ids = (*random.choice(stories)[:shared], *own)
        yield Request(i, now, length, random.randint(1, pool // 4), prompt_ids=ids)
