"""Against the real files, where they are at hand: in the folder TESTBED_SHARED, or in ../shared of the repository."""

import os
from pathlib import Path

import pytest

from traces.azure import AzureCsv
from traces.csv_lengths import CsvLengths
from traces.fit import main
from traces.mooncake import MooncakeJsonl
from traces.wmt import WmtCsv

REPOSITORY = Path(__file__).parents[2]
DATA = Path(os.environ.get("TESTBED_SHARED", REPOSITORY.parent / "shared")) / "data"
SHAREGPT = "sharegpt_sosp23/sharegpt_opt_lengths.csv.gz"
WMT = "wmt_newstest/wmt_ende_lengths.csv.gz"
INPUTS = {
    "sharegpt": [SHAREGPT],
    "alpaca": ["alpaca/alpaca_pairs.csv", "alpaca/alpaca_output_lengths_20k_llama.csv.gz"],
    "wmt": [WMT],
    "chat": ["sharegpt_multiturn/sharegpt_chat_turns.csv.gz"],
}


def shared(name):
    path = DATA / name
    if not path.exists():
        pytest.skip(f"needs the shared data file {name} (set TESTBED_SHARED to its folder)")
    return str(path)


@pytest.mark.parametrize("recipe", INPUTS)
def test_fit_gives_the_shipped_model_byte_for_byte(recipe, tmp_path):
    out = tmp_path / f"{recipe}.json"
    assert main([recipe, *map(shared, INPUTS[recipe]), "--out", str(out)]) == 0
    shipped = REPOSITORY / "traces" / "models" / f"{recipe}.json"
    assert out.read_bytes() == shipped.read_bytes()


def test_sharegpt_means_of_the_paper():
    rows = CsvLengths(shared(SHAREGPT)).rows(None, 0, max_len=2049)
    assert len(rows) == 79_731
    assert rows.prompt_len.mean() == pytest.approx(161.31, abs=0.005)
    assert rows.output_len.mean() == pytest.approx(337.99, abs=0.005)


def test_mooncake_ideal_hit_rate():
    rows = MooncakeJsonl(shared("mooncake/conversation_trace.jsonl.gz")).rows(None, 0)
    blocks = sum(map(len, rows.prompt_ids))
    distinct = len(set().union(*rows.prompt_ids))
    assert (len(rows), blocks) == (12_031, 288_500)
    assert 1 - distinct / blocks == pytest.approx(0.366, abs=0.0005)
    assert rows.arrival_s[-1] == pytest.approx(3536.999)


def test_azure_conversation_trace():
    rows = AzureCsv(shared("azure_2023/azure_llm_conv.csv.gz")).rows(None, 0)
    assert len(rows) == 19_366
    assert rows.prompt_len.mean() == pytest.approx(1154.7, abs=0.05)
    assert rows.arrival_s[-1] == pytest.approx(3502, abs=1)


def test_wmt_prompts_are_the_measured_ones():
    rows = WmtCsv(shared(WMT), prefix=80).rows(None, 0)
    assert len(rows) == 2999
    assert rows.prompt_len.mean() == pytest.approx(108.55, rel=0.005)
    assert rows.output_len.mean() == pytest.approx(36.29, abs=0.005)
