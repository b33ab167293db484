"""The scripts of findings/: their headers, their table, and what they may not need."""

import os
import re

from findings_table import FOLDER, header, page

OTHER_HOST = re.compile(r"://(?!127\.0\.0\.1:)")


def test_the_table_is_that_of_the_scripts_headers():
    assert (FOLDER / "README.md").read_text() == page()


def test_each_script_pins_its_package_and_needs_nothing_of_this_project():
    scripts = sorted(FOLDER.glob("*.sh"))
    assert scripts
    for script in scripts:
        text, (name, version) = script.read_text(), header(script)["package"].split()
        assert os.access(script, os.X_OK)
        assert f"{name}=={version}" in text
        assert "testbed" not in text
        assert not OTHER_HOST.search(text)
