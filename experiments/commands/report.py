"""`testbed report`: renders results as one self-contained HTML page."""

from pathlib import Path

from testbed.experiments.commands.parser import Parser
from testbed.experiments.runs.whole_files import write_text


def main(argv: list[str]) -> None:
    """Write the page."""
    this = Parser("report", "Figures, tables, scorecard, configurations and profiles on one HTML page.")
    this.add_argument("folders", nargs="+", type=Path, metavar="FOLDER",
                      help="folder of `testbed reproduce`, of runs, or of one run")  # fmt: skip
    this.add_argument("--out", type=Path, metavar="FILE", help="default: report.html in the first folder")
    options = this.parse_args(argv)
    from testbed.experiments.report.folder_page import folder_page

    out = options.out or options.folders[0] / "report.html"
    write_text(out, folder_page(options.folders))
    print(f"report: {out}")
