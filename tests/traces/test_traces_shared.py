"""Against the real files, where they are at hand: in the folder TESTBED_SHARED, or in ../shared of the repository."""

import os
from pathlib import Path

import pytest

from testbed.memory.prefix_cache.eviction.lru import Lru
from testbed.memory.prefix_cache.replay import prompts_of, replay
from testbed.traces.azure import AzureCsv
from testbed.traces.csv_lengths import PUBLISHED, CsvLengths, rows_sha256
from testbed.traces.mooncake import MooncakeJsonl
from testbed.traces.wmt import WmtCsv

DATA = Path(os.environ.get("TESTBED_SHARED", Path(__file__).parents[3] / "shared")) / "data"
SHAREGPT = "sharegpt_sosp23/sharegpt_opt_lengths.csv.gz"
WMT = "wmt_newstest/wmt_ende_lengths.csv.gz"


def shared(name):
    path = DATA / name
    if not path.exists():
        pytest.skip(f"needs the shared data file {name} (set TESTBED_SHARED to its folder)")
    return str(path)


def test_sharegpt_rows_are_the_published_ones():
    assert rows_sha256(CsvLengths(shared(SHAREGPT)).read()) in PUBLISHED
    rows = CsvLengths(shared(SHAREGPT)).rows(None, 0, max_len=2049)
    assert len(rows) == 79_731
    assert rows.prompt_len.mean() == pytest.approx(161.31, abs=0.005)
    assert rows.output_len.mean() == pytest.approx(337.99, abs=0.005)


def test_mooncake_ideal_hit_rate_matches_the_paper():
    rows = MooncakeJsonl(shared("mooncake/conversation_trace.jsonl.gz")).rows(None, 0)
    blocks = sum(map(len, rows.prompt_ids))
    distinct = len(set().union(*rows.prompt_ids))
    assert (len(rows), blocks) == (12_031, 288_500)
    assert 1 - distinct / blocks == pytest.approx(0.366, abs=0.0005)
    assert replay(list(prompts_of(rows, 512)), None, Lru()).hit_rate == pytest.approx(0.366, abs=0.001)
    assert rows.arrival_s[-1] == pytest.approx(3536.999)


def test_azure_conversation_trace_matches_its_statistics():
    rows = AzureCsv(shared("azure_2023/azure_llm_conv.csv.gz")).rows(None, 0)
    assert len(rows) == 19_366
    assert rows.prompt_len.mean() == pytest.approx(1154.7, abs=0.05)
    assert rows.arrival_s[-1] == pytest.approx(3502, abs=1)


def test_wmt_prompt_lengths_match_the_measured_ones():
    rows = WmtCsv(shared(WMT), registered_prefix=80).rows(None, 0)
    assert len(rows) == 2999
    assert rows.prompt_len.mean() == pytest.approx(108.55, rel=0.005)
    assert rows.output_len.mean() == pytest.approx(36.29, abs=0.005)
