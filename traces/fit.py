"""Make a length model from a length file: `python -m traces.fit lengths FILE --out model.json`.

The embedded models were made by the other recipes (`python -m traces.fit --help`) from files that do not ship with the
project. A model file holds quantiles, their errors and where the lengths came from; it holds no row of the file. The
same file gives the same bytes.
"""

import argparse
import hashlib
import json
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from testbed.core.errors import InputError
from testbed.core.request import Rows
from traces.csv_lengths import CsvLengths
from traces.fit_alpaca import alpaca_rows
from traces.fit_pairs import Resolution, fit_errors, fit_pairs

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


def lengths(path: str, name: str, source: str) -> Model:
    """Any CSV of lengths, all rows, the bins as fine as about 150 rows each allow."""
    trace = CsvLengths(path)
    rows = trace.rows(None, 0)
    bins = max(1, min(32, len(rows) // 150))
    longest = int((rows.prompt_len + rows.output_len).max())
    return _finish(name, rows, Resolution(bins), {"source": source}, [path], longest + 1)


def _model(name: str, trace: CsvLengths, resolution: Resolution, remarks: dict[str, str]) -> Model:
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


def to_text(model: Model) -> str:
    """The file's text: one line a list of numbers or a flat group of facts, tables last."""
    order = sorted(model, key=lambda key: isinstance(model[key], dict | list) and key != "fit")
    text = json.dumps({key: model[key] for key in order}, indent=1)
    text = re.sub(r"\[[^\[\]{}\"]*\]", lambda found: re.sub(r"\s+", "", found.group()), text)
    return re.sub(r"\{[^{}\[\]]*\}", lambda found: re.sub(r"\s*\n\s*", " ", found.group()), text) + "\n"


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m traces.fit", description="fit a length model to a length file")
    recipes = parser.add_subparsers(dest="recipe", required=True)
    for recipe in (sharegpt, alpaca, lengths):
        _add_recipe(recipes, recipe)
    return parser


def _add_recipe(recipes: Any, recipe: Callable[..., Model]) -> None:
    command = recipes.add_parser(recipe.__name__, help=recipe.__doc__)
    command.set_defaults(make=recipe)
    command.add_argument("path", help="the length file")
    if recipe is alpaca:
        command.add_argument("outputs_path", help="the larger file of output lengths")
    if recipe is lengths:
        command.add_argument("--name", default="my-lengths", help="what the model is called")
        command.add_argument("--source", default="not given", help="where the lengths came from and their licence")
    command.add_argument("--out", required=True, help="the .json file to write")


def main(arguments: list[str] | None = None) -> int:
    """Run one recipe and write its model file; 2 where the input is bad."""
    options = vars(_parser().parse_args(arguments))
    make, out, _ = (options.pop(key) for key in ("make", "out", "recipe"))
    try:
        Path(out).write_text(to_text(make(**options)))
    except InputError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
