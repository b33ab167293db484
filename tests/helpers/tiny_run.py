"""A run of seven short requests on a pool of a few blocks, small enough to follow by eye."""

import sys
from unittest import mock

from testbed import simulate
from testbed.experiments.cli.main import main

LENGTHS = (
    "input_tokens,output_tokens,arrival_s\n"
    "7,9,0\n5,6,0.02\n10,14,0.05\n3,20,0.1\n6,9,0.3\n9,12,0.35\n4,4,0.5\n"
)
PACE = (
    "scheduler=separate",
    "cost=analytic",
    "cost.software.overhead_s=6.3e-3",
    "cost.software.overhead_per_request_s=0",
)  # 26 ms
BLOCK_SIZE, BYTES_PER_TOKEN = 4, 800 * 1024


def tiny_overrides(lengths, blocks):
    """Options of the run on a pool of so many blocks, whose requests are written to this file."""
    lengths.write_text(LENGTHS)
    gib = (blocks + 0.5) * BLOCK_SIZE * BYTES_PER_TOKEN / 2**30
    return (
        "trace=csv",
        f"trace.path={lengths}",
        "arrivals=replay",
        f"policy.block_size={BLOCK_SIZE}",
        "model.max_len=32",
        f"server.kv_memory_gib={{opt-13b: {gib}}}",
        *PACE,
    )


def tiny_run(folder, *options, blocks=18):
    """Simulate it by the command line, with these overrides; the run folder."""
    lengths = folder.with_name(f"{folder.name}.csv")
    outputs = ("outputs=summary", f"hydra.run.dir={folder}")
    overrides = (*tiny_overrides(lengths, blocks), *outputs, *options)
    with mock.patch.object(sys, "argv", sys.argv):
        assert main(["run", *overrides]) == 0
    return folder


def tiny_result(folder, *options, blocks=10, **more):
    """Simulate it in Python, with these overrides; its file of requests is in the folder."""
    return simulate(*tiny_overrides(folder / "tiny.csv", blocks), *options, **more)


def without_id(summary):
    """The simulated values, without the name of the run, which every option changes."""
    return {**summary, "run": {key: value for key, value in summary["run"].items() if key != "id"}}
