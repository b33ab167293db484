"""Random numbers of tokens are SplitMix64's, one argument after another, in blocks as alone."""

from itertools import product

from testbed.speculation.token_random import BLOCK, GOLDEN, _drawn, uniform, uniforms

WORD = (1 << 64) - 1


def plain(*values):
    state = 0
    for value in values:
        state = ((state ^ value) + GOLDEN) & WORD
        state = ((state ^ (state >> 30)) * 0xBF58476D1CE4E5B9) & WORD
        state = ((state ^ (state >> 27)) * 0x94D049BB133111EB) & WORD
        state ^= state >> 31
    return (state >> 11) / 2**53


def test_numbers_of_tokens_are_those_of_splitmix64():
    for seed, request_id, stream in product([0, 7, WORD], [0, 5, 10**6], [0, 2]):
        expected = [plain(seed, stream, request_id, token) for token in range(3 * BLOCK)]
        assert [uniform(seed, request_id, token, stream) for token in range(3 * BLOCK)] == expected
        for first, count in product([0, BLOCK - 2, BLOCK], [0, 2, 3, BLOCK + 9]):
            numbers = uniforms(seed, request_id, first, count, stream)
            assert numbers == expected[first : first + count]


def test_numbers_of_many_requests_side_by_side_are_drawn_once():
    _drawn.cache_clear()
    for token, request_id, stream in product([0, 1], range(1100), [0, 1]):
        uniform(3, request_id, token, stream)
    assert _drawn.cache_info().misses == 2 * 1100
