"""Make a length model from a length file: `python -m traces.fit lengths FILE --out model.json`.

The embedded models were made by the other recipes (`python -m traces.fit --help`) from files that do not ship with the
project. A model file holds quantiles, their errors and where the lengths came from; it holds no row of the file. The
same file gives the same bytes.
"""

import argparse
import json
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from testbed.core.errors import InputError
from traces.fit_recipes import Model, alpaca, chat, lengths, sharegpt, wmt


def to_text(model: Model) -> str:
    """The file's text: one line a list of numbers or a flat group of facts, tables last."""
    order = sorted(model, key=lambda key: isinstance(model[key], dict | list) and key != "fit")
    text = json.dumps({key: model[key] for key in order}, indent=1)
    text = re.sub(r"\[[^\[\]{}\"]*\]", lambda found: re.sub(r"\s+", "", found.group()), text)
    return re.sub(r"\{[^{}\[\]]*\}", lambda found: re.sub(r"\s*\n\s*", " ", found.group()), text) + "\n"


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m traces.fit", description="fit a length model to a length file")
    recipes = parser.add_subparsers(dest="recipe", required=True)
    for recipe in (sharegpt, alpaca, wmt, chat, lengths):
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
    except (InputError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
