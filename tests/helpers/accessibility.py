"""Findings of axe-core in a page: obstacles for readers who do not see it, or not every colour."""

import pytest


def violations_of(page):
    """Each kind of violation in a tab: its name, how many there are, and the first."""
    module = pytest.importorskip("axe_playwright_python.sync_playwright", reason="no axe-core")
    return list(map(_line, module.Axe().run(page).response["violations"]))


def _line(violation):
    nodes = violation["nodes"]
    return f"{violation['id']} ({len(nodes)}): {violation['help']}: {nodes[0]['html']}"
