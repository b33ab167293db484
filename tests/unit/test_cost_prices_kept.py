"""Shipped profiles price as they always did, bit for bit: numbers kept from before the format had optional sections."""

import csv
from pathlib import Path

import pytest

from testbed.core.slots import DEVICE, HOST
from testbed.core.specs import ModelSpec
from testbed.cost.model import Moved, Work
from testbed.cost.profile import PROFILES, Choices, ProfileCost, read_profile

KEPT = Path(__file__).parents[1] / "golden" / "profile_prices.csv"
OUT, IN = Moved(DEVICE, HOST, 16, 40), Moved(HOST, DEVICE, 16, 7)
WORKS = [
    Work(1, 17, 17),
    Work(7, 3011, 900),
    Work(100, 51_234, 2010, 700, (), 103),
    Work(300, 99_999, 1200),
    Work(0, 0, 0, 0, ((512, 0),), 1),
    Work(64, 30_001, 1900, 0, ((300, 700), (41, 0)), 70),
    Work(32, 9000, 800, 0, (), 32, ((16, 3), (5, 1)), (OUT, IN)),
]
CHOICES = {
    "plain": Choices(),
    "paper": Choices(kernel="paper", block_size=32, swap="per block", repeated_read=0.28),
    "told": Choices(overhead_s=0.003, overhead_per_worker_s=0.001, overhead_per_request_s=7e-6, attention_scale=1.3),
    "contiguous": Choices(kernel="contiguous", repeated_read=1.0),
}


def prices(name):
    """(profile, choices, work, price in picoseconds, growth of a decode step) for every case of a shipped profile."""
    profile = read_profile(name)
    for kind, choices in CHOICES.items():
        cost = ProfileCost(ModelSpec(**profile["model"]), None, profile, choices)
        for i, work in enumerate(WORKS):
            plain = not (work.prefill or work.copies)
            growth = cost.decode(work).growth_ps if plain else 0
            yield [name, kind, str(i), str(cost.iteration(work)), str(growth)]


@pytest.mark.parametrize("name", sorted(path.stem for path in PROFILES.glob("*.json")))
def test_a_shipped_profile_prices_as_before(name):
    kept = [row for row in csv.reader(KEPT.open()) if row[0] == name]
    assert kept
    assert list(prices(name)) == kept
