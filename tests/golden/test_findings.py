"""The scripts of findings/: their headers, their table, and what they may not need."""

import os
import re

from testbed.experiments.site.findings_table import FOLDER, header, page

OTHER_HOST = re.compile(r"://(?!127\.0\.0\.1:)")


def test_the_sites_table_has_a_row_for_each_script():
    rows = [line for line in page().splitlines() if line.startswith("| `")]
    assert [row.split("`")[1] for row in rows] == sorted(s.name for s in FOLDER.glob("*.sh"))


def test_each_script_pins_its_package_and_needs_nothing_of_this_project():
    scripts = sorted(FOLDER.glob("*.sh"))
    assert scripts
    for script in scripts:
        text, (name, version) = script.read_text(), header(script)["package"].split()
        assert os.access(script, os.X_OK)
        assert f"{name}=={version}" in text
        assert "testbed" not in text
        assert not OTHER_HOST.search(text)
