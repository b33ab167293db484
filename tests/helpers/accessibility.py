"""What axe-core finds in a page: obstacles for readers who do not see it, or not every colour."""

import pytest


def violations_of(page):
    """Each kind of violation in a tab: its name, how many there are, and the first."""
    module = pytest.importorskip("axe_playwright_python.sync_playwright", reason="no axe-core")
    found = module.Axe().run(page).response["violations"]
    return [
        f"{one['id']} ({len(one['nodes'])}): {one['help']}: {one['nodes'][0]['html']}"
        for one in found
    ]
