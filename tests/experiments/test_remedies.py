"""Ways out that messages name exist, and lead on. `refused` of the tests' command line checks the
options of each refusal that any test sees.
"""

import re
import shlex

import pytest
from remedies import COMMAND, OPTION, ROOT, VALUE, is_key, is_option, options_of_commands, remedies

from testbed.experiments.arena.suites import suite_of
from testbed.experiments.cli.examples import EXAMPLES

# Of examples that need a user's own files, an installed vLLM or a minute
OF_USER = ("RUN", "LOG", "FOLDER", "vllm --random", "fig2", "testbed check")
SHORTER = {
    "capacity": ["--seeds", "1", "arrivals.duration_s=10"],
    "mend": ["--seeds", "1"],
    "hits": ["arrivals.duration_s=60"],
}
# A line that is refused, and words of its message that end that refusal
WAYS_OUT = {
    "run server.kv_memory_gib=4": "server.kv_memory_gib={opt-13b: 4}",
    "run server.kv_memory_gib=4 model=qwen2.5-0.5b": "server.kv_memory_gib={qwen2.5-0.5b: 4}",
    "run server.num_gpus=2": "~server.kv_memory_gib",
    "run server.num_gpus=2 seed=1": "server.kv_memory_of.num_gpus=2",
    "run server.num_blocks=10": "~server.kv_memory_gib",
    "run policy=tiered": "+tier@server.tiers.dram=dram",
    "run router=round_robin": "replicas=2",
    "run replicas=2 prefill_replicas=1 handover.bandwidth=2e9": "handover=whole",
    "run speculation=heads": "scheduler=vllm_v1",
    "run speculation=heads scheduler=vllm_v1 preemption=swap": "preemption=recompute",
    "run +tier@server.tiers.dram=dram policy=tiered server.tiers.dram.shared=true "
    "server.tiers.dram.read_bandwidth=1e9 server.tiers.dram.write_bandwidth=1e9": "replicas=2",
    "run policy=grouped_caching_v1 policy.page_rule=large_pages model=gpt-oss-20b "
    "scheduler=vllm_v1": "policy.page_rule=one_page_size",
    "capacity policy=paged": "slo.ttft_s=1",
    "fits 'vllm serve meta-llama/Llama-3.1-8B'": "gpu=h100-80gb",
}


def test_each_option_key_and_command_of_a_remedy_exists():
    found, missing = list(remedies()), list[str]()
    for place, text in found:
        missing += [f"{place}: {name}" for name in OPTION.findall(text) if not is_option(name)]
        missing += [f"{place}: {name}=" for name in VALUE.findall(text) if not is_key(name)]
        missing += [
            f"{place}: testbed {words}"
            for words in COMMAND.findall(text)
            if words.split()[0] not in options_of_commands()
        ]
    assert len(found) > 450
    assert missing == []


def test_a_remedy_that_does_not_exist_is_found():
    assert not is_option("--nope")
    assert not is_key("page_rule")
    assert is_key("policy.page_rule")
    assert is_option("--no-async-scheduling")
    assert not is_option("--seeds", of_command="fits")


@pytest.mark.parametrize("line", WAYS_OUT)
def test_a_way_out_is_named_and_ends_the_refusal(testbed, line):
    words, way_out = shlex.split(line), WAYS_OUT[line]
    short = [] if words[0] == "fits" else ["arrivals.duration_s=1"]
    refusal = testbed.refused(*words, *short)
    assert way_out.partition("=")[0].lstrip("~") in refusal, refusal
    kept = [word for word in words if word.partition("=")[0] != way_out.partition("=")[0]]
    code, _, error = testbed(*kept, way_out, *short)
    assert error != refusal
    assert code in (0, 1), error


@pytest.mark.parametrize("command", EXAMPLES)
def test_a_bare_command_names_a_line_that_works(testbed, command):
    assert EXAMPLES[command] in testbed.refused(*command.split())


@pytest.mark.parametrize(
    "line", [line for line in EXAMPLES.values() if not any(word in line for word in OF_USER)]
)
def test_the_line_is_accepted(testbed, line):
    """With five seconds of arrivals, and one seed, by which `mend` may separate nothing."""
    _, *words = shlex.split(re.sub(r"(?<=arrivals.duration_s=)\d+", "5", line))
    code, output, error = testbed(*words, *SHORTER.get(words[0], ()))
    assert code == 0 or (words[0], code) == ("mend", 1), error
    assert output


def test_the_readme_s_table_has_lines_that_work(testbed):
    """Beside those of `EXAMPLES`, whose lines are tested: with little load, or as they are."""
    page = (ROOT / "README.md").read_text(encoding="utf-8")
    lines = re.findall(r"(?m)^\| [^|]+ \| `(testbed [^`]+)` \|", page)
    assert len(lines) == 9
    own = [line for line in lines if line not in EXAMPLES.values()]
    assert [line.split()[1] for line in own] == ["run", "arena", "serve"]
    run = re.sub(r"(?<=arrivals.duration_s=)\d+", "2", own[0])
    assert testbed(*shlex.split(run)[1:])[0] == 0
    assert suite_of(own[1].split()[-1])
