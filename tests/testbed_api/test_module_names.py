"""A module's name says which one it is: few are used in two rooms."""

from collections import Counter
from pathlib import Path

ROOT = Path(__file__).parents[2]
MOST_TWICE = 15  # those of both systems' rooms, vllm and sglang, and a few


def test_few_names_of_modules_are_used_twice():
    rooms = ("testbed", "experiments", "kernels", "traces")
    # links in `testbed` to the other rooms are not followed
    files = [file for room in rooms for file in (ROOT / room).rglob("*.py")]
    names = Counter(file.name for file in {file.resolve() for file in files})
    twice = [name for name, count in names.items() if count > 1 and name != "__init__.py"]
    assert len(names) > 500
    assert len(twice) <= MOST_TWICE, sorted(twice)
