"""CSV files that are refused in one line: the file, the line, the column and what to do."""

import pytest
from refusals import check_refusal
from trace_files import check_file_is_refused

from testbed.traces.azure import AzureCsv
from testbed.traces.burstgpt import BurstGptCsv
from testbed.traces.chat import ChatCsv
from testbed.traces.csv_lengths import CsvLengths
from testbed.traces.wmt import WmtCsv

HEADER = "input_tokens,output_tokens\n"
WITH_IDS = "input_tokens,output_tokens,prompt_ids\n"
WHOLE_NUMBER = ("is not a whole number", "fix or remove")
LONG_WORD = "x" * 50

LENGTHS = [
    pytest.param("", ("is empty",), id="an empty file"),
    pytest.param(HEADER, ("has a header but no rows",), id="no rows"),
    pytest.param(
        "input_tokens,out\n1,2\n",
        ("no column 'output_tokens'", "input_tokens, out"),
        id="a column is missing",
    ),
    pytest.param(
        "input_tokens,output_tokens,arrivals_s\n5,3,0\n",
        ("'arrivals_s'", "did you mean 'arrival_s'?"),
        id="a mistyped column",
    ),
    pytest.param(
        "input_tokens,input_tokens,output_tokens\n1,2,3\n",
        ("input_tokens",),
        id="a column twice",
    ),
    pytest.param(HEADER + "1,2\n3\n", ("line 3: 1 fields", "header has 2"), id="a field less"),
    pytest.param(HEADER + "1,2\n\n3,4\n", ("line 3: 0 fields", "header has 2"), id="an empty line"),
    pytest.param(
        HEADER + "1,2\n0,5\n", ("line 3", "input_tokens", "'0'", *WHOLE_NUMBER), id="no input token"
    ),
    pytest.param(
        HEADER + "1,2\n4,-5\n", ("line 3", "output_tokens", "'-5'"), id="a negative output"
    ),
    pytest.param(HEADER + "1,2\n4,x\n", ("line 3", "output_tokens", "'x'"), id="a word"),
    pytest.param(HEADER + "1.5,2\n", ("line 2", "input_tokens", "'1.5'"), id="half a token"),
    pytest.param(
        HEADER + "2147483648,1\n",
        ("line 2", "input_tokens", "'2147483648'", *WHOLE_NUMBER),
        id="more tokens than 31 bits",
    ),
    pytest.param(
        HEADER + f"{LONG_WORD},5\n", ("line 2", "input_tokens", "x" * 40), id="a very long word"
    ),
    pytest.param(
        "priority,input_tokens,output_tokens\n-2147483648,1,1\n",
        ("priority", "'-2147483648'", *WHOLE_NUMBER),
        id="a priority below 32 bits",
    ),
    pytest.param(
        "beam,input_tokens,output_tokens\n2,1,1\n",
        ("line 2", "beam", "'2'", "1, true, 0 or false"),
        id="a beam that is no switch",
    ),
    pytest.param(
        "n,input_tokens,output_tokens\n0,1,1\n",
        ("line 2", "column n", "'0'", "at least 1"),
        id="no sequence",
    ),
    pytest.param(
        "arrival_s,input_tokens,output_tokens\ninf,1,2\n",
        ("line 2", "arrival_s", "'inf'", "not a time"),
        id="an infinite time",
    ),
    pytest.param(
        WITH_IDS + f"5,5,{LONG_WORD}\n",
        ("line 2", "prompt_ids", "x" * 40, "not whole numbers"),
        id="ids that are no numbers",
    ),
]


@pytest.mark.parametrize(("text", "words"), LENGTHS)
def test_lengths_are_refused_by_line_and_column(tmp_path, text, words):
    check_file_is_refused(
        tmp_path, {"a.csv": text}, words, lambda path: CsvLengths(path).rows(None, 0)
    )


def test_error_does_not_repeat_a_very_long_word(tmp_path):
    path = tmp_path / "a.csv"
    path.write_text(HEADER + f"{LONG_WORD},5\n")
    message = check_refusal((str(path),), lambda: CsvLengths(str(path)).rows(None, 0))
    assert LONG_WORD not in message


@pytest.mark.parametrize(
    ("ids", "words"),
    [
        pytest.param("7 8", ("line 2", "prompt_ids", "2 ids for 33 tokens", "3"), id="too few"),
        pytest.param("7 x 9", ("line 2", "'7 x 9'", "not whole numbers"), id="a word among them"),
    ],
)
def test_ids_that_do_not_cover_the_prompt_are_refused(tmp_path, ids, words):
    check_file_is_refused(
        tmp_path,
        {"a.csv": WITH_IDS + f"33,5,{ids}\n"},
        words,
        lambda path: CsvLengths(path, tokens_per_id=16).rows(None, 0),
    )


AZURE = "TIMESTAMP,ContextTokens,GeneratedTokens\n"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        pytest.param(
            AZURE + "yesterday,1,2\n",
            ("line 2", "TIMESTAMP", "'yesterday'"),
            id="a word for a time",
        ),
        pytest.param(
            AZURE + "2023-11-16 18:15:4x.68,1,2\n",
            ("line 2", "TIMESTAMP", "'2023-11-16 18:15:4x.68'"),
            id="a letter in a time",
        ),
        pytest.param(
            AZURE + "3023-11-16 18:15:46,1,2\n",
            ("line 2", "TIMESTAMP", "'3023-11-16 18:15:46'"),
            id="a year that no clock has",
        ),
        pytest.param(
            AZURE + "2023-11-16 18:15:46,1,0\n",
            ("line 2", "GeneratedTokens", "'0'"),
            id="no output token",
        ),
        pytest.param(
            "TIMESTAMP,ContextTokens\n2023-11-16 18:15:46,1\n",
            ("no column 'GeneratedTokens'",),
            id="a column is missing",
        ),
        pytest.param(
            "a,b\n1,2\n",
            ("nothing reads column 'a'",),
            id="columns of another file",
        ),
        pytest.param(
            "TIMESTAMP,ContextTokens\n1,2\n",
            ("no column", "TIMESTAMP, ContextTokens, GeneratedTokens"),
            id="a column too few",
        ),
    ],
)
def test_azure_rows_are_refused_by_line_and_column(tmp_path, text, words):
    check_file_is_refused(
        tmp_path, {"azure.csv": text}, words, lambda path: AzureCsv(path).rows(None, 0)
    )


WMT = "year,src_tokens_llama,tgt_tokens_llama\n"


def wmt_rows(*years):
    return WMT + "".join(f"{year},5,6\n" for year in years)


@pytest.mark.parametrize(
    ("text", "options", "words"),
    [
        pytest.param(
            wmt_rows(*range(2024, 2013, -1)),
            {"year": 9},
            ("year=9", "2014,", ", 2022)"),
            id="a year outside of eleven",
        ),
        pytest.param(
            wmt_rows(2010, *range(2001, 2010)),
            {},
            ("year=2016", ", ".join(map(str, range(2001, 2010)))),
            id="the default year is missing",
        ),
        pytest.param(
            wmt_rows(2014), {"source_column": "src"}, ("no column 'src'",), id="no such column"
        ),
        pytest.param(
            wmt_rows(2016), {"registered_prefix": -1}, ("prefix=-1",), id="a negative prefix"
        ),
    ],
)
def test_wmt_files_are_refused_by_year_and_column(tmp_path, text, options, words):
    options = {"registered_prefix": 0, **options}
    check_file_is_refused(
        tmp_path, {"wmt.csv": text}, words, lambda path: WmtCsv(path, **options).rows(None, 0)
    )


CHAT = "conv_id,turn,history_plus_prompt_tokens,output_tokens\n0,0,74,918\n1,0,290,905\n"


@pytest.mark.parametrize(
    ("row", "words"),
    [
        pytest.param("3,0,0,5", ("line 4", "history_plus_prompt_tokens", "'0'"), id="no prompt"),
        pytest.param("3,0,5,-1", ("line 4", "output_tokens"), id="a negative output"),
    ],
)
def test_chat_rows_are_refused_by_line_and_column(tmp_path, row, words):
    check_file_is_refused(
        tmp_path, {"chat.csv": f"{CHAT}{row}\n"}, words, lambda path: ChatCsv(path).rows(5, 0)
    )


BURST = "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\n"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        pytest.param(
            BURST + "5,ChatGPT,472,18,490,API log\n45,ChatGPT,x,230,1317,API log\n",
            ("line 3", "Request tokens", "'x'"),
            id="a word for tokens",
        ),
        pytest.param(
            BURST + "5,ChatGPT,472,18,490,API log\nsoon,ChatGPT,7,230,237,API log\n",
            ("line 3", "Timestamp", "'soon'"),
            id="a word for a time",
        ),
        pytest.param(
            BURST + "5,ChatGPT,472,18,490,API log\n45,ChatGPT,7,-230,237,API log\n",
            ("line 3", "Response tokens", "'-230'"),
            id="a negative answer",
        ),
        pytest.param(
            BURST.replace("Response tokens", "Answer") + "5,ChatGPT,472,18,490,API log\n",
            ("no column 'Response tokens'",),
            id="a column is missing",
        ),
        pytest.param(
            "Timestamp,Request tokens,Response tokens\n1,0,0\n",
            ("no request was answered",),
            id="only requests without an answer",
        ),
    ],
)
def test_burstgpt_rows_are_refused_by_line_and_column(tmp_path, text, words):
    check_file_is_refused(
        tmp_path, {"b.csv": text}, words, lambda path: BurstGptCsv(path).rows(None, 0)
    )
