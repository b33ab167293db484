"""`testbed import-lengths`: converts a data set of the paper's artifact to a CSV of lengths, and checks its hash."""

from testbed.experiments.commands.parser import Parser


def main(argv: list[str]) -> None:
    """Write the CSV, and report whether its rows are known; reading the pickle runs no code."""
    this = Parser("import-lengths", "Converts a pickled data set of the paper's artifact to a CSV of lengths.")
    this.add_argument("path", metavar="FILE.pkl", help="a pickled list of (prompt, output) lengths or token ids")
    this.add_argument("out", metavar="OUT.csv", help="the CSV to write, gzipped where its name ends in .gz")
    options = this.parse_args(argv)
    from testbed.traces.csv_lengths import PUBLISHED, read_pairs, rows_sha256, write_lengths

    rows = read_pairs(options.path)
    write_lengths(options.out, rows)
    means = f"{rows.prompt_len.mean():.2f} and {rows.output_len.mean():.2f}"
    digest = rows_sha256(rows)
    print(f"{len(rows):,} requests, means of {means} tokens: {options.out}")
    print(f"SHA-256 of the rows {digest}: {PUBLISHED.get(digest, 'not rows that this project knows')}")
