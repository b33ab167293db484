"""Pages of the documentation site that are made of the program's own values; no repository has
them. A hook of MkDocs: mkdocs.yml names this file.
"""

from collections.abc import Callable
from typing import Any

from testbed.experiments.site import (
    capability_table,
    json_fields,
    kernel_table,
    option_reference,
    paper_rows,
)
from testbed.experiments.vllm_server import option_page, release_page

PAGES: dict[str, Callable[[], str]] = {
    "experiments/site/pages/options.md": option_reference.page,
    "experiments/VLLM_OPTIONS.md": option_page.page,
    "experiments/VLLM_RELEASES.md": release_page.page,
    "experiments/cli/JSON_FIELDS.md": json_fields.page,
    "experiments/paper/ROWS.md": paper_rows.page,
    "kernels/results/h200.md": kernel_table.page,
    "testbed/memory/CAPABILITIES.md": capability_table.page,
}


def on_files(files: Any, config: Any) -> Any:
    """Add the pages to the files of the site."""
    from mkdocs.structure.files import File  # the extra `docs`

    for path, page in PAGES.items():
        files.append(File.generated(config, path, content=page()))
    return files
