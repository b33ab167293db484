"""The recipes of the embedded length models: which rows, how fine, and where they came from."""

import hashlib
from pathlib import Path
from typing import Any

from testbed.core.request import Rows
from traces.chat import ChatCsv
from traces.csv_lengths import CsvLengths
from traces.fit_alpaca import alpaca_rows
from traces.fit_chat import chat_errors, fit_chat
from traces.fit_pairs import Resolution, fit_errors, fit_pairs
from traces.reader import FileTrace
from traces.wmt import WmtCsv

MAX_LEN = 2048
Model = dict[str, Any]


def sharegpt(path: str) -> Model:
    """The paper's ShareGPT lengths under the artifact's filter (prompt + output below 2048)."""
    remarks = {
        "source": "github.com/sosp-ae-39/sosp-ae-astra commit 3180d2f8c2a2aa1729245f9b0cb75a854746e6a8, "
        "datasets/sharegpt_opt_text_completion_length.pkl: first round of each ShareGPT conversation, March 2023",
        "licence": "none stated for that file; only quantiles of its lengths are kept here",
        "tokenizer": "OPT",
        "note": "rows with prompt + output below 2048, as the artifact's trace code keeps them",
    }
    resolution = Resolution(bins=32, bin_tail=(0.98, 0.99, 0.995))
    return _model("sharegpt", CsvLengths(path), resolution, remarks)


def alpaca(path: str, outputs_path: str) -> Model:
    """Alpaca in OPT tokens: joint ranks from the pairs, output lengths from the larger sample."""
    remarks = {
        "source": "alpaca_data.json of tatsu-lab/stanford_alpaca: 2,773 rows (the first 1,805 and a random sample) "
        "tokenized, and 20,000 random output lengths from github.com/zhengzangw/Sequence-Scheduling commit "
        "3992f34113d1b0649e057d4608876ccfa78e8333",
        "licence": "the data set is CC BY-NC 4.0; only quantiles of lengths are kept here",
        "tokenizer": "OPT (GPT-2 BPE and one BOS a text)",
        "note": "prompts and the joint ranks come from the 2,773 rows; each output length is the one of the same rank "
        "among the 20,000, converted from LLaMA to OPT tokens by the rows that have both. Nothing is scaled to the "
        "paper's means (19.31 and 58.45)",
    }
    rows = alpaca_rows(path, outputs_path)
    return _finish("alpaca", rows, Resolution(bins=16), remarks, [path, outputs_path])


def wmt(path: str) -> Model:
    """WMT newstest2016 En-De: source sentences and translations, without the prefix."""
    remarks = {
        "source": "newstest2016 En-De, 2,999 sentence pairs, from github.com/Helsinki-NLP/OPUS-MT-testsets commit "
        "ac0f19c0be3cb4e0d9450fcb2d7a9847c4bdd180, datasets/statmt/wmt_newstest",
        "licence": "none named there for the WMT news sets; only quantiles of lengths are kept here",
        "tokenizer": "LLaMA",
        "note": "prompt = source sentence and ' =>'; the trace adds the k-shot prefix (80 or 341 tokens with BOS)",
    }
    return _model("wmt", WmtCsv(path, prefix=0), Resolution(bins=32, output_cells=16), remarks)


def chat(path: str) -> Model:
    """Multi-round ShareGPT conversations, as a model of turns."""
    remarks = {
        "name": "chat",
        "source": "github.com/microsoft/sarathi-serve commit 72339db5b120614033b317880ad3a05a5e4c9415, "
        "data/processed_traces/sharegpt_8k_filtered_stats_llama2_tokenizer.csv, parted into conversations where the "
        "history stops growing",
        "licence": "Apache-2.0; only quantiles of lengths are kept here",
        "tokenizer": "Llama-2",
        "note": "not the file of the paper's artifact (OPT tokens), which is not public; turns over 8k tokens and "
        "answers over 1,024 had been left out. Errors: the chat workload cut to 1,024 and 1,016 tokens",
    }
    trace = ChatCsv(path)
    model = fit_chat(trace.talks)
    facts = {"sha256": _sha256(path), "num_rows": len(trace.talks.prompt_len), "fit": chat_errors(trace, model)}
    return model.to_json() | remarks | facts


def lengths(path: str, name: str, source: str) -> Model:
    """Any CSV of lengths, all rows, the bins as fine as about 150 rows each allow."""
    trace = CsvLengths(path)
    rows = trace.rows(None, 0)
    bins = max(1, min(32, len(rows) // 150))
    longest = int((rows.prompt_len + rows.output_len).max())
    return _finish(name, rows, Resolution(bins), {"source": source}, [path], longest + 1)


def _model(name: str, trace: FileTrace, resolution: Resolution, remarks: dict[str, str]) -> Model:
    return _finish(name, trace.rows(None, 0, MAX_LEN), resolution, remarks, [trace.path])


def _finish(
    name: str, rows: Rows, resolution: Resolution, remarks: dict[str, str], paths: list[str], max_len: int = MAX_LEN
) -> Model:
    model = fit_pairs(name, rows.prompt_len, rows.output_len, max_len, resolution)
    errors = fit_errors(model, rows.prompt_len, rows.output_len)
    return (
        model.to_json()
        | remarks
        | {"sha256": ", ".join(_sha256(path) for path in paths), "num_rows": len(rows), "fit": errors}
    )


def _sha256(path: str) -> str:
    return hashlib.sha256(Path(path).read_bytes()).hexdigest()
