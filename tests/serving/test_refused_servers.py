"""Configurations that a live server does not serve."""

import socket

import pytest

for package in ("fastapi", "uvicorn", "prometheus_client"):
    pytest.importorskip(package, reason=f"serving needs {package}")

from generating import WORDS as GENERATING  # noqa: E402
from refusals import refuses  # noqa: E402
from served import WORDS  # noqa: E402
from served_elsewhere import train_tokenizer  # noqa: E402

from testbed.core.errors import InputError  # noqa: E402
from testbed.experiments.runs.compose import configured  # noqa: E402
from testbed.serving.http_server import ServeOptions, make_service, serve  # noqa: E402

REFUSED = {
    "policy": "policy=prefix_caching eviction@policy.eviction=belady",
    "faults": "replicas=2 faults=0@1-2",
    "window_s": "window_s=[0,1]",
    "stop_at_latency": "stop_at_latency=1",
    "workload": "workload.num_seqs=4",
    "slo": "slo.ttft_s=1",
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_a_server_would_not_obey_is_refused_by_name(name):
    with pytest.raises(InputError, match=f"^{name}"):
        make_service(configured([*WORDS, *REFUSED[name].split()]), ServeOptions())


def test_a_log_never_replaces_a_file(tmp_path):
    log = tmp_path / "requests.jsonl"
    log.write_text("kept")
    with pytest.raises(InputError, match="give a new file"):
        make_service(configured(list(WORDS)), ServeOptions(log=log))
    assert log.read_text() == "kept"


def test_an_address_that_another_server_has_is_refused(tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as other:
        options = ServeOptions(port=other.getsockname()[1], log=tmp_path / "requests.jsonl")
        refuses(f"--port {options.port}: ", serve, configured(list(WORDS)), options)
    assert not options.log.exists()


GPU_REFUSED = {
    "replicas": ("replicas=2", {}),
    "--speed": ("", {"speed": 2.0}),
    "--output-lengths": ("", {"output_lengths": "alpaca"}),
    "scheduler": ("+system=vllm-v1", {}),
}


@pytest.mark.parametrize("name", GPU_REFUSED)
def test_what_an_engine_does_not_have_is_refused_by_name(name):
    pytest.importorskip("torch", reason="torch is not installed")
    words, options = GPU_REFUSED[name]
    with pytest.raises(InputError, match=f"^{name}"):
        make_service(configured([*GENERATING, *words.split()]), ServeOptions(**options))


def test_a_tokenizer_with_more_ids_than_the_model_is_refused(tmp_path):
    pytest.importorskip("torch", reason="torch is not installed")
    folder = train_tokenizer(tmp_path / "tokenizer", ["some text"], size=300)
    with pytest.raises(InputError, match="the model 61"):
        make_service(configured(list(GENERATING)), ServeOptions(tokenizer=folder))
