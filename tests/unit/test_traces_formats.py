"""Each file format on a tiny file: what is read, and what a bad line says."""

import gzip
import json

import pytest

from testbed.core.errors import InputError
from traces.alpaca import AlpacaJson
from traces.azure import AzureCsv
from traces.mooncake import MooncakeJsonl
from traces.sharegpt import ShareGptJson
from traces.wmt import WmtCsv


def written(tmp_path, name, text):
    path = tmp_path / name
    path.write_bytes(gzip.compress(text.encode()) if name.endswith(".gz") else text.encode())
    return str(path)


def pairs(rows):
    return list(zip(rows.prompt_len.tolist(), rows.output_len.tolist(), strict=True))


@pytest.fixture
def tokenizer(tmp_path):
    """A tokenizer file that counts words, adds one BOS a text, and (wrongly for us) truncates and pads."""
    tokenizers = pytest.importorskip("tokenizers", reason="needs the tokenizers extra")
    made = tokenizers.Tokenizer(tokenizers.models.WordLevel({"<s>": 0, "?": 1}, unk_token="?"))
    made.pre_tokenizer = tokenizers.pre_tokenizers.WhitespaceSplit()
    made.post_processor = tokenizers.processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 0)])
    made.enable_truncation(4)
    made.enable_padding(pad_token="?", pad_id=1)
    path = str(tmp_path / "tokenizer.json")
    made.save(path)
    return path


def talk(*messages):
    return {"id": "x", "conversations": [{"from": speaker, "value": text} for speaker, text in messages]}


def test_sharegpt_takes_the_first_round(tmp_path, tokenizer):
    talks = [
        talk(("human", "one two"), ("gpt", "a b c d e"), ("human", "more"), ("gpt", "more")),
        talk(("gpt", "cut off before"), ("user", "why"), ("assistant", "so it is")),
        talk(("human", "unanswered")),
        talk(("human", "blank"), ("gpt", "  ")),
        talk(),
    ]
    path = written(tmp_path, "s.json", json.dumps(talks))
    assert pairs(ShareGptJson(path, tokenizer).rows(None, 0)) == [(3, 6), (2, 4)]


def test_alpaca_joins_instruction_and_input(tmp_path, tokenizer):
    items = [
        {"instruction": "add these", "input": "1 2", "output": "3"},
        {"instruction": "tell me", "input": "", "output": "no way"},
        {"instruction": "drawn", "input": "", "output": ""},
    ]
    path = written(tmp_path, "a.json.gz", json.dumps(items))
    assert pairs(AlpacaJson(path, tokenizer).rows(None, 0)) == [(5, 2), (3, 3)]


@pytest.mark.parametrize(
    ("reader", "content", "culprit"),
    [
        (ShareGptJson, "[]", "must be a JSON list with at least one item"),
        (ShareGptJson, "{}", "must be a JSON list"),
        (ShareGptJson, '[{"id": 1}]', "item 1: not a ShareGPT conversation"),
        (ShareGptJson, '[{"conversations": [{"from": "gpt"}]}]', "item 1: not a ShareGPT conversation"),
        (ShareGptJson, '[{"conversations": []}]', "no conversation has a human message"),
        (ShareGptJson, '[{"conversations": [', "not valid JSON, or cut short"),
        (AlpacaJson, '[{"instruction": "x"}]', "item 1: needs 'instruction' and 'output'"),
        (AlpacaJson, "[7]", "item 1: needs"),
        (AlpacaJson, '[{"instruction": " ", "output": "x"}]', "no item has both"),
    ],
)
def test_bad_json_names_the_item(tmp_path, reader, content, culprit):
    with pytest.raises(InputError, match=culprit) as caught:
        reader(written(tmp_path, "t.json", content), "unused").rows(None, 0)
    assert "t.json" in str(caught.value)


def test_bad_tokenizer_file(tmp_path, tokenizer):
    path = written(tmp_path, "s.json", json.dumps([talk(("human", "a"), ("gpt", "b"))]))
    with pytest.raises(InputError, match=r"none\.json: no such file"):
        ShareGptJson(path, str(tmp_path / "none.json")).rows(None, 0)
    with pytest.raises(InputError, match=r"s\.json: not a tokenizer"):
        ShareGptJson(path, path).rows(None, 0)


def test_missing_tokenizers_package_says_so(tmp_path, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "tokenizers", None)
    path = written(tmp_path, "s.json", json.dumps([talk(("human", "a"), ("gpt", "b"))]))
    with pytest.raises(InputError, match="needs the package tokenizers"):
        ShareGptJson(path, path).rows(None, 0)


AZURE = "TIMESTAMP,ContextTokens,GeneratedTokens\n"


@pytest.mark.parametrize("zone", ["", "+00:00", "Z"])
def test_azure_as_published(tmp_path, zone):
    rows = f"2023-11-16 18:15:46.6805900{zone},374,44\n2023-11-16 18:15:50.9951690{zone},396,109\n"
    read = AzureCsv(written(tmp_path, "az.csv", AZURE + rows)).rows(None, 0)
    assert pairs(read) == [(374, 44), (396, 109)]
    assert read.arrival_s.tolist() == pytest.approx([0, 4.314579], abs=1e-9)


def test_azure_relative_form(tmp_path):
    path = written(tmp_path, "az.csv.gz", "arrival_s,input_tokens,output_tokens\n0.0,374,44\n4.3,396,109\n")
    read = AzureCsv(path).rows(None, 0)
    assert pairs(read) == [(374, 44), (396, 109)]
    assert read.arrival_s.tolist() == [0.0, 4.3]


@pytest.mark.parametrize(
    ("content", "culprit"),
    [
        (AZURE + "yesterday,1,2\n", "line 2, column TIMESTAMP: 'yesterday' is not a time such as 2023"),
        (AZURE + "2023-11-16 18:15:46,1,0\n", "line 2, column GeneratedTokens: '0'"),
        (AZURE + "5,1,2\n", "line 2, column TIMESTAMP: '5'"),
        (AZURE + ",1,2\n", "line 2, column TIMESTAMP: ''"),
        ("TIMESTAMP,ContextTokens\n2023-11-16 18:15:46,1\n", "no column 'GeneratedTokens'"),
        ("a,b\n1,2\n", "no column 'arrival_s'; needs TIMESTAMP, ContextTokens, GeneratedTokens as published"),
    ],
)
def test_bad_azure_line(tmp_path, content, culprit):
    with pytest.raises(InputError, match=culprit):
        AzureCsv(written(tmp_path, "az.csv", content)).rows(None, 0)


def moon(timestamp=0, input_length=600, output_length=5, hash_ids=(0, 1)):
    item = {"timestamp": timestamp, "input_length": input_length, "output_length": output_length}
    return json.dumps(item | {"hash_ids": hash_ids}) + "\n"


@pytest.mark.parametrize("name", ["m.jsonl", "m.jsonl.gz"])
def test_mooncake_keeps_hashes_and_times(tmp_path, name):
    path = written(tmp_path, name, moon() + moon(2500.0, 1024, 7, [0, 2]) + "\n")
    rows = MooncakeJsonl(path).rows(None, 0)
    assert pairs(rows) == [(600, 5), (1024, 7)]
    assert rows.arrival_s.tolist() == [0.0, 2.5]
    assert (list(rows.prompt_ids), rows.tokens_per_id) == ([(0, 1), (0, 2)], 512)


def test_mooncake_recipe_shuffles_hashes_with_their_rows(tmp_path):
    lines = [moon(i, 512 * (i + 1), 5, list(range(i + 1))) for i in range(9)]
    rows = MooncakeJsonl(written(tmp_path, "m.jsonl", "".join(lines))).rows(20, seed=4)
    assert [len(ids) * 512 for ids in rows.prompt_ids] == rows.prompt_len.tolist()
    assert rows.arrival_s is None


@pytest.mark.parametrize(
    ("line", "culprit"),
    [
        (moon(input_length=0), "line 2: input_length is 0, not a whole number of tokens"),
        (moon(output_length=-3), "line 2: output_length is -3"),
        (moon(output_length="7"), "line 2: output_length is '7'"),
        (moon(output_length=True), "line 2: output_length is True"),
        (moon(timestamp=None), "line 2: timestamp is None"),
        (moon(timestamp=-1), "line 2: timestamp is -1"),
        (moon(timestamp=float("nan")), "line 2: timestamp is nan"),
        (moon(hash_ids=[1]), "line 2: 1 hash_ids for 2 blocks of 512 tokens"),
        (moon(hash_ids="ab"), "line 2: hash_ids is not a list"),
        ("[1]\n", "line 2: is not a JSON object"),
        (moon()[:20], "line 2: not valid JSON, or cut short"),
    ],
)
def test_bad_mooncake_line(tmp_path, line, culprit):
    with pytest.raises(InputError, match=culprit):
        MooncakeJsonl(written(tmp_path, "m.jsonl", moon() + line)).rows(None, 0)


def test_empty_and_truncated_mooncake(tmp_path):
    with pytest.raises(InputError, match="is empty"):
        MooncakeJsonl(written(tmp_path, "m.jsonl", "\n")).rows(None, 0)
    path = tmp_path / "cut.jsonl.gz"
    path.write_bytes(gzip.compress("".join(moon(i) for i in range(999)).encode())[:-20])
    with pytest.raises(InputError, match=r"cut\.jsonl\.gz: the gzip file is truncated"):
        MooncakeJsonl(str(path)).rows(None, 0)


WMT = "year,src_tokens_llama,tgt_tokens_llama\n2014,5,6\n2016,20,30\n2016,7,8\n"


def test_wmt_puts_the_prefix_before_each_source(tmp_path):
    path = written(tmp_path, "w.csv", WMT)
    rows = WmtCsv(path, prefix=341).rows(None, 0)
    assert pairs(rows) == [(361, 30), (348, 8)]
    assert rows.prefix == 341
    assert len(WmtCsv(path, prefix=80, year=None).rows(None, 0)) == 3
    assert WmtCsv(path, prefix=80).rows(9, 0).prefix == 80


def test_bad_wmt(tmp_path):
    path = written(tmp_path, "w.csv", WMT)
    with pytest.raises(InputError, match="no row of year 2017; it has 2014, 2016"):
        WmtCsv(path, 80, year=2017).rows(None, 0)
    with pytest.raises(InputError, match="no column 'src'"):
        WmtCsv(path, 80, source_column="src").rows(None, 0)
    with pytest.raises(InputError, match="prefix is -1"):
        WmtCsv(path, -1)
