"""`testbed fit-lengths`: fits a length model to user lengths, for `trace=sharegpt trace.model=FILE.json`."""

from pathlib import Path

from testbed.experiments.commands.parser import Parser


def parser() -> Parser:
    this = Parser("fit-lengths", "Fit a length model to a CSV of lengths.")
    this.add_argument("path", metavar="FILE", help="CSV with input_tokens and output_tokens, plain or .gz")
    this.add_argument("--out", type=Path, required=True, help="the .json file to write")
    this.add_argument("--name", default="my-lengths", help="the model's name (default: %(default)s)")
    this.add_argument("--source", default="not given", help="origin and licence of the lengths")
    return this


def main(argv: list[str]) -> None:
    """Write the model: quantiles and their errors against the file's statistics, no row of the file."""
    options = parser().parse_args(argv)
    from testbed.experiments.runs.whole_files import write_text
    from testbed.traces.fit_lengths import model_text

    write_text(options.out, model_text(options.path, options.name, options.source))
    print(f"{options.out}: use it as trace=sharegpt trace.model={options.out}")
