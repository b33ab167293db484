"""The pages of the repository and of its site: their links, their length, and those that are
generated.
"""

import re
from pathlib import Path

import pytest

from testbed.experiments.runs.meanings import SECTIONS
from testbed.experiments.site.generated_pages import PAGES, on_files
from testbed.memory.capabilities import METHODS
from testbed.vllm.option_table import options
from testbed.vllm.releases import facts

ROOT = Path(__file__).parents[2]
FOLDERS = (".github", "testbed", "kernels", "traces", "experiments", "findings")
COMMITTED = [
    *ROOT.glob("*.md"),
    *(path for name in FOLDERS for path in sorted((ROOT / name).rglob("*.md"))),
]
MKDOCS = ROOT / "experiments" / "site" / "mkdocs.yml"
LINK = re.compile(r"\]\(([^)\s]+)\)")
NAMED = re.compile(r"`((?:testbed|tests|experiments|traces|kernels|findings)/[\w./-]*\.\w+)`")
HISTORY = ROOT / "CHANGELOG.md"  # it names files that later changes have moved
HEADING = re.compile(r"(?m)^#+ (.*)$")


def text_of(page):
    """A page without its blocks of code."""
    return re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)


def links(page):
    """The links of a page's text to files."""
    text = text_of(page)
    return [link for link in LINK.findall(text) if "://" not in link and "mailto:" not in link]


def anchors(page):
    """The names by which a link leads to a heading."""
    for heading in HEADING.findall(page.read_text(encoding="utf-8")):
        words = re.sub(r"[^\w\- ]", "", heading.lower())
        yield words.strip().replace(" ", "-")


def named_tests(page):
    """Files and functions of the tests that a page names as FILE::TEST."""
    return re.findall(r"`([\w/]+\.py)::(\w+)`", page.read_text(encoding="utf-8"))


def num_words(page):
    return len(page.read_text(encoding="utf-8").split())


@pytest.mark.parametrize("page", COMMITTED, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_to_files_of_the_repository(page):
    for link in links(page):
        name, _, anchor = link.partition("#")
        target = (page.parent / name).resolve() if name else page
        assert target.is_relative_to(ROOT.resolve()), link
        assert target.exists(), link
        assert not anchor or anchor in anchors(target), link


@pytest.mark.parametrize("page", COMMITTED, ids=lambda page: str(page.relative_to(ROOT)))
def test_pages_name_no_file_outside_the_repository(page):
    assert "../shared" not in page.read_text(encoding="utf-8")


def test_each_encounter_has_a_test():
    page = ROOT / "experiments" / "ENCOUNTERS.md"
    rows = [line for line in page.read_text(encoding="utf-8").splitlines() if "test_" in line]
    assert len(named_tests(page)) == len(rows) > 30
    for file, name in named_tests(page):
        assert f"def {name}(" in (ROOT / "tests" / file).read_text(encoding="utf-8"), name


@pytest.mark.parametrize("page", COMMITTED, ids=lambda page: str(page.relative_to(ROOT)))
def test_named_files_exist(page):
    for name in NAMED.findall(text_of(page)) if page != HISTORY else ():
        assert (ROOT / name).exists(), name


def test_the_readme_and_the_design_are_read_in_minutes():
    assert 700 <= num_words(ROOT / "README.md") <= 1000
    assert num_words(ROOT / "testbed" / "DESIGN.md") <= 1500


def test_each_page_of_the_site_is_committed_or_generated():
    pages = re.findall(r"(?m)^ +- .*: (\S+\.md)$", MKDOCS.read_text(encoding="utf-8"))
    assert pages
    for page in pages:
        assert (ROOT / page).is_file() != (page in PAGES), page
    assert set(PAGES) <= set(pages)


@pytest.mark.parametrize(
    ("page", "names"),
    [
        ("experiments/VLLM_OPTIONS.md", list(options())),
        ("experiments/site/pages/options.md", [key for key in SECTIONS if key]),
        ("experiments/VLLM_RELEASES.md", [f"| `{name}`: " for name in facts()]),
        ("experiments/cli/JSON_FIELDS.md", ["| SweptMean | type | meaning |", "`half_width`"]),
        ("experiments/paper/ROWS.md", ["| 19b |", "| 12 | OPT-13B, ShareGPT: rate over Oracle |"]),
        ("kernels/results/h200.md", ["paging cost", "decode", "prefill", "swap"]),
        ("testbed/memory/CAPABILITIES.md", [protocol.__name__ for protocol in METHODS]),
    ],
)
def test_a_generated_page_has_all_that_it_is_of(page, names):
    text = PAGES[page]()
    assert text.startswith("# ")
    assert [name for name in names if name not in text] == []


def test_the_site_has_the_generated_pages(tmp_path):
    structure = pytest.importorskip("mkdocs.structure.files", reason="MkDocs is not installed")
    config = pytest.importorskip("mkdocs.config").load_config(str(MKDOCS), site_dir=str(tmp_path))
    files = on_files(structure.Files([]), config)
    assert [file.src_uri for file in files] == list(PAGES)
