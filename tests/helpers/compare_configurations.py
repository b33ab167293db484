"""Do documented commands configure what they did? Exits 1 at a difference without a reason below.

python tests/helpers/compare_configurations.py OLD NEW

OLD and NEW are source trees. The commands are those of OLD (see printed_configurations.py); words
that NEW does not have any more are given as in RENAMED and MOVED. DELIBERATE has every difference
that is meant. With base 19441464 as OLD, all differences are these.
"""

import json
import os
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from math import isinf
from pathlib import Path
from typing import Any, NamedTuple

PRINT = Path(__file__).with_name("printed_configurations.py")
ABSENT, ANY = "(absent)", "*"
OF_SOFTWARE = re.compile(r"software|overhead_\w+|sequences_per_fork|extra_s")
USUAL_BLOCK = 16  # tokens, of measured times for a policy without blocks
RENAMED = {  # words of OLD as those of NEW
    "+system=vllm-v1-0.33": "+system=vllm-v1 release=0.33",
    "policy=prefix_caching_v1_33": "policy=prefix_caching_v1 release=0.33",
    "policy=grouped_caching_v1_33": "policy=grouped_caching_v1 release=0.33",
    "scheduler=priority": "scheduler=chunked order=aging",
    "scheduler=by_session": "scheduler=chunked order=by_session",
    "scheduler=time_to_live": "scheduler=chunked order=time_to_live",
}
MOVED = {"cost.choices.overhead_": "cost.software.overhead_"}  # beginnings of words likewise


class Reason(NamedTuple):
    """Values that differ at keys of this pattern, and why; a value is JSON, ABSENT or ANY. most: by
    which share two numbers may differ.
    """

    key: str
    old: str
    new: str
    why: str
    most: float = float("inf")


UNREAD = "no cost of a drafter's passes had software times, whatever these said"
DEFAULT = "added, with the value that leaves everything as it was"
FACTS = "a fact of the model that vLLM's start depends on, added"
MERGERS = "the mergers of a Qwen's encoder of images, counted too"
OF_RELEASE = "follows from `release` now"
ORDER = "an order is a part of a scheduler, with its old values"
POOL = "the memory that vLLM's own start was compared with, recomputed"
DELIBERATE = tuple(
    Reason(*row)
    for row in (
        ("outputs", '"full"', '"tables"', "charts are drawn where they are asked for"),
        ("beams._target_", ANY, '"testbed.sched.beam_search.SyntheticBeams"', "a module's name"),
        (r"cost\.choices\.block_size", ANY, ANY, "that of the policy, whose page changed"),
        (r"server\.gpu\.transfers", "null", '"h100"', "the link of an H100 was measured"),
        (r"(cost\.)?software\.extra_s", ABSENT, "{}", DEFAULT),
        (r"cost\.(choices\.cuda_graph_sizes|software\.name)", ABSENT, "null", DEFAULT),
        (r"cost\.choices\.experts", ABSENT, '"balanced"', DEFAULT),
        (r"(cost\.)?software\.overhead_per_worker_s", ABSENT, "0.0", DEFAULT),
        (r"speculation\.efficiencies\.(software|overhead_\w+|sequences_\w+)", ANY, ABSENT, UNREAD),
        (r"cost\.choices\.swap_waits", ABSENT, '"by layer"', DEFAULT),
        (r"trace\.registered_prefix", ABSENT, "0", DEFAULT),
        (r"trace\.answer_scale", ABSENT, "1.0", DEFAULT),
        (r"trace\.tokens_per_id", ABSENT, "16", DEFAULT),
        (r"trace\.(beam|session|priority|think)_column", ANY, ABSENT, "has one name"),
        (r"trace\.\w+_column", ABSENT, ANY, "names of more columns, " + DEFAULT),
        (r"trace\.(ignored_columns)", ABSENT, "[]", DEFAULT),
        (r"router\.(weighs_usage)", ABSENT, "false", DEFAULT),
        (r"trace\.(first_|delay_m|time_unit|vocab_size)\w*", ABSENT, "null", DEFAULT),
        (r"trace\.shared_ids", "false", "null", "null decides by the file, false where none has"),
        (r"speculation\.takes_memory", ABSENT, "true", DEFAULT),
        (r"engine\.share_prefixes", ABSENT, "false", DEFAULT),
        (r"model\.(chunks|rope)", ABSENT, "null", DEFAULT),
        (
            r"model\.(experts\.latent_size|states\.(chunk_size|untyped_values))",
            ABSENT,
            "0",
            DEFAULT,
        ),
        (r"model\.experts\.step", ABSENT, "1", DEFAULT),
        (r"model\.latent\.packed_bytes", ABSENT, "0", DEFAULT),
        (r"model\.(latent\.prefers_fp8|copied_bits)", ABSENT, "null", DEFAULT),
        (
            r"model\.(\w+_params|eagle3_since|layer_order|rope\.\w+|chunks\.\w+|states\.\w+)",
            ABSENT,
            ANY,
            FACTS,
        ),
        (
            r"model\.(has|needs|caps|masks|drafts|gated|repeats|routes|copies)_\w+",
            ABSENT,
            ANY,
            FACTS,
        ),
        (r"model\.(vision_heads|window\.is_required)", ABSENT, ANY, FACTS),
        (r"model\.max_len", "131072", "10485760", "Llama 4 Scout's, by its config.json"),
        (r"model\.vocab_size", "262144", "262208", "Gemma 3 with images, by its config.json"),
        (r"model\.vision_params", "412425216", "572857344", MERGERS),
        (r"model\.vision_params", "412839936", "452947968", MERGERS),
        (r"policy\.(asks_ahead|uncached_first|frees_after_run)", ANY, ABSENT, OF_RELEASE),
        (r"policy\.(num_dropped_blocks|num_hashed_behind)", ANY, ABSENT, OF_RELEASE),
        (r"policy\.max_batched_tokens", ANY, ABSENT, OF_RELEASE),
        (r"scheduler\.(cuts_lone_prompt|drafts_as)", ANY, ABSENT, OF_RELEASE),
        (r"policy\.block_size", ANY, ANY, "the page that vLLM's start chooses for the model"),
        (r"server\.(num_blocks|kv_memory_gib\..*)", ANY, ANY, POOL, 0.025),
        (r"server\.kv_memory_gib\.gpt-oss-120b", ANY, ANY, "Triton's experts on Hopper", 0.08),
        ("release", ABSENT, '"0.33"', "in place of a system of its own"),
        (r"policy\.slab_size", ABSENT, "16", "the default of a plug-in's constructor is shown"),
        (r"scheduler\.order\..*", ABSENT, ANY, ORDER),
        (r"scheduler\._target_", ANY, '"testbed.sched.chunked.ChunkedPrefill"', ORDER),
        (r"scheduler\.(patience_s|time_to_live_s)", "10.0", ABSENT, ORDER),
        (
            r"policy\.watermark",
            "0.01",
            "0.0",
            "the chosen policy's own default, not that of the system's",
        ),
        (
            r"workload\.max_len",
            ANY,
            "null",
            "longer requests are rejected, as vLLM does, not left out",
        ),
    )
)


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


def with_software(cost: dict[str, Any]) -> dict[str, Any]:
    """The costs with software times as a part of their own, which were values of the choices or
    efficiencies. Those of a roofline of cost=auto were not read.
    """
    charged = {key: value for key, value in cost.get("software", {}).items() if key != "_target_"}
    others = {name: value for name, value in cost.items() if name != "software"}
    for part in {"choices", "efficiencies", "roofline"} & cost.keys():
        of_part = {key: value for key, value in cost[part].items() if OF_SOFTWARE.fullmatch(key)}
        others[part] = {key: value for key, value in cost[part].items() if key not in of_part}
        if part != "roofline":
            named = {"name" if key == "software" else key: of for key, of in of_part.items()}
            charged |= named
    return {**others, "software": charged} if charged else others


def comparable(values: dict[str, Any]) -> dict[str, Any]:
    """The values with the blocks of the pool as their tokens, since blocks may differ in size, with
    the block size that measured times are read for, 16 or the policy's, and with the software times
    of the costs in one place.
    """
    server, size = values["server"], values["policy"].get("block_size")
    cost = with_software(values["cost"])
    if server["num_blocks"] is not None and size is not None:
        server = {**server, "num_blocks": server["num_blocks"] * size}
    if "choices" in cost and cost["choices"].get("block_size") is None:
        cost = {
            **cost,
            "choices": {**cost["choices"], "block_size": USUAL_BLOCK if size is None else size},
        }
    return {**values, "server": server, "cost": cost}


def different(old: Any, new: Any) -> Iterator[tuple[str, str, str]]:
    """Key, old and new value of each difference; a refusal is the value of the key `refused`."""
    if isinstance(old, str) or isinstance(new, str):
        if type(old) is not type(new):
            yield "refused", *(x if isinstance(x, str) else "no" for x in (old, new))
        return
    before, after = (dict(flat(comparable(values))) for values in (old, new))
    for key in sorted(before.keys() | after.keys()):
        values = before.get(key, ABSENT), after.get(key, ABSENT)
        if values[0] != values[1]:
            yield key, *values


def reason(key: str, old: str, new: str) -> Reason | None:
    """The reason of a difference."""
    for known in DELIBERATE:
        is_of_values = known.old in (ANY, old) and known.new in (ANY, new)
        if is_of_values and re.fullmatch(known.key, key) and are_near(old, new, known.most):
            return known
    return None


def are_near(old: str, new: str, most: float) -> bool:
    """True if two numbers differ by this share at most; any two values do by an infinite one."""
    return isinf(most) or abs(float(new) / float(old) - 1) <= most


def renamed(word: str) -> str:
    """A word of OLD as those of NEW."""
    for old, new in MOVED.items():
        word = word.replace(old, new) if word.startswith(old) else word
    return RENAMED.get(word, word)


def main(old_tree: Path, new_tree: Path) -> int:
    """Print how many commands are equal, and each reason with its count; 1 for a difference that
    has none.
    """
    commands = run(old_tree, "commands", str(old_tree))
    translated = [
        (server, [new for word in words for new in renamed(word).split(" ")])
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
    print(*sorted({values[:90] for values in before if isinstance(values, str)}), sep="\n")
    for why, count in reasons.most_common():
        print(f"{count:6}  {why.key}: {why.old} -> {why.new}: {why.why}")
    print(f"{without.total()} differences without a reason")
    for difference, count in without.most_common():
        print(f"{count:6}  {': '.join(difference)}  ({examples[difference][:160]})")
    return 1 if without else 0


if __name__ == "__main__":
    sys.exit(main(*map(Path, sys.argv[1:3])))
