"""Configurations that a live server does not serve."""

import pytest

for package in ("fastapi", "uvicorn", "prometheus_client"):
    pytest.importorskip(package, reason=f"serving needs {package}")

from served import WORDS  # noqa: E402

from testbed.core.errors import InputError  # noqa: E402
from testbed.experiments.runs.compose import configured  # noqa: E402
from testbed.serving.server import ServeOptions, make_service  # noqa: E402

REFUSED = {
    "faults": "faults=0@1-2",
    "window_s": "window_s=[0,1]",
    "stop_at_latency": "stop_at_latency=1",
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_a_server_would_not_obey_is_refused_by_name(name):
    with pytest.raises(InputError, match=f"^{name}"):
        make_service(configured([*WORDS, REFUSED[name]]), ServeOptions())


def test_a_log_never_replaces_a_file(tmp_path):
    log = tmp_path / "requests.jsonl"
    log.write_text("kept")
    with pytest.raises(InputError, match="give a new file"):
        make_service(configured(list(WORDS)), ServeOptions(log=log))
    assert log.read_text() == "kept"
