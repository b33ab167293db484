"""MkDocs hook: the Markdown files of the repository are pages under their own paths, so that their links stay right."""

import posixpath
import re
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).resolve().parents[2]
PAGES = {  # by the place on the site
    "README.md": "README.md",
    "CHANGELOG.md": "CHANGELOG.md",
    "CONTRIBUTING.md": ".github/CONTRIBUTING.md",
}
FOLDERS = ("testbed/*.md", "testbed/*/*.md", "kernels/ladder/README.md", "kernels/results/*.md", "traces/models/*.md",
           "experiments/*.md", "experiments/runs/*.md")  # fmt: skip
LINK = re.compile(r"(!?)\[([^\]]*)\]\(([^)\s#]+)(#[^)]*)?\)")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages and the pictures that they show."""
    found = {str(path.relative_to(ROOT)) for pattern in FOLDERS for path in ROOT.glob(pattern)}
    for place, source in (PAGES | {name: name for name in sorted(found)}).items():
        files.append(File.generated(config, place, abs_src_path=str(ROOT / source)))
        for _, _, target, _ in LINK.findall((ROOT / source).read_text(encoding="utf-8")):
            picture = posixpath.normpath(posixpath.join(posixpath.dirname(source), target))
            if "://" not in target and picture.endswith((".png", ".svg")) and files.get_file_from_path(picture) is None:
                files.append(File.generated(config, picture, abs_src_path=str(ROOT / picture)))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Keep links to pages; a link to a source file, which is no page, becomes the file's name."""
    place = page.file.src_uri
    folder = posixpath.dirname(PAGES.get(place, place))

    def link(match: re.Match[str]) -> str:
        picture, text, target, anchor = match.groups()
        if re.match(r"[a-z]+:", target):
            return match[0]
        path = posixpath.normpath(posixpath.join(folder, target))
        known = {source: page for page, source in PAGES.items()}.get(path, path)
        if files.get_file_from_path(known) is None:
            if not (ROOT / path).exists():
                raise FileNotFoundError(f"{place}: a link to {target}, which is not in the repository")
            return text
        return f"{picture}[{text}]({posixpath.relpath(known, posixpath.dirname(place) or '.')}{anchor or ''})"

    return LINK.sub(link, markdown)
