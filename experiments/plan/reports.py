"""The reports of the runs that a plan's page links to."""

from pathlib import Path

from testbed.experiments.look.report.folder_page import folder_page
from testbed.experiments.plan.deployment_plan import Plan
from testbed.experiments.plan.rows import rows_of
from testbed.experiments.plan.shown import REPORT
from testbed.experiments.runs.whole_files import write_text


def write_reports(plan: Plan, runs: Path) -> None:
    """Write the report of the first run of each row into its folder, if there is none."""
    for row in rows_of(plan):
        if row.runs and not (runs / row.runs[0] / REPORT).is_file():
            folder = runs / row.runs[0]
            write_text(folder / REPORT, folder_page([folder]))
