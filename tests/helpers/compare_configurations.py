"""Do documented commands configure what they did? Exits 1 at a difference without a reason below.

python tests/helpers/compare_configurations.py OLD NEW

OLD and NEW are source trees. The commands are those of OLD (see printed_configurations.py); words
that NEW does not have any more are given as in RENAMED. DELIBERATE has every difference that is
meant. With base 19441464 as OLD, all differences are these.
"""

import json
import os
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

PRINT = Path(__file__).with_name("printed_configurations.py")
ABSENT, ANY = "(absent)", "*"
RENAMED = {  # words of OLD as those of NEW
    "+system=vllm-v1-0.33": "+system=vllm-v1 release=0.33",
    "policy=prefix_caching_v1_33": "policy=prefix_caching_v1 release=0.33",
    "policy=grouped_caching_v1_33": "policy=grouped_caching_v1 release=0.33",
    "scheduler=priority": "scheduler=chunked order=aging",
    "scheduler=by_session": "scheduler=chunked order=by_session",
    "scheduler=time_to_live": "scheduler=chunked order=time_to_live",
}


class Reason(NamedTuple):
    """Values that differ at keys of this pattern, and why; a value is JSON, ABSENT or ANY."""

    key: str
    old: str
    new: str
    why: str


DELIBERATE = ()


def run(tree: Path, *words: str, given: Any = None) -> Any:
    """The JSON that the script prints in a tree."""
    environment = os.environ | {"PYTHONPATH": str(tree)}
    done = subprocess.run(
        [sys.executable, str(PRINT), *words],
        input=json.dumps(given),
        capture_output=True,
        text=True,
        env=environment,
        check=False,
        cwd=tree,
    )
    if done.returncode:
        sys.exit(done.stderr)
    return json.loads(done.stdout)


def flat(values: Any, above: str = "") -> Iterator[tuple[str, str]]:
    """Values by dotted key, as JSON."""
    if not isinstance(values, dict) or not values:
        yield above, json.dumps(values)
        return
    for name, value in values.items():
        yield from flat(value, f"{above}.{name}" if above else name)


def different(old: Any, new: Any) -> Iterator[tuple[str, str, str]]:
    """Key, old and new value of each difference; a refusal is the value of the key `refused`."""
    if isinstance(old, str) or isinstance(new, str):
        if type(old) is not type(new):
            yield "refused", *(x if isinstance(x, str) else "no" for x in (old, new))
        return
    before, after = dict(flat(old)), dict(flat(new))
    for key in sorted(before.keys() | after.keys()):
        values = before.get(key, ABSENT), after.get(key, ABSENT)
        if values[0] != values[1]:
            yield key, *values


def reason(key: str, old: str, new: str) -> Reason | None:
    """The reason of a difference."""
    for known in DELIBERATE:
        is_of_values = known.old in (ANY, old) and known.new in (ANY, new)
        if is_of_values and re.fullmatch(known.key, key):
            return known
    return None


def main(old_tree: Path, new_tree: Path) -> int:
    """Print how many commands are equal, and each reason with its count; 1 for a difference that
    has none.
    """
    commands = run(old_tree, "commands", str(old_tree))
    translated = [
        (server, [new for word in words for new in RENAMED.get(word, word).split(" ")])
        for server, words in commands
    ]
    before = run(old_tree, "print", given=commands)
    after = run(new_tree, "print", given=translated)
    reasons, without, num_equal = Counter[Reason](), Counter[tuple[str, str, str]](), 0
    examples: dict[tuple[str, str, str], str] = {}
    for (server, words), old, new in zip(commands, before, after, strict=True):
        found = list(different(old, new))
        num_equal += not found
        for difference in found:
            why = reason(*difference)
            if why is None:
                without[difference] += 1
                examples.setdefault(difference, " ".join([server or "", *words]))
            else:
                reasons[why] += 1
    refused = sum(isinstance(values, str) for values in before)
    print(f"{len(commands)} commands, {refused} of which OLD refuses; {num_equal} equal at once")
    for why, count in reasons.most_common():
        print(f"{count:6}  {why.key}: {why.old} -> {why.new}: {why.why}")
    print(f"{without.total()} differences without a reason")
    for difference, count in without.most_common():
        print(f"{count:6}  {': '.join(difference)}  ({examples[difference][:160]})")
    return 1 if without else 0


if __name__ == "__main__":
    sys.exit(main(*map(Path, sys.argv[1:3])))
