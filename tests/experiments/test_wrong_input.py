"""Forty more kinds of wrong input, on the command line and in Python: one line, exit code 2, nothing half-written."""

import json

import numpy as np
import pytest

from testbed.core.errors import InputError
from testbed.core.request import Rows
from testbed.core.shapes import read_model
from testbed.core.specs import GpuSpec, ServerSpec
from testbed.cost.sections import read_profile
from testbed.memory.contiguous.contiguous import ContiguousMax
from testbed.memory.paged.paged import Paged
from testbed.memory.policy import PoolSpec
from testbed.memory.prefix_cache.prefix_index import block_contents
from testbed.sim.arrivals import Gamma, Poisson, Replay, Sessions, Slotted
from traces.agent_sessions import AgentSessions
from traces.csv_lengths import CsvLengths
from traces.synthetic import Fitted

RUN = {
    "an equals sign alone": ("=", "Could not override ''"),
    "two equals signs": ("policy==paged", "policy==paged"),
    "a flag without its value": ("--config-dir", "--config-dir needs a value"),
    "a folder that is not there": ("--config-dir nowhere", "nowhere: no such folder"),
    "a model that lacks numbers": ("--config-dir=mine model=short", "missing 9 required"),
    "a model that is not YAML": ("--config-dir=mine model=odd", "while parsing"),
    "a model without layers": ("model.num_layers=0", "model.num_layers is 0"),
    "no number at all": ("arrivals.rate=nan", "arrivals.rate is nan"),
    "more than a float holds": ("arrivals.rate=1e400", "arrivals.rate is inf"),
    "a list for a number": ("arrivals.rate=[1,2]", "arrivals.rate is [1, 2]"),
    "beyond the end of time": ("arrivals.duration_s=1e12", "time ends at"),
    "no burstiness": ("arrivals=gamma arrivals.burstiness=0", "burstiness is 0"),
    "blocks of nothing": ("policy.block_size=0", "block_size is 0"),
    "a watermark above the pool": ("policy.watermark=2", "watermark is 2"),
    "a word for a share": ("policy.watermark=x", "watermark is 'x'"),
    "no sequences": ("workload.num_seqs=0", "num_seqs is 0"),
    "a word for a switch": ("workload.beam=maybe", "beam is 'maybe'"),
    "negative memory": ("swap_space_gib=-1", "swap_space_gib is -1"),
    "half a GPU": ("server.num_gpus=0.5", "num_gpus is 0.5"),
    "one pool for all models": ("server.kv_memory_gib=3", "GiB by model"),
    "a budget below nothing": ("scheduler.max_num_batched_tokens=-1", "max_num_batched_tokens is -1"),
    "a window that ends before it begins": ("window_s=[5,1]", "window_s is [5, 1]"),
    "outputs that nobody knows": ("outputs=nothing", "outputs is 'nothing'"),
    "an empty file": ("trace=csv trace.path=empty.csv", "empty.csv: is empty"),
    "a folder for a file": ("trace=csv trace.path=mine", "mine: is a folder"),
    "not text": ("trace=csv trace.path=bytes.csv", "bytes.csv: not UTF-8"),
    "another format": ("trace=mooncake trace.path=other.jsonl arrivals=replay", "other.jsonl, line 1: timestamp"),
    "an embedded model that is none": ("trace.model=nope", "no length model 'nope'"),
    "a profile that is none": ("cost=profile cost.path=nope", "no profile nope"),
    "a profile that is no JSON": ("cost=profile cost.path=lengths.csv", "lengths.csv: not a profile"),
    "a class in a file with mistakes": ("policy=syntax_mistake:Policy", "syntax_mistake"),
    "a class that is no policy": ("policy=not_a_policy:Policy", "which is no testbed.memory.policy.MemoryPolicy"),
    "a group in the wrong place": ("policy=prefix_caching eviction=arc", "eviction@policy.eviction"),
    "a file for a folder": ("hydra.run.dir=lengths.csv", "lengths.csv"),
    "a closed loop of lengths": ("trace=csv trace.path=lengths.csv arrivals=sessions", "trace=agent_sessions"),
    "a beam without its record": ("beams=recorded workload.beam=true", "beams.path is not given"),
}  # fmt: skip
OTHERS = {
    "reproduce fig2 --seeds 0": "--seeds",
    "reproduce table1 --out lengths.csv": "lengths.csv",
    "list --config-dir nowhere": "nowhere",
    "bench --nope": "--nope",
    "check not_a_policy:Policy": "no MemoryPolicy",
    "check json": "MODULE:CLASS",
    "report nowhere": "nowhere",
    "report": "FOLDER",
    "report lengths.csv": "lengths.csv",
    "compare": "RUN",
    "compare a=nowhere": "nowhere: no such folder",
    "compare mine": "mine: has no summary.json",
    "timeline nowhere": "nowhere is not a run folder",
    "timeline mine --from x": "--from",
    "timeline mine --from 5 --to 1": "nothing lies between",
    "capacity paged": "paged",
    "capacity policy=paged": "no objective",
    "capacity policy=paged slo.ttft_s=1 --share 2": "share is 2",
    "capacity policy=paged slo.ttft_s=1 --low 3": "low is 3",
    "capacity policy=paged slo.ttft_s=-1": "slo.ttft_s is -1",
    "capacity slo.ttft_s=1 arrivals.rate=3": "rate is what capacity looks for",
    "capacity slo.ttft_s=1 --runs lengths.csv": "lengths.csv",
    "show-memory mine": "no config.yaml",
    "import-model lengths.csv": "lengths.csv: not a JSON file",
    "import-profile nowhere --out x.json": "nowhere",
    "derive-profile --from h200-opt-13b-tp1 --to nope": "nope",
    "validate nowhere.jsonl": "nowhere.jsonl",
    "fit-software nowhere.csv": "nowhere.csv",
    "calibrate --model foo --out x": "unknown model foo",
    "calibrate --model opt-13b:3 --out x": "does not divide",
    "calibrate --model opt-13b llama-13b --out nowhere": "need a folder",
}
POOL = PoolSpec(64, 32)
SMALL = ServerSpec("small", GpuSpec("gpu", 10**9, 1e9, 1e12, 1e8, 1e9), 1)
PYTHON = {
    "blocks of nothing": (lambda: Paged(POOL, block_size=0), "block_size is 0"),
    "a watermark above the pool": (lambda: Paged(POOL, watermark=1.5), "watermark is 1.5"),
    "a buddy's unit of nothing": (lambda: ContiguousMax(POOL, block_size=0), "block_size is 0"),
    "a server too small": (lambda: SMALL.kv_slots(read_model("opt-13b")), "opt-13b leaves no room for a KV cache"),
    "no rate": (lambda: Poisson(0, 10), "arrivals.rate is 0"),
    "no burstiness": (lambda: Gamma(1, 10, 0), "arrivals.burstiness is 0"),
    "slots of less than time has": (lambda: Slotted(1, 10, 1e-15), "arrivals.slot_s is 1e-15"),
    "nothing to replay": (lambda: Replay().times_ps(None, 0), "needs a trace with time stamps"),
    "no sessions": (lambda: Sessions(0), "arrivals.at_once is 0"),
    "a prompt of nothing": (lambda: Rows(np.array([0]), np.array([1])), "row 0: prompt_len is 0"),
    "contents that nobody told": (lambda: next(Rows(np.array([1]), np.array([1])).prompts()), "does not say"),
    "blocks across ids": (lambda: block_contents((1, 2), 24, 48, 16), "one must divide"),
    "no such model": (lambda: read_model("gpt-9"), "unknown model gpt-9"),
    "no such profile": (lambda: read_profile("nope"), "no profile nope"),
    "no such file": (lambda: CsvLengths("nowhere.csv").rows(None, 0), "nowhere.csv: no such file"),
    "no such sessions": (lambda: AgentSessions("nowhere.jsonl").rows(None, 0), "nowhere.jsonl: no such file"),
    "a negative number of rows": (lambda: Fitted("sharegpt").rows(-1, 0), "num_rows is -1"),
    "a negative seed": (lambda: Fitted("sharegpt").rows(1, -1), "seed is -1"),
    "a limit that no row keeps": (lambda: Fitted("sharegpt").rows(9, 0, 2), "hardly any row"),
}  # fmt: skip


@pytest.fixture
def folder(testbed, tmp_path):
    """A working folder with things that are not what they are taken for."""
    (tmp_path / "mine" / "model").mkdir(parents=True)
    (tmp_path / "mine" / "model" / "short.yaml").write_text("_target_: testbed.core.specs.ModelSpec\nname: short\n")
    (tmp_path / "mine" / "model" / "odd.yaml").write_text("a: [\n")
    (tmp_path / "lengths.csv").write_text("input_tokens,output_tokens\n3,4\n")
    (tmp_path / "empty.csv").write_text("")
    (tmp_path / "bytes.csv").write_bytes(b"\xff\xfe\x00")
    (tmp_path / "other.jsonl").write_text(json.dumps({"a": 1}))
    (tmp_path / "syntax_mistake.py").write_text("def Policy(:\n")
    (tmp_path / "not_a_policy.py").write_text("class Policy:\n    def __init__(self, pool): pass\n")
    return tmp_path


def refused(testbed, folder, arguments, culprit):
    before = {path for path in folder.rglob("*") if "__pycache__" not in path.parts}
    code, output, error = testbed(*arguments)
    assert code == 2
    assert error.endswith("\n")
    assert error.count("\n") == 1, error
    assert culprit in error
    assert "Traceback" not in output + error
    assert {path for path in folder.rglob("*") if "__pycache__" not in path.parts} == before


@pytest.mark.parametrize("kind", RUN)
def test_run(testbed, folder, kind):
    arguments, culprit = RUN[kind]
    refused(testbed, folder, ["run", *arguments.split()], culprit)


@pytest.mark.parametrize("line", OTHERS)
def test_other_commands(testbed, folder, line):
    refused(testbed, folder, line.split(), OTHERS[line])


@pytest.mark.parametrize("kind", PYTHON)
def test_python(kind):
    call, culprit = PYTHON[kind]
    with pytest.raises(InputError) as caught:
        call()
    assert culprit in str(caught.value)
    assert "\n" not in str(caught.value)
