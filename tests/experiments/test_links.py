"""Links and paths of README and docs lead to files and headings of the repository."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FOLDERS = ("testbed", "kernels", "traces", "experiments", "findings", ".github")
PAGES = sorted(
    str(page.relative_to(ROOT))
    for page in (*ROOT.glob("*.md"), *(p for f in FOLDERS for p in (ROOT / f).rglob("*.md")))
    if not any(parent.is_symlink() for parent in page.parents)
)
LINK = re.compile(r"\]\(([^)\s]+)\)")
NAMED = re.compile(r"`((?:testbed|tests|experiments|traces|kernels|findings)/[\w./-]*\.\w+)`")
HISTORY = "CHANGELOG.md"  # it names files that later changes have moved


def text_of(page):
    """A page without its blocks of code."""
    return re.sub(r"```.*?```", "", (ROOT / page).read_text(encoding="utf-8"), flags=re.DOTALL)


def anchors(path):
    """The anchors of a page's headings, as GitHub and the site make them."""
    headings = re.findall(r"^#+ (.*)$", path.read_text(encoding="utf-8"), re.MULTILINE)
    return {
        re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-") for heading in headings
    }


@pytest.mark.parametrize("page", PAGES)
def test_links_lead_to_files_and_headings(page):
    for target in LINK.findall(text_of(page)):
        if target.startswith(("http:", "https:", "mailto:")):
            continue
        name, _, anchor = target.partition("#")
        file = (ROOT / page).parent / name if name else ROOT / page
        assert file.exists(), f"{page} links to {target}"
        if anchor:
            assert anchor in anchors(file), f"{page} links to {target}"


@pytest.mark.parametrize("page", [page for page in PAGES if page != HISTORY])
def test_named_files_exist(page):
    for name in NAMED.findall(text_of(page)):
        assert (ROOT / name).exists(), f"{page} names {name}"


def num_words(page):
    return len((ROOT / page).read_text(encoding="utf-8").split())


def test_readme_and_design_stay_short():
    assert 700 <= num_words("README.md") <= 1_000
    assert num_words("testbed/DESIGN.md") <= 1_500
