"""`testbed report`: a folder of results as one page."""

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter


def report(
    *folders: Annotated[
        Path,
        Parameter(
            name="FOLDER",
            required=True,
            help="folder of `testbed reproduce`, of runs, or of one run",
        ),
    ],
    html: Annotated[
        Path | None,
        Parameter(metavar="FILE", help="page to write (default: report.html in the first folder)"),
    ] = None,
) -> None:
    """Write one self-contained HTML page of results.

    Figures, tables, scorecard, configurations and profiles.
    """
    from testbed.experiments.look.report.folder_page import folder_page
    from testbed.experiments.runs.whole_files import write_text

    html = html or folders[0] / "report.html"
    write_text(html, folder_page(folders))
    print(f"report: {html}")
