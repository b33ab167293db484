"""Each file format on a tiny file: what is read, and how a line or a file that is bad is named in
one line.
"""

import json
from pathlib import Path

import pytest
from refusals import refuses
from trace_files import pairs, put, tokenizer  # noqa: F401

from testbed.traces.azure import AzureCsv
from testbed.traces.csv_lengths import CsvLengths
from testbed.traces.mooncake import MooncakeJsonl
from testbed.traces.sharegpt import ShareGptJson
from testbed.traces.vllm_log import VllmLog
from testbed.traces.wmt import WmtCsv


def talk(*messages):
    return {
        "id": "x",
        "conversations": [{"from": sampler, "value": text} for sampler, text in messages],
    }


def test_sharegpt_takes_the_first_round(tmp_path, tokenizer):  # noqa: F811
    talks = [
        talk(("human", "one two"), ("gpt", "a b c d e"), ("human", "more"), ("gpt", "more")),
        talk(("gpt", "cut off before"), ("user", "why"), ("assistant", "so it is")),
        talk(("human", "unanswered")),
        talk(("human", "blank"), ("gpt", "  ")),
        talk(),
    ]
    path = put(tmp_path, "s.json", json.dumps(talks))
    assert pairs(ShareGptJson(path, tokenizer).rows(None, 0)) == [(3, 6), (2, 4)]


def test_bad_tokenizer_file_is_refused(tmp_path, tokenizer):  # noqa: F811
    path = put(tmp_path, "s.json", json.dumps([talk(("human", "a"), ("gpt", "b"))]))
    refuses(
        r"none\.json: ",
        lambda: ShareGptJson(path, str(tmp_path / "none.json")).rows(None, 0),
    )
    refuses(r"s\.json: ", lambda: ShareGptJson(path, path).rows(None, 0))


def test_missing_tokenizers_package_is_reported(tmp_path, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "tokenizers", None)
    path = put(tmp_path, "s.json", json.dumps([talk(("human", "a"), ("gpt", "b"))]))
    refuses(r"s\.json: ", lambda: ShareGptJson(path, path).rows(None, 0))


HEADER = "input_tokens,output_tokens\n"
AZURE = "TIMESTAMP,ContextTokens,GeneratedTokens\n"


@pytest.mark.parametrize("zone", ["", "+00:00", "Z"])
def test_azure_csv_is_read_as_published(tmp_path, zone):
    rows = f"2023-11-16 18:15:46.6805900{zone},374,44\n2023-11-16 18:15:50.9951690{zone},396,109\n"
    read = AzureCsv(put(tmp_path, "az.csv", AZURE + rows)).rows(None, 0)
    assert pairs(read) == [(374, 44), (396, 109)]
    assert read.arrival_s.tolist() == pytest.approx([0, 4.314579], abs=1e-9)


def test_azure_csv_with_relative_times_is_read(tmp_path):
    path = put(
        tmp_path, "az.csv.gz", "arrival_s,input_tokens,output_tokens\n0.0,374,44\n4.3,396,109\n"
    )
    read = AzureCsv(path).rows(None, 0)
    assert pairs(read) == [(374, 44), (396, 109)]
    assert read.arrival_s.tolist() == [0.0, 4.3]


def moon(timestamp=0, input_length=600, output_length=5, hash_ids=(0, 1)):
    item = {"timestamp": timestamp, "input_length": input_length, "output_length": output_length}
    return json.dumps(item | {"hash_ids": hash_ids}) + "\n"


@pytest.mark.parametrize("name", ["m.jsonl", "m.jsonl.gz"])
def test_mooncake_keeps_hashes_and_times(tmp_path, name):
    path = put(tmp_path, name, moon() + moon(2500.0, 1024, 7, [0, 2]) + "\n")
    rows = MooncakeJsonl(path).rows(None, 0)
    assert pairs(rows) == [(600, 5), (1024, 7)]
    assert rows.arrival_s.tolist() == [0.0, 2.5]
    assert (list(rows.prompt_ids), rows.tokens_per_id) == ([(0, 1), (0, 2)], 512)


def test_milliseconds_since_1970_are_as_exact_as_those_since_the_first(tmp_path):
    begin = 1_700_000_000_000
    path = put(tmp_path, "m.jsonl", moon(begin) + moon(begin + 3) + moon(begin + 1001))
    assert MooncakeJsonl(path).rows(None, 0).arrival_s.tolist() == [0.0, 0.003, 1.001]


def test_the_first_requests_of_mooncake_are_those_of_the_file(tmp_path):
    path = put(tmp_path, "m.jsonl", moon() + moon(2500.0, 1024, 7, [0, 2]))
    assert pairs(MooncakeJsonl(path, num_requests=1).rows(None, 0)) == [(600, 5)]
    refuses(r"m\.jsonl: ", MooncakeJsonl(path, num_requests=3).read)


def test_numbers_and_paths_at_their_limits_are_read(tmp_path):
    most = 2**31 - 1
    lines = moon() + moon(10**15, 512, most, [0])
    rows = MooncakeJsonl(put(tmp_path, "m.jsonl", lines)).read()
    assert (rows.output_len.tolist(), rows.arrival_s.tolist()) == ([5, most], [0, 1e12])
    text = (
        f"p,o,n,beam,priority,arrival_s\n{most},1,1,1,{-most},-5\n1,{most},{most},0,{most},1e300\n"
    )
    rows = CsvLengths(
        Path(put(tmp_path, "a.csv", text)), input_column="p", output_column="o"
    ).read()
    assert pairs(rows) == [(most, 1), (1, most)]
    assert (rows.num_seqs.tolist(), rows.beam.tolist()) == ([1, most], [True, False])
    assert (rows.priority.tolist(), rows.arrival_s.tolist()) == ([-most, most], [-5, 1e300])
    assert pairs(WmtCsv(Path(put(tmp_path, "w.csv", WMT)), registered_prefix=0).read()) == [
        (20, 30),
        (7, 8),
    ]


WMT = "year,src_tokens_llama,tgt_tokens_llama\n2014,5,6\n2016,20,30\n2016,7,8\n"


def test_wmt_prepends_the_prefix_to_each_source(tmp_path):
    path = put(tmp_path, "w.csv", WMT)
    rows = WmtCsv(path, registered_prefix=341).rows(None, 0)
    assert pairs(rows) == [(361, 30), (348, 8)]
    assert rows.registered_prefix == 341
    assert len(WmtCsv(path, registered_prefix=80, year=None).rows(None, 0)) == 3
    assert WmtCsv(path, registered_prefix=80).rows(9, 0).registered_prefix == 80
    assert pairs(WmtCsv(path, registered_prefix=0).rows(None, 0)) == [(20, 30), (7, 8)]


def read(tmp_path, name, content):
    return CsvLengths(put(tmp_path, name, content)).rows(None, 0)


@pytest.mark.parametrize("name", ["arrival_column", "prompt_ids_column"])
def test_a_configured_column_must_exist(tmp_path, name):
    trace = CsvLengths(put(tmp_path, "a.csv", HEADER + "1,2\n"), **{name: "typo"})
    refuses("no column 'typo'; it has input_tokens, output_tokens", trace.rows, None, 0)


def test_missing_file_and_folder_are_refused(tmp_path):
    refuses(
        r"nowhere\.csv: ",
        lambda: CsvLengths(str(tmp_path / "nowhere.csv")).rows(None, 0),
    )
    refuses("is a folder", lambda: CsvLengths(str(tmp_path)).rows(None, 0))


def test_whole_floats_bom_and_trailing_blank_lines_are_accepted(tmp_path):
    rows = read(tmp_path, "a.csv", "\ufeff" + HEADER + "3.0,4\r\n\n\n")
    assert (rows.prompt_len.tolist(), rows.output_len.tolist()) == ([3], [4])


def test_a_token_before_the_end_is_a_remark(tmp_path):
    text = "input_tokens,output_tokens,arrival_s,first_token_s,finish_s\n9,1,0,1,2\n9,2,0,1,2\n"
    log = VllmLog(put(tmp_path, "served.csv", text))
    log.read()
    assert log.remarks == ["1 of 2 requests have one token and end later than with it"]
