"""Swapped prompts that have a registered prefix and were admitted for a chunk shorter than it."""

import json

SETTING = (
    "trace=wmt_5shot",
    "scheduler=chunked",
    "scheduler.max_num_batched_tokens=256",
    "preemption=swap",
    "arrivals.rate=20",
    "arrivals.duration_s=60",
    "server.kv_memory_gib={opt-13b: 2}",
)


def test_shares_of_memory_stay_within_0_and_1(testbed, tmp_path):
    assert testbed("run", *SETTING, "outputs=summary", "hydra.run.dir=out")[0] == 0
    summary = json.loads((tmp_path / "out" / "summary.json").read_text())
    assert summary["preemptions"]["swap"] > 0
    for average in ("per_iteration", "over_time"):
        shares = [part[average] for part in summary["memory"].values()]
        assert all(0 <= share <= 1 for share in shares)
