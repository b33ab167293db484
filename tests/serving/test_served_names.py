"""The names of a served model: those of the server's command, before its own."""

import pytest

for package in ("fastapi", "uvicorn", "prometheus_client", "httpx"):
    pytest.importorskip(package, reason=f"serving needs {package}")

from served import LONG_S, MODEL, get, running  # noqa: E402

import httpx  # noqa: E402  # isort: skip

from testbed.experiments.cli.served_command import ServedCommand  # noqa: E402

HF = "meta-llama/Llama-3.1-8B-Instruct"
NAMES = {
    f"vllm serve {HF}": (HF,),
    f"vllm serve {HF} --served-model-name chat": ("chat",),
    f"vllm serve {HF} --served-model-name chat chat-v2 --port 80": ("chat", "chat-v2"),
    f"vllm serve --model {HF} --port 80": (HF,),
}


@pytest.mark.parametrize("command", NAMES)
def test_a_vllm_command_names_the_model_as_vllm_does(command):
    assert ServedCommand(from_vllm=command).names == NAMES[command]


def test_a_sglang_command_names_the_model_as_sglang_does():
    command = f"sglang serve --model-path {HF}"
    assert ServedCommand(from_sglang=command).names == (HF,)
    assert ServedCommand(from_sglang=f"{command} --served-model-name m").names == ("m",)
    assert ServedCommand().names == ()


def test_requests_may_name_the_model_by_each_of_its_names():
    with running(speed=20.0, names=(HF,)) as server:
        listed = [model["id"] for model in get(f"{server.url}/v1/models").json()["data"]]
        assert listed == [HF, MODEL]
        for name, status in ((HF, 200), (MODEL, 200), ("other", 404)):
            body = {"model": name, "prompt": "a b c", "max_tokens": 3}
            answer = httpx.post(f"{server.url}/v1/completions", json=body, timeout=LONG_S)
            assert answer.status_code == status
            assert status == 404 or answer.json()["model"] == HF
        assert f'model_name="{HF}"' in get(f"{server.url}/metrics").text
